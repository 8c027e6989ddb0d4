"""Triton's interpreter for the programs beside this file, which are started with this folder as their first path.

Imported before Triton: TRITON_INTERPRET decides what a kernel is.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def _patched_once() -> None:
    """The interpreter puts its functions into `triton.language` again for each function that a kernel calls, which is
    a third of its time: here, once for a launch.
    """
    patch = interpreter._patch_lang
    done: set[int] = set()

    def once(function: Any) -> Any:
        modules = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if modules <= done:
            return interpreter._LangPatchScope()
        done.update(modules)
        scope = patch(function)
        restore = scope.restore

        def restored() -> None:
            done.clear()
            restore()

        scope.restore = restored
        return scope

    interpreter._patch_lang = once


if hasattr(interpreter, "_LangPatchScope"):  # of Triton's newer versions
    _patched_once()


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
        self._touched: dict[tuple[str, Any, int], list[np.ndarray]] = defaultdict(list)  # by tensor, program and size
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
        self._touched.clear()
        self.ranges = [(t.data_ptr(), t.data_ptr() + t.nbytes, name) for name, t in tensors.items() if t is not None]

    def touch(self, builder: Any, pointers: Any, mask: Any, size: int) -> None:
        addresses = np.asarray(pointers.data, np.int64)[np.asarray(mask.data, bool)]
        if not addresses.size:
            return
        lowest, highest = addresses.min(), addresses.max()
        for low, high, name in self.ranges:
            if lowest >= high or highest < low:
                continue
            program = builder.grid_idx if name not in self._shared else None
            inside = addresses[(addresses >= low) & (addresses < high)]
            self._touched[name, program, size].append(inside)

    def of_launches(self, module: Any, run: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """What run() returns, and what each kernel that `module` launches meanwhile touches, over its tensors' sizes or
        what it touches of them where that is less.
        """
        launch, moved, needed = module.launch, defaultdict(int), defaultdict(int)

        def counted(kernel: Any, grid: Any, *arguments: Any, **rest: Any) -> None:
            views: dict[int, dict[tuple[int, int], str]] = defaultdict(dict)  # of each memory, without twins
            for name, a in zip(kernel.arg_names, arguments, strict=False):
                if isinstance(a, torch.Tensor):
                    views[a.untyped_storage().data_ptr()].setdefault((a.data_ptr(), a.nbytes), name)
            names = {at: next(iter(found.values())) for at, found in views.items()}
            whole = {
                a.untyped_storage().data_ptr(): a.untyped_storage() for a in arguments if isinstance(a, torch.Tensor)
            }
            self._touched.clear()
            self.ranges = [(at, at + memory.nbytes(), names[at]) for at, memory in whole.items()]
            launch(kernel, grid, *arguments, **rest)
            for at, name in names.items():
                moved[kernel.__name__] += self.nbytes(name)
                size = sum(nbytes for _, nbytes in views[at])
                needed[kernel.__name__] += min(size, self.nbytes(name, apart=False))

        module.launch = counted
        try:
            return run(), {name: moved[name] / needed[name] for name in moved}
        finally:
            module.launch = launch

    def nbytes(self, name: str, apart: bool = True) -> int:
        """apart: each program's, one after the other, where they do not share it."""
        if not apart:
            all_of_it: dict[int, list[np.ndarray]] = defaultdict(list)
            for (of, _, size), addresses in self._touched.items():
                if of == name:
                    all_of_it[size] += addresses
            return sum(size * len(np.unique(np.concatenate(found))) for size, found in all_of_it.items())
        own = ((size, addresses) for (of, _, size), addresses in self._touched.items() if of == name)
        return sum(size * len(np.unique(np.concatenate(addresses))) for size, addresses in own)


def tell(**values: Any) -> None:
    """One line of JSON, which the test reads."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def scaled_dot() -> None:
    """`tl.dot_scaled` in numpy: the interpreter's own takes every group's scale for a power of two."""

    def values(operand: Any, name: str) -> np.ndarray:
        codes = operand.data.view(np.uint8)
        if name == "e2m1":
            codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
            sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            return np.where(codes & 8, -1, 1) * sizes[codes & 7]
        return torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()

    def scales(handle: Any) -> np.ndarray:
        codes = handle.data.view(np.uint8)
        if handle.dtype.scalar.is_int():
            return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127))
        return torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()

    def dot_scaled(a: Any, a_scale: Any, form: str, b: Any, b_scale: Any, _form: str, total: Any) -> Any:
        left = values(a.handle, form)
        right = values(tl.trans(b).handle, form)
        sides = [side * np.repeat(scales(s.handle), side.shape[1] // s.shape[1].value, axis=1)
                 for side, s in ((left, a_scale), (right, b_scale))]  # fmt: skip
        made = total.handle.data + (sides[0] @ sides[1].T).astype(np.float32)
        return tl.core.tensor(interpreter.TensorHandle(made, tl.float32), total.type)

    tl.dot_scaled = dot_scaled
