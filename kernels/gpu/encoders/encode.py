"""Launches encoders that round to nearest, and GPTQ's updates: values in, codes and scales out, all on the device.

Values are contiguous float32 [R, K]. Every result is bit for bit that of `kernels.ops`, `kernels.families` and
`kernels.solve` without search. NaN and Inf raise ValueError, as there, which waits for the device once.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels.gpu.encoders import encoders
from kernels.gpu.launcher import launch, power_above
from kernels.gpu.steps.apply import LONGEST_ROW
from kernels.layouts import LAYOUTS
from kernels.reference.float8 import e8m0_from_amax

SCALES = ("F16", "BF16", "F32")
BLOCKS = {"Q4_0": encoders.encode_q4_0, "Q8_0": encoders.encode_q8_0}
_VALUES = 2048  # of a program
_COLUMNS = 64  # of GPTQ that are rounded before what follows is updated


def encode_groups(
    x: torch.Tensor, bits: int, group: int, symmetric: bool, scale_dtype: str = "F16"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """→ codes uint8 [R, K], scales float32 and zeros uint8 [R, K / group]; see `kernels.ops.encode_groups`.

    Raises ValueError for groups of over 32768 values, which no program has in registers.
    """
    _check(x)
    if not 1 <= bits <= 8 or scale_dtype not in SCALES:
        raise ValueError(f"codes have 1 to 8 bits and scales {', '.join(SCALES)}, not {bits} and {scale_dtype}")
    rows, count = len(x), _groups(x, group)
    block = power_above(group)
    if block > LONGEST_ROW:
        raise ValueError(f"groups of {group} values are longer than {LONGEST_ROW}, which a program has in registers")
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty((rows, count), dtype=torch.float32, device=x.device)
    zeros = torch.empty((rows, count), dtype=torch.uint8, device=x.device)
    height = max(_VALUES // block, 1)
    launch(
        encoders.encode_groups,
        (-(-rows * count // height),),
        *(x, codes, scales, zeros, rows * count),
        BITS=bits,
        GROUP=group,
        SYMMETRIC=symmetric,
        SCALE=scale_dtype,
        ROWS=height,
        BLOCK=block,
        warps=min(max(height * block // 512, 4), 16),
        fusion=False,
    )
    return codes, scales, zeros


def tile_amax(x: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """float32 [⌈R / a⌉, ⌈K / b⌉]: the largest |x| of each tile of a × b values."""
    _check(x)
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, -columns % b, 0, -rows % a))
    return padded.view(-(-rows // a), a, -(-columns // b), b).abs().amax((1, 3))


def encode_float8(x: torch.Tensor, dtype: str, scales: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """→ codes uint8 [R, K] of x / scale; scales float32 [⌈R / a⌉, ⌈K / b⌉], finite and positive.

    dtype: F8_E4M3 or F8_E5M2; see `kernels.families.encode_float8`.
    """
    _check(x)
    rows, columns = x.shape
    if dtype not in ("F8_E4M3", "F8_E5M2"):
        raise ValueError(f"8-bit floats are F8_E4M3 or F8_E5M2, not {dtype}")
    if scales.shape != (-(-rows // a), -(-columns // b)) or scales.dtype != torch.float32:
        raise ValueError(f"scales of {a} × {b} values of {list(x.shape)} are not {scales.dtype} {list(scales.shape)}")
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    launch(
        encoders.encode_float8,
        (-(-rows // 8), -(-columns // 256)),
        *(x, scales.contiguous(), codes, rows, columns, scales.shape[1], a, b),
        FORMAT=dtype,
        ROWS=8,
        BLOCK=256,
        fusion=False,
    )
    return codes


def encode_fp4(
    x: torch.Tensor, group: int, scale: str, tensor_scale: float = 1.0, rule: str = "floor"
) -> tuple[torch.Tensor, torch.Tensor]:
    """→ E2M1 codes uint8 [R, K] and scale bytes uint8 [R, K / group]; see `kernels.families.encode_fp4`.

    group 16 with 'E4M3' is NVFP4, 32 with 'E8M0' MXFP4. rule: of E8M0 scales.
    """
    _check(x)
    if (group, scale) not in ((16, "E4M3"), (32, "E8M0")):
        raise ValueError(f"4-bit floats have groups of 16 with E4M3 scales or 32 with E8M0, not {group} with {scale}")
    rows, count = len(x), _groups(x, group)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty((rows, count), dtype=torch.uint8, device=x.device)
    how = "nvfp4" if scale == "E4M3" else "ggml"
    if how == "ggml" and rule != "floor":
        scales = power_scales(tile_amax(x, 1, group), 2, rule)
        return encode_e2m1(x, scales), scales
    height = _VALUES // group
    launch(
        encoders.encode_e2m1,
        (-(-rows * count // height),),
        *(x, scales, codes, rows * count, float(tensor_scale)),
        RULE=how,
        GROUP=group,
        ROWS=height,
        fusion=False,
    )
    return codes, scales


def encode_e2m1(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """→ E2M1 codes uint8 [R, K], ties to even; scales uint8 [R, K / 32], E8M0 below 255."""
    _check(x)
    group = 32
    if scales.dtype != torch.uint8 or scales.shape != (len(x), _groups(x, group)):
        raise ValueError(f"scales of groups of {group} values of {list(x.shape)} are not {list(scales.shape)}")
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    height, count = _VALUES // group, scales.numel()
    launch(
        encoders.encode_e2m1,
        (-(-count // height),),
        *(x, scales.contiguous(), codes, count, 1.0),
        RULE="given",
        GROUP=group,
        ROWS=height,
        fusion=False,
    )
    return codes


def power_scales(amax: torch.Tensor, emax: int, rule: str = "floor") -> torch.Tensor:
    """Largest magnitudes of groups → E8M0 codes uint8; see `kernels.families.e8m0_from_amax`. On the host."""
    largest = {2: 6.0, 8: 448.0, 15: 57344.0}[emax]
    found = e8m0_from_amax(amax.cpu().numpy(), emax, largest, rule)
    return torch.from_numpy(np.ascontiguousarray(found)).to(amax.device)


def encode_blocks(kind: str, x: torch.Tensor) -> torch.Tensor:
    """→ blocks uint8 [R, row bytes] of 'Q4_0' or 'Q8_0'; see `kernels.ops.encode_blocks`."""
    if kind not in BLOCKS:
        raise ValueError(f"the GPU encodes blocks of {' and '.join(BLOCKS)}, not {kind}")
    _check(x)
    count = _groups(x, 32)
    blocks = torch.empty((len(x), LAYOUTS[kind].row_bytes(x.shape[1])), dtype=torch.uint8, device=x.device)
    height = _VALUES // 32
    launch(BLOCKS[kind], (-(-len(x) * count // height),), x, blocks, len(x) * count, ROWS=height, fusion=False)
    return blocks


def feedback(
    w: torch.Tensor,
    matrix: torch.Tensor,
    steps: torch.Tensor,
    offsets: torch.Tensor,
    group: torch.Tensor,
    levels: torch.Tensor,
) -> torch.Tensor:
    """GPTQ: values [R, K] → indices uint8 [R, K], column by column; see `kernels.solve.feedback`.

    matrix: float32 [K, K]; steps, offsets: float32 [R, G]; group: int32 [K]; levels: float32 [n], ascending. 64 columns
    are rounded, and then all that follow are updated.
    """
    _check(w)
    rows, columns = w.shape
    count = len(levels)
    if matrix.shape != (columns, columns) or matrix.dtype != torch.float32:
        raise ValueError(f"the matrix is float32 [{columns}, {columns}], not {matrix.dtype} {list(matrix.shape)}")
    if steps.shape != offsets.shape or len(steps) != rows or steps.dtype != torch.float32:
        raise ValueError(f"steps and offsets have a row for each of {rows}")
    if group.shape != (columns,) or group.dtype != torch.int32:
        raise ValueError(f"each of {columns} columns has a group, int32")
    if not 1 <= count <= 256:
        raise ValueError("levels are 1 to 256 ascending numbers")
    known = np.zeros(count, np.float32) if levels.is_meta else levels.cpu().numpy()
    even = levels.is_meta or bool(known[0] == np.rint(known[0]) and (np.diff(known) == 1).all())
    middles = (levels[1:] + levels[:-1]) * 0.5 if count > 1 else levels
    target, index = w.clone(), torch.empty(w.shape, dtype=torch.uint8, device=w.device)
    moves, errors = matrix.T.contiguous(), torch.empty((rows, _COLUMNS), dtype=torch.float32, device=w.device)
    steps, offsets = steps.contiguous(), offsets.contiguous()
    height, width = 32, 64
    for start in range(0, columns, _COLUMNS):
        launch(
            encoders.feedback_block,
            (-(-rows // height),),
            *(w, target, moves, steps, offsets, group, levels, middles, index, errors),
            *(start, rows, columns, steps.shape[1]),
            COUNT=count,
            EVEN=even,
            ROWS=height,
            BLOCK=_COLUMNS,
            fusion=False,
        )
        after = columns - start - _COLUMNS
        if after > 0:
            launch(
                encoders.feedback_update,
                (-(-rows // height), -(-after // width)),
                *(target, moves, errors, start, rows, columns),
                ROWS=height,
                COLUMNS=width,
                BLOCK=_COLUMNS,
                fusion=False,
            )
    return index


def _check(x: torch.Tensor) -> None:
    if x.ndim != 2 or x.dtype != torch.float32 or not x.is_contiguous() or not x.numel():
        raise ValueError(f"values are contiguous float32 [R, K], not {x.dtype} {list(x.shape)}")
    if not x.is_meta and not bool(torch.isfinite(x).all()):
        raise ValueError("NaN or Inf can not be encoded")


def _groups(x: torch.Tensor, group: int) -> int:
    if group < 1 or x.shape[1] % group:
        raise ValueError(f"rows of {x.shape[1]} values do not divide into groups of {group}")
    return x.shape[1] // group
