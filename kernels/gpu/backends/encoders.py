"""Registers the GPU's encoders with `dispatch`, each beside a reference of its signature and with the same bits.

Operations of their own: a conversion takes the compiled ones unless it is told otherwise. Arrays are numpy's.
"""

from __future__ import annotations

import numpy as np

from kernels.gpu.backends.steps import both, on_device
from kernels.reference import blocks, float8, groups

BLOCKS = ("Q4_0", "Q8_0")
FLOAT8 = ("F8_E4M3", "F8_E5M2")
FP4 = {"MXFP4": (32, "E8M0"), "NVFP4": (16, "E4M3")}


def _encode_groups(kind: str, x: np.ndarray, group: int, symmetric: bool, scale_type: str) -> tuple[np.ndarray, ...]:
    from kernels.gpu import operations  # here and below: only where the state is ready

    found = operations.encode_groups(on_device(x), int(kind.removeprefix("int")), group, symmetric, scale_type)
    return tuple(one.cpu().numpy() for one in found)


def _reference_groups(kind: str, x: np.ndarray, group: int, symmetric: bool, scale_type: str) -> tuple[np.ndarray, ...]:
    return groups.encode_groups(x, int(kind.removeprefix("int")), group, symmetric, scale_type, False, None, 1)


def _encode_blocks(kind: str, x: np.ndarray) -> np.ndarray:
    from kernels.gpu import operations

    return operations.encode_blocks(kind, on_device(x)).cpu().numpy()


def _reference_blocks(kind: str, x: np.ndarray) -> np.ndarray:
    return blocks.encode_blocks(kind, x, None, False, 1.0, 1)


def _encode_float8(dtype: str, x: np.ndarray, scales: np.ndarray, a: int, b: int) -> np.ndarray:
    from kernels.gpu import operations

    return operations.encode_float8(on_device(x), dtype, on_device(scales), a, b).cpu().numpy()


def _reference_float8(dtype: str, x: np.ndarray, scales: np.ndarray, a: int, b: int) -> np.ndarray:
    return float8.encode_float8(x, dtype, scales, a, b, 1)


def _encode_fp4(kind: str, x: np.ndarray, tensor_scale: float = 1.0) -> tuple[np.ndarray, ...]:
    from kernels.gpu import operations

    return tuple(one.cpu().numpy() for one in operations.encode_fp4(on_device(x), *FP4[kind], tensor_scale))


def _reference_fp4(kind: str, x: np.ndarray, tensor_scale: float = 1.0) -> tuple[np.ndarray, ...]:
    from kernels import families  # it imports what registers these

    return families.encode_fp4(x, *FP4[kind], tensor_scale)


def _feedback(w: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    from kernels.gpu import operations

    return operations.feedback(on_device(w), *map(on_device, rest)).cpu().numpy()


def _reference_feedback(w: np.ndarray, matrix: np.ndarray, *grid: np.ndarray) -> np.ndarray:
    from kernels import solve

    steps, offsets, group, levels = grid
    return solve.feedback(w, matrix, steps, offsets, group, levels)


def even(levels: np.ndarray) -> bool:
    """Whether levels are i, i + 1 …, which a kernel of its own rounds to."""
    return bool(levels[0] == np.rint(levels[0]) and (np.diff(levels) == 1).all())


both("gpu_encode_groups", _encode_groups, _reference_groups,
     {"encode groups": lambda kind, _x, _group, symmetric, scale: (int(kind.removeprefix("int")), symmetric, scale)},
     tuple(f"int{bits}" for bits in range(1, 9)))  # fmt: skip
both("gpu_encode_blocks", _encode_blocks, _reference_blocks, {"encode blocks": lambda kind, *_: (kind,)}, BLOCKS)
both("gpu_encode_float8", _encode_float8, _reference_float8, {"encode float8": lambda dtype, *_: (dtype,)}, FLOAT8)
both("gpu_encode_fp4", _encode_fp4, _reference_fp4, {"encode fp4": lambda kind, *_: (kind,)}, tuple(FP4))
both("gpu_feedback", _feedback, _reference_feedback, {"feedback": lambda *a: (even(a[5]),)})
