"""Every format of `core.formats.FORMATS`, in a loop: what the base class promises, and what runs rely on."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from core.contract import PerBlock, PerChannel, PerTensor
from core.formats import FORMATS, EncodeOptions, Format, Method, find_format
from core.formats.bitsandbytes import FourBit
from core.formats.coded import Coded
from core.formats.scaled8 import Scaled8
from core.parts import Run
from core.units import format_count
from kernels import dispatch
from kernels.layouts import LAYOUTS, PLAIN_KINDS, WRITTEN_KINDS


def one_group_size(formats: tuple[Format, ...]) -> list[Format]:
    """Without those that differ from another only in the size of their groups; the smallest stays, and whole rows."""
    kept: list[Format] = []
    for f in sorted(formats, key=lambda f: f.numbers.group if isinstance(f, Coded) else 0):
        near = [g for g in kept if isinstance(f, Coded) and type(g) is type(f) and g.numbers.group and f.like(g)]
        if not near:
            kept.append(f)
    return kept


SOME = one_group_size(FORMATS)
EVERY = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f"{f.container}-{f.name}")
KIND = pytest.mark.parametrize("fmt", SOME, ids=lambda f: f"{f.container}-{f.name}")
SCALED = pytest.mark.parametrize("fmt", [f for f in SOME if f.contract.scale], ids=lambda f: f.name)
BNB = {"bnb-nf4", "bnb-nf4-dq", "bnb-fp4", "bnb-fp4-dq", "bnb-int8"}
FLOAT4 = {"nvfp4a16", "nvfp4a4", "mxfp4a16", "modelopt-nvfp4"}


def methods(fmt: Format) -> list[Method]:
    return [m for m in Method if m in fmt.methods]


def unit(fmt: Format) -> int:
    """The shortest row that the format takes: its block or group, or, for one scale a row, whole words of codes."""
    granularity = fmt.contract.granularity
    if isinstance(granularity, PerBlock):
        return granularity.cols
    if isinstance(fmt, Coded) and not fmt.numbers.group:
        return 32
    return max(fmt.contract.block, getattr(granularity, "size", 1))


def options_for(x: np.ndarray, method: Method = Method.SEARCH, fmt: Format | None = None) -> EncodeOptions:
    options = EncodeOptions(method=method, amax=float(np.abs(x, where=np.isfinite(x), out=np.zeros_like(x)).max()))
    return fmt.fit(lambda: [x], options) if isinstance(fmt, FourBit) and fmt.needs_amax else options


def stored(fmt: Format, x: np.ndarray, options: EncodeOptions) -> list[np.ndarray]:
    """All parts of a matrix as uint8, the constant ones included."""
    parts = [np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in fmt.encode(x, options)]
    for number, data in fmt.constant_parts(x.shape).items():
        parts[number] = np.frombuffer(data, np.uint8)
    return parts


def put(array: np.ndarray, run: Run, data: np.ndarray) -> None:
    """Bytes into their stretches of a stored array."""
    for i, stretch in enumerate(data.reshape(run.count, run.nbytes)):
        at = run.offset + i * run.stride
        array[at : at + run.nbytes] = stretch


def put_lanes(fmt: Format, x: np.ndarray, options: EncodeOptions, height: int, got: list[np.ndarray]) -> None:
    lanes = fmt.lanes(x.shape)
    assert lanes is not None
    runs = x.reshape(-1, lanes.length)
    for start, stop in lanes.cut(height):
        block = np.concatenate([runs[a:b] for a, b in lanes.pieces(start, stop)])
        for array, place, data in zip(got, fmt.parts(x.shape), fmt.encode(block, options), strict=True):
            put(array, place.lane_run(lanes, start, stop), data)


def round_trip(fmt: Format, x: np.ndarray, options: EncodeOptions) -> np.ndarray:
    return fmt.decode(stored(fmt, x, options), *x.shape)


def values(kind: str, columns: int, rows: int = 5) -> np.ndarray:
    """float32 [rows, columns]."""
    x = np.random.default_rng(3).standard_t(4, (rows, columns)).astype(np.float32)
    if kind == "zeros":
        x[:] = 0
    elif kind == "negative zeros":
        x[:] = -0.0
    elif kind == "denormals":
        x *= np.float32(1e-41)
    elif kind == "tiny":  # block scales are denormal in float16
        x *= np.float32(1e-7)
    elif kind == "constant":
        x[:] = np.float32(-0.37)
    elif kind == "spike":
        x *= np.float32(1e-3)
        x[:, columns // 2] = 1
    elif kind == "positive":
        x = np.abs(x)
    return x


KINDS = ("usual", "zeros", "negative zeros", "denormals", "tiny", "constant", "spike", "positive")


def test_the_list_is_whole() -> None:
    """The GGUF tensor types and compressed-tensors schemes that the program says it writes, each once."""
    names = [(f.container, f.name) for f in FORMATS]
    assert len(set(names)) == len(names)
    assert {name for container, name in names if container == "gguf"} == set(WRITTEN_KINDS)
    groups = ("g32", "g64", "g128", "channel")
    schemes = {f"w{b}a16-{g}{s}" for b in range(2, 9) for g in groups for s in ("", "-asym")} | FLOAT4
    schemes |= {f"gptq-{b}bit-{g}{s}" for b in (2, 3, 4, 8) for g in groups for s in ("", "-asym", "-asym-v2")}
    schemes |= {f"awq-{g}" for g in ("g32", "g64", "g128")}
    schemes |= {f"mlx-{b}bit-{g}" for b in (2, 3, 4, 5, 6, 8) for g in ("g32", "g64", "g128")}
    schemes |= {"w8a8", "fp8-dynamic", "fp8-static", "fp8-block", "mxfp8", "hf-fp8", "modelopt-fp8"}
    schemes |= {"mlx-mxfp4", "mlx-nvfp4", "mlx-mxfp8"}
    schemes |= {f"hqq-{b}bit-{g}" for b in (2, 3, 4, 8) for g in ("g32", "g64", "g128")}
    assert {name for container, name in names if container == "safetensors"} == schemes | BNB | set(PLAIN_KINDS)


@EVERY
def test_bytes_are_those_of_the_parts_and_of_what_encode_gives(fmt: Format) -> None:
    for rows, blocks in ((1, 1), (3, 1), (33, 2), (64, 3)):
        shape = (rows, blocks * unit(fmt))
        count = fmt.bytes_for(shape)
        assert count.total == sum(p.nbytes for p in fmt.parts(shape))
        assert min(count.payload, count.scales, count.zeros, count.padding, count.header) >= 0
        x = values("usual", shape[1], rows)
        assert [p.nbytes for p in fmt.parts(shape)] == [len(p) for p in stored(fmt, x, options_for(x))]


@EVERY
def test_the_contract_says_how_many_bits_a_value_takes(fmt: Format) -> None:
    rows, columns = shape = (1280, 16384)  # and tens of groups
    c, count = fmt.contract, fmt.bytes_for(shape)
    beside = 0.0  # what a contract leaves out, since it depends on the shape
    if isinstance(c.granularity, PerChannel):
        beside += (c.scale.bits + (c.zero_bits if c.zero else 0)) / columns
    if isinstance(c.granularity, PerTensor) and c.scale:
        beside += c.scale.bits / (rows * columns)
    if c.tensor_scale:
        beside += c.tensor_scale.bits / (rows * columns)
    if fmt.needs_input:
        beside += 32 / (rows * columns)
    assert 8 * (count.total - count.header) / (rows * columns) == pytest.approx(c.effective_bits + beside, rel=1e-12)
    assert count.payload * 8 == c.bits * rows * columns
    assert count.padding == 0
    if fmt.container == "gguf":
        assert (c.block, c.effective_bits) == (LAYOUTS[fmt.name].block, LAYOUTS[fmt.name].bits)


@KIND
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_back_is_within_the_bound(fmt: Format, kind: str) -> None:
    for blocks in (1, 2, 17):
        x = values(kind, blocks * unit(fmt))
        for method in methods(fmt):
            options = options_for(x, method)
            back = round_trip(fmt, x, options)
            group = fmt.bound_group(x.shape[1])
            error = np.abs(back.astype(np.float64) - x).reshape(-1, group).max(axis=1)
            largest = np.abs(x).astype(np.float64).reshape(-1, group).max(axis=1)
            assert (error <= fmt.bound(method) * np.maximum(largest, fmt.bound_floor(options))).all(), method
            if not x.any():
                assert not back.any()


@SCALED
@pytest.mark.parametrize("kind", ["usual", "spike", "positive"])
def test_the_bound_is_not_met_by_a_floor(fmt: Format, kind: str) -> None:
    """Usual weights are far above what may vanish, or the test above would let everything through."""
    if fmt.contract.outer_scale and kind == "spike":
        return  # a block a thousand times smaller than its neighbour has no more than the step of their shared scale
    x = values(kind, 4 * unit(fmt))
    if fmt.name == "mlx-nvfp4":  # has no scale of the matrix, so that 8-bit floats end above small weights
        x *= np.float32(100)
    assert fmt.bound_floor(options_for(x)) < np.abs(x).reshape(-1, fmt.bound_group(x.shape[1])).max(axis=1).min()


@KIND
def test_row_blocks_appended_are_the_whole(fmt: Format) -> None:
    columns = 2 * unit(fmt)
    rows = 3 * fmt.unit_rows((1, columns)) + 5
    x = values("usual", columns, rows)
    for method in methods(fmt):
        options = options_for(x, method, fmt)
        want = stored(fmt, x, options)
        for height in (1, 2):
            got = [np.zeros(p.nbytes, np.uint8) for p in fmt.parts(x.shape)]
            for number, data in fmt.constant_parts(x.shape).items():
                got[number][:] = np.frombuffer(data, np.uint8)
            step = height * fmt.unit_rows(x.shape)
            if lanes := fmt.lanes(x.shape):
                put_lanes(fmt, x, options, height, got)
            for start in () if lanes else range(0, rows, step):
                stop = min(rows, start + step)
                for number, (place, part) in enumerate(
                    zip(fmt.parts(x.shape), fmt.encode(x[start:stop], options), strict=True)
                ):
                    data = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
                    if data.size:
                        put(got[number], place.run(x.shape, (start, stop), (0, columns)), data)
            assert [g.tobytes() for g in got] == [w.tobytes() for w in want]


@KIND
def test_each_matrix_of_a_stack_has_its_place(fmt: Format) -> None:
    """Experts [E, N, K] are encoded one by one, each with its own largest value."""
    shape = (3, 4, unit(fmt))
    if fmt.accepts(shape):
        assert "two-dimensional" in fmt.accepts(shape)
        return
    x = values("usual", shape[-1], 12).reshape(shape) * np.float32([1, 10, 100])[:, None, None]
    parts = [np.zeros(p.nbytes, np.uint8) for p in fmt.parts(shape)]
    for expert, matrix in enumerate(x):
        for number, part in enumerate(stored(fmt, matrix, options_for(matrix))):
            rows = (expert * shape[1], (expert + 1) * shape[1])
            put(parts[number], fmt.parts(shape)[number].run(shape, rows, (0, shape[-1])), part)
    each = zip(*(np.split(part, shape[0]) for part in parts), strict=True)
    for matrix, own in zip(x, each, strict=True):
        assert np.array_equal(fmt.decode(own, *matrix.shape), round_trip(fmt, matrix, options_for(matrix)))


@KIND
def test_rows_do_not_depend_on_each_other(fmt: Format) -> None:
    """Nor do tiles of rows."""
    if fmt.contract.outer_scale:
        return  # their scales share one
    for blocks in (1, 3, 15, 16, 17):  # around the lanes of every instruction set
        height = fmt.unit_rows((1, unit(fmt))) if isinstance(fmt.contract.granularity, PerBlock) else 1
        x = values("usual", blocks * unit(fmt), 2 * height + 2)
        options = options_for(x)
        each = np.vstack([round_trip(fmt, x[i : i + height], options) for i in range(0, len(x), height)])
        assert np.array_equal(round_trip(fmt, x, options), each)


@KIND
def test_a_view_is_encoded_as_its_copy(fmt: Format) -> None:
    x = values("usual", 4 * unit(fmt), 8)
    for view in (x[::2], x[:, : 2 * unit(fmt)], np.asfortranarray(x), x[::-1]):
        options = options_for(view)
        want = stored(fmt, view.copy(order="C"), options)
        assert [p.tobytes() for p in stored(fmt, view, options)] == [p.tobytes() for p in want]


@KIND
def test_the_reference_has_the_same_bytes(fmt: Format) -> None:
    for kind in KINDS:
        x = values(kind, 2 * unit(fmt))
        for method in methods(fmt):
            fast = stored(fmt, x, options_for(x, method))
            with dispatch.only("reference"):
                slow = stored(fmt, x, options_for(x, method))
                back = fmt.decode(slow, *x.shape)
            assert [p.tobytes() for p in fast] == [p.tobytes() for p in slow], (kind, method)
            assert np.array_equal(fmt.decode(fast, *x.shape), back)


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.container == "gguf"], ids=lambda f: f.name)
def test_gguf_decodes_the_same(fmt: Format) -> None:
    x = values("usual", 2 * unit(fmt))
    blocks, *scale = stored(fmt, x, options_for(x))
    want = gguf.dequantize(blocks.reshape(len(x), -1), gguf.GGMLQuantizationType[fmt.name])
    if scale:
        want = want * scale[0].view(np.float32)
    assert np.array_equal(round_trip(fmt, x, options_for(x)), want)


@KIND
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_refused_where_they_would_spoil_a_scale(fmt: Format, bad: float) -> None:
    x = values("usual", 2 * unit(fmt))
    x[2, unit(fmt)] = bad
    if fmt.contract.scale:
        with pytest.raises(ValueError, match="NaN or Inf"):
            fmt.encode(x, options_for(x))
        return
    back = round_trip(fmt, x, options_for(x))
    assert np.array_equal(back[2, unit(fmt)], np.float32(bad), equal_nan=True)
    assert np.isfinite(np.delete(back.reshape(-1), 2 * x.shape[1] + unit(fmt))).all()


@SCALED
def test_a_shape_that_does_not_fit_is_refused_in_one_clause(fmt: Format) -> None:
    whole = unit(fmt)
    if fmt.name in BNB:  # any row: blocks run on from one to the next
        assert fmt.accepts((4, whole)) == fmt.accepts((4, whole + 1)) == ""
        assert all("two-dimensional" in fmt.accepts(shape) for shape in ((0, whole), (4, 0), ()))
        return
    rows = 4 * fmt.unit_rows((4, whole))
    assert fmt.accepts((rows, whole)) == ""
    ragged = [(rows, whole + 1)] if fmt.accepts((rows, whole + 1)) else []
    assert bool(ragged) != (isinstance(fmt, Scaled8) and fmt.name != "mxfp8")  # a byte a value: any row
    assert all(format_count(whole + 1) in fmt.accepts(shape) for shape in ragged)
    for shape in (*ragged, (0, whole), (rows, 0), ()):
        clause = fmt.accepts(shape)
        assert clause
        assert clause[0].islower()
        assert not clause.endswith(".")


def test_nvfp4_holds_one_scale_a_matrix_of_at_most_a_stack():
    nvfp4 = find_format("NVFP4", "gguf")
    assert nvfp4.accepts((64, 256)) == nvfp4.accepts((3, 64, 256)) == ""
    assert "scales" in nvfp4.accepts((2, 3, 64, 256))
    assert nvfp4.bound_floor(EncodeOptions(amax=1e-42)) > 1e-42  # its tensor scale would be 0
