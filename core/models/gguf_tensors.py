"""Which tensors a GGUF of this checkpoint has, and of which source rows each consists."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.hf import same_samples
from core.contract import ElementType
from core.errors import UserError
from core.formats.numbers import Numbers
from core.models.config import DecoderConfig, read_config
from core.models.gguf_check import check_expressible, check_tensors, window_warning
from core.models.gguf_names import GGUFName, gguf_name, is_skipped
from core.tensor_info import Role, TensorInfo


@dataclass(frozen=True)
class Piece:
    """Rows start…stop of a source tensor, seen as rows × K."""

    tensor: TensorInfo
    start: int
    stop: int


@dataclass(frozen=True)
class MappedTensor:
    """One tensor of the output.

    shape: numpy's order. pieces: source rows that, one after the other, are its rows; a stack of experts [E, N, K] has
    one piece an expert. values: float32 values of a tensor that no source has (rope factors); it has no pieces.
    permute_heads: the rows of each of so many heads are interleaved: row 2j+s of the output is row s·D/2 + j of the
    source, D rows a head (Hugging Face rotates halves of a head, llama.cpp's `llama` rotates neighbours).
    add: added to each value (Gemma stores norm weights less one). keep: no mix may quantize it: F32 from a folder, its
    own type from a GGUF.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    permute_heads: int = 0
    add: float = 0.0
    values: np.ndarray | None = None
    role: Role = Role.OTHER
    layer: int | None = None
    keep: bool = False

    @cached_property
    def sources(self) -> tuple[TensorInfo, ...]:
        """The source tensors, each once, in order; empty for a computed tensor."""
        return tuple({p.tensor.name: p.tensor for p in self.pieces}.values())

    @property
    def rows(self) -> int:
        """Rows of K values; a vector is one row."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @cached_property
    def identity(self) -> bool:
        """True when its bytes are those of one whole source tensor, so that they can be copied."""
        return (
            len(self.pieces) == 1
            and not self.permute_heads
            and not self.add
            and self.pieces[0].start == 0
            and self.pieces[0].stop == self.pieces[0].tensor.rows
        )

    @property
    def dtype(self) -> str:
        """The stored type of its values; that of its first source when several are stacked. F32 when computed."""
        return self.pieces[0].tensor.dtype if self.pieces else "F32"

    @property
    def packed(self) -> bool:
        """Whether it comes from packed weights, which have no bytes of their own that could be copied."""
        return any(p.tensor.packed for p in self.pieces)

    @property
    def numbers(self) -> Numbers | None:
        """What the source's codes stand for, where all of them can be taken over as they are."""
        first = self.pieces[0].tensor.numbers if self.pieces else None
        if first is None or self.add or (self.permute_heads and first.tile > 1):
            return None
        return first if all(p.tensor.numbers == first for p in self.pieces) else None

    def scales_fit(self, dtype: ElementType) -> bool:
        """Whether each scale of its sources, which have `numbers`, is a value of that float type. Reads them."""
        return all(p.tensor.scales_fit is not None and p.tensor.scales_fit(dtype) for p in self.pieces)

    @property
    def input_scale(self) -> bool:
        """Whether a static scale of the activations is stored beside all of the source."""
        return bool(self.pieces) and all(p.tensor.input_scale for p in self.pieces)

    @cached_property
    def source_bytes(self) -> int:
        """Bytes of the source rows."""
        return sum(p.tensor.nbytes // p.tensor.rows * (p.stop - p.start) for p in self.pieces if p.tensor.rows)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """All that a plan looks at but the name and the layer. A model has few kinds, however many layers it has."""
        weight = self.name.endswith(".weight")
        return (
            self.role.value,
            self.shape,
            self.dtype,
            self.source_bytes,
            self.keep,
            self.identity,
            weight,
            self.numbers,
        )


def map_tensors(checkpoint: Checkpoint) -> tuple[MappedTensor, ...]:
    """The tensors of a GGUF of this checkpoint, in the order of the model: embedding, layers, output.

    A GGUF source maps onto itself. Raises UserError for an architecture that does not convert, a checkpoint that is
    already quantized, a tensor without a place, missing experts, and missing layers.
    """
    if checkpoint.container is Container.GGUF:
        return identity_tensors(checkpoint)
    config = convertible_config(checkpoint)
    stacks: dict[str, dict[int, Piece]] = defaultdict(dict)
    mapped: list[MappedTensor] = []
    for tensor in checkpoint.tensors:
        if is_skipped(tensor.name) or is_tied_head(checkpoint, tensor, config):
            continue
        target = gguf_name(tensor.name, config.architecture)
        if target is None:
            raise UserError(
                f"The tensor '{tensor.name[:80]}' has no place in a GGUF of the architecture {config.architecture}.",
                "Choose a safetensors target, or check that the folder holds only this model.",
            )
        if target.stacked:
            for name, pieces in _expert_pieces(tensor, target, config).items():
                stacks[name].update(pieces)
            mapped += [MappedTensor(name, (), ()) for name in _stack_names(target)]  # its place; filled in below
        else:
            mapped.append(_plain(tensor, target.name, config))
    done = {m.name: m if m.pieces else _stack(m.name, stacks[m.name], config) for m in mapped}
    if len(done) != len([m for m in mapped if m.pieces]) + len(stacks):
        raise UserError("Two tensors of the checkpoint go to the same place.", "Check the folder for leftover files.")
    check_tensors(done, config)
    computed = {m.name: m for m in _rope_tensors(config)}
    return tuple(sorted((computed | done).values(), key=lambda m: _model_order(m.name)))


def identity_tensors(checkpoint: Checkpoint) -> tuple[MappedTensor, ...]:
    """Every tensor as itself, in file order."""
    return tuple(
        MappedTensor(
            name=t.name,
            shape=t.shape or (1,),
            pieces=(Piece(t, 0, t.rows),),
            role=t.role,
            layer=t.layer,
            keep=_must_stay(t.name, t.shape, t.role),
        )
        for t in checkpoint.tensors
    )


def convertible_config(checkpoint: Checkpoint) -> DecoderConfig:
    """The configuration of a checkpoint that converts to GGUF, else UserError."""
    config = read_config(checkpoint.config)
    if config is None:
        raise UserError(
            "The folder has no config.json that says how the model is built.",
            "Add the model's config.json, or open a GGUF file.",
        )
    if not config.architecture:
        names = checkpoint.config.get("architectures") or [config.model_type or "unknown"]
        raise UserError(
            f"Conversion to GGUF does not know the architecture {names[0]}.",
            "Choose a safetensors target such as w4a16-g128, which needs no names.",
        )
    quantized = checkpoint.config.get("quantization_config")
    if quantized and not any(t.packed for t in checkpoint.tensors):
        method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
        method = method or "a method that config.json does not name"
        raise UserError(
            f"The checkpoint is already quantized ({method}).", "Convert from the original 16-bit model instead."
        )
    check_expressible(config)
    return config


def conversion_warning(checkpoint: Checkpoint) -> str:
    """One sentence on what llama.cpp will do otherwise than the model, '' when nothing is known."""
    config = None if checkpoint.container is Container.GGUF else read_config(checkpoint.config)
    return window_warning(config) if config is not None and config.architecture else ""


def _plain(tensor: TensorInfo, name: str, config: DecoderConfig) -> MappedTensor:
    shape, rows = tensor.shape or (1,), tensor.rows
    if name in ("token_embd.weight", "output.weight") and config.architecture == "gemma3" and 0 < config.vocab < rows:
        rows = config.vocab  # rows past the vocabulary are never looked up, and the loader wants exactly one a token
        shape = (rows, *shape[1:])
    heads = 0
    if config.architecture == "llama":
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name.split(".")[-2], 0)
        if heads and (rows if len(shape) > 1 else shape[0]) % (2 * heads):
            raise UserError(
                f"'{tensor.name}' can not be divided among {heads} heads.", "Check config.json against the weights."
            )
    add = 1.0 if config.architecture in ("gemma2", "gemma3") and name.endswith("norm.weight") else 0.0
    return MappedTensor(
        name=name,
        shape=shape,
        pieces=(Piece(tensor, 0, rows),),
        permute_heads=heads,
        add=add,
        role=tensor.role,
        layer=_layer(name),
        keep=_must_stay(name, shape, tensor.role),
    )


def _layer(name: str) -> int | None:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else None


# Matrices that llama.cpp does not quantize either: routers, short convolutions, positions, small gates of Gemma 3n and
# of recurrent models.
_STAY = re.compile(
    r"_norm\.weight$|ffn_gate_inp|ffn_gate_tid2eid|^position_embd|^token_types|ssm_conv1d|shortconv\.conv|"
    r"altup|laurel|per_layer_model_proj|indexer\.[kq]_proj|time_mix_(?:first|[wvag]\d|decay_w\d|lerp_fused)|attn_rel_b"
)


def _must_stay(name: str, shape: tuple[int, ...], role: Role) -> bool:
    return (
        len(shape) <= 1
        or not name.endswith(".weight")
        or _STAY.search(name) is not None
        or role in (Role.NORM, Role.ROUTER, Role.ROPE, Role.CONV)
    )


def is_tied_head(checkpoint: Checkpoint, tensor: TensorInfo, config: DecoderConfig) -> bool:
    """True for a stored head that only repeats the embedding. One that differs is the model's own, whatever is said."""
    if not tensor.name.endswith("lm_head.weight"):
        return False
    if tensor.tied_to or not config.tied:
        return bool(tensor.tied_to)
    embed = next((t for t in checkpoint.tensors if t.role is Role.EMBED), None)
    if embed is None or (embed.shape, embed.dtype) != (tensor.shape, tensor.dtype):
        return False
    return same_samples(checkpoint, embed, tensor)


def _stack_names(target: GGUFName) -> tuple[str, ...]:
    up = target.name.replace("ffn_gate_exps", "ffn_up_exps")
    return (target.name, up) if target.halves else (target.name,)


def _expert_pieces(tensor: TensorInfo, target: GGUFName, config: DecoderConfig) -> dict[str, dict[int, Piece]]:
    if target.expert is not None:
        return {target.name: {target.expert: Piece(tensor, 0, tensor.rows)}}
    if len(tensor.shape) != 3:
        raise UserError(f"'{tensor.name}' should hold one matrix an expert.", "Check the folder for leftover files.")
    experts, rows, columns = tensor.shape
    wide = config.expert_intermediate
    if (rows, columns) != ((2 * wide, config.hidden) if target.halves else (config.hidden, wide)):
        raise UserError(
            f"The experts of '{tensor.name}' are stored in an order that conversion does not know.",
            "Save the model again with a current version of transformers.",
        )
    size = rows // 2 if target.halves else rows
    return {
        name: {e: Piece(tensor, e * rows + i * size, e * rows + (i + 1) * size) for e in range(experts)}
        for i, name in enumerate(_stack_names(target))
    }


def _stack(name: str, pieces: dict[int, Piece], config: DecoderConfig) -> MappedTensor:
    missing = sorted(set(range(config.experts)) - set(pieces))
    if missing or len(pieces) != config.experts:
        which = f"expert {missing[0]}" if missing else f"only {config.experts} experts"
        raise UserError(
            f"'{name}' should have {which}.", "A shard may be missing: download the model again, or check config.json."
        )
    ordered = tuple(pieces[e] for e in sorted(pieces))
    shapes = {(p.stop - p.start, p.tensor.columns) for p in ordered}
    if len(shapes) != 1:
        raise UserError(f"The experts of '{name}' differ in shape.", "Check the checkpoint against its original.")
    part = {"gate": Role.FFN_GATE, "up": Role.FFN_UP, "down": Role.FFN_DOWN}
    role = part[name.split("ffn_")[1].split("_")[0]]
    return MappedTensor(name, (len(ordered), *shapes.pop()), ordered, role=role, layer=_layer(name))


def _rope_tensors(config: DecoderConfig) -> list[MappedTensor]:
    rope = config.rope
    if config.architecture == "llama" and rope.kind == "llama3":
        return [_computed("rope_freqs.weight", rope.llama3_factors(config.head_dim))]
    if config.architecture == "phi3" and rope.long_factor:
        size = int(rope.partial * config.hidden) // config.heads // 2
        if not len(rope.long_factor) == len(rope.short_factor) == size:
            raise UserError(
                f"config.json should have {size} long and {size} short rope factors.",
                "Compare the file with the model's original.",
            )
        return [
            _computed("rope_factors_long.weight", rope.long_factor),
            _computed("rope_factors_short.weight", rope.short_factor),
        ]
    return []


def _computed(name: str, values: tuple[float, ...]) -> MappedTensor:
    return MappedTensor(name, (len(values),), (), values=np.array(values, np.float32), role=Role.ROPE, keep=True)


_PARTS = ("attn_norm", "attn_", "post_attention_norm", "ffn_norm", "ffn_", "post_ffw_norm")


def _model_order(name: str) -> tuple[int, int, int, str]:
    """Embedding and tables, layers by number and by the order in which they compute, output."""
    match = re.match(r"blk\.(\d+)\.(.+)", name)
    if match is None:
        return (2 if name.startswith("output") else 0, 0, 0, name)
    part = next((i for i, p in enumerate(_PARTS) if match[2].startswith(p)), len(_PARTS))
    return (1, int(match[1]), part, match[2])
