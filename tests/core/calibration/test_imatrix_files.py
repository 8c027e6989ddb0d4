"""Importance matrices: both formats of llama.cpp byte by byte and through its gguf library, damage, and the models'
own names."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from inspect_models import write_experts
from tiny_models import write_llama

from core.calibration.imatrix import Importance, ImportanceMatrix, gather
from core.calibration.imatrix_file import read_imatrix, write_imatrix
from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.plan import make_plan
from core.recipe import Recipe
from core.runtime.load import decoder_config


def entry(values: object, *counts: int) -> Importance:
    return Importance(np.array(values, np.float32).reshape(len(counts), -1), np.array(counts, np.int64))


DENSE = entry([[8.0, 2.0, 0.5]], 4)
STACK = entry([[4.0, 8.0], [0.0, 0.0], [2.0, 6.0]], 2, 0, 4)


def older(entries: list[tuple[bytes, int, list[float]]], tail: bytes = b"") -> bytes:
    out = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        out += struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values))
        out += np.array(values, "<f4").tobytes()
    return out + tail


def test_means_are_sums_over_counts() -> None:
    assert DENSE.means.tolist() == [[2.0, 0.5, 0.125]]
    assert DENSE.means.dtype == np.float32


def test_an_expert_without_tokens_has_the_mean_of_the_others() -> None:
    """(4 + 2) / (2 + 4) and (8 + 6) / (2 + 4)."""
    assert np.allclose(STACK.means, [[2.0, 4.0], [1.0, 14 / 6], [0.5, 1.5]], rtol=1e-7)
    assert STACK.unseen == 1
    assert entry([[0.0, 0.0]], 0).means.tolist() == [[1.0, 1.0]]
    notes = ImportanceMatrix({"blk.0.ffn_up_exps.weight": STACK}).about_experts()
    assert notes == ["1 of 3 experts of blk.0.ffn_up_exps.weight met no token; they have the mean of the others."]


def test_gguf_written_here_as_the_library_reads_it(tmp_path: Path) -> None:
    matrix = ImportanceMatrix(
        {"blk.0.ffn_up_exps.weight": STACK, "blk.0.attn_q.weight": DENSE}, 3, 128, ("one.txt", "two")
    )
    path = tmp_path / "m.gguf"
    write_imatrix(path, matrix)
    reader = gguf.GGUFReader(path)
    fields = {k: v.contents() for k, v in reader.fields.items() if "." in k and not k.startswith("GGUF")}
    assert fields == {
        "general.type": "imatrix",
        "imatrix.datasets": ["one.txt", "two"],
        "imatrix.chunk_count": 3,
        "imatrix.chunk_size": 128,
    }
    found = {t.name: (t.tensor_type.name, t.shape.tolist(), t.data.reshape(-1).tolist()) for t in reader.tensors}
    assert found == {
        "blk.0.attn_q.weight.in_sum2": ("F32", [3], [8.0, 2.0, 0.5]),
        "blk.0.attn_q.weight.counts": ("F32", [1], [4.0]),
        "blk.0.ffn_up_exps.weight.in_sum2": ("F32", [2, 3], [4.0, 8.0, 0.0, 0.0, 2.0, 6.0]),
        "blk.0.ffn_up_exps.weight.counts": ("F32", [1, 3], [2.0, 0.0, 4.0]),
    }
    again = read_imatrix(path)
    assert (again.chunks, again.chunk_size, again.datasets) == (3, 128, ("one.txt", "two"))
    for name, expected in matrix.entries.items():
        assert np.array_equal(again.entries[name].sums, expected.sums)
        assert np.array_equal(again.entries[name].counts, expected.counts)
    assert again.notes == tuple(matrix.about_experts())
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_the_older_format_byte_by_byte(tmp_path: Path) -> None:
    """Four tokens in chunks of three are two calls, so that values are twice the mean squares."""
    path = tmp_path / "m.dat"
    write_imatrix(path, ImportanceMatrix({"b": DENSE, "a": entry([[1.0]], 1)}, 1, 3, ("x.txt", "y.txt")))
    assert path.read_bytes() == older(
        [(b"a", 1, [1.0]), (b"b", 2, [4.0, 1.0, 0.25])], struct.pack("<ii", 1, 5) + b"y.txt"
    )
    again = read_imatrix(path)
    assert again.entries["b"].means.tolist() == DENSE.means.tolist()
    assert (again.chunks, again.chunk_size, again.datasets) == (1, 0, ("y.txt",))


def test_the_older_format_parts_experts_by_the_models_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.dat"
    write_imatrix(path, ImportanceMatrix({"blk.0.ffn_up_exps.weight": STACK}))
    means = read_imatrix(path).means("blk.0.ffn_up_exps.weight", 3, 2)
    assert means is not None
    assert np.allclose(means, STACK.means, rtol=1e-6)


@pytest.mark.parametrize("tail", [b"", struct.pack("<i", 7), struct.pack("<ii", 7, 0)])
def test_older_files_may_end_early(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(older([(b"a", 0, [3.0, 1.0])], tail))
    found = read_imatrix(path)
    assert found.entries["a"].means.tolist() == [[3.0, 1.0]]
    assert found.chunks == (7 if tail else 0)


def test_every_cut_is_told(tmp_path: Path) -> None:
    matrix = ImportanceMatrix({"blk.0.ffn_up_exps.weight": STACK, "blk.0.attn_q.weight": DENSE}, 3, 128, ("one",))
    for name in ("m.gguf", "m.dat"):
        path = tmp_path / name
        write_imatrix(path, matrix)
        data = path.read_bytes()
        whole = len(data) - (24 if name == "m.gguf" else 4 + 4 + 3)  # padding at the end, or what may be missing
        for cut in range(whole):
            path.write_bytes(data[:cut])
            with pytest.raises(UserError):
                read_imatrix(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"just some text, not a matrix at all", "not an importance matrix"),
        (b"\0" * 64, "not an importance matrix"),
        (older([(b"a\x01b", 1, [1.0])]), "not an importance matrix"),
        (older([(b"blk.0.attn_q.weight", 1, [])]), "0 values for blk.0.attn_q.weight"),
        (older([(b"blk.0.attn_q.weight", 1, [1.0, float("nan")])]), "for blk.0.attn_q.weight that are no mean squares"),
        (older([(b"blk.0.attn_q.weight", 1, [-1.0])]), "for blk.0.attn_q.weight that are no mean squares"),
        (older([(b"blk.0.attn_q.weight", 1, [1.0, 2.0])])[:-3], "cut off in the entry of blk.0.attn_q.weight"),
    ],
)
def test_what_is_no_matrix(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(said)):
        read_imatrix(path)


def written_with_library(path: Path, tensors: dict[str, np.ndarray], architecture: str = "imatrix") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a.in_sum2": np.ones((1, 4), np.float32)}, "no counts for a"),
        (
            {"a.in_sum2": np.ones((1, 4), np.float32), "a.counts": np.ones((3, 1), np.float32)},
            "4 sums and 3 counts for a",
        ),
        ({"a.in_sum2": np.ones((1, 4), np.float16), "a.counts": np.ones((1, 1), np.float32)}, "another type than F32"),
        ({"blk.0.attn_q.weight": np.ones((4, 4), np.float32)}, "is a model, not an importance matrix"),
    ],
)
def test_gguf_files_that_are_no_matrix(tmp_path: Path, tensors: dict[str, np.ndarray], said: str) -> None:
    path = written_with_library(tmp_path / "m.gguf", tensors)
    with pytest.raises(UserError, match=re.escape(said)):
        read_imatrix(path)


def test_a_missing_file_and_one_without_rights_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not there"):
        read_imatrix(tmp_path / "none.gguf")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError):
        write_imatrix(tmp_path / "file" / "m.gguf", ImportanceMatrix({}))


def test_a_folders_weights_by_their_own_names(tmp_path: Path) -> None:
    folder = open_checkpoint(write_llama(tmp_path / "m", hidden=64, ffn=96, layers=1))
    rng = np.random.default_rng(0)
    sums = {f"blk.0.attn_{p}.weight": (rng.random(64), 10) for p in ("q", "k", "v", "output")}
    sums |= {"blk.0.ffn_gate.weight": (rng.random(64), 10), "blk.0.ffn_down.weight": (rng.random(96), 10)}
    found = gather(sums, 5, ("text",)).for_checkpoint(folder, "llama")
    at = "model.layers.0."
    names = [f"{at}self_attn.{p}_proj.weight" for p in "qkvo"] + [
        f"{at}mlp.{p}_proj.weight" for p in ("gate", "up", "down")
    ]
    assert sorted(found) == sorted(names)
    assert np.allclose(found[at + "self_attn.k_proj.weight"], sums["blk.0.attn_k.weight"][0][None] / 10)
    assert np.allclose(found[at + "mlp.up_proj.weight"], sums["blk.0.ffn_gate.weight"][0][None] / 10)  # one input
    assert found[at + "mlp.down_proj.weight"].shape == (1, 96)


def test_experts_apart_and_stacked(tmp_path: Path) -> None:
    folder = open_checkpoint(write_experts(tmp_path / "m"))
    rng = np.random.default_rng(0)
    sums = {f"blk.1.ffn_{part}.{e}.weight": (rng.random(256), 4 - 2 * e) for part in ("up", "down") for e in (0, 1)}
    matrix = gather(sums, 2, experts=3)
    assert matrix.entries["blk.1.ffn_up_exps.weight"].counts.tolist() == [4, 2, 0]
    assert matrix.chunks == 2
    found = matrix.for_checkpoint(folder, "qwen3moe")
    means = matrix.entries["blk.1.ffn_down_exps.weight"].means
    for e in range(3):
        assert np.array_equal(found[f"model.layers.1.mlp.experts.{e}.down_proj.weight"], means[e : e + 1])
        assert f"model.layers.1.mlp.experts.{e}.gate_proj.weight" in found  # the input of up
    assert not any("layers.0." in name for name in found)


def test_files_that_name_each_expert_serve_stacks_and_the_other_way_round() -> None:
    """Older programs wrote an entry for each expert, and older models have a tensor for each."""
    apart = ImportanceMatrix(
        {"blk.0.ffn_up.0.weight": entry([[4.0, 8.0]], 2), "blk.0.ffn_up.2.weight": entry([[2.0, 6.0]], 4)}
    )
    stacked = ImportanceMatrix({"blk.0.ffn_up_exps.weight": STACK})
    np.testing.assert_allclose(apart.means("blk.0.ffn_up_exps.weight", 3, 2), STACK.means)
    four = apart.means("blk.0.ffn_up_exps.weight", 4, 2)
    assert four is not None
    np.testing.assert_allclose(four[[1, 3]], np.stack([STACK.means[1]] * 2))
    for expert in range(3):
        own = stacked.means(f"blk.0.ffn_up.{expert}.weight", 1, 2)
        assert own is not None
        np.testing.assert_allclose(own[0], STACK.means[expert])
    assert stacked.means("blk.0.ffn_up.3.weight", 1, 2) is None
    assert apart.means("blk.1.ffn_up_exps.weight", 3, 2) is None


def test_names_of_fused_weights_are_added() -> None:
    matrix = gather({"blk.0.attn_q.weight": (np.ones(4), 2)}, 1, fused=["blk.0.attn_qkv.weight"])
    assert list(matrix.entries) == ["blk.0.attn_q.weight", "blk.0.attn_qkv.weight"]
    assert matrix.means("blk.0.attn_v.weight", 1, 4) is not None
    assert matrix.means("blk.0.ffn_up.weight", 1, 4) is None


def test_a_matrix_of_another_model_is_told_by_the_weights_name(tmp_path: Path) -> None:
    folder = open_checkpoint(write_llama(tmp_path / "m", hidden=64, layers=1))
    with pytest.raises(UserError, match=r"3 values for blk\.0\.attn_q\.weight"):
        ImportanceMatrix({"blk.0.attn_q.weight": DENSE}).for_checkpoint(folder, "llama")
    with pytest.raises(UserError, match="none of this model's weights"):
        ImportanceMatrix({"blk.7.attn_q.weight": DENSE}).for_checkpoint(folder, "llama")


def test_a_matrix_given_for_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    write_imatrix(path, ImportanceMatrix({"blk.0.attn_q.weight": DENSE}, datasets=("a.txt",)))
    with open_checkpoint(path) as checkpoint:
        for take in (lambda: make_plan(checkpoint, Recipe("Q4_0")), lambda: decoder_config(checkpoint)):
            with pytest.raises(UserError, match="This is an importance matrix, not a model") as refused:
                take()
            assert refused.value.hint == "Open the model that it was made for."
