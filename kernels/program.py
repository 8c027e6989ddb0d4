"""A decoder as a list of steps on buffers: what the engine runs. No model names, no files.

Every buffer is float32 [M, width], one row a token of the batch; steps name buffers by number. A token is known by its
sequence (a slot of the cache) and its position there, so prompts of mixed lengths and single steps of many sequences
are one and the same batch. `kernels.reference.program` is the definition; the compiled engine runs the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from kernels.kv import CACHE_FORMATS, kinds, reserved_bytes
from kernels.matrix import Activations, Matrix
from kernels.rotation import Rotation


@dataclass(frozen=True)
class Embed:
    """out = scale · rows of `weight` at the tokens."""

    weight: Matrix
    out: int
    scale: float = 1.0


@dataclass(frozen=True)
class Norm:
    """out = x / √(mean(x²) + eps) · gain, over the row, or over each of `heads` equal slices of it.

    gain: float32 [width / heads]. x and out may be one buffer.
    """

    x: int
    out: int
    gain: np.ndarray
    eps: float
    heads: int = 1


@dataclass(frozen=True)
class Linear:
    """outs[i] = x · weights[i]ᵀ + biases[i] (None: without), or += where `accumulate`. The x is quantized once for all.

    logits: only the rows that the caller wants are computed, the others' out is undefined.
    outliers: LLM.int8(): columns of x whose magnitude reaches it go through float weights; 0: off.
    """

    x: int
    weights: tuple[Matrix, ...]
    outs: tuple[int, ...]
    biases: tuple[np.ndarray | None, ...] = ()
    accumulate: bool = False
    logits: bool = False
    outliers: float = 0.0


@dataclass(frozen=True)
class Split:
    """outs[i] = the i-th run of `widths[i]` columns of x (a fused query-key-value or gate-up projection)."""

    x: int
    outs: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Rope:
    """Rotates the first 2·len(frequencies) values of each head by position · frequencies[i], in place, times `scale`.

    frequencies: float32, radians a position. pairs: value 2i turns with 2i+1 (GGUF's llama order); otherwise value i
    with i + len(frequencies) (Hugging Face).
    """

    x: int
    heads: int
    frequencies: np.ndarray
    scale: float = 1.0
    pairs: bool = False


@dataclass(frozen=True)
class Attention:
    """Stores k and v of the batch in cache `layer`, then out = softmax(scale · q·kᵀ) · v over each token's own past.

    window: a token sees the last `window` positions, itself included; 0: all. softcap: scores become
    softcap · tanh(score / softcap); 0: off. Query head h uses key head h · kv_heads // heads. rope: the rotary step of
    `k` where keys are stored before it, and it is done when they are read.
    """

    q: int
    k: int
    v: int
    out: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    rope: Rope | None = None


@dataclass(frozen=True)
class ActMul:
    """out = f(gate) · up. kind: 'silu', 'gelu' (exact) or 'gelu_tanh'. out may be gate or up."""

    gate: int
    up: int
    out: int
    kind: str = "silu"


@dataclass(frozen=True)
class Hadamard:
    """x = x R, in place, run after run: the weights that it meets next are stored as W R."""

    x: int
    rotation: Rotation


@dataclass(frozen=True)
class Add:
    """out += x."""

    x: int
    out: int


@dataclass(frozen=True)
class Experts:
    """out += Σ over the chosen experts of weight · down(f(gate(x)) · up(x)).

    logits: buffer with the router's logits [M, experts]; softmax over all, the `used` largest are chosen, and their
    weights divided by their sum where `normalized`. gates, ups, downs: one Matrix an expert. rotation: of what comes
    into each `down`, as `Hadamard` has it; None: it comes as it is.
    """

    x: int
    logits: int
    out: int
    gates: tuple[Matrix, ...]
    ups: tuple[Matrix, ...]
    downs: tuple[Matrix, ...]
    used: int
    normalized: bool = True
    kind: str = "silu"
    rotation: Rotation | None = None


@dataclass(frozen=True)
class SoftCap:
    """x = cap · tanh(x / cap), in place."""

    x: int
    cap: float


Step = Embed | Norm | Linear | Split | Rope | Attention | ActMul | Hadamard | Add | Experts | SoftCap


# Of FP8: (of keys, of values) for each layer, each with one number for all heads or one a head; () of a side: 1.
CacheScales = tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]


@dataclass(frozen=True)
class CacheLayout:
    """Keys and values that are kept: per layer (kv_heads, head_dim), for `sequences` of `capacity` positions each.

    dtype: a format of `kernels.kv` for both, or two, of keys and of values: 'Q8_0/Q4_0'. window, sinks: the last and
    the first tokens, which stay in float16 where a format is no float; rotate_keys, rotate_values: by
    `kernels.reference.kv.hadamard`, where it is none. kept: layers that are in F16 whatever the rest says. scales: of
    FP8; (): 1.
    """

    layers: tuple[tuple[int, int], ...]
    capacity: int
    sequences: int = 1
    dtype: str = "F16"
    window: int = 0
    sinks: int = 0
    rotate_keys: bool = False
    rotate_values: bool = False
    kept: frozenset[int] = frozenset()
    scales: CacheScales = ()

    @property
    def waits(self) -> bool:
        """Whether some tokens become codes later than they come, so that positions of a sequence come without gaps."""
        forms = [CACHE_FORMATS[name] for name in kinds(self.dtype)]
        coded = any(not form.is_float for form in forms)
        return any(form.waits > 1 for form in forms) or (coded and bool(self.window or self.sinks))

    def layer(self, index: int) -> CacheLayout:
        """What holds for this layer alone."""
        scales = self.scales[index : index + 1]
        if index in self.kept:
            return CacheLayout(self.layers[index : index + 1], self.capacity, self.sequences)
        return replace(self, layers=self.layers[index : index + 1], kept=frozenset(), scales=scales)

    @property
    def nbytes(self) -> int:
        """With what groups of tokens need before they are closed."""
        total = 0
        for i, (heads, width) in enumerate(self.layers):
            for name in kinds("F16" if i in self.kept else self.dtype):
                form = CACHE_FORMATS[name]
                total += heads * reserved_bytes(form, width, self.capacity, self.window, self.sinks)
        return total * self.sequences


@dataclass(frozen=True)
class Program:
    """steps in order; widths: of the buffers, by number; logits: the buffer that holds the result."""

    steps: tuple[Step, ...]
    widths: tuple[int, ...]
    logits: int
    cache: CacheLayout
    activations: Activations = Activations.FAST
    labels: tuple[str, ...] = field(default=())  # one a step ('blk.0.attn_q …'), for reports; or none


def with_cache(program: Program, cache: CacheLayout, before_rope: bool = False) -> Program:
    """The same program with another cache. before_rope: keys are stored as they are before the rotary step, in layers
    whose keys are no floats. Raises ValueError where a program's keys turn elsewhere than just before attention."""
    coded = not CACHE_FORMATS[kinds(cache.dtype)[0]].is_float
    if not (before_rope and coded):
        return replace(program, cache=cache)
    steps, labels = list(program.steps), list(program.labels)
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        if not isinstance(step, Attention) or step.layer in cache.kept or step.rope is not None:
            continue
        at = next((j for j in (i - 1, i - 2) if isinstance(rope := steps[j], Rope) and rope.x == step.k), None)
        if at is None:
            raise ValueError("keys do not turn just before attention")
        rope = steps[at]
        assert isinstance(rope, Rope)
        steps[i] = replace(step, rope=rope)
        del steps[at]
        if labels:
            del labels[at]
    return replace(program, steps=tuple(steps), labels=tuple(labels), cache=cache)
