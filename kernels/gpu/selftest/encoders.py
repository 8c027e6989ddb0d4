"""The self-tests of encoders, bit for bit against the reference, on rows that are hard to encode."""

from __future__ import annotations

import numpy as np
import torch

from kernels import families
from kernels.gpu import operations
from kernels.gpu.selftest.tools import register, same
from kernels.reference import blocks, float8, groups, solve
from kernels.reference import fp4 as fp4_reference


def hard_rows(columns: int) -> np.ndarray:
    """float32 [14, columns]: zeros, −0, denormal, huge, tiny, constant, ties, outliers."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((14, columns)).astype(np.float32)
    x[0], x[1] = 0, -0.0
    x[2] *= np.float32(1e-41)
    x[3] *= np.float32(1e37)
    x[4] *= np.float32(1e-6)
    x[5] = 5 + 1e-3 * x[5]
    x[6] *= np.float32(3e4)
    x[7] = np.rint(x[7] * 4) / 8
    x[8, ::3] = -0.0
    x[9] = np.float32(3.4e38) * np.sign(x[9])
    x[10] = 7
    x[11] = -np.abs(x[11])
    x[12, columns // 2] = 100
    x[13] = np.sign(x[13])
    return x


def _first(*complaints: str) -> str:
    return next(filter(None, complaints), "")


@np.errstate(all="ignore")
def _groups(device: str, bits: int, symmetric: bool, scale: str) -> str:
    for group, columns in ((32, 96), (48, 48), (128, 256)):
        x = hard_rows(columns)
        expected = groups.encode_groups(x, bits, group, symmetric, scale, False, None, 1)
        found = operations.encode_groups(torch.from_numpy(x).to(device), bits, group, symmetric, scale)
        parts = zip(found, expected, ("codes", "scales", "zeros"), strict=True)
        if wrong := _first(*(same(*part) for part in parts if not (symmetric and part[2] == "zeros"))):
            return f"groups of {group}: {wrong}"
    return ""


@np.errstate(all="ignore")
def _blocks(device: str, kind: str) -> str:
    x = hard_rows(224)
    return same(
        operations.encode_blocks(kind, torch.from_numpy(x).to(device)),
        blocks.encode_blocks(kind, x, None, False, 1.0, 1),
        "blocks",
    )


@np.errstate(all="ignore")
def _float8(device: str, dtype: str) -> str:
    for a, b, columns in ((8, 128, 300), (1, 96, 96)):
        x = hard_rows(columns)
        amax = float8.tile_amax(x, a, b, 1)
        values = torch.from_numpy(x).to(device)
        scales = np.maximum(amax / np.float32(448), np.float32(1e-30))
        found = operations.encode_float8(values, dtype, torch.from_numpy(scales).to(device), a, b)
        expected = float8.encode_float8(x, dtype, scales, a, b, 1)
        if wrong := _first(
            same(operations.tile_amax(values, a, b), amax, "largest values"), same(found, expected, "codes")
        ):
            return f"tiles of {a} × {b}: {wrong}"
    return ""


@np.errstate(all="ignore")
def _fp4(device: str, kind: str) -> str:
    x = hard_rows(192)
    values = torch.from_numpy(x).to(device)
    for scale, rule in ((1.0, "floor"), (0.0137, "floor"), (1.0, "compressed-tensors"), (1.0, "mlx")):
        if kind == "NVFP4":
            if rule != "floor":
                continue
            found = operations.encode_fp4(values, 16, "E4M3", scale)
        else:
            found = operations.encode_fp4(values, 32, "E8M0", rule=rule)
        if kind == "MXFP4" and rule != "floor":
            codes = float8.e8m0_from_amax(float8.tile_amax(x, 1, 32, 1), 2, 6.0, rule)
            expected = fp4_reference.encode_e2m1(x, codes, 1), codes
        else:
            data = blocks.encode_blocks(kind, x, None, False, scale if kind == "NVFP4" else 1.0, 1)
            expected = families.fp4_from_blocks(kind, data, 192)
        if wrong := _first(same(found[0], expected[0], "codes"), same(found[1], expected[1], "scales")):
            return wrong
    return ""


def _feedback(device: str, even: bool) -> str:
    rng = np.random.default_rng(5)
    levels = np.arange(-8, 8) if even else np.sort(families.NF4_LEVELS)
    levels = levels.astype(np.float32)
    for rows, columns, count in ((33, 70, 3), (3, 64, 1)):
        w = rng.standard_normal((rows, columns)).astype(np.float32)
        matrix = (rng.standard_normal((columns, columns)) / columns**0.5).astype(np.float32)
        steps = (rng.random((rows, count)) * 0.3).astype(np.float32)
        steps[0, 0] = 0
        offsets = (rng.standard_normal((rows, count)) * 0.1).astype(np.float32)
        group = np.sort(rng.integers(0, count, columns)).astype(np.int32)
        middles = (levels[1:] + levels[:-1]) * np.float32(0.5)
        grid = (steps, offsets, group, levels, middles, even)
        expected = solve.feedback(w, matrix, *grid, np.zeros(1, np.int32), 1)
        tensors = (torch.from_numpy(one).to(device) for one in (w, matrix, *grid[:4]))
        if wrong := same(operations.feedback(*tensors), expected, "indices"):
            return wrong
    return ""


register("encode groups", _groups, (4, True, "F16"), (4, False, "F16"), (8, True, "BF16"))
register("encode blocks", _blocks, ("Q4_0",), ("Q8_0",))
register("encode float8", _float8, ("F8_E4M3",), ("F8_E5M2",))
register("encode fp4", _fp4, ("MXFP4",), ("NVFP4",))
register("feedback", _feedback, (True,), (False,))
