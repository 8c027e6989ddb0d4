"""Names that training programs leave in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from job_help import convert
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.doctor import examine

WRAPPED = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "parallel": lambda name: f"module.{name}",
    "both": lambda name: f"module._orig_mod.{name}",
    "layers": lambda name: name.replace(".self_attn", "._orig_mod.self_attn"),
    "sharded": lambda name: f"_fsdp_wrapped_module.{name.replace('.mlp', '._checkpoint_wrapped_module.mlp')}",
}


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_wrapped_model_is_the_model(wrapper: str, kind: str, tmp_path: Path) -> None:
    plain, folder = write_llama(tmp_path / "plain", hidden=64, ffn=64), write_llama(tmp_path / "m", hidden=64, ffn=64)
    tensors = {WRAPPED[wrapper](name): value for name, value in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    if kind == "bin":
        up = next(name for name in tensors if name.endswith("up_proj.weight"))
        tensors[up] = tensors[up].t().contiguous().t()  # a view: stored column after column
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    with open_checkpoint(folder) as got, open_checkpoint(plain) as want:
        assert [(t.name, t.role, t.layer) for t in got.tensors] == [(t.name, t.role, t.layer) for t in want.tensors]
        for t in want.tensors:
            np.testing.assert_array_equal(got.read_rows(got.tensor(t.name)), want.read_rows(t))
        assert [f.code for f in examine(got)].count("wrapped-names") == 1
    for path in (plain, folder):
        convert(path, "Q4_0", tmp_path / f"{path.name}.gguf")
        convert(path, "w4a16-g32", tmp_path / f"{path.name}-ct")
    assert set(load_file(tmp_path / "m-ct" / "model.safetensors")) == set(
        load_file(tmp_path / "plain-ct" / "model.safetensors")
    )
    tensors_of = [open_checkpoint(tmp_path / f"{name}.gguf") for name in ("m", "plain")]
    assert [t.name for t in tensors_of[0].tensors] == [t.name for t in tensors_of[1].tensors]


def test_a_module_among_others_keeps_its_name(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m", hidden=64, ffn=64)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"module.extra": torch.ones(3)}, folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        assert "module.extra" in {t.name for t in checkpoint.tensors}


def test_two_that_would_become_one_keep_their_names(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m", hidden=64, ffn=64)
    tensors = load_file(folder / "model.safetensors")
    twice = {"_orig_mod.model.norm.weight": torch.ones(64)}
    save_file(tensors | twice, folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        assert {t.name for t in checkpoint.tensors} == {*tensors, *twice}
