"""The public operations on the number formats beside GGML's blocks and integer groups, in the style of `kernels.ops`.

Codes are uint8, one a byte, until a packing operation at the end of this file brings them to a file's layout. Groups
are runs along a row, scales are float32. `threads` splits rows; no result depends on it. All implementations give the
same bits. A shape, a setting, or NaN or Inf that an operation can not take raises ValueError.
"""

from __future__ import annotations

import numpy as np

from kernels import checks, dispatch
from kernels import families_backends as _backends  # noqa: F401  (registers every implementation)
from kernels.layouts import E2M1_LEVELS, E2M1_MAX, LAYOUTS
from kernels.ops import encode_blocks as _encode_blocks
from kernels.reference import float8 as _float8
from kernels.reference import floats as _floats
from kernels.reference import packings as _packings

# bitsandbytes' tables (QLoRA's NF4; FP4, by code and in that order), as float32.
NF4_LEVELS = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
FP4_LEVELS = np.array([s * v / 12 + 0.0 for s in (1, -1) for v in (0, 0.0625, 8, 12, 4, 6, 2, 3)], np.float32)
E2M1_TABLE = np.array([*E2M1_LEVELS, *(-level for level in E2M1_LEVELS)], np.float32)  # 16 codes, −0 at 8
for _table in (NF4_LEVELS, FP4_LEVELS, E2M1_TABLE):
    _table.flags.writeable = False

FLOAT8_TYPES = tuple(_float8.LARGEST)
E8M0_RULES = ("floor", "compressed-tensors", "mlx")
# Exponent of the largest value of an element type → that value: E2M1, E4M3, E5M2.
_ELEMENT_LARGEST = {2: E2M1_MAX, 8: 448.0, 15: 57344.0}
# Group and scale type of 4-bit floats → GGML's type of the same numbers.
_FP4_KINDS = {(16, "E4M3"): "NVFP4", (32, "E8M0"): "MXFP4"}


def _grouped(a: np.ndarray, codes: np.ndarray, group: int, what: str) -> np.ndarray:
    a, shape = checks.matrix(a), (len(codes), codes.shape[1] // group)
    if a.shape != shape:
        raise ValueError(f"{what} have shape {shape}, not {a.shape}")
    return a


def _table16(table: np.ndarray) -> np.ndarray:
    table = np.ascontiguousarray(table, dtype=np.float32)
    if table.shape != (16,) or not np.isfinite(table).all() or not table.any():
        raise ValueError("a table has 16 finite levels, not all 0")
    return table


def encode_codebook(
    x: np.ndarray,
    table: np.ndarray,
    group: int,
    scale_dtype: str = "F32",
    search: bool = False,
    importance: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Values float32 [R, K] → codes uint8 [R, K], scales float32 [R, K / group]; x ≈ scale · table[code].

    table: float32 [16], in any order. Without search the scale is amax / max|table|, 0 for a group of zeros, and the
    bytes are those of bitsandbytes on a CPU (F32 scales; a value halfway goes to the lower level). With search: the
    scale of least squared error, each column's square weighted by importance [K], never a larger error. Scales are
    as a reader of `scale_dtype` (F16, BF16, F32) sees them.
    """
    x, table = checks.matrix(x), _table16(table)
    checks.group(x, group)
    checks.scale_type(scale_dtype)
    run = dispatch.find("encode_codebook").function
    return run(x, table, group, scale_dtype, search, checks.weights(importance, x.shape[1]), threads)


def decode_codebook(
    codes: np.ndarray, scales: np.ndarray, table: np.ndarray, group: int, threads: int = 1
) -> np.ndarray:
    """Codes uint8 [R, K] (their low four bits), scales [R, K / group] → float32 [R, K]: table[code] · scale."""
    codes, table = checks.matrix(codes, np.uint8), _table16(table)
    checks.group(codes, group)
    scales = _grouped(scales, codes, group, "scales")
    return dispatch.find("decode_codebook").function(codes, scales, table, group, 1.0, threads)


def encode_affine(
    x: np.ndarray,
    bits: int,
    group: int,
    scale_dtype: str = "BF16",
    search: bool = False,
    importance: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values float32 [R, K] → codes uint8 [R, K], scales and offsets float32 [R, K / group], both exact in scale_dtype.

    x ≈ scale · code + offset, codes 0 … 2^bits − 1, bits 1…8; scale and offset may have either sign. Without search:
    codes, scales and offsets of mlx.core.quantize for values of that type. With search: least squared error,
    weighted by importance [K], never a larger one.
    """
    x = checks.matrix(x)
    checks.bits(bits)
    checks.group(x, group)
    checks.scale_type(scale_dtype)
    run = dispatch.find("encode_affine").function
    return run(x, bits, group, scale_dtype, search, checks.weights(importance, x.shape[1]), threads)


def decode_affine(
    codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray, group: int, threads: int = 1
) -> np.ndarray:
    """Codes uint8 [R, K], scales and offsets [R, K / group] → float32 [R, K]: (scale · code) + offset, each rounded."""
    codes = checks.matrix(codes, np.uint8)
    checks.group(codes, group)
    parts = (_grouped(scales, codes, group, "scales"), _grouped(offsets, codes, group, "offsets"))
    return dispatch.find("decode_affine").function(codes, *parts, group, threads)


def half_quadratic(
    x: np.ndarray,
    bits: int,
    group: int,
    threads: int = 1,
    iterations: int = 20,
    exponent: float = 0.7,
    beta: float = 10.0,
    growth: float = 1.01,
    round_zero: bool | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """HQQ (Badri & Shaji 2023): float32 [R, K] → codes uint8 [R, K], scales and real zeros float32 [R, K / group].

    x ≈ scale · (code − zero), codes 0 … 2^bits − 1. exponent: the p of Σ |x − x̂|^p. beta, and by what it is multiplied
    in each of `iterations`: the method's. round_zero: whether the first zero is an integer; None: with 4 bits, as HQQ
    does. No group's result depends on another's.
    """
    x = checks.matrix(x)
    checks.bits(bits)
    checks.group(x, group)
    if iterations < 0 or not (0 < exponent <= 1 and beta > 0 and growth >= 1):
        raise ValueError("half-quadratic needs an exponent in 0 … 1, a positive β and a growth of at least 1")
    betas = (1.0 / (beta * growth ** np.arange(iterations))).astype(np.float32)
    first = bits == 4 if round_zero is None else round_zero
    return dispatch.find("half_quadratic").function(x, bits, group, first, exponent, betas, threads)


def decode_zeros(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group: int, threads: int = 1) -> np.ndarray:
    """Codes uint8 [R, K], scales and real zeros float32 [R, K / group] → float32 [R, K]: (code − zero) · scale."""
    codes = checks.matrix(codes, np.uint8)
    checks.group(codes, group)
    parts = (_grouped(scales, codes, group, "scales"), _grouped(zeros, codes, group, "zeros"))
    return dispatch.find("decode_zeros").function(codes, *parts, group, threads)


def round_codes(
    x: np.ndarray, factors: np.ndarray, zeros: np.ndarray, low: int, high: int, shift: int = 0, threads: int = 1
) -> np.ndarray:
    """float32 [R, K], factors and zeros [R, G] of groups of K / G → uint8 [R, K]: round(x · factor + zero) + shift.

    Product and sum are rounded, then the sum to the nearest integer, ties to even, held to low … high; −128 ≤ low ≤
    high ≤ 255, and codes are 0 … 255 with shift added. Values are finite.
    """
    x, factors, zeros = checks.matrix(x), checks.matrix(factors), checks.matrix(zeros)
    if len(factors) != len(x) or not factors.shape[1] or x.shape[1] % factors.shape[1] or zeros.shape != factors.shape:
        raise ValueError(f"{factors.shape} factors and {zeros.shape} zeros are not those of groups of {x.shape}")
    if not (-128 <= low <= high <= 255 and low + shift >= 0 and high + shift <= 255):
        raise ValueError(f"codes {low} … {high} with {shift} added are not bytes")
    return dispatch.find("round_codes").function(x, factors, zeros, low, high, shift, threads)


def _tiles(shape: tuple[int, ...], a: int, b: int) -> tuple[int, int]:
    if a < 1 or b < 1:
        raise ValueError("a tile has at least one value")
    return -(-shape[0] // a), -(-shape[1] // b)


def _tile_scales(scales: np.ndarray, shape: tuple[int, ...], a: int, b: int) -> np.ndarray:
    scales, wanted = checks.matrix(scales), _tiles(shape, a, b)
    if scales.shape != wanted:
        raise ValueError(f"scales of tiles have shape {wanted}, not {scales.shape}")
    return scales


def _float8_type(dtype: str) -> None:
    if dtype not in FLOAT8_TYPES:
        raise ValueError(f"8-bit floats are F8_E4M3 or F8_E5M2, not {dtype}")


def encode_float8(x: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, threads: int = 1) -> np.ndarray:
    """Values float32 [R, K], scales of tiles of a × b [⌈R/a⌉, ⌈K/b⌉] → codes uint8 [R, K] of x / scale.

    dtype: F8_E4M3 or F8_E5M2. The quotient is float32's, held to the largest finite value, and rounded to nearest,
    ties to even, as compressed-tensors does it. Scales are finite and positive.
    """
    x = checks.matrix(x)
    _float8_type(dtype)
    scales = _tile_scales(scales, x.shape, a, b)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise ValueError("scales are finite and positive")
    return dispatch.run("encode_float8", "", x.size, x, dtype, scales, a, b, threads)


def decode_float8(codes: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, threads: int = 1) -> np.ndarray:
    """Codes uint8 [R, K], scales of tiles of a × b → float32 [R, K]: value of the code · scale."""
    codes = checks.matrix(codes, np.uint8)
    _float8_type(dtype)
    scales = _tile_scales(scales, codes.shape, a, b)
    return dispatch.find("decode_float8").function(codes, dtype, scales, a, b, threads)


def tile_amax(x: np.ndarray, a: int, b: int, threads: int = 1) -> np.ndarray:
    """float32 [⌈R/a⌉, ⌈K/b⌉]: the largest |x| of each tile of a × b values of float32 [R, K], less at its ends."""
    x = checks.matrix(x)
    shape = _tiles(x.shape, a, b)
    if not x.size:
        return np.zeros(shape, np.float32)
    return dispatch.find("tile_amax").function(x, a, b, threads)


def e8m0_from_amax(amax: np.ndarray, emax: int, rule: str = "floor") -> np.ndarray:
    """Largest magnitudes of groups, float32 of any shape → E8M0 codes uint8 of that shape, 0 … 254.

    emax: exponent of the element's largest value, 2 of E2M1, 8 of E4M3, 15 of E5M2. rule: 'floor', OCP's and ggml's
    ⌊log2 amax⌋ − emax; 'compressed-tensors', the same with amax raised to the next power of two from 1.75 times one
    on; 'mlx', ⌈log2(amax / largest value)⌉, so that nothing is clipped (MLX 0.32).
    Zeros: 0, and 127 by 'mlx'.
    """
    if rule not in E8M0_RULES:
        raise ValueError(f"rules of E8M0 scales are {', '.join(E8M0_RULES)}, not {rule}")
    if emax not in _ELEMENT_LARGEST:
        raise ValueError(f"the largest exponent of an element is 2, 8 or 15, not {emax}")
    amax = np.asarray(amax, dtype=np.float32)
    checks.finite(amax)
    if (amax < 0).any():
        raise ValueError("a largest magnitude is not negative")
    return _float8.e8m0_from_amax(np.abs(amax), emax, _ELEMENT_LARGEST[emax], rule)


def e8m0_to_float32(codes: np.ndarray) -> np.ndarray:
    """E8M0 codes uint8 of any shape → float32: 2^(code − 127), NaN for 255."""
    return _floats.table("F8_E8M0")[np.asarray(codes, dtype=np.uint8)]


def _fp4_kind(group: int, scale: str) -> str:
    if (group, scale) not in _FP4_KINDS:
        raise ValueError(f"4-bit floats have groups of 16 with E4M3 scales or 32 with E8M0, not {group} with {scale}")
    return _FP4_KINDS[group, scale]


def encode_fp4(
    x: np.ndarray,
    group: int,
    scale: str,
    tensor_scale: float = 1.0,
    search: bool = False,
    importance: np.ndarray | None = None,
    threads: int = 1,
    rule: str = "floor",
) -> tuple[np.ndarray, np.ndarray]:
    """Values float32 [R, K] → E2M1 codes uint8 [R, K] and scale bytes uint8 [R, K / group].

    group 16, scale 'E4M3': NVFP4, x ≈ E2M1 · scale · tensor_scale. group 32, 'E8M0': MXFP4. The numbers are those of
    `ops.encode_blocks` of these types: without search ggml's rule (MXFP4) or the group's amax / 6 in E4M3 (NVFP4);
    with it, the scale of least squared error, weighted by importance [K]. rule: of `E8M0_RULES`, for MXFP4 without
    search; with another than ggml's, a value halfway goes to the even code.
    """
    x, kind = checks.matrix(x), _fp4_kind(group, scale)
    checks.group(x, group)
    if rule not in E8M0_RULES:
        raise ValueError(f"rules of E8M0 scales are {', '.join(E8M0_RULES)}, not {rule}")
    if kind == "MXFP4" and rule != "floor" and not search:
        scales = e8m0_from_amax(tile_amax(x, 1, group, threads), 2, rule)
        return dispatch.run("encode_e2m1", "", x.size, x, scales, threads), scales
    columns, weights = x.shape[1], checks.weights(importance, x.shape[1])
    spare = -columns % LAYOUTS[kind].block
    if spare:  # NVFP4's blocks are four groups
        x = np.pad(x, ((0, 0), (0, spare)))
        weights = None if weights is None else np.pad(weights, (0, spare))
    codes, scales = fp4_from_blocks(
        kind, _encode_blocks(kind, x, weights, search, threads, tensor_scale), x.shape[1], threads
    )
    if spare:
        codes, scales = np.ascontiguousarray(codes[:, :columns]), np.ascontiguousarray(scales[:, : columns // group])
    return codes, scales


def decode_fp4(
    codes: np.ndarray, scale_bytes: np.ndarray, scale: str, tensor_scale: float = 1.0, threads: int = 1
) -> np.ndarray:
    """E2M1 codes uint8 [R, K], scale bytes [R, K / 16] (scale 'E4M3') or [R, K / 32] ('E8M0') → float32 [R, K].

    (E2M1 · scale) · tensor_scale, where the first product is exact. NaN scales give NaN.
    """
    groups = {name: size for size, name in _FP4_KINDS}
    if scale not in groups:
        raise ValueError(f"scales of 4-bit floats are E4M3 or E8M0, not {scale}")
    codes, scale_bytes, group = checks.matrix(codes, np.uint8), checks.matrix(scale_bytes, np.uint8), groups[scale]
    checks.group(codes, group)
    scales = _grouped(_floats.table(f"F8_{scale}")[scale_bytes], codes, group, "scales")
    run = dispatch.find("decode_codebook").function
    return run(codes, scales, E2M1_TABLE, group, float(np.float32(tensor_scale)), threads)


def blocks_from_fp4(codes: np.ndarray, scale_bytes: np.ndarray, kind: str, threads: int = 1) -> np.ndarray:
    """E2M1 codes uint8 [R, K] and scale bytes [R, K / group] → GGML's blocks uint8 of 'MXFP4' or 'NVFP4', unchanged.

    NVFP4's scales have no sign and 0x7F is not a number there: bytes above 0x7E raise ValueError.
    """
    block, header, _ = _fp4_block(kind)
    codes, scale_bytes = checks.matrix(codes, np.uint8), checks.matrix(scale_bytes, np.uint8)
    LAYOUTS[kind].row_bytes(codes.shape[1])
    shape = (len(codes), codes.shape[1] // block * header)
    if scale_bytes.shape != shape:
        raise ValueError(f"scale bytes have shape {shape}, not {scale_bytes.shape}")
    if kind == "NVFP4" and scale_bytes.size and scale_bytes.max() > 0x7E:
        raise ValueError("NVFP4 blocks have no scale bytes above 0x7E")
    return dispatch.find("join_fp4_blocks").function(codes, scale_bytes, kind, threads)


def fp4_from_blocks(kind: str, blocks: np.ndarray, columns: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """GGML's blocks of 'MXFP4' or 'NVFP4' → E2M1 codes uint8 [R, columns] and scale bytes; undoes `blocks_from_fp4`."""
    _fp4_block(kind)
    blocks, row_bytes = checks.matrix(blocks, np.uint8), LAYOUTS[kind].row_bytes(columns)
    if blocks.shape[1] != row_bytes:
        raise ValueError(f"{columns} values of {kind} are rows of {row_bytes} bytes, not {blocks.shape[1]}")
    return dispatch.find("split_fp4_blocks").function(blocks, kind, threads)


def _fp4_block(kind: str) -> tuple[int, int, int]:
    if kind not in _packings.FP4_BLOCKS:
        raise ValueError(f"blocks of 4-bit floats are MXFP4 or NVFP4, not {kind}")
    return _packings.FP4_BLOCKS[kind]


def _order(order: str) -> bool:
    if order not in ("low first", "high first"):
        raise ValueError(f"of two nibbles the 'low first' or the 'high first', not {order}")
    return order == "low first"


def pack_nibbles(codes: np.ndarray, order: str = "low first", threads: int = 1) -> np.ndarray:
    """Codes 0…15 uint8 [R, K] → bytes uint8 [R, K / 2] of neighbours; order: which nibble has the first of two.

    'low first': compressed-tensors, ModelOpt, MLX, gpt-oss. 'high first': bitsandbytes. K is even.
    """
    codes, low_first = checks.matrix(codes, np.uint8), _order(order)
    if codes.shape[1] % 2:
        raise ValueError(f"{codes.shape[1]} codes are not pairs")
    return dispatch.find("pack_nibbles").function(codes, low_first, threads)


def unpack_nibbles(packed: np.ndarray, order: str = "low first", threads: int = 1) -> np.ndarray:
    """Bytes uint8 [R, K / 2] → codes uint8 [R, K]."""
    packed, low_first = checks.matrix(packed, np.uint8), _order(order)
    return dispatch.find("unpack_nibbles").function(packed, low_first, threads)


def pack_columns(codes: np.ndarray, bits: int, threads: int = 1) -> np.ndarray:
    """Codes uint8 [R, K] of 1…8 bits → int32 [K · bits / 32, R], GPTQ's qweight: word w of row n at [w, n].

    Codes of a row are a dense bit stream, low bits first, as in `ops.pack_bits`. K · bits is a multiple of 32.
    """
    codes = checks.matrix(codes, np.uint8)
    checks.bits(bits)
    if codes.shape[1] * bits % 32:
        raise ValueError(f"{codes.shape[1]} codes of {bits} bits are not whole words of 32 bits")
    return dispatch.find("pack_columns").function(codes, bits, threads).view(np.int32)


def unpack_columns(packed: np.ndarray, bits: int, rows: tuple[int, int] | None = None, threads: int = 1) -> np.ndarray:
    """Words int32 [K · bits / 32, R] → codes uint8 [r, K] of all rows, or of rows[0] … rows[1] − 1."""
    packed = checks.matrix(packed, np.int32)
    checks.bits(bits)
    if len(packed) * 32 % bits:
        raise ValueError(f"{len(packed)} words are not whole codes of {bits} bits")
    start, stop = _window(rows, packed.shape[1])
    return dispatch.find("unpack_columns").function(packed.view(np.uint32), bits, start, stop, threads)


def _window(rows: tuple[int, int] | None, count: int) -> tuple[int, int]:
    start, stop = (0, count) if rows is None else rows
    if not 0 <= start <= stop <= count:
        raise ValueError(f"rows {start} … {stop} are not among {count}")
    return start, stop


def pack_awq(codes: np.ndarray, threads: int = 1) -> np.ndarray:
    """Codes 0…15 uint8 [R, K] → int32 [K, R / 8], AWQ's qweight: nibble i of word c is row 8c + (0 2 4 6 1 3 5 7)[i].

    R is a multiple of 8. Zeros [R, K / group] become qzeros the same way.
    """
    codes = checks.matrix(codes, np.uint8)
    if len(codes) % 8:
        raise ValueError(f"AWQ packs multiples of 8 rows, not {len(codes)}")
    return dispatch.find("pack_awq").function(codes, threads).view(np.int32)


def unpack_awq(packed: np.ndarray, rows: tuple[int, int] | None = None, threads: int = 1) -> np.ndarray:
    """Words int32 [K, R / 8] → codes uint8 [r, K] of all rows, or of rows[0] … rows[1] − 1."""
    packed = checks.matrix(packed, np.int32)
    start, stop = _window(rows, packed.shape[1] * 8)
    return dispatch.find("unpack_awq").function(packed.view(np.uint32), start, stop, threads)


def pack_halves(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes uint8 [R, K] → HQQ's W_q: R is cut into equal slices, the first in the highest bits.

    8, 4, 2, 1 bits: uint8 [R · bits / 8, K]. 3 bits: ten slices in int32 [⌈R / 10⌉, K], filled up with zeros.
    """
    codes = checks.matrix(codes, np.uint8)
    _halves_bits(bits)
    if bits != 3 and len(codes) * bits % 8:
        raise ValueError(f"{len(codes)} rows of {bits} bits are not whole bytes")
    return _packings.pack_halves(codes, bits)


def unpack_halves(packed: np.ndarray, bits: int, rows: int) -> np.ndarray:
    """HQQ's W_q, uint8 or with 3 bits int32 [·, K] → codes uint8 [rows, K]."""
    _halves_bits(bits)
    packed = checks.matrix(packed, np.int32 if bits == 3 else np.uint8)
    if len(packed) != (-(-rows // 10) if bits == 3 else rows * bits / 8):
        raise ValueError(f"{rows} rows of {bits} bits are not {len(packed)} packed rows")
    return _packings.unpack_halves(packed, bits, rows)


def _halves_bits(bits: int) -> None:
    if bits not in (8, 4, 3, 2, 1):
        raise ValueError(f"HQQ packs 8, 4, 3, 2 or 1 bits, not {bits}")
