"""Launches what lies between products: RMSNorm, rotary positions, gated activations, and codes for 8-bit products.

Tensors are on one device; activations are float16, bfloat16 or float32, their last axis contiguous. `out`, where a
function has it, is written and returned, so that a captured graph keeps its addresses. What no kernel takes raises
ValueError with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gpu.launcher import launch, power_above
from kernels.gpu.steps import elementwise

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
# Kinds of codes of activations: bits of a code, and columns that share a scale (0: as the caller says).
CODES = {"int8": (8, 0), "e4m3": (8, 0), "mxfp8": (8, 32), "mxfp4": (4, 32), "nvfp4": (4, 16)}
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LONGEST_ROW = 32768  # values that one program has in registers
_VALUES = 2048  # that a program has at least
OUTLIER_BLOCK = 128  # columns of which it is known whether one has outliers
_ALIGNED = 16  # bytes; rows of codes begin at multiples of it


@dataclass(frozen=True)
class Tokens:
    """Activations as codes. kind: of `CODES`.

    codes: int8 or uint8 [M, stride], one a byte, of 4-bit kinds two, the first in the low half; rows begin at multiples
    of 16 bytes, and what is past the columns is 0. scales: float32 [M, 1], or [M, groups] of `group` columns; 'mxfp8',
    'mxfp4': E8M0, and 'nvfp4': E4M3, both uint8 [M, groups]. All values are times tensor_scale.
    """

    kind: str
    codes: torch.Tensor
    scales: torch.Tensor
    columns: int
    group: int = 0
    tensor_scale: float = 1.0


@dataclass(frozen=True)
class Outliers:
    """Columns of x that a product multiplies in their own type. x: [M, K]; flags: int8 [K].

    blocks: int32 [⌈K / 128⌉], not 0 where 128 neighbours have such a column.
    """

    x: torch.Tensor
    flags: torch.Tensor
    blocks: torch.Tensor


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
    _token_step(x, residual, gain, out, None, "norm", residual is not None, eps)
    return out


def rms_norm_quantized(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    kind: str = "int8",
    group: int = 0,
    residual: torch.Tensor | None = None,
    tensor_scale: float = 1.0,
) -> Tokens:
    """The codes of `rms_norm`, in one pass: it writes codes and scales, and no normalized row. Else as `quantize`."""
    _check_gain(gain, x)
    found = _empty(x, kind, group, tensor_scale)
    _token_step(x, residual, gain, found, None, "norm", residual is not None, eps)
    return found


def activate_mul(kind: str, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """f(gate) · up, both [M, F], as two tensors or halves of one → [M, F]. kind: of `ACTIVATIONS`. out may be gate."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    _token_step(gate, up, None, out, None, _activation(kind))
    return out


def activate_mul_quantized(
    kind: str, gate: torch.Tensor, up: torch.Tensor, codes: str, group: int = 0, tensor_scale: float = 1.0
) -> Tokens:
    """The codes of `activate_mul`, in one pass. codes: of `CODES`. Else as `quantize`."""
    found = _empty(gate, codes, group, tensor_scale)
    _token_step(gate, up, None, found, None, _activation(kind))
    return found


def quantize(
    x: torch.Tensor, kind: str, group: int = 0, tensor_scale: float = 1.0, outliers: Outliers | None = None
) -> Tokens:
    """x [M, K] → codes of `CODES`. group: of 'int8' and 'e4m3', a power of two from 16 on, or 0, the whole token.

    int8: scale amax / 127, codes to nearest, ties to even, as `kernels.reference.matrix.round_activations` has them.
    e4m3: scale amax / 448. mxfp8, mxfp4: OCP's ⌊log2 amax⌋ less the element's. nvfp4: amax / 6 / tensor_scale in E4M3.
    A row (group) of zeros has scale 0; one with NaN or Inf has scale NaN. outliers: columns that count as 0.
    """
    found = _empty(x, kind, group, tensor_scale)
    _token_step(x, None, None, found, outliers, "")
    return found


def find_outliers(x: torch.Tensor, threshold: float) -> Outliers:
    """LLM.int8(): the columns of x [M, K] in which some magnitude reaches the threshold, which is positive."""
    _check_floats(x, x)
    if not threshold > 0:
        raise ValueError("the threshold of outliers is positive")
    rows, columns = x.shape
    count = -(-columns // OUTLIER_BLOCK)
    flags = torch.empty(columns, dtype=torch.int8, device=x.device)
    blocks = torch.empty(count, dtype=torch.int32, device=x.device)
    height = min(power_above(rows), 16)
    launch(
        elementwise.outlier_columns,
        (count,),
        *(x, flags, blocks, rows, columns, x.stride(0), float(threshold)),
        ROWS=height,
        BLOCK=OUTLIER_BLOCK,
    )
    return Outliers(x, flags, blocks)


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    pairs: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Heads x [M, heads, D] turned by their positions → [M, heads, D]. out may be x.

    cos, sin: float32 [P, R], 2R ≤ D, contiguous, with any scaling in them; positions: int32 [M], below P: heads at
    others become NaN, and nothing outside is read. pairs: values 2i and 2i + 1 turn together (GGUF's llama order), else
    i and i + R (Hugging Face's).
    """
    if x.ndim != 3 or x.stride(2) != 1 or x.dtype not in FLOATS:
        raise ValueError(f"heads are floats [M, heads, D], each in one piece, not {x.dtype} {list(x.shape)}")
    if cos.ndim != 2 or cos.shape != sin.shape or not 0 < 2 * cos.shape[1] <= x.shape[2]:
        raise ValueError(f"tables {list(cos.shape)} and {list(sin.shape)} do not turn heads of {x.shape[2]}")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32 or not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError("tables of rotary positions are contiguous float32")
    _check_positions(positions, len(x))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if out.shape != x.shape or out.stride(2) != 1:
        raise ValueError(f"the result has the shape of x, {list(x.shape)}, not {list(out.shape)}")
    turned, width = cos.shape[1], x.shape[2]
    block = power_above(turned)
    rows = max(min(power_above(x.shape[1]), _VALUES // (2 * block)), 1)
    launch(
        elementwise.rotate,
        (len(x), -(-x.shape[1] // rows)),
        *(x, cos, sin, positions, out, x.shape[1], x.stride(0), x.stride(1), out.stride(0), out.stride(1)),
        *(width, turned, len(cos)),
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


def _empty(x: torch.Tensor, kind: str, group: int, tensor_scale: float) -> Tokens:
    if kind not in CODES:
        raise ValueError(f"codes of activations are {', '.join(CODES)}, not {kind}")
    bits, fixed = CODES[kind]
    if group and (fixed or group < _ALIGNED or group != power_above(group)):
        own = f"{kind} has {fixed}" if fixed else f"a power of two of columns, at least {_ALIGNED}"
        raise ValueError(f"a scale is for {own}, not for {group}")
    if x.ndim != 2 or not x.shape[1]:
        raise ValueError(f"activations are [M, K], not {list(x.shape)}")
    rows, columns = x.shape
    group = group or fixed
    stride = aligned_bytes(columns, bits)
    codes = torch.empty((rows, stride), dtype=torch.int8 if kind == "int8" else torch.uint8, device=x.device)
    count = -(-stride * 8 // bits // group) if group else 1
    scales = torch.empty((rows, count), dtype=torch.uint8 if fixed else torch.float32, device=x.device)
    return Tokens(kind, codes, scales, columns, group, tensor_scale)


def aligned_bytes(columns: int, bits: int) -> int:
    """Bytes of a row of codes: as many as begin the next one at a multiple of 16."""
    return -(-columns * bits // (8 * _ALIGNED)) * _ALIGNED


def _check_floats(x: torch.Tensor, like: torch.Tensor) -> None:
    if x.shape != like.shape or x.ndim != 2 or not x.shape[1] or x.stride(1) != 1 or x.dtype not in FLOATS:
        raise ValueError(f"activations are floats [M, K], each row in one piece, not {x.dtype} {list(x.shape)}")


def _token_step(
    x: torch.Tensor,
    second: torch.Tensor | None,
    gain: torch.Tensor | None,
    out: torch.Tensor | Tokens,
    outliers: Outliers | None,
    step: str,
    residual: bool = False,
    eps: float = 0.0,
) -> None:
    _check_floats(x, x)
    if second is not None:
        _check_floats(second, x)
    rows, columns = x.shape
    if not rows:
        return
    if isinstance(out, Tokens):
        kind, group, tensor_scale, scales, target = out.kind, out.group, out.tensor_scale, out.scales, out.codes
        block = power_above(max(out.codes.shape[1] * 8 // CODES[kind][0], group), _ALIGNED)
    else:
        _check_floats(out, x)
        kind, group, tensor_scale, scales, target = "", 0, 1.0, out, out
        block = power_above(columns, _ALIGNED)
    if step in ACTIVATIONS and not kind:
        block = min(block, _VALUES // 2)  # no value needs the rest of its row
    elif block > LONGEST_ROW:
        raise ValueError(f"rows of {columns} values are longer than {LONGEST_ROW}, which a program has in registers")
    height = max(_VALUES // block, 1)
    launch(
        elementwise.token_step,
        (-(-rows // height), max(-(-columns // block), 1)),
        *(x, x if second is None else second, x if gain is None else gain, target, scales),
        *(x if outliers is None else outliers.flags, rows, columns, x.stride(0)),
        *(0 if second is None else second.stride(0), target.stride(0), scales.stride(0), eps, tensor_scale),
        STEP=step,
        RESIDUAL=residual,
        CODES=kind,
        SKIP=outliers is not None,
        GROUP=group,
        ROWS=height,
        BLOCK=block,
        warps=min(max(height * block // 512, 4), 16),
        fusion=not kind,
    )
