"""The steps between products under Triton's interpreter: one JSON line a case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from interpreted import Traffic, tell

from kernels.gpu import operations
from kernels.gpu.steps import apply
from kernels.reference import attention, elementwise, floats, scaled
from kernels.reference.matrix import round_activations

BATCHES = (1, 3, 16, 33)
KINDS_OF_CODES = (("int8", 0), ("int8", 32), ("e4m3", 0), ("e4m3", 128), ("mxfp8", 0), ("mxfp4", 0), ("nvfp4", 0))
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def values(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    rng = np.random.default_rng(rows * 1009 + columns)
    x = 2 * rng.standard_normal((rows, columns)).astype(np.float32)
    x[:, columns // 3] *= 20
    if rows > 2:
        x[1] = 0
    return torch.from_numpy(x).to(dtype)


def exact(x: torch.Tensor) -> np.ndarray:
    return x.to(torch.float64).numpy()


def compare(found: torch.Tensor, expected: np.ndarray) -> dict[str, Any]:
    """error: of the largest value of its row."""
    size = np.abs(expected).reshape(len(expected), -1).max(axis=1)
    error = np.abs(exact(found) - expected).reshape(len(expected), -1).max(axis=1)
    return {
        "error": float((error / np.where(size > 0, size, 1)).max()),
        "dtype": str(found.dtype).removeprefix("torch."),
    }


def stands_for(x: operations.Tokens) -> np.ndarray:
    """float64 [M, columns]: what the codes stand for."""
    codes = x.codes.numpy()
    if x.kind in ("mxfp4", "nvfp4"):
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    scales = scaled.decode_scales(x.kind, x.scales.numpy())
    each = np.repeat(scales, x.group or codes.shape[1], axis=1)[:, : codes.shape[1]]
    return (scaled.decode(x.kind, codes) * each * float(np.float32(x.tensor_scale)))[:, : x.columns]


def codes_error(found: operations.Tokens, expected: np.ndarray) -> dict[str, Any]:
    """error: of codes · scale, in steps of the codes; and whether what lies past the columns is 0."""
    codes, scales = found.codes.numpy(), found.scales.numpy().astype(np.float64)
    group = found.group or found.columns
    each = np.repeat(scales, group, axis=1)[:, : found.columns]
    if found.kind == "int8":
        values, step = codes[:, : found.columns].astype(np.float64), each
    else:
        values = floats.table("F8_E4M3")[codes[:, : found.columns]].astype(np.float64)
        step = each * np.maximum(2.0 ** np.floor(np.log2(np.maximum(np.abs(values), 2.0**-6)) - 3), 2.0**-9)
    error = np.abs(values * each - expected) / np.where(step > 0, step, 1)
    return {"steps": float(error.max()), "padded": not codes[:, found.columns :].any(), "dtype": found.kind}


def of_steps(traffic: Traffic, step: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What a step returns, and what its kernel touches over what it has to."""
    found, shares = traffic.of_launches(apply, lambda: step(*arguments))
    (share,) = shares.values()
    return found, share


def outliers(traffic: Traffic) -> None:
    for tokens in BATCHES:
        for columns in (80, 300):
            x = values(tokens, columns, torch.float16)
            found, share = of_steps(traffic, operations.find_outliers, x, 6.0)
            expected = (np.abs(exact(x)) >= 6).any(axis=0)
            blocks = [expected[at : at + 128].any() for at in range(0, columns, 128)]
            same = found.flags.numpy().astype(bool).tolist() == expected.tolist()
            same = same and found.blocks.numpy().astype(bool).tolist() == blocks
            tell(case="outliers", tokens=tokens, columns=columns, share=share, same=same)


def norms(traffic: Traffic) -> None:
    for tokens in BATCHES:
        for columns, name in ((80, "bfloat16"), (130, "float16"), (4096, "float32")):
            if columns > 1000 and tokens > 3:
                continue
            x, gain = values(tokens, columns, DTYPES[name]), values(1, columns, torch.float32)[0]
            expected = elementwise.rms_norm(exact(x), exact(gain), 1e-5)
            out = torch.empty_like(x)
            traffic.start({"x": x, "out": out, "gain": gain})
            operations.rms_norm(x, gain, 1e-5, out=out)
            moved = sum(map(traffic.nbytes, ("x", "out", "gain")))
            share = moved / (x.nbytes + out.nbytes + gain.nbytes)
            tell(case="norm", tokens=tokens, columns=columns, share=share, **compare(out, expected))
            residual = values(tokens, columns, torch.float32) / 2
            total = exact(x) + exact(residual)
            found, share = of_steps(traffic, operations.rms_norm, x, gain, 1e-5, residual)
            expected = elementwise.rms_norm(total, exact(gain), 1e-5)
            tell(case="norm + residual", tokens=tokens, columns=columns, share=share, **compare(found, expected))
            tell(case="residual", tokens=tokens, columns=columns, **compare(residual, total))
            for kind, group in (("int8", 0), ("e4m3", 0), ("e4m3", 128)):
                expected = elementwise.rms_norm(exact(x), exact(gain), 1e-5)
                tokens_as_codes, share = of_steps(traffic, operations.rms_norm_quantized, x, gain, 1e-5, kind, group)
                tell(
                    case=f"norm to codes g{group}",
                    tokens=tokens,
                    columns=columns,
                    share=share,
                    **codes_error(tokens_as_codes, expected),
                )


def activations(traffic: Traffic) -> None:
    for tokens in BATCHES:
        for kind, columns, name in (("silu", 67, "float16"), ("gelu", 96, "float32"), ("gelu_tanh", 1000, "bfloat16")):
            both = values(tokens, 2 * columns, DTYPES[name])
            gate, up = both[:, :columns], both[:, columns:]
            expected = elementwise.activate(kind, exact(gate)) * exact(up)
            out = torch.empty((tokens, columns), dtype=both.dtype)
            traffic.start({"x": both, "out": out})
            operations.activate_mul(kind, gate, up, out)
            share = (traffic.nbytes("x") + traffic.nbytes("out")) / (both.nbytes + out.nbytes)
            tell(case=kind, tokens=tokens, columns=columns, share=share, **compare(out, expected))
            found, share = of_steps(traffic, operations.activate_mul_quantized, kind, gate, up, "int8")
            tell(case=f"{kind} to codes", tokens=tokens, columns=columns, share=share, **codes_error(found, expected))


def same_codes() -> None:
    """Codes alone: bit for bit the reference's, with rows that are zero, tiny, huge, or not finite."""
    x = values(7, 150, torch.float32)
    x[3], x[4, 7], x[5, 9] = x[3] * 1e-41, float("inf"), float("nan")
    x[6] = torch.round(x[6])
    with np.errstate(all="ignore"):
        expected = round_activations(x.numpy(), "integer", "TOKEN")
    found = operations.quantize(x, "int8")
    values_found = found.codes[:, :150].numpy().astype(np.float64) * found.scales.numpy().astype(np.float64)
    same = np.array_equal(values_found, expected, equal_nan=True)
    tell(case="codes as the reference's", same=bool(same))
    for kind in ("e4m3 128 × 128", "mxfp8", "mxfp4", "nvfp4"):
        name, group = ("e4m3", 128) if kind.startswith("e4m3") else (kind, 0)
        found = operations.quantize(x, name, group, 0.02 if kind == "nvfp4" else 1.0)
        expected = scaled.round_codes(x.numpy(), kind, found.tensor_scale)
        tell(case=f"{kind} as the reference's", same=bool(np.array_equal(stands_for(found), expected, equal_nan=True)))
    finite = values(5, 300, torch.float32)
    for group in (0, 16, 128):
        tell(
            case=f"e4m3 g{group}",
            tokens=5,
            columns=300,
            **codes_error(operations.quantize(finite, "e4m3", group), exact(finite)),
        )


def codes_of_every_kind(traffic: Traffic) -> None:
    """Each kind of codes by each number of tokens: alone, the reference's; after a norm or an activation, those of its
    float32 result, bit for bit.
    """
    for tokens in BATCHES:
        both, gain = values(tokens, 2 * 75, torch.float16), values(1, 75, torch.float32)[0]
        gate, up = both[:, :75], both[:, 75:]
        for kind, group in (
            ("int8", 0),
            ("int8", 32),
            ("e4m3", 0),
            ("e4m3", 128),
            ("mxfp8", 0),
            ("mxfp4", 0),
            ("nvfp4", 0),
        ):
            tensor_scale = 0.02 if kind == "nvfp4" else 1.0
            alone, share = of_steps(traffic, operations.quantize, gate, kind, group, tensor_scale)
            tell(case=f"read for {kind} g{group}", tokens=tokens, share=share)
            if kind == "int8" and not group:
                expected = round_activations(gate.float().numpy(), "integer", "TOKEN")
            elif kind in ("mxfp8", "mxfp4", "nvfp4") or group == 128:
                name = "e4m3 128 × 128" if kind == "e4m3" else kind
                expected = scaled.round_codes(gate.float().numpy(), name, tensor_scale)
            else:  # no reference has this one: within half a step of the codes
                tell(case=f"{kind} g{group}", tokens=tokens, columns=75, **codes_error(alone, exact(gate)))
                expected = stands_for(alone)
            tell(case=f"codes {kind} g{group}", tokens=tokens, same=bool(np.array_equal(stands_for(alone), expected)))
            normed = operations.rms_norm(gate, gain, 1e-5, out=torch.empty((tokens, 75)))
            active = operations.activate_mul("silu", gate, up, torch.empty((tokens, 75)))
            for what, found, whole in (
                (
                    "norm",
                    operations.rms_norm_quantized(gate, gain, 1e-5, kind, group, tensor_scale=tensor_scale),
                    normed,
                ),
                ("silu", operations.activate_mul_quantized("silu", gate, up, kind, group, tensor_scale), active),
            ):
                apart = operations.quantize(whole, kind, group, tensor_scale)
                same = torch.equal(found.codes, apart.codes) and torch.equal(found.scales, apart.scales)
                tell(case=f"{what} to {kind} g{group}", tokens=tokens, same=bool(same))


def rotary(traffic: Traffic) -> None:
    for tokens in BATCHES:
        for heads, width, turned, pairs, name in (
            (3, 64, 32, False, "float16"),
            (5, 80, 40, True, "bfloat16"),
            (2, 96, 20, False, "float32"),
            (4, 64, 16, True, "float32"),
        ):
            whole = values(tokens, (heads + 1) * width, DTYPES[name])
            x = whole.view(tokens, heads + 1, width)[:, 1:]  # a part of a projection of several
            rng = np.random.default_rng(tokens)
            frequencies = (1.0 / 10000.0 ** (np.arange(turned) / turned)).astype(np.float32)
            positions = rng.integers(0, 500, tokens)
            expected = attention.rotate(x.to(torch.float32).numpy(), positions, frequencies, 1.25, pairs)
            angles = np.arange(500)[:, None] * frequencies.astype(np.float64)
            cos, sin = (torch.from_numpy((1.25 * f(angles)).astype(np.float32)) for f in (np.cos, np.sin))
            at = torch.from_numpy(positions.astype(np.int32))
            case = f"rotate {heads} × {width} {'pairs' if pairs else 'halves'}"
            found, share = of_steps(traffic, operations.rotate, x, cos, sin, at, pairs)
            tell(case=case, tokens=tokens, share=share, **compare(found, expected.astype(np.float64)))
            before = whole.clone()
            _, share = of_steps(traffic, operations.rotate, x, cos, sin, at, pairs, x)
            kept = torch.equal(before[:, :width], whole[:, :width])
            tell(case=f"{case} in place", tokens=tokens, share=share, same=bool(torch.equal(x, found)) and kept)


def refused() -> None:
    x, tables = values(2, 32, torch.float32), torch.zeros((4, 20))
    tries = {
        "long row": lambda: operations.quantize(torch.zeros((1, 40000)), "int8"),
        "activation": lambda: operations.activate_mul("exp", x, x),
        "group": lambda: operations.quantize(x, "e4m3", 48),
        "tables": lambda: operations.rotate(x.view(2, 1, 32), tables, tables, torch.zeros(2, dtype=torch.int32), True),
    }
    for what, start in tries.items():
        try:
            start()
        except ValueError as error:
            tell(refused=what, reason=str(error))


def main() -> None:
    traffic = Traffic(("gain", "cos", "sin", "positions"))
    norms(traffic)
    activations(traffic)
    same_codes()
    codes_of_every_kind(traffic)
    rotary(traffic)
    outliers(traffic)
    refused()


if __name__ == "__main__":
    sys.exit(main())
