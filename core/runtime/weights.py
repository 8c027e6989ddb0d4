"""A checkpoint's weights as a decoder's matrices and vectors, by GGUF's names: found and checked, then read."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from math import prod

import numpy as np

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.quantized_source import quantized_source
from core.errors import UserError
from core.models.config import DecoderConfig
from core.models.gguf_names import gguf_name, hugging_face_name, is_skipped
from core.models.gguf_tensors import is_tied_head
from core.progress import CancelToken
from core.runtime.decoder import DecoderWeights, tensor_shapes
from core.runtime.reading import PROCESSOR, Conversion, Matrices, Reading
from core.runtime.storage import KEPT_BYTES, Stored, stored_weights
from core.units import format_count
from kernels.matrix import Matrix
from kernels.rotation import Rotation

_OTHER = "Use the configuration that belongs to these weights."
_AGAIN = "A file may be missing or damaged: download the model again."
_DOWN = re.compile(r"blk\.\d+\.ffn_down\b")
_LOOK_SECONDS = 0.05  # between two looks at how far reading is
# Tables that the configuration already has, and what llama.cpp keeps for itself.
_NO_WEIGHT = re.compile(r"^rope_(?:freqs|factors_long|factors_short)\.weight$|\.(?:input_)?scale$")


@dataclass(frozen=True)
class Slot:
    """One matrix or vector of the decoder: rows (of a vector, values) start…stop of a stored weight.

    add: added to each value of a vector (Hugging Face's Gemma stores norms less one). rotated: it stays rotated, and so
    has its input to be.
    """

    name: str
    stored: Stored
    start: int
    stop: int
    add: float = 0.0
    rotated: bool = False

    @property
    def is_vector(self) -> bool:
        return len(self.stored.shape) == 1

    @property
    def shape(self) -> tuple[int, ...]:
        size = self.stop - self.start
        return (size,) if self.is_vector else (size, self.stored.shape[-1])

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        whole = self.stored.shape[0] if self.is_vector else self.stored.rows
        return self.stored.nbytes * (self.stop - self.start) // max(whole, 1)

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory: as much as in the file, or what it is decoded to."""
        packs = self.stored.packs and (self.stored.rotation is None or self.rotated)
        return self.nbytes if packs else KEPT_BYTES * prod(self.shape)


@dataclass(frozen=True)
class WeightPlan:
    """What will be read; nothing has been yet. pairs: rotary pairs stand side by side, as in GGUF's `llama`."""

    slots: tuple[Slot, ...]
    pairs: bool

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots)

    @property
    def memory_bytes(self) -> int:
        return sum(slot.memory_bytes for slot in self.slots)


@dataclass(frozen=True)
class ReadProgress:
    """How far reading is, and a tensor that was just finished, '' for none."""

    bytes_done: int
    bytes_total: int
    tensor: str = ""


def plan_weights(checkpoint: Checkpoint, config: DecoderConfig) -> WeightPlan:
    """Where each tensor of the decoder is. Reads headers and a few small tensors.

    Raises UserError, naming the tensor, for one that is missing, has another shape than the configuration means, is in
    no known format, or has no place in this decoder.
    """
    stored, unknown = stored_weights(checkpoint)
    for tensor in unknown:
        if not (is_skipped(tensor.name) or _NO_WEIGHT.search(tensor.name)):
            source = quantized_source(checkpoint)
            how = source.label if source and not source.readable else tensor.dtype
            raise UserError(
                f"'{tensor.name}' is stored in a way that can not be run yet ({how}).",
                "Open a GGUF, 16-bit or compressed-tensors version of the model.",
            )
    tied = _tied_heads(checkpoint, config)
    slots: dict[str, Slot] = {}
    for weight in stored:
        if weight.name in tied:
            continue
        for slot in _slots(checkpoint, config, weight):
            if slot.name in slots:
                first = slots[slot.name].stored.name
                raise UserError(f"'{first}' and '{weight.name}' are the same part of the model.", _AGAIN)
            slots[slot.name] = slot
    _check(slots, config, checkpoint)
    return WeightPlan(tuple(_rotated(slots)), checkpoint.container is Container.GGUF and config.architecture == "llama")


def read_weights(
    plan: WeightPlan, token: CancelToken, threads: int = 1, packing: Matrices = PROCESSOR
) -> Generator[ReadProgress, None, tuple[DecoderWeights, tuple[Conversion, ...]]]:
    """Read and pack everything, tensors side by side in `threads`; yields as it goes on, at least every 50 ms.

    packing: what makes matrices. Raises Cancelled within some milliseconds of the token being set, and UserError when a
    file is short.
    """
    reading = Reading(token, packing)
    total = plan.nbytes
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, np.ndarray] = {}
    pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="bitsmith-load")
    try:
        waiting: dict[Future[Matrix | np.ndarray], Slot] = {}
        left = iter(plan.slots)
        while True:
            for slot in islice(left, max(0, threads + 1 - len(waiting))):
                waiting[pool.submit(_read, slot, reading)] = slot
            if not waiting:
                break
            done, _ = wait(waiting, _LOOK_SECONDS, FIRST_COMPLETED)
            token.check()
            for future in done:
                slot, value = waiting.pop(future), future.result()
                if isinstance(value, np.ndarray):
                    vectors[slot.name] = value
                else:
                    matrices[slot.name] = value
                yield ReadProgress(min(reading.bytes_done, total), total, slot.name)
            if not done:
                yield ReadProgress(min(reading.bytes_done, total), total)
    finally:
        reading.give_up()
        pool.shutdown(wait=not token.cancelled, cancel_futures=True)  # a cancelled read ends by itself, soon
    yield ReadProgress(total, total)
    return DecoderWeights(matrices, vectors, plan.pairs, rotations_of(plan)), tuple(reading.conversions)


def _read(slot: Slot, reading: Reading) -> Matrix | np.ndarray:
    if not slot.is_vector:
        return slot.stored.load(slot.start, slot.stop, reading, slot.rotated)
    values = slot.stored.values(0, 1).reshape(-1)[slot.start : slot.stop] + np.float32(slot.add)
    reading.took(slot.nbytes)
    return np.ascontiguousarray(values, np.float32)


def _rotated(slots: Mapping[str, Slot]) -> Iterator[Slot]:
    """Down projections stay rotated where all of a layer's are, and alike."""
    layers: dict[str, list[Rotation | None]] = {}
    for name, slot in slots.items():
        if down := _DOWN.match(name):
            layers.setdefault(down[0], []).append(slot.stored.rotation)
    alike = {at for at, found in layers.items() if len({r and r.key for r in found}) == 1}
    for name, slot in slots.items():
        down = _DOWN.match(name)
        keeps = down is not None and down[0] in alike and slot.stored.rotation is not None
        yield replace(slot, rotated=True) if keeps else slot


def rotations_of(plan: WeightPlan) -> dict[str, Rotation]:
    """Of the matrices that stay rotated, by name."""
    found = {slot.name: slot.stored.rotation for slot in plan.slots if slot.rotated}
    return {name: rotation for name, rotation in found.items() if rotation is not None}


def _tied_heads(checkpoint: Checkpoint, config: DecoderConfig) -> set[str]:
    """Stored heads that only repeat the embedding."""
    heads = (t for t in checkpoint.tensors if t.name.endswith("lm_head.weight") or t.name == "output.weight")
    return {t.name for t in heads if t.tied_to or is_tied_head(checkpoint, t, config)}


def _slots(checkpoint: Checkpoint, config: DecoderConfig, weight: Stored) -> list[Slot]:
    """The parts of the decoder that a stored weight is, by GGUF's names; none when it has no use for it."""
    gguf = checkpoint.container is Container.GGUF
    if gguf:
        if _NO_WEIGHT.search(weight.name):
            return []
        name, both = weight.name, "ffn_gate_up_exps" in weight.name
        stacked = "_exps." in name
    else:
        if is_skipped(weight.name):
            return []
        target = gguf_name(weight.name, config.architecture)
        if target is None:
            raise _no_place(weight, config)
        name, both, stacked = target.name, target.halves, target.stacked
        if target.expert is not None:
            name, stacked = name.replace("_exps.weight", f".{target.expert}.weight"), False
    if stacked:
        return _expert_slots(config, weight, name, both)
    size = weight.shape[0]
    at, _, part = name.rpartition("attn_qkv")
    if at:
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return _cut(weight, [(f"{at}attn_{n}{part}", rows) for n, rows in (("q", queries), ("k", keys), ("v", keys))])
    if config.architecture == "phi3" and ".ffn_up." in name:
        wide = config.intermediate
        return _cut(weight, [(name.replace("ffn_up", n), wide) for n in ("ffn_gate", "ffn_up")])
    if name in ("token_embd.weight", "output.weight") and config.architecture == "gemma3" and 0 < config.vocab < size:
        size = config.vocab  # rows past the vocabulary belong to no token
    add = 1.0 if not gguf and config.architecture in ("gemma2", "gemma3") and name.endswith("norm.weight") else 0.0
    return [Slot(name, weight, 0, size, add)]


def _cut(weight: Stored, parts: list[tuple[str, int]]) -> list[Slot]:
    """Parts one after the other; they must make up the whole."""
    whole = sum(size for _, size in parts)
    if weight.shape[0] != whole:
        raise UserError(
            f"'{weight.name}' has {format_count(weight.shape[0])} rows, where the configuration means "
            f"{format_count(whole)}.",
            _OTHER,
        )
    slots, start = [], 0
    for name, size in parts:
        slots.append(Slot(name, weight, start, start + size))
        start += size
    return slots


def _expert_slots(config: DecoderConfig, weight: Stored, name: str, both: bool) -> list[Slot]:
    """A stack [experts, rows, columns], one matrix an expert; `both`: gate above up in each."""
    if not config.experts:
        raise _no_place(weight, config)
    wide, hidden = config.expert_intermediate, config.hidden
    down = "ffn_down" in name
    expected = (config.experts, hidden if down else (2 if both else 1) * wide, wide if down else hidden)
    if weight.shape != expected:
        raise _wrong_shape(weight.name, weight.shape, expected)
    rows = expected[1]
    at = name.partition("ffn_")[0]
    parts = ("ffn_gate", "ffn_up") if both else (name.removeprefix(at).partition("_exps")[0],)
    size = rows // len(parts)
    return [
        Slot(f"{at}{part}.{e}.weight", weight, e * rows + i * size, e * rows + (i + 1) * size)
        for e in range(config.experts)
        for i, part in enumerate(parts)
    ]


def _check(slots: dict[str, Slot], config: DecoderConfig, checkpoint: Checkpoint) -> None:
    dense = frozenset[int]()
    if config.dense_layers:
        dense = frozenset(i for i in range(config.layers) if f"blk.{i}.ffn_gate.weight" in slots)
    needed, allowed = tensor_shapes(config, dense)
    for name, slot in slots.items():
        shape = needed.get(name) or allowed.get(name)
        layer = re.match(r"blk\.(\d+)\.", name)
        if layer and int(layer[1]) >= config.layers:
            raise UserError(
                f"The configuration says {config.layers} layers, but '{slot.stored.name}' belongs to layer {layer[1]}.",
                _OTHER,
            )
        if shape is None:
            raise _no_place(slot.stored, config)
        if slot.shape != shape:
            if name == "token_embd.weight" and slot.shape[1:] == shape[1:]:
                raise UserError(
                    f"'{slot.stored.name}' has {format_count(slot.shape[0])} rows, but the vocabulary "
                    f"{format_count(shape[0])} tokens.",
                    _OTHER,
                )
            raise _wrong_shape(slot.stored.name, slot.shape, shape)
    missing = next((name for name in needed if name not in slots), "")
    if not missing and "output.weight" not in slots and not config.tied:
        missing = "output.weight"
    if missing:
        gguf = checkpoint.container is Container.GGUF
        shown = missing if gguf else hugging_face_name(missing, config.architecture)
        raise UserError(f"The model has no tensor '{shown}'.", _AGAIN)


def _no_place(weight: Stored, config: DecoderConfig) -> UserError:
    return UserError(f"'{weight.name}' has no place in a model of the kind {config.architecture}.", _OTHER)


def _wrong_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> UserError:
    is_, means = (" × ".join(format_count(n) for n in s) for s in (shape, expected))
    return UserError(f"'{name}' is {is_}, where the configuration means {means}.", _OTHER)
