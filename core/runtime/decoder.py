"""A decoder's configuration and weights as a Program. One function a block; families differ by what they have.

Tensors go by GGUF's names, whatever file they come from, and every projection is on its own: fused ones are cut when
they are loaded. An expert's matrices are 'blk.<layer>.ffn_gate.<expert>.weight'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from core.errors import UserError
from core.kv.layout import with_scheme
from core.kv.scheme import CacheScheme
from core.models.config import DecoderConfig
from core.runtime.rope import rope_frequencies
from core.units import format_count
from kernels.matrix import Activations, Matrix
from kernels.program import (
    ActMul,
    Add,
    Attention,
    CacheLayout,
    CacheScales,
    Embed,
    Experts,
    Hadamard,
    Linear,
    Norm,
    Program,
    Rope,
    SoftCap,
    Step,
)
from kernels.rotation import Rotation

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3")  # GGUF's names
POST_NORMS = ("gemma2", "gemma3")  # that normalize before they add to the residual stream
_HEAD_NORMS = ("qwen3", "qwen3moe", "gemma3")
MAX_SIZE, MAX_HEAD = 1 << 31, 1 << 16
MAX_PARTS = 1 << 17  # layers × experts; the largest models have some 20,000
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
}


@dataclass(frozen=True)
class DecoderWeights:
    """matrices: by name, the head ('output.weight') absent when it is the embedding. vectors: float32, norms' gains
    as they are multiplied with, and biases. pairs: queries and keys are in GGUF's order of rotary pairs. rotations: of
    down projections that are stored rotated, by name, which their input then has to be, too.
    """

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, np.ndarray]
    pairs: bool = False
    rotations: Mapping[str, Rotation] = field(default_factory=dict)


def check_decoder(config: DecoderConfig) -> None:
    """Raise UserError for a decoder that is none of the families, or differs from them."""
    if config.architecture not in FAMILIES:
        raise UserError(
            f"Models of the kind '{config.model_type or 'unknown'}' can not be run yet.",
            f"Those that can are {', '.join(FAMILIES)}.",
        )
    if config.activation not in _ACTIVATIONS:
        raise UserError(f"The activation function '{config.activation}' is not known.", "Look for a newer version.")
    if config.bidirectional:
        raise UserError("The model looks in both directions, so it can not write text.", "Choose a text model.")
    sizes = (config.heads, config.kv_heads, config.head_dim, config.hidden, config.vocab, config.context)
    if min(*sizes, config.layers) < 1 or max(*sizes, config.intermediate) > MAX_SIZE or config.head_dim > MAX_HEAD:
        raise UserError(
            "The configuration has a size that no model has.", "Compare the configuration with the model's original."
        )
    if config.layers * max(config.experts, 1) > MAX_PARTS:
        raise UserError(
            f"{format_count(config.layers)} layers and {format_count(config.experts)} experts are more than any "
            "model has.",
            "Compare the configuration with the model's original.",
        )
    if config.heads % config.kv_heads:
        raise UserError(
            f"{config.heads} query heads can not share {config.kv_heads} key heads.",
            "Compare the configuration with the model's original.",
        )
    if not 0 <= config.experts_used <= config.experts or (config.experts and not config.experts_used):
        raise UserError(
            f"{config.experts_used} of {config.experts} experts can not be used.",
            "Compare the configuration with the model's original.",
        )
    for what, value, most in (
        ("epsilon of the norms", config.rms_eps, 1.0),
        ("scale of the attention", config.attention_scalar, MAX_SIZE),
        ("soft cap of the attention", config.attention_softcap or 0.0, MAX_SIZE),
        ("soft cap of the output", config.final_softcap or 0.0, MAX_SIZE),
        ("sliding window", config.window, MAX_SIZE),
    ):
        if not 0 <= value <= most:  # nor NaN
            raise UserError(
                f"The {what} is {value:g}, which no model has.", "Compare the configuration with the model's original."
            )
    windows(config)
    for local in (False, True):
        rope_frequencies(config, config.context, local)


def windows(config: DecoderConfig) -> tuple[bool, ...]:
    """Which layers look back over the window only."""
    return config.layer_windows if config.window else (False,) * config.layers


def tensor_shapes(
    config: DecoderConfig, dense: frozenset[int] = frozenset()
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Shapes by name of the tensors that the decoder needs, and of those that it may have (biases, a head of its own).

    dense: layers without experts in a mixture of experts. Matrices are [rows, columns].
    """
    hidden, head = config.hidden, config.head_dim
    queries, keys = config.heads * head, config.kv_heads * head
    needed: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden), "output_norm.weight": (hidden,)}
    allowed: dict[str, tuple[int, ...]] = {"output.weight": (config.vocab, hidden), "output.bias": (config.vocab,)}
    for i in range(config.layers):
        at = f"blk.{i}."
        shapes = {"attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden)}
        shapes["attn_output"] = (hidden, queries)
        if config.experts and i not in dense:
            wide = config.expert_intermediate
            needed[at + "ffn_gate_inp.weight"] = (config.experts, hidden)
            for e in range(config.experts):
                needed |= dict.fromkeys((f"{at}ffn_gate.{e}.weight", f"{at}ffn_up.{e}.weight"), (wide, hidden))
                needed[f"{at}ffn_down.{e}.weight"] = (hidden, wide)
        else:
            wide = config.intermediate
            shapes |= {"ffn_gate": (wide, hidden), "ffn_up": (wide, hidden), "ffn_down": (hidden, wide)}
        needed |= {f"{at}{part}.weight": shape for part, shape in shapes.items()}
        allowed |= {f"{at}{part}.bias": shape[:1] for part, shape in shapes.items()}
        norms = ["attn_norm", "ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm"] if config.architecture in POST_NORMS else []
        needed |= {f"{at}{part}.weight": (hidden,) for part in norms}
        if config.architecture in _HEAD_NORMS:
            needed |= dict.fromkeys((at + "attn_q_norm.weight", at + "attn_k_norm.weight"), (head,))
    return needed, allowed


def decoder_program(
    config: DecoderConfig,
    weights: DecoderWeights,
    capacity: int,
    sequences: int = 1,
    activations: Activations = Activations.FAST,
    cache: str = "F16",
    outliers: float = 0.0,
    scales: CacheScales = (),
) -> Program:
    """The steps of one pass: embedding, layers, head. `weights` must have all of `tensor_shapes`.

    capacity: positions a sequence. cache: a scheme of `core.kv` as text; scales: of FP8, as `CacheLayout`'s.
    outliers: as `kernels.program.Linear`'s.
    Raises UserError as `check_decoder`.
    """
    check_decoder(config)
    build = _Builder(config, weights, outliers)
    gemma = config.architecture in POST_NORMS
    embedding = weights.matrices["token_embd.weight"]
    build.add("token_embd", Embed(embedding, build.x, math.sqrt(config.hidden) if gemma else 1.0))
    ropes = [rope_frequencies(config, capacity, local) for local in (False, True)]
    for i, slides in enumerate(windows(config)):
        _attention(build, i, slides, *ropes[slides])
        _feed_forward(build, i)
    build.norm("output_norm", build.x, build.normed)
    logits = build.buffer("logits", config.vocab)
    head = weights.matrices.get("output.weight", embedding)
    bias = weights.vectors.get("output.bias")
    build.add("output", Linear(build.normed, (head,), (logits,), (bias,), logits=True, outliers=outliers))
    if config.final_softcap:
        build.add("output softcap", SoftCap(logits, config.final_softcap))
    layout = CacheLayout(((config.kv_heads, config.head_dim),) * config.layers, capacity, sequences)
    program = Program(tuple(build.steps), tuple(build.widths), logits, layout, activations, tuple(build.labels))
    return with_scheme(program, capacity, sequences, CacheScheme.parse(cache), scales)


@dataclass
class _Builder:
    """Steps so far. Buffers have names; all layers share them."""

    config: DecoderConfig
    weights: DecoderWeights
    outliers: float = 0.0
    steps: list[Step] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    _buffers: dict[str, int] = field(default_factory=dict)

    def buffer(self, name: str, width: int) -> int:
        if name not in self._buffers:
            self._buffers[name] = len(self.widths)
            self.widths.append(width)
        return self._buffers[name]

    @property
    def x(self) -> int:
        """The residual stream."""
        return self.buffer("x", self.config.hidden)

    @property
    def normed(self) -> int:
        return self.buffer("normed", self.config.hidden)

    def add(self, label: str, step: Step) -> None:
        self.steps.append(step)
        self.labels.append(label)

    def norm(self, name: str, x: int, out: int, heads: int = 1) -> None:
        self.add(name, Norm(x, out, self.weights.vectors[name + ".weight"], self.config.rms_eps, heads))

    def linear(self, at: str, parts: tuple[str, ...], x: int, outs: tuple[int, ...], accumulate: bool = False) -> None:
        matrices = tuple(self.weights.matrices[f"{at}{part}.weight"] for part in parts)
        biases = tuple(self.weights.vectors.get(f"{at}{part}.bias") for part in parts)
        self.add(at + "+".join(parts), Linear(x, matrices, outs, biases, accumulate, outliers=self.outliers))

    def into_residual(self, at: str, part: str, x: int, post_norm: str) -> None:
        """x += projection, normalized first where the family does so."""
        if self.config.architecture not in POST_NORMS:
            self.linear(at, (part,), x, (self.x,), accumulate=True)
            return
        self.linear(at, (part,), x, (self.normed,))
        self.norm(at + post_norm, self.normed, self.normed)
        self.add(f"{at}{post_norm} residual", Add(self.normed, self.x))


def _attention(build: _Builder, layer: int, slides: bool, frequencies: np.ndarray, rope_scale: float) -> None:
    config, at = build.config, f"blk.{layer}."
    heads, kv_heads, width = config.heads, config.kv_heads, config.head_dim
    q, k, v = (build.buffer(n, h * width) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
    out = build.buffer("attention", heads * width)
    build.norm(at + "attn_norm", build.x, build.normed)
    build.linear(at, ("attn_q", "attn_k", "attn_v"), build.normed, (q, k, v))
    for part, x, count in (("q", q, heads), ("k", k, kv_heads)):
        if config.architecture in _HEAD_NORMS:
            build.norm(f"{at}attn_{part}_norm", x, x, count)
        build.add(f"{at}rope_{part}", Rope(x, count, frequencies, rope_scale, build.weights.pairs))
    scalar = float(width)
    if config.architecture in POST_NORMS:
        scalar = config.attention_scalar
    window = config.window if slides else 0
    cap = config.attention_softcap or 0.0
    step = Attention(q, k, v, out, layer, heads, kv_heads, width, scalar**-0.5, window, cap)
    build.add(at + "attention", step)
    build.into_residual(at, "attn_output", out, "post_attention_norm")


def _feed_forward(build: _Builder, layer: int) -> None:
    config, at = build.config, f"blk.{layer}."
    build.norm(at + "ffn_norm", build.x, build.normed)
    if f"{at}ffn_gate_inp.weight" in build.weights.matrices:
        _experts(build, at)
        return
    gate, up = build.buffer("gate", config.intermediate), build.buffer("up", config.intermediate)
    build.linear(at, ("ffn_gate", "ffn_up"), build.normed, (gate, up))
    build.add(at + "ffn_act", ActMul(gate, up, gate, _ACTIVATIONS[config.activation]))
    if rotation := build.weights.rotations.get(f"{at}ffn_down.weight"):
        build.add(at + "ffn_down rotation", Hadamard(gate, rotation))
    build.into_residual(at, "ffn_down", gate, "post_ffw_norm")


def _experts(build: _Builder, at: str) -> None:
    config = build.config
    router = build.buffer("router", config.experts)
    build.linear(at, ("ffn_gate_inp",), build.normed, (router,))
    gates, ups, downs = (
        tuple(build.weights.matrices[f"{at}{part}.{e}.weight"] for e in range(config.experts))
        for part in ("ffn_gate", "ffn_up", "ffn_down")
    )
    kind = _ACTIVATIONS[config.activation]
    rotation = build.weights.rotations.get(f"{at}ffn_down.0.weight")
    how = config.experts_used, config.router_normalized, kind, rotation
    step = Experts(build.normed, router, build.x, gates, ups, downs, *how)
    build.add(at + "experts", step)
