"""Encoders under Triton's interpreter, bit for bit against the reference: one JSON line a case."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from interpreted import Traffic, tell

from kernels import dispatch, families, ops, solve
from kernels.gpu import operations
from kernels.gpu.encoders import encode
from kernels.gpu.selftest.encoders import hard_rows


def same(found: torch.Tensor, expected: np.ndarray) -> bool:
    """Bit for bit."""
    return found.numpy().tobytes() == np.ascontiguousarray(expected).tobytes()


def grouped(traffic: Traffic) -> None:
    for bits, group, columns, symmetric, scale in (
        (1, 16, 48, True, "F32"), (2, 64, 128, False, "F16"), (3, 48, 96, False, "BF16"), (4, 128, 256, True, "F16"),
        (4, 32, 96, False, "F16"), (5, 80, 80, True, "BF16"), (6, 7, 21, False, "F32"), (7, 30, 60, False, "F16"),
        (8, 150, 150, True, "F32"), (8, 33, 99, False, "BF16"),
    ):  # fmt: skip
        x = hard_rows(columns)
        codes, scales, zeros = ops.encode_groups(x, bits, group, symmetric, scale, search=False)
        values = torch.from_numpy(x)
        traffic.start({"x": values})
        found = operations.encode_groups(values, bits, group, symmetric, scale)
        wrong = [i for i, (a, b) in enumerate(zip(found[:2], (codes, scales), strict=True)) if not same(a, b)]
        if zeros is not None and not same(found[2], zeros):
            wrong.append(2)
        tell(case=f"int{bits} g{group}", same=not wrong, wrong=wrong, share=traffic.nbytes("x") / x.nbytes)


def floats(traffic: Traffic) -> None:
    for dtype in ("F8_E4M3", "F8_E5M2"):
        for a, b, columns in ((1, 1, 33), (14, 96, 96), (1, 130, 130), (8, 128, 300), (1, 32, 64)):
            x = hard_rows(columns)
            values = torch.from_numpy(x)
            amax = ops_amax = families.tile_amax(x, a, b)
            equal = same(operations.tile_amax(values, a, b), ops_amax)
            scales = np.maximum(amax / np.float32(448), np.float32(1e-30))
            traffic.start({"x": values})
            found = operations.encode_float8(values, dtype, torch.from_numpy(scales), a, b)
            expected = families.encode_float8(x, dtype, scales, a, b)
            share = traffic.nbytes("x") / x.nbytes
            tell(case=f"{dtype} {a} × {b}", same=equal and same(found, expected), share=share)


def four_bits(traffic: Traffic) -> None:
    for columns in (32, 96, 160):
        x = hard_rows(columns)
        values = torch.from_numpy(x)
        for group, scale, tensor_scale, rule in (
            *((32, "E8M0", 1.0, rule) for rule in families.E8M0_RULES),
            (16, "E4M3", 1.0, "floor"),
            (16, "E4M3", 0.0137, "floor"),
        ):
            codes, scales = families.encode_fp4(x, group, scale, tensor_scale, rule=rule)
            traffic.start({"x": values})
            found = operations.encode_fp4(values, group, scale, tensor_scale, rule)
            share = traffic.nbytes("x") / x.nbytes
            tell(case=f"{scale} {rule}", same=same(found[0], codes) and same(found[1], scales), share=share)


def blocks(traffic: Traffic) -> None:
    for kind in ("Q4_0", "Q8_0"):
        for columns in (32, 224):
            x = hard_rows(columns)
            values = torch.from_numpy(x)
            traffic.start({"x": values})
            found = operations.encode_blocks(kind, values)
            expected = ops.encode_blocks(kind, x, search=False)
            tell(case=kind, same=same(found, expected), share=traffic.nbytes("x") / x.nbytes)


def gptq(traffic: Traffic) -> None:
    rng = np.random.default_rng(5)
    nf4 = np.sort(families.NF4_LEVELS)
    for rows, columns, groups, levels in (
        (1, 33, 1, np.arange(-8, 8)), (37, 130, 5, np.arange(0, 4)), (3, 64, 2, nf4), (33, 150, 3, nf4 * 0.7)
    ):  # fmt: skip
        w = rng.standard_normal((rows, columns)).astype(np.float32)
        matrix = (rng.standard_normal((columns, columns)) / columns**0.5).astype(np.float32)
        steps = (rng.random((rows, groups)) * 0.3).astype(np.float32)
        steps[0, 0] = 0
        offsets = (rng.standard_normal((rows, groups)) * 0.1).astype(np.float32)
        group = np.sort(rng.integers(0, groups, columns)).astype(np.int32)
        levels = levels.astype(np.float32)
        expected = solve.feedback(w, matrix, steps, offsets, group, levels)
        given = [torch.from_numpy(a) for a in (w, matrix, steps, offsets, group, levels)]
        found, shares = traffic.of_launches(encode, lambda given=given: operations.feedback(*given))
        for kernel, share in shares.items():
            tell(case=f"gptq {rows} × {columns}", kernel=kernel, same=same(found, expected), share=share)


def refused() -> None:
    x = torch.ones((2, 32))
    tries: dict[str, Callable[[], object]] = {
        "NaN": lambda: operations.encode_blocks("Q4_0", x * float("nan")),
        "group": lambda: operations.encode_groups(x, 4, 24, True),
        "long": lambda: operations.encode_groups(torch.ones((1, 40000)), 4, 40000, True),
        "kind": lambda: operations.encode_blocks("Q4_K", x),
        "matrix": lambda: operations.feedback(x, x, x, x, torch.zeros(32, dtype=torch.int32), torch.arange(4.0)),
    }
    for what, start in tries.items():
        try:
            start()
        except ValueError as error:
            tell(refused=what, reason=str(error))


def main() -> None:
    traffic = Traffic(("matrix", "errors", "group", "levels", "middles"))  # of GPTQ, from the second-level cache
    with dispatch.only("reference"), np.errstate(all="ignore"):
        grouped(traffic)
        floats(traffic)
        four_bits(traffic)
        blocks(traffic)
        gptq(traffic)
        refused()


if __name__ == "__main__":
    sys.exit(main())
