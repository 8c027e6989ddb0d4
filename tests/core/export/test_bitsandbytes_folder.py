"""bitsandbytes folders as they are written: config.json, what may stand beside each other, and the engine on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from interop.cases import bitsmith
from tiny_models import write_llama

from core import cli
from core.checkpoint.opening import open_checkpoint
from core.errors import UserError
from core.inspect.group_map import stored_group
from core.packed.checkpoint import UnpackedCheckpoint
from core.progress import CancelToken
from core.runtime.packed import packed_matrix
from core.runtime.reading import NoLayout, Reading
from kernels import matrix

TARGETS = ("bnb-nf4", "bnb-nf4-dq", "bnb-fp4", "bnb-fp4-dq", "bnb-int8")


def convert(source: Path, target: str, *more: str) -> Path:
    made = source.with_name(f"{source.name}-{target}")
    plan = bitsmith("plan", source, "--to", target, *more)
    run = bitsmith("convert", source, "--to", target, "-o", made, *more)
    assert plan["bytes_total"] == run["actual_bytes"] == sum(f.stat().st_size for f in made.iterdir())
    return made


def opened(folder: Path) -> UnpackedCheckpoint:
    checkpoint = open_checkpoint(folder)
    assert isinstance(checkpoint, UnpackedCheckpoint)
    return checkpoint


@pytest.mark.parametrize("target", TARGETS)
def test_the_folder_says_what_it_is_and_the_engine_runs_it(target: str, tmp_path: Path) -> None:
    made = convert(write_llama(tmp_path / "m", hidden=128, ffn=192, tied=False), target)
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    eight = target == "bnb-int8"
    assert config == {
        "_load_in_4bit": not eight,
        "_load_in_8bit": eight,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "nf4" if "nf4" in target else "fp4",
        "bnb_4bit_use_double_quant": target.endswith("-dq"),
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": ["lm_head"],
        "llm_int8_threshold": 6.0,
        "load_in_4bit": not eight,
        "load_in_8bit": eight,
        "quant_method": "bitsandbytes",
    }
    checkpoint = opened(made)
    assert len(checkpoint.packed) == 14
    for name, weight in list(checkpoint.packed.items())[:3]:
        values = checkpoint.read_rows(checkpoint.tensor(name))
        packed = packed_matrix(weight, 3, len(values), Reading(CancelToken()))
        x = np.random.default_rng(1).standard_normal((2, values.shape[1])).astype(np.float32)
        got = matrix.product(x, packed, matrix.Activations.EXACT)
        want = x.astype(np.float64) @ values[3:].T
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_rows_that_blocks_cross_are_converted_and_decoded(tmp_path: Path) -> None:
    for target in ("bnb-nf4", "bnb-fp4-dq"):
        checkpoint = opened(convert(write_llama(tmp_path / "m", hidden=36, heads=2, kv_heads=1, ffn=100), target))
        source = open_checkpoint(tmp_path / "m")
        for name, weight in checkpoint.packed.items():
            values, want = (c.read_rows(c.tensor(name)) for c in (checkpoint, source))
            assert np.linalg.norm(values - want) < 0.2 * np.linalg.norm(want)
            with pytest.raises(NoLayout, match="run on"):
                packed_matrix(weight, 0, len(values), Reading(CancelToken()))


def test_plain_scales_take_over_quantized_ones_as_they_are_read(tmp_path: Path) -> None:
    quantized = convert(write_llama(tmp_path / "m", hidden=128, ffn=96), "bnb-nf4-dq")
    plain = convert(quantized, "bnb-nf4")
    first, second = opened(quantized), opened(plain)
    for name in first.packed:
        assert np.array_equal(first.read_rows(first.tensor(name)), second.read_rows(second.tensor(name)))


def test_4_and_8_bits_do_not_stand_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_llama(tmp_path / "m")
    made = convert(source, "bnb-nf4", "--rule", "v_proj=bnb-fp4-dq", "--rule", "o_proj=keep")
    skipped = json.loads((made / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    names = ["model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj", "lm_head"]
    assert sorted(skipped["llm_int8_skip_modules"]) == sorted(names)
    rule = ["--rule", "v_proj=bnb-int8"]
    assert cli.main(["plan", str(source), "--to", "bnb-nf4", *rule]) != 0
    assert "4-bit and 8-bit" in "".join(capsys.readouterr())


def test_experts_stay(tmp_path: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.experts.0.up_proj.weight"] = torch.ones(64, 256, dtype=torch.bfloat16)
        tensors["model.layers.0.mlp.experts.1.up_proj.weight"] = torch.ones(64, 256, dtype=torch.bfloat16)

    made = convert(write_llama(tmp_path / "m", change=add), "bnb-nf4")
    assert not any(".experts." in name for name in opened(made).packed)
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert "model.layers.0.mlp.experts" in config["llm_int8_skip_modules"]


def test_the_map_says_what_it_does_not_show(tmp_path: Path) -> None:
    made = convert(write_llama(tmp_path / "m", hidden=128, ffn=128), "bnb-nf4-dq")
    checkpoint = opened(made)
    with pytest.raises(UserError, match="quantized themselves"):
        stored_group(checkpoint, checkpoint.tensor(next(iter(checkpoint.packed))), 3, 70)
