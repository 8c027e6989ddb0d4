"""8-bit and 4-bit floats with scales, and how codes are packed in files: every instruction set, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, families, ops
from kernels.reference import floats


def _random_words(count: int) -> np.ndarray:
    """float32 of any bits: NaN, Inf, denormal and all."""
    return np.random.default_rng(0).integers(0, 1 << 32, (3, count), np.uint64).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", families.FLOAT8_TYPES)
def test_compiled_8_bit_floats_are_those_of_the_reference(dtype, compiled) -> None:
    levels = floats.table(dtype)
    levels = np.sort(levels[np.isfinite(levels) & (levels >= 0)])
    middles = (levels[1:] + levels[:-1]) / 2
    special = np.float32(
        [464, 465, 448, 61440, np.nextafter(np.float32(61440), np.float32(0)), 1e38, np.inf, np.nan, 0]
    )
    near = np.concatenate([levels, middles, np.nextafter(middles, np.float32(0)), special])
    near = np.concatenate([near, -near])
    for x in (_random_words(10_001), near.reshape(2, -1)):
        with dispatch.only("reference"):
            want = ops.from_float32(x, dtype)
        with dispatch.only(compiled):
            assert ops.from_float32(x, dtype, threads=2).tobytes() == want.tobytes()
    codes = np.arange(256, dtype=np.uint8).reshape(1, -1)
    with dispatch.only(compiled):
        assert ops.to_float32(codes, dtype).tobytes() == floats.table(dtype)[codes].tobytes()
        assert ops.to_float32(codes[:, :37], dtype).tobytes() == floats.table(dtype)[codes[:, :37]].tobytes()


@pytest.mark.parametrize("dtype", families.FLOAT8_TYPES)
@pytest.mark.parametrize("tile", [(1, 96), (16, 96), (5, 7), (128, 128), (3, 32)])
def test_compiled_tiles_are_those_of_the_reference(dtype, tile, hard_rows, compiled) -> None:
    x = hard_rows(90)
    with dispatch.only("reference"):
        amax = families.tile_amax(x, *tile)
        scales = np.where(amax > 0, np.maximum(amax / np.float32(448), np.float32(2.0**-149)), np.float32(1))
        codes = families.encode_float8(x, dtype, scales, *tile)
        decoded = families.decode_float8(codes, dtype, scales, *tile)
    with dispatch.only(compiled):
        assert families.tile_amax(x, *tile, threads=2).tobytes() == amax.tobytes()
        assert families.encode_float8(x, dtype, scales, *tile, threads=3).tobytes() == codes.tobytes()
        assert families.decode_float8(codes, dtype, scales, *tile, threads=2).tobytes() == decoded.tobytes()


def test_tile_scales_of_8_bit_floats_are_compressed_tensors_division() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_t(3, (40, 72)).astype(np.float32)
    for a, b in ((1, 72), (40, 72), (16, 32)):
        amax = families.tile_amax(x, a, b)
        for row in range(amax.shape[0]):
            for column in range(amax.shape[1]):
                tile = np.s_[row * a : row * a + a, column * b : column * b + b]
                assert amax[row, column] == np.abs(x[tile]).max()
        scales = amax / np.float32(448)
        spread = torch.from_numpy(np.repeat(np.repeat(scales, a, 0)[:40], b, 1)[:, :72].copy())
        want = (torch.from_numpy(x) / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        codes = families.encode_float8(x, "F8_E4M3", scales, a, b)
        assert (codes == want.view(torch.uint8).numpy()).all()
        assert (families.decode_float8(codes, "F8_E4M3", scales, a, b) == (want.float() * spread).numpy()).all()
    small = families.encode_float8(np.float32([[1e9, -1e9]]), "F8_E5M2", np.float32([[1]]), 1, 2)
    assert small.tolist() == [[0x7B, 0xFB]]  # held to the largest finite value
    for bad in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="finite and positive"):
            families.encode_float8(x, "F8_E4M3", np.full((1, 1), bad), 40, 72)


def test_e8m0_rules() -> None:
    amax = np.float32([0, 1, 1.7, 1.74, 1.75, 3.9, 6, 6.1, 7, 2.0**-130, 3e38])
    assert families.e8m0_from_amax(amax, 2).tolist() == [0, 125, 125, 125, 125, 126, 127, 127, 127, 0, 252]
    rounded = families.e8m0_from_amax(amax, 2, "compressed-tensors")
    assert rounded.tolist() == [0, 125, 125, 125, 126, 127, 127, 127, 128, 0, 253]
    never_clipped = families.e8m0_from_amax(amax, 2, "mlx")
    assert never_clipped.tolist() == [127, 125, 126, 126, 126, 127, 127, 128, 128, 0, 253]
    assert families.e8m0_from_amax(np.float32([[448, 449]]), 8, "mlx").tolist() == [[127, 128]]
    assert families.e8m0_from_amax(np.float32([256, 450]), 8).tolist() == [127, 127]
    codes = np.arange(255, dtype=np.uint8)
    assert (families.e8m0_to_float32(codes) == np.ldexp(1.0, np.arange(255) - 127)).all()
    assert np.isnan(families.e8m0_to_float32(np.uint8(255)))
    for wrong, words in (((1.0, 3), "2, 8 or 15"), ((1.0, 2, "up"), "rules of E8M0"), ((-1.0, 2), "not negative")):
        with pytest.raises(ValueError, match=words):
            families.e8m0_from_amax(np.float32([wrong[0]]), *wrong[1:])
    with pytest.raises(ValueError, match="NaN or Inf"):
        families.e8m0_from_amax(np.float32([np.nan]), 2)


@pytest.mark.parametrize(("group", "scale", "kind"), [(16, "E4M3", "NVFP4"), (32, "E8M0", "MXFP4")])
def test_4_bit_floats_are_those_of_the_blocks(group, scale, kind, hard_rows, importance_of, compiled) -> None:
    x, weights = hard_rows(128), importance_of(128)
    tensor_scale = 3e-3 if kind == "NVFP4" else 1.0
    for backend, threads in (("reference", 1), (compiled, 3)):
        with dispatch.only(backend):
            for search, importance in ((False, None), (True, None), (True, weights)):
                codes, scales = families.encode_fp4(x, group, scale, tensor_scale, search, importance, threads)
                blocks = ops.encode_blocks(kind, x, importance, search, threads, tensor_scale)
                assert families.blocks_from_fp4(codes, scales, kind, threads).tobytes() == blocks.tobytes()
                back = families.fp4_from_blocks(kind, blocks, 128, threads)
                assert [part.tobytes() for part in back] == [codes.tobytes(), scales.tobytes()]
                decoded = families.decode_fp4(codes, scales, scale, tensor_scale, threads)
                assert (decoded == ops.decode_blocks(kind, blocks, 128, threads, tensor_scale)).all()
                part = families.encode_fp4(x[:, :96], group, scale, tensor_scale, search, None, threads)
                if importance is None:  # rows of a whole number of groups, though not of blocks
                    assert (part[0] == codes[:, :96]).all()
                    assert (part[1] == scales[:, : 96 // group]).all()


def test_4_bit_floats_keep_any_byte_and_refuse_what_blocks_have_not() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (3, 128)).astype(np.uint8)
    for kind, group, top in (("NVFP4", 16, 0x7F), ("MXFP4", 32, 0x100)):
        scales = rng.integers(0, top, (3, 128 // group)).astype(np.uint8)
        back = families.fp4_from_blocks(kind, families.blocks_from_fp4(codes, scales, kind), 128)
        assert (back[0] == codes).all()
        assert (back[1] == scales).all()
    for scale_byte in (0x7F, 0x80):
        with pytest.raises(ValueError, match="above 0x7E"):
            families.blocks_from_fp4(codes, np.full((3, 8), scale_byte, np.uint8), "NVFP4")
    with pytest.raises(ValueError, match="groups of 16 with E4M3"):
        families.encode_fp4(np.ones((1, 64), np.float32), 16, "E8M0")
    assert np.isnan(families.decode_fp4(codes[:1, :32], np.uint8([[255]]), "E8M0")).all()


def _both(compiled: str, run, *arguments: object) -> np.ndarray:
    with dispatch.only("reference"):
        want = run(*arguments)
    with dispatch.only(compiled):
        got = run(*arguments, threads=3)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()
    return got


def _codes(bits: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(bits).integers(0, 1 << bits, (rows, columns)).astype(np.uint8)


def test_nibbles(compiled) -> None:
    codes = _codes(4, 5, 38)
    low, high = (_both(compiled, families.pack_nibbles, codes, order) for order in ("low first", "high first"))
    assert low[0, 0] == codes[0, 0] | codes[0, 1] << 4
    assert high[0, 0] == codes[0, 1] | codes[0, 0] << 4
    assert (_both(compiled, families.unpack_nibbles, low, "low first") == codes).all()
    assert (_both(compiled, families.unpack_nibbles, high, "high first") == codes).all()
    with pytest.raises(ValueError, match="not pairs"):
        families.pack_nibbles(codes[:, :3])
    with pytest.raises(ValueError, match="of two nibbles"):
        families.pack_nibbles(codes, "big")


@pytest.mark.parametrize("bits", range(1, 9))
def test_columns_of_words_are_the_transposed_rows(bits, compiled) -> None:
    for rows, columns in ((37, 96), (32, 32), (1, 160), (0, 32)):
        codes = _codes(bits, rows, columns)
        packed = _both(compiled, families.pack_columns, codes, bits)
        assert packed.dtype == np.int32
        assert (packed == ops.pack_bits(codes, bits).T).all()
        assert (_both(compiled, families.unpack_columns, packed, bits) == codes).all()
        window = (rows // 3, rows - rows // 4)
        assert (_both(compiled, families.unpack_columns, packed, bits, window) == codes[slice(*window)]).all()
    with pytest.raises(ValueError, match="among 1"):
        families.unpack_columns(np.zeros((bits, 1), np.int32), bits, (0, 2))
    if bits < 8:
        with pytest.raises(ValueError, match="not whole words"):
            families.pack_columns(np.zeros((1, 33), np.uint8), bits)


@pytest.mark.parametrize("bits", range(1, 9))
def test_bit_streams_of_any_length(bits, compiled) -> None:
    for columns in (1, 7, 8, 9, 31, 33, 64, 67):
        codes = _codes(bits, 3, columns)
        packed = _both(compiled, ops.pack_bits, codes, bits)
        assert (_both(compiled, ops.unpack_bits, packed, bits, columns) == codes).all()
        number = sum(int(code) << (i * bits) for i, code in enumerate(codes[0]))
        assert packed[0].tobytes() == number.to_bytes(packed.shape[1] * 4, "little")


def test_awq_words(compiled) -> None:
    for rows, columns in ((8, 1), (64, 300), (24, 129)):
        codes = _codes(4, rows, columns)
        packed = _both(compiled, families.pack_awq, codes)
        word = sum(int(codes[row, 0]) << (4 * i) for i, row in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
        assert packed.view(np.uint32)[0, 0] == word
        assert (_both(compiled, families.unpack_awq, packed) == codes).all()
        assert (_both(compiled, families.unpack_awq, packed, (3, rows - 2)) == codes[3 : rows - 2]).all()
    with pytest.raises(ValueError, match="multiples of 8"):
        families.pack_awq(codes[:7])


def test_halves() -> None:
    codes = _codes(4, 6, 3)
    assert (families.pack_halves(codes, 4) == codes[:3] << 4 | codes[3:]).all()
    quarters = _codes(2, 8, 3)
    assert (
        families.pack_halves(quarters, 2) == quarters[:2] << 6 | quarters[2:4] << 4 | quarters[4:6] << 2 | quarters[6:]
    ).all()
    tenths = families.pack_halves(_codes(3, 13, 3), 3)  # two rows a slice, seven of them zeros
    assert tenths.dtype == np.int32
    assert (tenths[0] >> 27 & 7 == _codes(3, 13, 3)[0]).all()
    assert (tenths & 0x7FFF == tenths & 0x3F << 9 & 0x7FFF).all()
    for bits in (8, 4, 3, 2, 1):
        codes = _codes(bits, 48 if bits != 3 else 47, 5)
        assert (families.unpack_halves(families.pack_halves(codes, bits), bits, len(codes)) == codes).all()
    with pytest.raises(ValueError, match="not whole bytes"):
        families.pack_halves(codes[:7], 1)
    with pytest.raises(ValueError, match="HQQ packs"):
        families.pack_halves(codes, 5)
    with pytest.raises(ValueError, match="are not 6 packed rows"):
        families.unpack_halves(codes[:6], 4, 13)
