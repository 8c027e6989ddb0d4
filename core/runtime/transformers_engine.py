"""Runs a model of transformers, whose weights are packed, the way that `kernels.engine.Engine` runs a program."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from core.runtime.transformers_weights import PackedStack, PackedWeight, Work
from core.units import format_bytes
from kernels.engine_report import KernelUse, kernel_uses
from kernels.matrix import instruction_set
from kernels.program import Embed, Experts, Linear, Program

BATCH = 256  # tokens of a sequence that go through the model at once


@dataclass
class _Sequence:
    """tokens: that the cache holds. cache: None where it has to be made again from them."""

    tokens: list[int] = field(default_factory=list)
    cache: Any = None


class TransformersEngine:
    """A model and its cache, ready to run. program: which matrices a token meets, for reports; torch has the rest.

    model: its head is called `head`. extra_bytes: float weights that a step reads besides. Sequences go through the
    model one after the other. Raises RuntimeError, TypeError or ValueError when a first step shows that the model
    computes in a way that packed weights do not take part in.
    """

    def __init__(self, model: Any, head: Any, program: Program, work: Work, kind: str, extra_bytes: int) -> None:
        self.program, self.threads = program, work.threads
        self._model, self._work, self._kind, self._extra = model, work, kind, extra_bytes
        names = inspect.signature(model.forward).parameters
        self._cache_name = "past_key_values" if "past_key_values" in names else "cache"
        self._takes_positions = "position_ids" in names
        self._vocabulary = next(step.weight.rows for step in program.steps if isinstance(step, Embed))
        self._sequences = [_Sequence() for _ in range(program.cache.sequences)]
        self._wanted = torch.zeros(1, dtype=torch.int64)
        for module in model.modules():
            module.register_forward_pre_hook(self._stop_here)
        head.register_forward_pre_hook(self._pick)
        self._crops = all(type(layer) in _croppable() for layer in self._new_cache().layers)
        try:
            self._try()
        except BaseException:
            self.close()
            raise

    @property
    def bytes_per_token(self) -> int:
        """Weights that a step of one token reads."""
        total = float(self._extra)
        for step in self.program.steps:
            if isinstance(step, Linear):
                total += sum(weight.nbytes for weight in step.weights)
            elif isinstance(step, Experts):
                total += sum(m.nbytes for m in step.gates + step.ups + step.downs) * step.used / len(step.downs)
            elif isinstance(step, Embed):
                total += step.weight.nbytes / step.weight.rows
        return round(total)

    @property
    def nbytes(self) -> int:
        """What the cache holds now; it grows with the text."""
        layers = [layer for s in self._sequences if s.cache is not None for layer in s.cache.layers]
        tensors = [value for layer in layers for value in vars(layer).values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """As `kernels.engine.Engine.run`, but positions of a sequence follow one another, and those that it has."""
        model, cache = self._open(), self.program.cache
        tokens, sequences, positions, wanted = (
            np.ascontiguousarray(values, np.int64).reshape(-1) for values in (tokens, sequences, positions, wanted)
        )
        if not len(tokens) == len(sequences) == len(positions):
            raise ValueError("a token has one sequence and one position")
        _check_range(tokens, self._vocabulary, "token")
        _check_range(sequences, cache.sequences, "sequence")
        _check_range(positions, cache.capacity, "position")
        _check_range(wanted, len(tokens), "wanted row")
        parts = []
        for number in dict.fromkeys(sequences.tolist()):
            rows = np.flatnonzero(sequences == number)
            rows = rows[np.argsort(positions[rows], kind="stable")]
            start = int(positions[rows[0]])
            if (positions[rows] != np.arange(start, start + len(rows))).any():
                raise ValueError("positions of a sequence follow one another in a model that runs through transformers")
            if start > len(self._sequences[number].tokens):
                raise ValueError(f"position {start} comes before those between it and the last one")
            parts.append((self._sequences[number], start, rows))
        logits = np.zeros((len(wanted), self.program.widths[self.program.logits]), np.float32)
        self._work.cancelled = False
        with _one_torch_thread(), torch.inference_mode():
            for sequence, start, rows in parts:
                here = np.flatnonzero(np.isin(wanted, rows))
                places = np.argsort(rows)[np.searchsorted(np.sort(rows), wanted[here])]
                logits[here] = self._extend(model, sequence, start, tokens[rows], places)
        return logits

    def cancel(self) -> None:
        """Stops the run that is under way, from another thread: it raises Cancelled. Without one, nothing happens."""
        self._work.cancelled = True

    def report(self) -> tuple[KernelUse, ...]:
        """The products' kernels, and what is left to torch."""
        reason = f"architecture {self._kind} runs through transformers"
        isa = instruction_set()
        uses = kernel_uses(self.program, f"cpu:{isa}" if isa else "reference", reason)
        shape = f"{len(self.program.cache.layers)} layers, {self.program.cache.dtype} cache"
        rest = [KernelUse("attention, norms, activations", shape, "float32", "torch", reason)]
        if self._extra:
            rest.append(KernelUse("other weights", format_bytes(self._extra), "float32", "torch", reason))
        return (*uses, *rest)

    def close(self) -> None:
        """Lets go of weights and cache, whoever still refers to a part of the model."""
        self.cancel()
        model, self._model, self._sequences = self._model, None, []
        for module in model.modules() if model is not None else ():
            module._forward_pre_hooks.clear()
            for name, value in list(vars(module).items()):
                if isinstance(value, (PackedWeight, PackedStack)):
                    delattr(module, name)
            module._parameters.clear()
            module._buffers.clear()

    def _extend(
        self, model: Any, sequence: _Sequence, start: int, tokens: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Tokens from position `start` on; logits of those of them that `places` names."""
        kept = sequence.tokens[:start]
        if sequence.cache is not None and start < len(sequence.tokens):
            if self._crops and start:
                sequence.cache.crop(start - len(sequence.tokens))
            else:
                sequence.cache = None
        first = start
        if sequence.cache is None:
            sequence.cache, first = self._new_cache(), 0
        everything = np.concatenate([np.array(kept, np.int64), tokens])
        sequence.tokens = kept
        logits = np.zeros((len(places), self.program.widths[self.program.logits]), np.float32)
        try:
            at = first
            while at < len(everything):
                # A recurrent state is carried on a token at a time only: models differ in what they do with more.
                size = BATCH if self._crops else (1 if at else len(everything))
                stop = min(at + size, len(everything))
                here = np.flatnonzero((places + start >= at) & (places + start < stop))
                self._wanted = torch.from_numpy(places[here] + start - at)
                ids = torch.from_numpy(everything[None, at:stop])
                more = {self._cache_name: sequence.cache}
                if self._takes_positions:  # not all find them from the cache
                    more["position_ids"] = torch.arange(at, stop)[None]
                out = model(input_ids=ids, use_cache=True, return_dict=True, **more)
                logits[here] = out.logits[0].to(torch.float32).numpy()
                at = stop
        except BaseException:
            sequence.cache = None  # some layers have the tokens and some have not
            raise
        sequence.tokens = everything.tolist()
        return logits

    def _new_cache(self) -> Any:
        """Layers that keep everything also where they look back over a window only, so that they can be shortened."""
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        cache = DynamicCache(config=self._model.config.get_text_config())
        full: Any = DynamicLayer
        cache.layers = [full() if type(x) is DynamicSlidingWindowLayer else x for x in cache.layers]
        return cache

    def _try(self) -> None:
        """A prompt and a step, as far as the cache has room."""
        size, zero = min(2, self.program.cache.capacity), np.zeros(1, np.int64)
        self.run(np.zeros(size), np.zeros(size), np.arange(size), zero)
        if self.program.cache.capacity > size:
            self.run(zero, zero, zero + size, zero)
            size += 1
        if self._crops and self._sequences[0].cache.get_seq_length() != size:
            raise RuntimeError("it does not use the cache that it is given")
        self._sequences[0] = _Sequence()

    def _stop_here(self, _module: Any, _args: Any) -> None:
        self._work.check()

    def _pick(self, _head: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of the head's input [1, tokens, hidden], the rows whose logits are wanted."""
        return (args[0][:, self._wanted], *args[1:])

    def _open(self) -> Any:
        if self._model is None:
            raise RuntimeError("the engine is closed")
        return self._model


def _croppable() -> tuple[type, ...]:
    from transformers.cache_utils import DynamicLayer

    return (DynamicLayer,)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """While a run lasts. Between products, ours and torch's threads would wait for each other, spinning: a prompt of
    256 tokens took 8 times as long with two of each on two cores, and products are most of it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_range(values: np.ndarray, limit: int, what: str) -> None:
    if len(values) and not 0 <= values.min() <= values.max() < limit:
        raise ValueError(f"a {what} is outside of 0 … {limit - 1}")
