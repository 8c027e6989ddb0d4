"""The GGUF reader against gguf-py's writer and decoders, and against files made by hand."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import gguf_bytes, gguf_key, gguf_list, gguf_string, gguf_tensor, gguf_text, gguf_u32
from gguf import GGMLQuantizationType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

from core.checkpoint import Container, open_checkpoint
from core.checkpoint.gguf import GgufCheckpoint
from core.errors import UserError
from core.tensor_info import Role

NAMES = [
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
]
NAMES += ["MXFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "NVFP4"]
ALIVE = [gguf_text("general.architecture", "llama")]


def open_bytes(path: Path, raw: bytes) -> GgufCheckpoint:
    path.write_bytes(raw)
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, GgufCheckpoint)
    return checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_block_types_decode_as_gguf_py_does(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    values, size = GGML_QUANT_SIZES[kind]
    columns, rows = 512, 6
    # Bytes below 0x78: float16 scales without NaN or Inf wherever they lie.
    raw = np.random.default_rng(int(kind)).integers(0, 0x78, (rows, columns // values * size), dtype=np.uint8)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(8, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    checkpoint = open_checkpoint(tmp_path / "a.gguf")
    tensor = checkpoint.tensor("blk.0.attn_q.weight")
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (name, (rows, columns), raw.nbytes)
    np.testing.assert_array_equal(checkpoint.read_raw(tensor, 1, 4), raw[1:4])
    expected = quants.dequantize(raw, kind).reshape(rows, columns)
    np.testing.assert_array_equal(checkpoint.read_rows(tensor, 2, 5), expected[2:5])


def test_header_as_gguf_py_writes_it(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "qwen3")
    writer.add_uint32("n", 7)
    writer.add_int64("negative", -(2**62))
    writer.add_float64("pi", 3.141592653589793)
    writer.add_bool("yes", True)
    writer.add_string("empty-not", "ü 中")
    writer.add_array("tokens", ["a", "", "中文", "x" * 300])
    writer.add_array("scores", [1.5, -2.0])
    writer.add_array("flags", [True, False])
    writer.add_tensor("token_embd.weight", np.arange(24, dtype=np.float32).reshape(4, 6))
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.arange(24, dtype=np.float16).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "a.gguf")
    assert (checkpoint.container, checkpoint.architecture) == (Container.GGUF, "qwen3")
    metadata = checkpoint.metadata
    assert list(metadata) == "general.architecture n negative pi yes empty-not tokens scores flags".split()  # noqa: SIM905
    assert (metadata["n"], metadata["negative"], metadata["pi"]) == (7, -(2**62), 3.141592653589793)
    assert metadata["yes"] is True
    assert metadata["empty-not"] == "ü 中"
    assert metadata["tokens"] == ["a", "", "中文", "x" * 300]
    np.testing.assert_array_equal(metadata["scores"], np.array([1.5, -2.0], np.float32))
    assert metadata["flags"].tolist() == [True, False]
    assert metadata["flags"].dtype == bool
    assert "absent" not in metadata
    assert metadata.get("absent", 3) == 3
    stacked = checkpoint.tensor("blk.0.ffn_up_exps.weight")
    assert (stacked.shape, stacked.dtype, stacked.experts, stacked.role) == ((2, 3, 4), "F16", 2, Role.FFN_UP)
    np.testing.assert_array_equal(checkpoint.read_rows(stacked, 3), np.arange(12, 24, dtype=np.float32).reshape(3, 4))


def test_records_can_be_copied_undecoded(tmp_path: Path) -> None:
    keys = [
        gguf_text("general.architecture", "llama"),
        gguf_u32("general.alignment", 64),
        gguf_list("tokens", 8, [gguf_string(b"\xff\xfe not text"), gguf_string("")]),
        gguf_list("none", 5, []),
        gguf_key("half", 7, b"\x01"),
    ]
    checkpoint = open_bytes(
        tmp_path / "a.gguf", gguf_bytes(keys, [gguf_tensor("x", (4,), 0, 0)], bytes(16), alignment=64)
    )
    assert b"".join(checkpoint.kv_bytes(key) for key in checkpoint.metadata) == b"".join(keys)
    assert checkpoint.alignment == 64
    assert checkpoint.tensor("x").offset % 64 == 0
    assert checkpoint.kv_kind("tokens") == (9, 8)
    assert checkpoint.kv_kind("half") == (7, -1)
    assert checkpoint.metadata["tokens"][0].endswith(" not text")
    assert len(checkpoint.metadata["none"]) == 0


def test_version_2_and_a_scalar(tmp_path: Path) -> None:
    raw = gguf_bytes(ALIVE, [gguf_tensor("x", (), 0, 0)], struct.pack("<f", 2.5), version=2)
    checkpoint = open_bytes(tmp_path / "a.gguf", raw)
    assert checkpoint.read_rows(checkpoint.tensor("x")).tolist() == [[2.5]]


def test_the_scale_beside_an_nvfp4_tensor_counts(tmp_path: Path) -> None:
    block = bytes([0x38] * 4) + bytes([0x21] * 32)  # scales 1.0 (E4M3 0x38), codes 1 and 2: 0.5 and 1.0
    tensors = [
        gguf_tensor("blk.0.ffn_up_exps.weight", (64, 1, 2), 40, 0),
        gguf_tensor("blk.0.ffn_up_exps.scale", (2,), 0, 96),
    ]
    data = (block * 2).ljust(96, b"\0") + struct.pack("<2f", 3.0, 5.0)
    checkpoint = open_bytes(tmp_path / "a.gguf", gguf_bytes(ALIVE, tensors, data))
    rows = checkpoint.read_rows(checkpoint.tensor("blk.0.ffn_up_exps.weight"))
    assert set(rows[0].tolist()) == {1.5, 3.0}
    assert set(rows[1].tolist()) == {2.5, 5.0}
    assert set(checkpoint.read_rows(checkpoint.tensors[0], 1, 2)[0].tolist()) == {2.5, 5.0}


def test_a_split_set_opens_from_any_part(tmp_path: Path) -> None:
    extra = [gguf_key("split.count", 2, struct.pack("<H", 2)), gguf_key("split.tensors.count", 5, struct.pack("<i", 2))]
    for number in (1, 2):
        keys = ALIVE + extra if number == 1 else extra
        data = struct.pack("<4f", *[number] * 4)
        raw = gguf_bytes(keys, [gguf_tensor(f"blk.{number}.attn_q.weight", (4,), 0, 0)], data)
        (tmp_path / f"m-{number:05d}-of-00002.gguf").write_bytes(raw)
    for path in (*tmp_path.iterdir(), tmp_path):
        checkpoint = open_checkpoint(path)
        assert checkpoint.architecture == "llama"
        assert [checkpoint.read_rows(t)[0, 0] for t in checkpoint.tensors] == [1.0, 2.0]
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(UserError, match=r"1 of 2 parts of this model are missing: m-00001-of-00002\.gguf"):
        open_checkpoint(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").rename(tmp_path / "renamed.gguf")
    with pytest.raises(UserError, match="its name does not say which part"):
        open_checkpoint(tmp_path / "renamed.gguf")


def test_a_head_that_shares_the_embedding_s_bytes(tmp_path: Path) -> None:
    tensors = [gguf_tensor("token_embd.weight", (4, 2), 0, 0), gguf_tensor("output.weight", (4, 2), 0, 0)]
    checkpoint = open_bytes(tmp_path / "a.gguf", gguf_bytes(ALIVE, tensors, bytes(32)))
    assert checkpoint.tensor("output.weight").tied_to == "token_embd.weight"
    assert checkpoint.total_bytes == 32


X = gguf_tensor("x", (32,), 0, 0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (gguf_bytes(version=1), "GGUF version 1"),
        (gguf_bytes(version=4), "GGUF version 4"),
        (gguf_bytes(version=0x03000000), "big-endian"),
        (b"GGUF\x03\0\0\0", "is cut off inside its header"),
        (b"ggjt" + bytes(100), "is a GGML file from before"),
        (bytes(100), "begins with zeros"),
        (b"something else" * 9, "is not a GGUF file"),
        (gguf_bytes(ALIVE, [X], bytes(127)), "is cut off: x should end at byte"),
        (gguf_bytes(ALIVE, [X])[:-30], "is cut off"),
        (gguf_bytes(ALIVE, [X], bytes(128), key_count=2**63), "keys"),
        (gguf_bytes(ALIVE, [X], bytes(128), tensor_count=2**63), "tensors"),
        (gguf_bytes(ALIVE, [X, X], bytes(256)), "the tensor 'x' twice"),
        (gguf_bytes(ALIVE * 2, [X], bytes(128)), "the key 'general.architecture' twice"),
        (gguf_bytes(ALIVE, [X, gguf_tensor("y", (32,), 0, 64)], bytes(256)), "lie inside another tensor"),
        (gguf_bytes(ALIVE, [gguf_tensor("x", (32,), 99, 0)], bytes(128)), "GGML type 99"),
        (gguf_bytes(ALIVE, [gguf_tensor("x", (33,), 2, 0)], bytes(128)), "makes no sense"),
        (gguf_bytes(ALIVE, [gguf_tensor("x", (32,), 0, 4)], bytes(256)), "makes no sense"),
        (gguf_bytes(ALIVE, [gguf_tensor("x", (2**62, 2**62), 0, 0)], bytes(256)), "makes no sense"),
        (gguf_bytes(ALIVE, [gguf_tensor("x", (32,), 0, 2**64 - 32)], bytes(256)), "is cut off"),
        (gguf_bytes(ALIVE, [gguf_tensor("x", (1,) * 5, 0, 0)], bytes(256)), "5 axes"),
        (gguf_bytes([gguf_key("k", 77, b"")], [X], bytes(128)), "type 77 under 'k'"),
        (gguf_bytes([gguf_list("k", 9, [bytes(12)])], [X], bytes(128)), "a list of type 9"),
        (gguf_bytes([gguf_list("k", 8, [], 2**62)], [X], bytes(128)), "texts"),
        (gguf_bytes([gguf_list("k", 10, [], 2**62)], [X], bytes(128)), "is cut off"),
        (gguf_bytes([gguf_list("k", 8, [struct.pack("<Q", 2**63)])], [X], bytes(128)), "is cut off"),
        (gguf_bytes([gguf_key("k", 8, struct.pack("<Q", 2**64 - 9))], [X], bytes(128)), "is cut off"),
        (gguf_bytes([gguf_key(b"\xff\xfe", 4, bytes(4))], [X], bytes(128)), "a name that is no text"),
        (gguf_bytes([gguf_u32("general.alignment", 0)], [X], bytes(128)), "an alignment of 0"),
        (gguf_bytes([gguf_u32("general.alignment", 48)], [X], bytes(128)), "an alignment of 48"),
        (gguf_bytes([gguf_text("general.alignment", "x")], [X], bytes(128)), "an alignment of x"),
    ],
)
def test_damaged_files_are_named_in_one_sentence(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(raw)
    with pytest.raises(UserError) as caught:
        open_checkpoint(path)
    assert message in caught.value.message
    assert caught.value.hint


def test_a_quarter_million_tokens_are_skipped_and_found_again(tmp_path: Path) -> None:
    """Strings of all lengths across window ends; the time is measured by the benchmark, here it is only not absurd."""
    tokens = [b"t" * (i % 13) + str(i).encode() for i in range(262_144)]
    tokens[100_000] = b"long" * 600_000  # longer than the window
    keys = [*ALIVE, gguf_list("tokenizer.ggml.tokens", 8, [gguf_string(t) for t in tokens]), gguf_u32("after", 5)]
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(keys, [X], bytes(128)))
    start = time.perf_counter()
    checkpoint = open_checkpoint(path)
    assert time.perf_counter() - start < 5
    assert checkpoint.metadata["after"] == 5
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == [t.decode() for t in tokens]
