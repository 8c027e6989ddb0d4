"""What is known of a tensor before any of its values is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contract import ElementType
    from core.formats.numbers import Numbers


class Role(Enum):
    """What a tensor does in a decoder. Drives what is kept, what a mix does, and how the window groups tensors."""

    EMBED = "embedding"
    HEAD = "output head"
    NORM = "norm"
    ATTN_Q = "attention query"
    ATTN_K = "attention key"
    ATTN_V = "attention value"
    ATTN_QKV = "attention query-key-value"
    ATTN_OUT = "attention output"
    FFN_GATE = "feed-forward gate"
    FFN_UP = "feed-forward up"
    FFN_GATE_UP = "feed-forward gate-up"
    FFN_DOWN = "feed-forward down"
    ROUTER = "expert router"
    BIAS = "bias"
    ROPE = "rotary table"
    CONV = "convolution"
    OTHER = "other"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint, from its header.

    shape: row-major, as numpy has it (GGUF's order reversed). dtype: a safetensors dtype ('BF16') or a GGML type
    ('Q4_K'). file: index into Checkpoint.files; offset: first byte in that file; nbytes: stored bytes.
    layer: decoder layer or None. expert: index of the expert, or None; fused 3-D expert tensors have None and
    `experts` > 0. tied_to: name of the tensor it shares its storage with, else ''. packed: it is made of several stored
    tensors, and `dtype` is a label of their format ('int4 g128'); it has values, and no bytes of its own.
    numbers: what its codes stand for, where they can be taken over into another format as they are. scales_fit: whether
    each of its scales is a value of another float type, which is only known from the scales: calling it reads them.
    input_scale: a static scale of the activations that it meets is stored beside it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: int = 0
    offset: int = 0
    role: Role = Role.OTHER
    layer: int | None = None
    expert: int | None = None
    experts: int = 0
    tied_to: str = ""
    packed: bool = False
    numbers: Numbers | None = None
    scales_fit: Callable[[ElementType], bool] | None = field(default=None, compare=False, repr=False)
    input_scale: bool = False

    @property
    def values(self) -> int:
        return prod(self.shape)

    @property
    def columns(self) -> int:
        """Length K of a row: the last axis (input features of a linear layer). 1 for a scalar."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """How many rows of K values: all axes but the last, multiplied."""
        return prod(self.shape[:-1])
