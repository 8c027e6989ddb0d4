"""PyTorch files: values by position, pickles that could run code refused."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import LLAMA_CONFIG

from core.checkpoint import Container, open_checkpoint
from core.errors import UserError


def test_values_views_and_shared_storage(tmp_path: Path) -> None:
    base = torch.randn(6, 8, dtype=torch.bfloat16)
    stacked = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    state = {
        "model.embed_tokens.weight": base,
        "lm_head.weight": base,
        "transposed": base.T,
        "slice": base[2:4],
        "permuted": stacked.permute(1, 0, 2),
        "parameter": torch.nn.Parameter(torch.randn(5)),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "fp8": torch.randn(2, 4).to(torch.float8_e4m3fn),
    }
    torch.save({"state_dict": state, "epoch": 3, "loose": torch.ones(1)}, tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert checkpoint.container is Container.PYTORCH
    assert {t.name for t in checkpoint.tensors} == set(state)
    for tensor in checkpoint.tensors:
        expected = state[tensor.name].detach().float().numpy().reshape(tensor.rows, tensor.columns)
        np.testing.assert_array_equal(checkpoint.read_rows(tensor), expected)
        np.testing.assert_array_equal(checkpoint.read_rows(tensor, tensor.rows // 2), expected[tensor.rows // 2 :])
    assert checkpoint.tensor("lm_head.weight").tied_to == "model.embed_tokens.weight"
    assert not checkpoint.tensor("slice").tied_to


def test_a_sharded_folder(tmp_path: Path) -> None:
    weight_map = {}
    for number in (1, 2):
        name = f"pytorch_model-{number:05d}-of-00002.bin"
        torch.save({f"model.layers.{number}.mlp.up_proj.weight": torch.full((2, 2), float(number))}, tmp_path / name)
        weight_map[f"model.layers.{number}.mlp.up_proj.weight"] = name
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    torch.save({"lr": 1}, tmp_path / "training_args.bin")
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "pytorch_model-00002-of-00002.bin"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.architecture == "llama"
        assert [checkpoint.read_rows(t)[0, 0] for t in checkpoint.tensors] == [1.0, 2.0]
    (tmp_path / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(UserError, match="1 of the model's 2 weight files are missing: pytorch_model-00001"):
        open_checkpoint(tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("ran",))


def test_code_in_a_pickle_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Bomb()}, "a.bin")
    with pytest.raises(UserError, match="could run code"):
        open_checkpoint(tmp_path / "a.bin")
    assert not (tmp_path / "ran").exists()


def rewrite(source: Path, target: Path, compress: int = zipfile.ZIP_STORED, **changed: bytes) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compress) as new:
        for entry in old.infolist():
            new.writestr(
                entry.filename, changed.get(entry.filename.rpartition("/")[2].partition(".")[0], old.read(entry))
            )
    return target


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole.bin"
    torch.save({"x": torch.randn(64, 64)}, whole)
    cases: dict[str, tuple[bytes, str]] = {
        "empty": (b"", "is empty"),
        "cut": (whole.read_bytes()[:-200], "is cut off or damaged"),
        "text": (b"hello", "is not a PyTorch file"),
        "legacy": (b"\x80\x02\x8a", "format from before 2020"),
        "zip": (b"PK\x05\x06" + bytes(18), "not one of PyTorch's"),
    }
    for name, (raw, message) in cases.items():
        path = tmp_path / f"{name}.bin"
        path.write_bytes(raw)
        with pytest.raises(UserError, match=message):
            open_checkpoint(path)
    with pytest.raises(UserError, match="is compressed"):
        open_checkpoint(rewrite(whole, tmp_path / "deflated.bin", zipfile.ZIP_DEFLATED))
    with pytest.raises(UserError, match="big-endian"):
        open_checkpoint(rewrite(whole, tmp_path / "big.bin", byteorder=b"big"))
    for raw in (b"", b"\x80\x02}q\x00", b"\x80\x02" + b"(" * 1000, b"garbage"):
        with pytest.raises(UserError):
            open_checkpoint(rewrite(whole, tmp_path / "pickle.bin", data=raw))


def test_a_torchscript_program_is_told_apart(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name in ("m/data.pkl", "m/constants.pkl", "m/code/m.py"):
            archive.writestr(name, b"")
    with pytest.raises(UserError, match="TorchScript"):
        open_checkpoint(tmp_path / "a.pt")
