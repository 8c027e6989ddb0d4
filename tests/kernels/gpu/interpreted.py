"""Triton's interpreter for the programs beside this file, which are started with this folder as their first path.

Imported before Triton: TRITON_INTERPRET decides what a kernel is.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def exact_dot() -> None:
    """The interpreter keeps bfloat16 as its bits, and multiplies those: here they are float32 of the same value."""
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def wide(handle: Any) -> Any:
        if handle.data.dtype != np.uint16:
            return handle
        values = (handle.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return interpreter.TensorHandle(values, tl.float32)

    def create_dot(own: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(own, wide(a), wide(b), *rest)

    builder.create_dot = create_dot


class Traffic:
    """Addresses that loads and stores touch: of weights, once for each program; of all else, once for the grid."""

    def __init__(self, shared: tuple[str, ...] = ("x", "order", "table")) -> None:
        """shared: what several programs may read, as the second-level cache has it."""
        self.ranges: list[tuple[int, int, str]] = []
        self.loaded: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
        self._shared = shared
        builder = interpreter.InterpreterBuilder
        load, store = builder.create_masked_load, builder.create_masked_store

        def masked_load(own: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            found = load(own, pointers, mask, *rest)
            self.touch(own, pointers, mask, found.data.dtype.itemsize)
            return found

        def masked_store(own: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.touch(own, pointers, mask, value.data.dtype.itemsize)
            return store(own, pointers, value, mask, *rest)

        builder.create_masked_load, builder.create_masked_store = masked_load, masked_store

    def start(self, tensors: dict[str, torch.Tensor | None]) -> None:
        self.loaded.clear()
        self.ranges = [(t.data_ptr(), t.data_ptr() + t.nbytes, name) for name, t in tensors.items() if t is not None]

    def touch(self, builder: Any, pointers: Any, mask: Any, size: int) -> None:
        addresses = np.asarray(pointers.data, np.int64)[np.asarray(mask.data, bool)]
        for low, high, name in self.ranges:
            inside = addresses[(addresses >= low) & (addresses < high)]
            program = builder.grid_idx if name not in self._shared else None
            self.loaded[name].update((program, int(a), size) for a in np.unique(inside))

    def nbytes(self, name: str) -> int:
        return sum(size for _, _, size in self.loaded[name])


def tell(**values: Any) -> None:
    """One line of JSON, which the test reads."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()
