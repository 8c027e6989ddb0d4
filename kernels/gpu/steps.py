"""Launches what lies between products: RMSNorm, rotary positions, gated activations, and codes for 8-bit products.

Tensors are on one device; activations are float16, bfloat16 or float32, their last axis contiguous. `out`, where a
function has it, is written and returned, so that a captured graph keeps its addresses. What no kernel takes raises
ValueError with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gpu import elementwise
from kernels.gpu.launcher import launch, power_above

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
CODES = {"int8": torch.int8, "e4m3": torch.uint8}
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LONGEST_ROW = 32768  # values that one program has in registers
_VALUES = 2048  # that a program has at least
_ALIGNED = 16  # bytes; rows of codes begin at multiples of it


@dataclass(frozen=True)
class Tokens:
    """Activations as codes. kind: of `CODES`. codes: [M, stride], stride ≥ columns; what is past them is 0.

    scales: float32 [M, 1], or [M, ⌈columns / group⌉].
    """

    kind: str
    codes: torch.Tensor
    scales: torch.Tensor
    columns: int
    group: int = 0


def rms_norm(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [M, K] / √(mean(x²) + eps) · gain [K] → [M, K] of x's type, or of out's.

    residual: [M, K], to which x is added, in place, before the norm is taken of it. For a norm of heads, give
    [M · heads, D].
    """
    _check_gain(gain, x)
    out = torch.empty_like(x) if out is None else out
    _token_step(x, residual, gain, out, None, "norm", residual is not None, "", 0, eps)
    return out


def rms_norm_quantized(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    kind: str = "int8",
    group: int = 0,
    residual: torch.Tensor | None = None,
) -> Tokens:
    """The codes of `rms_norm`, in one pass: it writes codes and scales, and no normalized row."""
    _check_gain(gain, x)
    found = _empty(x, kind, group)
    _token_step(x, residual, gain, found.codes, found.scales, "norm", residual is not None, kind, group, eps)
    return found


def activate_mul(kind: str, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """f(gate) · up, both [M, F], as two tensors or halves of one → [M, F]. kind: of `ACTIVATIONS`. out may be gate."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    _token_step(gate, up, None, out, None, _activation(kind), False, "", 0, 0.0)
    return out


def activate_mul_quantized(kind: str, gate: torch.Tensor, up: torch.Tensor, codes: str, group: int = 0) -> Tokens:
    """The codes of `activate_mul`, in one pass. codes: of `CODES`."""
    found = _empty(gate, codes, group)
    _token_step(gate, up, None, found.codes, found.scales, _activation(kind), False, codes, group, 0.0)
    return found


def quantize(x: torch.Tensor, kind: str, group: int = 0) -> Tokens:
    """x [M, K] → codes with one scale for `group` columns, a power of two from 16 on; 0: for a token.

    int8: scale amax / 127, codes to nearest, ties to even, as `kernels.reference.matrix.round_activations` has them.
    e4m3: scale amax / 448. A row (group) of zeros has scale 0; one with NaN or Inf has scale NaN.
    """
    found = _empty(x, kind, group)
    _token_step(x, None, None, found.codes, found.scales, "", False, kind, group, 0.0)
    return found


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    pairs: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Heads x [M, heads, D] turned by their positions → [M, heads, D]. out may be x.

    cos, sin: float32 [P, R], 2R ≤ D, contiguous, with any scaling in them; positions: int32 [M], below P, which is not
    checked. pairs: values 2i and 2i + 1 turn together (GGUF's llama order), else i and i + R (Hugging Face's).
    """
    if x.ndim != 3 or x.stride(2) != 1 or x.dtype not in FLOATS:
        raise ValueError(f"heads are floats [M, heads, D], not {x.dtype} {list(x.shape)}")
    if cos.ndim != 2 or cos.shape != sin.shape or not 0 < 2 * cos.shape[1] <= x.shape[2]:
        raise ValueError(f"tables {list(cos.shape)} and {list(sin.shape)} do not turn heads of {x.shape[2]}")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32 or not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError("tables of rotary positions are contiguous float32")
    _check_positions(positions, len(x))
    out = torch.empty_like(x) if out is None else out
    if out.shape != x.shape or out.stride(2) != 1:
        raise ValueError(f"the result has the shape of x, {list(x.shape)}, not {list(out.shape)}")
    turned, width = cos.shape[1], x.shape[2]
    block = power_above(turned)
    rows = max(min(power_above(x.shape[1]), _VALUES // (2 * block)), 1)
    launch(
        elementwise.rotate,
        (len(x), -(-x.shape[1] // rows)),
        *(x, cos, sin, positions, out, x.shape[1], x.stride(0), x.stride(1), out.stride(0), out.stride(1)),
        *(width, turned),
        PAIRS=pairs,
        COPY=2 * turned < width and out.data_ptr() != x.data_ptr(),
        ROWS=rows,
        BLOCK=block,
        REST=power_above(width - 2 * turned),
        warps=4,
    )
    return out


def _check_positions(positions: torch.Tensor, tokens: int) -> None:
    if positions.dtype != torch.int32 or positions.shape != (tokens,) or not positions.is_contiguous():
        raise ValueError(f"positions are int32 [{tokens}], not {positions.dtype} {list(positions.shape)}")


def _check_gain(gain: torch.Tensor, x: torch.Tensor) -> None:
    if x.ndim != 2 or gain.shape != (x.shape[1],) or gain.dtype not in FLOATS or not gain.is_contiguous():
        raise ValueError(f"a gain of {list(gain.shape)} is not for rows of {list(x.shape)}")


def _activation(kind: str) -> str:
    if kind not in ACTIVATIONS:
        raise ValueError(f"activation functions are {', '.join(ACTIVATIONS)}, not {kind}")
    return kind


def _empty(x: torch.Tensor, kind: str, group: int) -> Tokens:
    if kind not in CODES:
        raise ValueError(f"codes of activations are {' or '.join(CODES)}, not {kind}")
    if group and (group < _ALIGNED or group != power_above(group)):
        raise ValueError(f"a scale is for a power of two of columns, at least {_ALIGNED}, not for {group}")
    if x.ndim != 2:
        raise ValueError(f"activations are [M, K], not {list(x.shape)}")
    rows, columns = x.shape
    stride = -(-columns // _ALIGNED) * _ALIGNED
    codes = torch.empty((rows, stride), dtype=CODES[kind], device=x.device)
    count = -(-columns // group) if group else 1
    return Tokens(kind, codes, torch.empty((rows, count), dtype=torch.float32, device=x.device), columns, group)


def _token_step(
    x: torch.Tensor,
    second: torch.Tensor | None,
    gain: torch.Tensor | None,
    out: torch.Tensor,
    scales: torch.Tensor | None,
    step: str,
    residual: bool,
    codes: str,
    group: int,
    eps: float,
) -> None:
    for tensor in (x, second):
        if tensor is None:
            continue
        if tensor.shape != x.shape or x.ndim != 2 or tensor.stride(1) != 1 or tensor.dtype not in FLOATS:
            raise ValueError(f"activations are floats [M, K], not {tensor.dtype} {list(tensor.shape)}")
    if not codes and (out.shape != x.shape or out.stride(1) != 1 or out.dtype not in FLOATS):
        raise ValueError(f"the result is floats {list(x.shape)}, not {out.dtype} {list(out.shape)}")
    rows, columns = x.shape
    block = power_above(max(out.stride(0) if codes else columns, group), _ALIGNED)
    if step in ACTIVATIONS and not codes:
        block = min(block, _VALUES // 2)  # no value needs the rest of its row
    elif block > LONGEST_ROW:
        raise ValueError(f"rows of {columns} values are longer than {LONGEST_ROW}, which a program has in registers")
    height = max(_VALUES // block, 1)
    launch(
        elementwise.token_step,
        (-(-rows // height), -(-columns // block) if block < columns else 1),
        *(x, x if second is None else second, x if gain is None else gain, out, x if scales is None else scales),
        *(rows, columns, x.stride(0), 0 if second is None else second.stride(0), out.stride(0)),
        *(0 if scales is None else scales.stride(0), eps),
        STEP=step,
        RESIDUAL=residual,
        CODES=codes,
        GROUP=group,
        ROWS=height,
        BLOCK=block,
        warps=min(max(height * block // 512, 4), 16),
        fusion=not codes,
    )
