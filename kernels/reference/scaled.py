"""Products of activations and weights that are both codes, in float64: what each code stands for, and Σ x̂ · ŵ."""

from __future__ import annotations

import numpy as np

from kernels.reference import float8, floats, fp4
from kernels.reference.matrix import round_activations

# Kind → columns that share a scale of activations (0: a token) and rows and columns that share one of weights.
GROUPS = {
    "int8": (0, 1, 0),
    "e4m3": (0, 1, 0),
    "e4m3 128 × 128": (128, 128, 128),
    "mxfp8": (32, 1, 32),
    "mxfp4": (32, 1, 32),
    "nvfp4": (16, 1, 16),
}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def decode(kind: str, codes: np.ndarray) -> np.ndarray:
    """Codes [R, K], one an element → float64, without scales."""
    if kind == "int8":
        return codes.astype(np.float64)
    if kind in ("mxfp4", "nvfp4"):
        return np.where(codes & 8, -1.0, 1.0) * _E2M1[codes & 7]
    return floats.table("F8_E4M3")[codes].astype(np.float64)


def decode_scales(kind: str, scales: np.ndarray) -> np.ndarray:
    if kind in ("mxfp8", "mxfp4"):
        return floats.table("F8_E8M0")[scales].astype(np.float64)
    if kind == "nvfp4":
        return floats.table("F8_E4M3")[scales].astype(np.float64)
    return scales.astype(np.float64)


@np.errstate(all="ignore")
def round_codes(x: np.ndarray, kind: str, tensor_scale: float = 1.0) -> np.ndarray:
    """float32 [M, K] → float64 [M, K]: what the codes of activations stand for. A group with NaN or Inf is NaN.

    e4m3: scale amax / 448, code of x · (448 / amax). mxfp8, mxfp4: scale ⌊log2 amax⌋ less the element's largest
    exponent. nvfp4: scale amax / 6 of x / tensor_scale, in E4M3. Codes to nearest, ties to even.
    """
    if kind == "int8":
        return round_activations(x, "integer", "TOKEN")
    rows, columns = x.shape
    group = GROUPS[kind][0] or columns
    padded = np.zeros((rows, -(-columns // group) * group), np.float32)
    padded[:, :columns] = x
    values = padded.reshape(-1, group)
    amax = np.abs(values).max(axis=1)
    finite = np.isfinite(amax)
    values, amax = np.where(finite[:, None], values, np.float32(0)), np.where(finite, amax, np.float32(0))
    if kind.startswith("e4m3"):
        inverse = np.float32(448) / amax
        usable = np.isfinite(inverse)
        codes = floats.to_float8(values * np.where(usable, inverse, np.float32(0))[:, None], "F8_E4M3")
        scales = np.where(usable, amax / np.float32(448), 0).astype(np.float64)
        rounded = decode(kind, codes) * scales[:, None]
    elif kind == "nvfp4":
        values = values / np.float32(tensor_scale)
        scale = fp4.to_unsigned_e4m3(np.abs(values).max(axis=1) / np.float32(6))
        step = fp4.from_unsigned_e4m3(scale)
        inverse = np.where(step > 0, np.float32(1) / step, np.float32(0))
        level = fp4.e2m1_level(np.abs(values) * inverse[:, None])
        rounded = np.copysign(level, values) * step.astype(np.float64)[:, None] * float(np.float32(tensor_scale))
    else:
        code = float8.e8m0_from_amax(amax, 8 if kind == "mxfp8" else 2, 0.0, "floor")
        scaled = values * np.ldexp(np.float32(1), 127 - code.astype(np.int32))[:, None]
        if kind == "mxfp8":
            level = decode(kind, floats.to_float8(scaled, "F8_E4M3"))
        else:
            level = np.copysign(fp4.e2m1_level(np.abs(scaled)), scaled).astype(np.float64)
        rounded = level * np.ldexp(1.0, code.astype(np.int32) - 127)[:, None]
    return np.where(finite[:, None], rounded, np.nan).reshape(padded.shape)[:, :columns]


def weights(kind: str, codes: np.ndarray, scales: np.ndarray, tensor_scale: float = 1.0) -> np.ndarray:
    """Codes [N, K], one an element, and scales, one a group of `GROUPS` → float64 [N, K]."""
    _, rows, columns = GROUPS[kind]
    wide = np.repeat(decode_scales(kind, scales.reshape(len(scales), -1)), rows, axis=0)[: len(codes)]
    each = np.repeat(wide, columns or codes.shape[1], axis=1)[:, : codes.shape[1]]
    return decode(kind, codes) * each * tensor_scale


def product(kind: str, x: np.ndarray, codes: np.ndarray, scales: np.ndarray, tensor_scale: float = 1.0) -> np.ndarray:
    """float32 [M, K] · weightsᵀ → float32 [M, N], both as codes of `kind`; tensor_scale: of the weights."""
    with np.errstate(all="ignore"):
        return (round_codes(x, kind) @ weights(kind, codes, scales, tensor_scale).T).astype(np.float32)
