"""Products of codes with codes under Triton's interpreter: one JSON line a case.

Every format × way × batch × shape. Errors are shares of Σ |x| · |w|, of the values that the codes stand for, by numpy
in float64.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from interpreted import Traffic, exact_dot, scaled_dot, tell
from step_cases import stands_for

from kernels.gpu import operations
from kernels.gpu.configurations import TILE, VECTOR, ScaledConfiguration, scaled_configuration
from kernels.gpu.products import scaled as scaled_products
from kernels.gpu.products.scaled_ways import KINDS, way_of, work_of
from kernels.gpu.steps.apply import OUTLIER_BLOCK
from kernels.reference import scaled

BATCHES = (1, 3, 16, 33)
SHAPES = ((37, 80), (5, 150), (70, 288))  # rows and columns of weights
CARDS = {"int8": "sm_90", "fp8": "sm_90", "scaled": "sm_100", "upcast": "sm_80"}


def weights(kind: str, rows: int, columns: int) -> tuple[operations.ScaledWeights, np.ndarray]:
    """Codes of any value with scales of any size, and what they stand for."""
    rng = np.random.default_rng(rows * 1000 + columns)
    shape = KINDS[kind]
    groups = -(-columns // shape.group) if shape.group else 1
    tensor_scale = 1.0
    if kind == "int8":
        codes = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    else:
        codes = rng.integers(0, 16 if shape.bits == 4 else 256, (rows, columns)).astype(np.uint8)
        if shape.format == "e4m3":
            codes[codes & 0x7F == 0x7F] = 0x80
    count = (-(-rows // shape.scale_rows), groups)
    if shape.scale == "single":
        scales = (rng.random(count) + 0.1).astype(np.float32) / 100
    elif shape.scale == "power":
        scales = rng.integers(118, 131, count).astype(np.uint8)
    else:
        scales, tensor_scale = rng.integers(0, 0x7F, count).astype(np.uint8), 0.03
    made = operations.upload_scaled(kind, codes, scales, "cpu", tensor_scale)
    return made, scaled.weights(kind, codes, scales, tensor_scale)


def activations(tokens: int, columns: int) -> torch.Tensor:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    x[tokens // 2] *= 50
    x[:, columns // 3] *= 9
    if tokens > 1:
        x[0] = 0
    return torch.from_numpy(x).to(torch.float16)


def ways(kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(way_of(kind, card) for card in ("sm_90", "sm_100", "sm_80")))


def run(
    kind: str, way: str, tokens: int, rows: int, columns: int, how: ScaledConfiguration, traffic: Traffic
) -> dict[str, Any]:
    shape = KINDS[kind]
    made, w = weights(kind, rows, columns)
    x = operations.quantize(
        activations(tokens, columns), shape.tokens, shape.group if shape.tokens == "e4m3" else 0,
        0.01 if kind == "nvfp4" else 1.0,
    )  # fmt: skip
    out = torch.empty((tokens, rows), dtype=torch.float32)
    traffic.start({"codes": made.codes, "scales": made.scales, "x": x.codes, "x_scales": x.scales, "out": out})
    found = operations.scaled_product(x, made, out, how=how, way=way).numpy().astype(np.float64)
    values = stands_for(x)
    size = np.abs(values) @ np.abs(w).T
    error = np.abs(found - values @ w.T) / np.where(size > 0, size, 1)
    inputs = (made.nbytes, x.codes.nbytes, x.scales.nbytes, out.nbytes)
    moved = sum(map(traffic.nbytes, ("codes", "scales", "x", "x_scales", "out")))
    if how.split > 1:
        moved += 2 * how.split * out.nbytes
    return {
        "kind": kind, "way": way, "regime": how.regime, "tokens": tokens, "rows": rows, "columns": columns,
        "split": how.split, "error": float(error.max()), "share": moved / sum(inputs),
        "codes_share": traffic.nbytes("codes") / made.codes.nbytes,
        "programs_of_tokens": -(-tokens // how.batch),
    }  # fmt: skip


def outlier_split(traffic: Traffic) -> None:
    """A few columns stand out; the others are codes. Against float64 of what each part stands for."""
    for tokens, columns, regime in ((1, 300, VECTOR), (3, 80, VECTOR), (16, 300, TILE), (33, 150, TILE)):
        made, w = weights("int8", 37, columns)
        x = activations(tokens, columns)
        chosen = [3, columns // 2, columns - 1]
        x[tokens // 2, chosen] = torch.tensor([80.0, -70.0, 90.0], dtype=torch.float16)
        for threshold in (60.0, 1e6):
            outliers = operations.find_outliers(x, threshold)
            flagged = (x.abs() >= threshold).any(0).numpy()
            codes = operations.quantize(x, "int8", outliers=outliers)
            block = OUTLIER_BLOCK if regime == TILE else 2 * OUTLIER_BLOCK
            how = ScaledConfiguration(regime, 32, 16 if regime == TILE else 4, block, 4, 1, 1)
            found = operations.scaled_product(codes, made, outliers=outliers, how=how).numpy().astype(np.float64)
            kept = np.where(flagged, x.double().numpy(), stands_for(codes))
            size = np.abs(kept) @ np.abs(w).T
            error = np.abs(found - kept @ w.T) / np.where(size > 0, size, 1)
            same = (
                np.array_equal(outliers.flags.numpy() != 0, flagged)
                and not codes.codes.numpy()[:, :columns][:, flagged].any()
            )
            count = int(flagged.sum())
            tell(case="outliers", tokens=tokens, regime=regime, error=float(error.max()), same=bool(same), count=count)


def halved() -> None:
    """gfx942 reads each E4M3 code as half of what it stands for."""
    scaled_products.card_of = lambda _tensor: "gfx942"
    for kind in ("e4m3", "e4m3 128 × 128"):
        made, w = weights(kind, 37, 150)
        x = operations.quantize(activations(16, 150), "e4m3", KINDS[kind].group)
        found = operations.scaled_product(x, made).numpy().astype(np.float64)
        size = np.abs(stands_for(x)) @ np.abs(w).T
        tell(case="halved", error=float((np.abs(found - stands_for(x) @ w.T) / np.where(size > 0, size, 1)).max()))


def refused() -> None:
    ones = np.ones((2, 32), np.uint8)
    tries = {
        "kind": lambda: operations.upload_scaled("int5", ones, np.ones(2, np.float32), "cpu"),
        "NaN": lambda: operations.upload_scaled("e4m3", ones * 127, np.ones(2, np.float32), "cpu"),
        "scales": lambda: operations.upload_scaled("mxfp8", ones, np.ones((2, 2), np.uint8), "cpu"),
        "columns": lambda: operations.upload_scaled(
            "int8", np.zeros((1, 140000), np.int8), np.ones(1, np.float32), "cpu"
        ),
        "activations": lambda: operations.scaled_product(
            operations.quantize(activations(2, 32), "int8"), weights("e4m3", 2, 32)[0]
        ),
    }
    for what, start in tries.items():
        try:
            start()
        except ValueError as error:
            tell(refused=what, reason=str(error))


def main() -> None:
    traffic = Traffic(("x", "x_scales", "out"))
    exact_dot()
    scaled_dot()
    for kind in KINDS:
        for way in ways(kind):
            for tokens in BATCHES:
                for rows, columns in SHAPES:
                    width = weights(kind, rows, columns)[0].codes.shape[1]
                    how = scaled_configuration(CARDS[way], work_of(kind, way), tokens, rows, width, KINDS[kind].bits)
                    if how.regime == VECTOR and way != ways(kind)[0]:
                        continue  # it is the same kernel
                    tell(**run(kind, way, tokens, rows, columns, how, traffic))
            width = weights(kind, 37, 150)[0].codes.shape[1]  # as cards cut up a prompt
            how = scaled_configuration(CARDS[way], work_of(kind, way), 70, 37, width, KINDS[kind].bits)
            tell(**run(kind, way, 70, 37, 150, how, traffic))
            split = ScaledConfiguration(TILE, 32, 16, 128, 4, 1, 3)
            tell(**run(kind, way, 20, 20, 1100, split, traffic))
        tell(**run(kind, way, 2, 9, 1300, ScaledConfiguration(VECTOR, 8, 2, 256, 4, 1, 2), traffic))
    outlier_split(traffic)
    refused()
    halved()


if __name__ == "__main__":
    sys.exit(main())
