"""What a folder says about its weights beside the tensors: one class for each family of loaders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.checkpoint.base import Checkpoint
from core.export.layout import OutputFile, PlacedPart
from core.export.safetensors_files import SafetensorsArray, safetensors_files
from core.formats.coded import Coded
from core.models.gguf_tensors import MappedTensor
from core.tensor_info import Role, TensorInfo

# Weights of linear layers, which every folder format is made for.
LINEAR_ROLES = frozenset(
    {
        Role.ATTN_Q,
        Role.ATTN_K,
        Role.ATTN_V,
        Role.ATTN_QKV,
        Role.ATTN_OUT,
        Role.FFN_GATE,
        Role.FFN_UP,
        Role.FFN_GATE_UP,
        Role.FFN_DOWN,
    }
)
_NO_LINEAR = (Role.EMBED, Role.NORM, Role.BIAS, Role.ROPE, Role.CONV)
ALL_EXPERTS = r"re:.*\.experts\..*"


@dataclass(frozen=True)
class Words:
    """config: what config.json gets beside what the source's has; files: (name, content) beside it.

    metadata: of each safetensors file. totals: what the index says beside `total_size`; with any, there is one even for
    a single file.
    """

    config: Mapping[str, Any]
    files: tuple[tuple[str, bytes], ...] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    totals: Mapping[str, int] = field(default_factory=dict)


Placed = tuple[tuple[OutputFile, ...], tuple[PlacedPart, ...], bytes]


class Ecosystem(ABC):
    """One family of loaders. roles: what a target of it quantizes where no rule says otherwise.

    stacks: whether experts stored as one tensor [E, N, K] can be quantized.
    """

    name: str
    roles: frozenset[Role] = LINEAR_ROLES
    stacks: bool = False

    def takes(self, tensor: MappedTensor) -> bool:
        """Whether a format of this kind can store the tensor, as far as its name and axes go."""
        return (len(tensor.shape) == 2 and tensor.name.endswith(".weight")) or (len(tensor.shape) == 3 and self.stacks)

    def mapped(self, checkpoint: Checkpoint, tensors: Sequence[MappedTensor]) -> tuple[MappedTensor, ...]:
        """The tensors of a folder, given those of the checkpoint. Raises UserError where some are missing."""
        return tuple(tensors)

    def with_cache(self, words: Words) -> Words:
        """The same where scales of a key-value cache in FP8 lie beside the weights."""
        raise NotImplementedError(self.name)

    def with_rotation(self, words: Words, checkpoint: Checkpoint, run: int) -> Words:
        """The same where what comes into down projections is rotated while the model runs, `run` values at a time."""
        raise NotImplementedError(self.name)

    def files(
        self,
        checkpoint: Checkpoint,
        arrays: Sequence[SafetensorsArray],
        chosen: Mapping[str, Coded],
        words: Words,
        max_shard: int,
    ) -> Placed:
        """The files with tensors, the places of the arrays in them, and the content of their index, b'' for none."""
        return safetensors_files(arrays, max_shard, words.metadata, words.totals)

    @abstractmethod
    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        """What the folder says when the weights named in `chosen` ('….weight') have these formats, at least one.

        Raises UserError for a mix of formats that these loaders can not be told of.
        """


def ignored_modules(tensors: Iterable[TensorInfo], chosen: Mapping[str, Any]) -> list[str]:
    """Modules with a matrix that stays as it is. A tied head has no tensor of its own, yet is a Linear all the same.

    Experts that are stored as one tensor are no Linear, but vLLM asks for each as if it were.
    """
    tensors = tuple(tensors)
    left = [
        module(t.name)
        for t in tensors
        if t.name.endswith(".weight") and len(t.shape) == 2 and t.role not in _NO_LINEAR and t.name not in chosen
    ]
    if not any(module(name).endswith("lm_head") for name in [*left, *chosen]):
        left.append("lm_head")
    if any(".experts." in t.name and len(t.shape) == 3 for t in tensors) and not any(".experts." in n for n in chosen):
        left.append(ALL_EXPERTS)
    return left


def module(weight: str) -> str:
    """'model.layers.0.mlp.up_proj.weight' → the module's name."""
    return weight.removesuffix(".weight")
