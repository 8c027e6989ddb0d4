"""GGUF bytes against those that the gguf package writes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.export.gguf import gguf_layout, requantized_metadata
from core.export.gguf_values import FILE_TYPES, GGUFType, GGUFValue, array, boolean, encode_record, f32, string, u32
from core.export.layout import Layout

RNG = np.random.default_rng(3)
# Sizes around the alignment: a vector, a row that fills no block of 32 bytes, three axes.
ARRAYS = {
    "token_embd.weight": RNG.normal(size=(7, 33)).astype(np.float32),
    "blk.0.attn_norm.weight": RNG.normal(size=5).astype(np.float32),
    "blk.0.ffn_up_exps.weight": RNG.normal(size=(2, 3, 64)).astype(np.float16),
    "output.weight": RNG.normal(size=(7, 8)).astype(np.float32),
}
VALUES: dict[str, GGUFValue] = {
    "general.architecture": string("llama"),
    "general.name": string("Ünïcode"),
    "general.file_type": u32(1),
    "llama.block_count": u32(1),
    "llama.rope.freq_base": f32(1e4),
    "tokenizer.ggml.add_bos_token": boolean(True),
    "tokenizer.ggml.tokens": array(GGUFType.STRING, ["a", "\u2581b", ""]),
    "tokenizer.ggml.token_type": array(GGUFType.I32, [1, 2, -3]),
    "tokenizer.ggml.scores": array(GGUFType.F32, [0.5, -1.0, 2.0]),
}


def place(values: dict[str, Any], arrays: dict[str, np.ndarray] = ARRAYS, alignment: int | None = None) -> Layout:
    types = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
    return gguf_layout([(n, a.shape, types[a.dtype], a.nbytes) for n, a in arrays.items()], values, alignment)


def written(layout: Layout, arrays: dict[str, np.ndarray] = ARRAYS) -> bytes:
    data = bytearray(layout.total_bytes)
    data[: len(layout.files[0].header)] = layout.files[0].header
    for part, a in zip(layout.parts, arrays.values(), strict=True):
        assert part.nbytes == a.nbytes
        data[part.offset : part.offset + part.nbytes] = a.tobytes()
    return bytes(data)


def by_package(path: Path, alignment: int = 32) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Ünïcode")
    writer.add_file_type(1)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(1)
    writer.add_rope_freq_base(1e4)
    writer.add_add_bos_token(True)
    writer.add_token_list(["a", "\u2581b", ""])
    writer.add_token_types([1, 2, -3])
    writer.add_token_scores([0.5, -1.0, 2.0])
    for name, a in ARRAYS.items():
        writer.add_tensor(name, a)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_the_package_s_bytes(tmp_path: Path) -> None:
    assert written(place(VALUES)) == by_package(tmp_path / "a.gguf")


def test_another_alignment(tmp_path: Path) -> None:
    values = {}
    for key, value in VALUES.items():
        values[key] = value
        if key == "general.file_type":
            values["general.alignment"] = u32(128)
    want = by_package(tmp_path / "a.gguf", 128)
    assert written(place(values)) == want
    raw = {key: encode_record(key, value) for key, value in values.items()}
    assert written(place(raw)) == want


@pytest.mark.parametrize("alignment", [0, 7, 1 << 30])
def test_alignments_that_can_not_be(alignment: int) -> None:
    with pytest.raises(UserError):
        place({**VALUES, "general.alignment": u32(alignment)})


def test_general_keys_go_first() -> None:
    layout = place({"llama.block_count": u32(1), "general.name": string("x"), "general.architecture": string("llama")})
    header = layout.files[0].header
    assert header.index(b"general.architecture") < header.index(b"general.name") < header.index(b"llama.block_count")


def test_bytes_by_kind() -> None:
    layout = place(VALUES)
    payload = sum(a.nbytes for a in ARRAYS.values())
    # 7·33·4 = 924 and 5·4 = 20 and 7·8·4 = 224 bytes, each to the next multiple of 32; 768 is one.
    assert layout.padding_bytes == 4 + 12 + 0
    assert layout.total_bytes == layout.header_bytes + payload + layout.padding_bytes
    assert layout.files[0].name == ""
    assert not layout.folder


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 70)), min_size=1, max_size=8))
def test_any_shapes_are_read_back(shapes: list[tuple[int, int]]) -> None:
    arrays = {f"t{i}.weight": np.full(s, i, np.float32) for i, s in enumerate(shapes)}
    layout = place({"general.architecture": string("llama")}, arrays)
    end = len(layout.files[0].header)
    for part in layout.parts:
        assert part.offset % 32 == 0
        assert 0 <= part.offset - end < 32
        end = part.offset + part.nbytes
    assert 0 <= layout.total_bytes - end < 32


@pytest.mark.parametrize("name", ["x" * 64, "ü" * 32])
def test_names_that_do_not_fit(name: str) -> None:
    with pytest.raises(UserError, match="63 bytes"):
        place(VALUES, {name: ARRAYS["output.weight"]})
    place(VALUES, {name[:-1]: ARRAYS["output.weight"]})


def test_names_twice_and_too_many_axes() -> None:
    entry = ("a.weight", (2, 2), "F32", 16)
    with pytest.raises(UserError, match="Two tensors"):
        gguf_layout([entry, entry], VALUES)
    with pytest.raises(UserError, match="axes"):
        gguf_layout([("a.weight", (1, 1, 1, 2, 2), "F32", 16)], VALUES)


@pytest.mark.parametrize("value", [u32(-1), u32(1 << 32), GGUFValue(GGUFType.I32, 1 << 31)])
def test_numbers_that_do_not_fit(value: GGUFValue) -> None:
    with pytest.raises(UserError, match="does not fit"):
        value.encode()


def test_file_types_are_llama_cpp_s() -> None:
    """Against the gguf package, which lists them as MOSTLY_…; a bare K type stands for its medium mix."""
    for name, number in FILE_TYPES.items():
        official = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}.get(name, name)
        entry = "ALL_F32" if name == "F32" else f"MOSTLY_{official}"
        if entry in gguf.LlamaFileType.__members__:
            assert gguf.LlamaFileType[entry] == number, name


def test_metadata_of_a_gguf_is_kept(tmp_path: Path) -> None:
    """Every record byte for byte, of types too that nothing here writes; only what the new file is changes."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(1)
    writer.add_quantization_version(2)
    writer.add_uint64("custom.large", 1 << 40)
    writer.add_float64("custom.double", 0.1)
    writer.add_array("custom.bools", [True, False])
    writer.add_array("custom.texts", ["x", "y"])
    writer.add_string("quantize.imatrix.file", "of the source, not of the new file")
    writer.add_string("quantize.other", "kept")
    writer.add_tensor("output.weight", ARRAYS["output.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(path) as checkpoint:
        kept = requantized_metadata(checkpoint, 15)
    assert kept["general.file_type"] == u32(15)
    source = path.read_bytes()
    raw = {key: record for key, record in kept.items() if isinstance(record, bytes)}
    assert set(raw) == {
        "general.architecture",
        *("custom.large", "custom.double", "custom.bools", "custom.texts", "quantize.other"),
    }
    for key, record in raw.items():
        assert record in source
        assert record.startswith(struct.pack("<Q", len(key)) + key.encode())


def test_split_files_become_one(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(1)
    for name, a in ARRAYS.items():
        writer.add_tensor(name, a)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path / "m-00001-of-00002.gguf") as checkpoint:
        assert any(key.startswith("split.") for key in checkpoint.metadata)
        kept = requantized_metadata(checkpoint, 1)
        layout = gguf_layout([(t.name, t.shape, t.dtype, t.nbytes) for t in checkpoint.tensors], kept)
    assert not any(key.startswith("split.") for key in kept)
    assert "llama.block_count" in kept
    path = tmp_path / "one.gguf"
    path.write_bytes(written(layout))
    with open_checkpoint(path) as checkpoint:
        assert [t.name for t in checkpoint.tensors] == list(ARRAYS)
        last = checkpoint.tensor("output.weight")
        assert np.array_equal(checkpoint.read_rows(last), ARRAYS["output.weight"])
