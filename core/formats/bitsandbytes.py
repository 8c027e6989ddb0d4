"""bitsandbytes: blocks of 4-bit codes over the flat matrix (NF4, FP4), and the 8-bit rows of LLM.int8()."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any

import numpy as np

from core.contract import ByteCount, ElementType, NumericContract, PerChannel
from core.formats.base import EncodeOptions, Method
from core.formats.codebook import NESTED, Codebook, dynamic_map, nest, unnest
from core.formats.coded import Coded, as_bytes, read_scales
from core.formats.numbers import Codes, Numbers
from core.parts import ONE, Axis, Part
from core.units import format_count
from kernels import families, long_rows, ops
from kernels.long_rows import ReadPieces, RowScales

MOST_VALUES = 1 << 22  # of rows that share a scale, which are held together
_STATE_BYTES = 192  # of a nested quant_state, whatever its numbers
_REDONE = np.float32(0.02)  # where a quantized scale is further off than this share, a search chooses codes again


class FourBit(Coded):
    """Weight W [N, K] as `weight` U8 [⌈NK / 2⌉, 1], the first of two codes in the high nibble; `weight.absmax`, one for
    each `size` values of the flat matrix; `weight.quant_map`; `weight.quant_state.bitsandbytes__nf4`, JSON in bytes.

    nested: absmax is U8, codes of `nested_quant_map`; with `nested_absmax`, one for 256, and an offset in the JSON.
    The rest is for reading: storage, the type under which the bytes of the codes go; absmax, the type of plain scales;
    state_bytes: of the JSON; nested_map: float32 [256].
    """

    ecosystem = "bitsandbytes"
    numbers: Codebook

    def __init__(
        self,
        table: str,
        nested: bool = False,
        size: int = 64,
        storage: ElementType = ElementType.U8,
        absmax: ElementType = ElementType.F32,
        state_bytes: int = 0,
        nested_map: np.ndarray | None = None,
    ) -> None:
        kind = table.lower()
        levels = "normal-distributed levels" if table == "NF4" else "4-bit floats"
        super().__init__(
            f"bnb-{kind}" + ("-dq" if nested else ""),
            Codebook(table, size, NESTED if nested else 0),
            "two codes a byte, first in the high bits; blocks over the flat matrix",
            summary=f"{levels}, scales of {64}{' quantized to 8 bits' if nested else ''}; for QLoRA and transformers",
            family="bnb-4bit",
        )
        self.nested = nested
        self.needs_amax = nested
        self.kind = kind
        self._storage = storage
        self._absmax = ElementType.U8 if nested else absmax
        self._state_bytes = state_bytes
        self._map = nested_map

    def unit_rows(self, shape: Sequence[int]) -> int:
        whole = self.numbers.size * (self.numbers.nested or 1)
        return whole // gcd(shape[-1], whole)

    def cuts_rows(self, shape: Sequence[int]) -> bool:
        return not self.nested and shape[-1] % self.numbers.size == 0

    def accepts(self, shape: Sequence[int]) -> str:
        if problem := super().accepts(shape):
            return problem
        unit = min(self.unit_rows(shape), shape[0])
        if not self.cuts_rows(shape) and unit * shape[1] > MOST_VALUES:
            return (
                f"{format_count(unit)} rows of {format_count(shape[1])} values share a scale, too many to be "
                "held at once"
            )
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        size, item = self.numbers.size, self._storage.bytes
        nbytes, blocks = ceil(n * k / 2), ceil(n * k / size)
        state = f".weight.quant_state.bitsandbytes__{self.kind}"
        state_bytes = self._state_bytes or len(self.state(shape))
        parts = [
            Part("", self._storage.label, (nbytes // item, 1), nbytes, *_flat(k, 2)),
            Part(".weight.absmax", self._absmax.label, (blocks,), blocks * self._absmax.bytes, *_flat(k, size)),
            Part(".weight.quant_map", "F32", (16,), 64, ONE, ONE, constant=True),
        ]
        if self.nested:
            outer = ceil(blocks / NESTED)
            parts += [
                Part(".weight.nested_absmax", "F32", (outer,), outer * 4, *_flat(k, size * NESTED)),
                Part(".weight.nested_quant_map", "F32", (256,), 1024, ONE, ONE, constant=True),
            ]
        return (*parts, Part(state, "U8", (state_bytes,), state_bytes, ONE, ONE, constant=not self.nested))

    def state(self, shape: Sequence[int], offset: float = 0.0) -> bytes:
        """What bitsandbytes writes; nested, filled up with spaces to a length that is known before the offset is."""
        text: dict[str, Any] = {
            "quant_type": self.kind,
            "blocksize": self.numbers.size,
            "dtype": "bfloat16",
            "shape": [int(n) for n in shape],
        }
        if not self.nested:
            return json.dumps(text).encode()
        text |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": 0}
        return json.dumps(text | {"nested_offset": offset}).ljust(_STATE_BYTES).encode()

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        sizes = {p.suffix.rpartition(".")[2]: p.nbytes for p in self.parts(shape)}
        scales = sizes["absmax"] + sizes.get("nested_absmax", 0)
        header = sum(p.nbytes for p in self.parts(shape)) - sizes[""] - scales
        return ByteCount(payload=sizes[""], scales=scales, header=header)

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        found = {2: self.numbers.levels.tobytes()}
        return found | ({4: dynamic_map().tobytes()} if self.nested else {3: self.state(shape)})

    def bound_floor(self, options: EncodeOptions) -> float:
        return max(super().bound_floor(options), self.numbers.floor_share * options.amax)

    def bound_view(self, values: np.ndarray) -> np.ndarray:
        return self.numbers.blocks(values) if values.shape[1] % self.numbers.size else values

    def for_numbers(self, numbers: Numbers) -> FourBit | None:
        return self if self.numbers.holds(numbers) else None

    def fit(self, read: ReadPieces, options: EncodeOptions) -> EncodeOptions:
        """The mean of all scales, which bitsandbytes subtracts from them before it quantizes them."""
        total, rows, columns, amax = 0.0, 0, 0, np.float32(0)
        with np.errstate(invalid="ignore", over="ignore"):
            for piece in read():
                largest = families.tile_amax(self.numbers.blocks(piece), 1, self.numbers.size, options.threads)
                total += float(largest.sum(dtype=np.float64))
                rows, columns = rows + len(piece), piece.shape[1]
                amax = np.maximum(amax, largest.max(initial=0))
            mean = float(np.float32(total / max(1, ceil(rows * columns / self.numbers.size))))
        return replace(options, amax=float(amax), fitted=Whole(mean, (rows, columns)))

    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        codes = self.numbers.quantize(rows, options)
        if not self.nested:
            return self.pack(codes)
        plain = self._scales(codes)
        whole = options.fitted if isinstance(options.fitted, Whole) else Whole(_mean(plain), rows.shape)
        small, largest = nest(plain, whole.offset)
        if options.method is Method.SEARCH:
            codes = self._chosen_again(rows, codes, plain, unnest(small, largest, whole.offset))
        state = np.frombuffer(self.state(whole.shape, whole.offset), np.uint8)
        return self._packed(codes), small, _EMPTY, as_bytes(largest), _EMPTY, state

    def _chosen_again(self, rows: np.ndarray, codes: Codes, plain: np.ndarray, read: np.ndarray) -> Codes:
        """Where the scale that is read is not the one that codes were chosen for, they are chosen for it."""
        off = np.flatnonzero(np.abs(read - plain) > _REDONE * plain)
        if not len(off):
            return codes
        blocks = self.numbers.blocks(codes.codes)
        blocks[off] = self.numbers.nearest(self.numbers.blocks(rows)[off], read[off])
        return replace(codes, codes=blocks.reshape(-1, rows.shape[1])[: len(rows)])

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        if self.nested:
            raise ValueError("scales of codes as they are can not be quantized without loss")
        return self._packed(codes), as_bytes(self._scales(codes)), _EMPTY, _EMPTY

    def _scales(self, codes: Codes) -> np.ndarray:
        """One for each block, float32; codes may be those of larger blocks."""
        columns = codes.codes.shape[1]
        run = self.numbers.run(columns)
        scales = np.repeat(codes.scales, columns // codes.scales.shape[1] // run, axis=1)
        return np.ascontiguousarray(scales.reshape(-1)[:: self.numbers.size // run], np.float32)

    def _packed(self, codes: Codes) -> np.ndarray:
        flat = codes.codes
        if flat.shape[1] % 2:
            flat = flat.reshape(1, -1)
            if flat.shape[1] % 2:
                flat = np.append(flat, [[int(np.abs(self.numbers.levels).argmin())]], axis=1).astype(np.uint8)
        return families.pack_nibbles(flat, "high first").reshape(-1)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        flat = parts[0].reshape(1 if columns % 2 else rows, -1)
        codes = families.unpack_nibbles(flat, "high first").reshape(-1)[: rows * columns].reshape(rows, columns)
        if self.nested:
            offset = json.loads(parts[5].tobytes())["nested_offset"]
            scales = unnest(parts[1], parts[3].view(np.float32), offset, self._map)
        else:
            scales = read_scales(parts[1], self._absmax, 1).reshape(-1)
        run = self.numbers.run(columns)
        scales = np.repeat(scales, self.numbers.size // run)[: rows * columns // run]
        return Codes(codes, scales.reshape(rows, columns // run))


@dataclass(frozen=True)
class Whole:
    """What a block does not know of the matrix: the mean of its scales, and its shape."""

    offset: float
    shape: tuple[int, ...]


_EMPTY = np.empty(0, np.uint8)


def _mean(scales: np.ndarray) -> float:
    return float(np.float32(scales.mean(dtype=np.float64))) if len(scales) else 0.0


def _flat(columns: int, size: int) -> tuple[Axis, Axis]:
    """Where one value for each `size` of the flat matrix lies, by rows and by columns."""
    return (Axis(columns, size), ONE) if columns % size else (Axis(), Axis(1, size))


_SHARE = np.float32(7.874015718698502e-3)  # 1 / 127, as bitsandbytes multiplies with it


@dataclass(frozen=True)
class AbsmaxRows(Numbers):
    """code · scale · (1 / 127), rounded after each product, codes −127 … 127 (stored here 128 higher).

    scale: the largest magnitude of a row. bitsandbytes rounds weights to float16 first; here they are as they come.
    """

    @property
    def label(self) -> str:
        return "LLM.int8() per row"

    @property
    def error_bound(self) -> float:
        return 0.5  # a search may clip the ends of a long row away

    def rounding_bound(self) -> float:
        return 0.5 / 127 + 2**-16

    def contract(self, name: str, packing: str) -> NumericContract:
        return NumericContract(
            name, ElementType.INT, 8, PerChannel(), -128, 127, scale=ElementType.F32, packing=packing
        )

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        if options.method is Method.SEARCH:
            return long_rows.fit_rows(read, 8, True, "F32", True, options.importance, options.threads)
        amax = long_rows.largest_of_rows(read, options.threads)
        return RowScales(amax, np.zeros_like(amax), amax)

    @property
    def weighs_columns(self) -> bool:
        return True

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        if options.method is Method.SEARCH:
            if options.rows is not None:
                codes = long_rows.encode_piece(rows, options.rows, 8, options.threads)
                return Codes(codes, options.rows.scales[:, None] * np.float32(127))
            codes, scales, _ = ops.encode_groups(
                rows, 8, rows.shape[1], True, "F32", True, options.importance, options.threads
            )
            return Codes(codes, scales * np.float32(127))
        columns, threads = rows.shape[1], options.threads
        largest = families.tile_amax(rows, 1, columns, threads)  # refuses NaN and Inf
        if options.rows is not None:
            largest = options.rows.amax[:, None]
        steps = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 2.0**-120)
        return Codes(families.round_codes(rows, steps, np.zeros_like(steps), -128, 127, 128, threads), largest)

    def values(self, codes: Codes) -> np.ndarray:
        zeros = np.full_like(codes.scales, 128)
        found = families.decode_zeros(codes.codes, codes.scales, zeros, codes.codes.shape[1])
        found *= _SHARE
        return found

    def steps(self, codes: Codes) -> np.ndarray:
        """float32 [R, 1]: what codes are multiplied with, within float32's rounding."""
        return codes.scales * _SHARE


class Int8Rows(Coded):
    """Weight W [N, K] as `weight` I8, `SCB` [N], and `weight_format`, where 0 says that rows are as they are.

    with_format: False for files of versions that did not write it. scale: of SCB.
    """

    ecosystem = "bitsandbytes"
    numbers: AbsmaxRows

    def __init__(self, with_format: bool = True, scale: ElementType = ElementType.F32) -> None:
        super().__init__(
            "bnb-int8",
            AbsmaxRows(),
            "signed bytes",
            summary="8-bit integers, one scale a row: LLM.int8() of transformers",
            family="bnb-int8",
        )
        self._with_format = with_format
        self._scale = scale

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        parts = (
            Part("", "I8", (n, k), n * k),
            Part(".SCB", self._scale.label, (n,), n * self._scale.bytes, columns=ONE),
            Part(".weight_format", "U8", (), 1, ONE, ONE, constant=True),
        )
        return parts if self._with_format else parts[:2]

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        return {2: bytes(1)}

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        return as_bytes(codes.codes ^ np.uint8(128)), as_bytes(codes.scales.astype(np.float32)), _EMPTY

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        return Codes(parts[0].reshape(rows, columns) ^ np.uint8(128), read_scales(parts[1], self._scale, rows))


BITSANDBYTES: tuple[Coded, ...] = (
    *(FourBit(table, nested) for table in ("NF4", "FP4") for nested in (False, True)),
    Int8Rows(),
)
