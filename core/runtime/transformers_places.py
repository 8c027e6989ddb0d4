"""Where each tensor of a checkpoint goes in a model that transformers has built, and what stays packed there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from core.checkpoint.base import Checkpoint
from core.checkpoint.hf import same_samples
from core.checkpoint.quantized_source import quantized_source
from core.errors import UserError
from core.models.gguf_names import is_skipped
from core.runtime.decoder import DecoderWeights
from core.runtime.reading import NoLayout, Reading
from core.runtime.storage import Stored, stored_weights
from core.runtime.weights import Slot
from core.units import format_count
from kernels.layouts import PLAIN_KINDS
from kernels.matrix import Matrix, from_elements

if TYPE_CHECKING:
    from core.runtime.transformers_weights import Work

Role = Literal["embedding", "linear", "head", "experts", "other"]

_OTHER = "Use the configuration that belongs to these weights."
_AGAIN = "A file may be missing or damaged: download the model again."
# Tables that older versions of transformers wrote, and that a model works out for itself.
_TABLE = re.compile(r"\.(?:attn|attention|self_attn|self_attention)\.(?:bias|masked_bias)$|inv_freq$")


@dataclass(frozen=True)
class Place:
    """A parameter of a module, or the experts of one. slots: what is read for it; of experts gates, then ups, downs.

    transposed: the module keeps columns first. nbytes: float weights that a token meets.
    """

    name: str
    role: Role
    module: Any = field(repr=False)
    attribute: str
    slots: tuple[str, ...]
    transposed: bool = False
    nbytes: int = 0

    def fill(self, weights: DecoderWeights, work: Work) -> None:
        from core.runtime.transformers_weights import PackedStack, PackedWeight, set_tensor

        if self.role == "other":
            set_tensor(self.module, self.attribute, weights.vectors[self.slots[0]])
            return
        matrices = [weights.matrices[name] for name in self.slots]
        if self.role == "experts":
            count = len(matrices) // 3
            gates, ups, downs = matrices[:count], matrices[count : 2 * count], matrices[2 * count :]
            del self.module.gate_up_proj, self.module.down_proj
            self.module.gate_up_proj = PackedStack(list(zip(gates, ups, strict=True)), work)
            self.module.down_proj = PackedStack([(down,) for down in downs], work)
        else:
            delattr(self.module, self.attribute)
            setattr(self.module, self.attribute, PackedWeight(matrices, work, self.transposed))


def find_places(checkpoint: Checkpoint, model: Any, kind: str) -> tuple[tuple[Place, ...], tuple[Slot, ...]]:
    """Every parameter's place, and what is read. Raises UserError, naming the tensor, for what does not fit."""
    finder = _Finder(checkpoint, model, kind)
    places = tuple(finder.places())
    finder.check_left()
    return places, tuple(finder.slots.values())


class FloatSlot(Slot):
    """Values that become float32, whatever they are stored in."""

    @property
    def memory_bytes(self) -> int:
        return 4 * prod(self.shape)


@dataclass(frozen=True)
class _Piece:
    """A stored weight that is a part of the tensor it is collected for; pattern: which part, in transformers' words."""

    pattern: str
    stored: Stored


class _Finder:
    def __init__(self, checkpoint: Checkpoint, model: Any, kind: str) -> None:
        self.checkpoint, self.model, self.kind = checkpoint, model, kind
        self.slots: dict[str, Slot] = {}
        stored, unknown = stored_weights(checkpoint)
        for tensor in unknown:
            if not is_skipped(tensor.name):
                source = quantized_source(checkpoint)
                how = source.label if source and not source.readable else tensor.dtype
                raise UserError(
                    f"'{tensor.name}' is stored in a way that can not be run yet ({how}).",
                    "Open a 16-bit or compressed-tensors version of the model.",
                )
        names = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
        rename = _renaming(model, names)
        self.whole: dict[str, Stored] = {}
        self.pieces: dict[str, list[_Piece]] = {}
        self.patterns: dict[str, list[str]] = {}
        for weight in stored:
            target, converter, pattern = rename(weight.name)
            if converter is not None and weight.name != target:
                self.pieces.setdefault(target, []).append(_Piece(pattern, weight))
                self.patterns[target] = list(converter.source_patterns)
                continue
            if target in self.whole:
                raise UserError(
                    f"'{self.whole[target].name}' and '{weight.name}' are the same part of the model.", _AGAIN
                )
            self.whole[target] = weight
        self.used: set[str] = set()
        self.alias = self._tied()

    def places(self) -> Any:
        from torch import nn
        from transformers.pytorch_utils import Conv1D

        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        if not isinstance(embedding, nn.Embedding) or head is None:
            raise UserError(
                f"A model of the kind '{self.kind}' does not write text from tokens.", "Choose a text model."
            )
        for path, module in self.model.named_modules():
            at = path + "." if path else ""
            done = set()
            if _has_experts(module):
                yield self._experts(at, module)
                done = {"gate_up_proj", "down_proj"}
            for attribute, value in module._parameters.items():
                if value is None or attribute in done:
                    continue
                packed = attribute == "weight" and value.ndim == 2
                if packed and module is embedding:
                    yield self._packed(at, module, "embedding")
                elif packed and isinstance(module, (nn.Linear, Conv1D)):
                    yield self._packed(at, module, "head" if module is head else "linear", isinstance(module, Conv1D))
                else:
                    yield self._tensor(at, module, attribute, value)
            for attribute, value in module._buffers.items():
                if value is None:
                    continue
                own = at + attribute in self.whole and attribute not in module._non_persistent_buffers_set
                if own or value.is_meta:
                    yield self._tensor(at, module, attribute, value)

    def check_left(self) -> None:
        """Raise UserError for a tensor that nothing has asked for."""
        ignored = [re.compile(pattern) for pattern in self.model._keys_to_ignore_on_load_unexpected or ()]
        tables = {name for name, _ in self.model.named_buffers()}
        left = [(name, stored) for name, stored in self.whole.items() if name not in self.used and name not in tables]
        left += [(name, p[0].stored) for name, p in self.pieces.items() if name not in self.used]
        for name, stored in left:
            names = (name, stored.name)
            if is_skipped(stored.name) or _TABLE.search(name) or any(p.search(n) for p in ignored for n in names):
                continue
            raise UserError(f"'{stored.name}' has no place in a model of the kind '{self.kind}'.", _OTHER)

    def _tied(self) -> dict[str, str]:
        """Names of one and the same parameter → the one that is read. A stored one that differs is its own."""
        groups: dict[int, list[str]] = {}
        for name, value in self.model.named_parameters(remove_duplicate=False):
            groups.setdefault(id(value), []).append(name)
        alias = {}
        for names in groups.values():
            present = [name for name in names if name in self.whole] or names[:1]
            for name in names:
                alias[name] = present[0]
                if name in present[1:]:
                    one, other = (self.whole[n].sources[0] for n in (present[0], name))
                    same = (one.shape, one.dtype) == (other.shape, other.dtype)
                    if not (same and same_samples(self.checkpoint, one, other)):
                        alias[name] = name
                    self.used.add(name)
        return alias

    def _stored(self, name: str, shape: tuple[int, ...]) -> tuple[str, Stored]:
        name = self.alias.get(name, name)
        found = self.whole.get(name)
        if found is None:
            if name in self.pieces:
                raise UserError(
                    f"'{self.pieces[name][0].stored.name}' is cut or joined in a way that is not known here "
                    f"(its kind is '{self.kind}').",
                    "Save the model again with a current version of transformers.",
                )
            raise UserError(f"The model of the kind '{self.kind}' has no tensor '{name}'.", _AGAIN)
        if found.shape != (shape or (1,)):
            is_, means = (" × ".join(format_count(n) for n in s) for s in (found.shape, shape))
            raise UserError(
                f"'{found.name}' is {is_}, where the configuration of this '{self.kind}' means {means}.", _OTHER
            )
        self.used.add(name)
        return name, found

    def _packed(self, at: str, module: Any, role: Role, transposed: bool = False) -> Place:
        name, stored = self._stored(at + "weight", tuple(module.weight.shape))
        if transposed:
            stored = _transposed(self.checkpoint, stored)
        self.slots[name] = Slot(name, stored, 0, stored.rows)
        return Place(at + "weight", role, module, "weight", (name,), transposed)

    def _tensor(self, at: str, module: Any, attribute: str, value: Any) -> Place:
        from torch import nn

        name, stored = self._stored(at + attribute, tuple(value.shape))
        flat = _flattened(stored)
        # Never the slot of a packed weight: a table that is tied to one is read a second time.
        slot = f"{name} as float32"
        self.slots[slot] = FloatSlot(slot, flat, 0, flat.shape[0])
        nbytes = 0 if isinstance(module, nn.Embedding) else 4 * flat.shape[0]
        return Place(at + attribute, "other", module, attribute, (slot,), nbytes=nbytes)

    def _experts(self, at: str, module: Any) -> Place:
        count, both, columns = module.gate_up_proj.shape
        wide, hidden = both // 2, module.down_proj.shape[1]
        gates, ups = self._stack(at + "gate_up_proj", (count, both, columns), 2)
        (downs,) = self._stack(at + "down_proj", (count, hidden, wide), 1)
        return Place(at.removesuffix("."), "experts", module, "", (*gates, *ups, *downs))

    def _stack(self, name: str, shape: tuple[int, int, int], parts: int) -> list[list[str]]:
        """Names of the slots of each part: rows of a stack, or a matrix of its own for each expert and part."""
        count, rows, columns = shape
        size = rows // parts
        slots: list[list[str]] = [[] for _ in range(parts)]
        pieces = sorted(self.pieces.get(name, ()), key=lambda piece: _natural(piece.stored.name))
        by_pattern = [[p.stored for p in pieces if p.pattern == pattern] for pattern in self.patterns.get(name, ())]
        apart = bool(pieces) and len(by_pattern) == parts and all(len(each) == count for each in by_pattern)
        whole = None if apart else self._stored(name, shape)[1]
        self.used.add(name)
        for part in range(parts):
            for expert in range(count):
                slot = f"{name}.{expert}.{part}"
                if whole is not None:
                    start = expert * rows + part * size
                    self.slots[slot] = Slot(slot, whole, start, start + size)
                else:
                    stored = by_pattern[part][expert]
                    if stored.shape != (size, columns):
                        is_ = " × ".join(format_count(n) for n in stored.shape)
                        raise UserError(
                            f"'{stored.name}' is {is_}, where the configuration means {format_count(size)} × "
                            f"{format_count(columns)}.",
                            _OTHER,
                        )
                    self.slots[slot] = Slot(slot, stored, 0, size)
                slots[part].append(slot)
        return slots


def _has_experts(module: Any) -> bool:
    """Whether a module keeps gate above up, and down, of all its experts [experts, rows, columns]."""
    both, down = (module._parameters.get(name) for name in ("gate_up_proj", "down_proj"))
    if both is None or down is None or both.ndim != 3 or down.ndim != 3 or getattr(module, "is_transposed", False):
        return False
    return both.shape[1] == 2 * down.shape[2] and both.shape[2] == down.shape[1]


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _renaming(model: Any, names: dict[str, Any]) -> Callable[[str], tuple[str, Any, str]]:
    """A stored name → the model's, and, when it is one of several that make up a tensor, the converter and its part."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    of = {pattern: converter for converter in converters for pattern in converter.source_patterns}

    def rename(name: str) -> tuple[str, Any, str]:
        if name in names:
            return name, None, ""
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, names)
        return target, of.get(pattern or ""), pattern or ""

    return rename


def _flattened(stored: Stored) -> Stored:
    """All values in one row; decoded as a vector is."""

    def values(_start: int, _stop: int) -> np.ndarray:
        return stored.values(0, stored.rows).reshape(1, -1)

    return replace(stored, shape=(prod(stored.shape),), values=values)


def _transposed(checkpoint: Checkpoint, stored: Stored) -> Stored:
    """Of a weight that is stored columns first, the rows that products take."""
    rows, columns = stored.shape
    tensor = stored.sources[0]

    def load(start: int, stop: int, reading: Reading) -> Matrix:
        if stored.format not in PLAIN_KINDS:
            raise NoLayout("the layer's rows are columns in the file")
        size = tensor.nbytes // (rows * columns)

        def read(first: int, last: int) -> np.ndarray:
            raw = checkpoint.read_raw(tensor, columns=(start + first, start + last))
            reading.took(raw.nbytes)
            elements = raw.reshape(rows, last - first, size).swapaxes(0, 1)
            return np.ascontiguousarray(elements).reshape(last - first, rows * size)

        return from_elements(stored.format, stop - start, rows, read)

    def values(start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(stored.values(0, rows)[:, start:stop].T)

    return replace(stored, shape=(columns, rows), matrix=load, values=values)
