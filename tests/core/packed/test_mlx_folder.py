"""MLX folders: what is written, by hand-derived bytes; what is read; what contradicts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.formats import Method, find_format
from core.formats.base import EncodeOptions
from core.formats.mlx import MLX_BITS
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run


def converted(source: Path, recipe: Recipe, output: Path) -> Plan:
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, recipe)
        for _ in run(plan, checkpoint, output, CancelToken()):
            pass
    assert sum(f.stat().st_size for f in output.iterdir()) == plan.bytes_total
    return plan


def by_hand(arrays: dict[str, torch.Tensor], base: str, bits: int, group: int) -> np.ndarray:
    """MLX's values, code by code: words as one bit stream a row, low bits first; each operation rounded to float32."""
    words = arrays[f"{base}.weight"].view(torch.int32).numpy().view(np.uint32)
    stream = np.unpackbits(words.view(np.uint8).reshape(len(words), -1), axis=1, bitorder="little")
    digits = stream.reshape(len(words), -1, bits).astype(np.int64)
    codes = (digits << np.arange(bits)).sum(axis=2).astype(np.float32)
    scales, biases = (arrays[f"{base}.{part}"].float().numpy().repeat(group, axis=1) for part in ("scales", "biases"))
    return codes * scales + biases


@pytest.mark.parametrize("bits", MLX_BITS)
def test_what_is_written_is_what_mlx_means(bits: int, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", layers=1, tied=False)
    plan = converted(source, Recipe(f"mlx-{bits}bit-g64", Method.ROUND), tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    with open_checkpoint(tmp_path / "out") as made:
        names = {t.name for t in made.tensors if t.packed}
        assert {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight"} < names
        assert len(names) == 9
        for name in names:
            want = by_hand(arrays, name.removesuffix(".weight"), bits, 64)
            tensor = made.tensor(name)
            assert np.array_equal(made.read_rows(tensor), want)
            assert np.array_equal(made.read_rows(tensor, 3, 50, (64, 101)), want[3:50, 64:101])
    (t,) = [t for t in plan.tensors if t.name.endswith("down_proj.weight")]
    assert 8 * t.bytes.total / t.values == bits + 32 / 64 == t.format.contract.effective_bits


def test_codes_are_those_of_the_rule_that_mlx_has() -> None:
    """Edge = the end of larger magnitude; the scale leads from it to the other end, and divides it."""
    x = np.linspace(-1, 0.5, 32, dtype=np.float32)[None]
    words, scales, biases = find_format("mlx-4bit-g32", "safetensors").encode(x, EncodeOptions(method=Method.ROUND))
    assert scales.view(np.uint16).tolist() == [0x3DCD]  # −1 / round(−1 / 0.1) = 0.1 as bfloat16
    assert biases.view(np.uint16).tolist() == [0xBF80]  # −1
    codes = [int(c) for byte in words for c in (byte & 15, byte >> 4)]
    assert codes == [int(np.rint((v + 1) / np.float32(0.1))) for v in x[0]]


def test_config_index_and_metadata_are_mlx_lms(tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # stored, and yet tied

    source = write_llama(tmp_path / "m", layers=1, tied=True, change=change)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    del config["rope_theta"]
    config["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    converted(source, Recipe("mlx-4bit-g64", Method.ROUND, (Rule("down_proj", "mlx-8bit-g32"),)), tmp_path / "out")
    made = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert made["quantization"] == made["quantization_config"]
    assert made["quantization"] == {
        "group_size": 64,
        "bits": 4,
        "mode": "affine",
        "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8, "mode": "affine"},
    }
    assert (made["rope_theta"], made["rope_scaling"]) == (5e5, {"rope_type": "llama3", "factor": 8.0})
    assert made["rope_parameters"] == config["rope_parameters"]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "mlx"}
        assert set(index["weight_map"]) == set(file.keys())
        assert not [name for name in file.keys() if "lm_head" in name]  # noqa: SIM118 - no mapping
    with open_checkpoint(source) as original:
        assert index["metadata"]["total_parameters"] == sum(t.values for t in original.tensors if not t.tied_to)
    with open_checkpoint(tmp_path / "out") as again:
        assert again.tensor("model.layers.0.mlp.down_proj.weight").dtype == "int8 g32 with offsets"


def experts(folder: Path, kind: str, names: tuple[str, str, str], block: str) -> Path:
    """A folder whose only layer has three experts, in the names of that kind of model."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for part, own in zip(("gate_proj", "up_proj", "down_proj"), names, strict=True):
            weight = tensors.pop(f"model.layers.0.mlp.{part}.weight")
            for e in range(3):
                tensors[f"model.layers.0.{block}.experts.{e}.{own}.weight"] = weight * (e + 1)
        tensors[f"model.layers.0.{block}.gate.weight"] = torch.ones(3, 256, dtype=torch.bfloat16)

    source = write_llama(folder, layers=1, change=change)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": kind, "num_local_experts": 3}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return source


@pytest.mark.parametrize(
    ("kind", "names", "block"),
    [("qwen3_moe", ("gate_proj", "up_proj", "down_proj"), "mlp"), ("mixtral", ("w1", "w3", "w2"), "block_sparse_moe")],
)
def test_experts_are_one_tensor(kind: str, names: tuple[str, str, str], block: str, tmp_path: Path) -> None:
    source = experts(tmp_path / "m", kind, names, block)
    converted(source, Recipe("mlx-4bit-g64", Method.ROUND), tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    stack = f"model.layers.0.{block}.switch_mlp.down_proj"
    assert arrays[f"{stack}.weight"].shape == (3, 256, 64)
    assert arrays[f"{stack}.scales"].shape == arrays[f"{stack}.biases"].shape == (3, 256, 8)
    assert arrays[f"model.layers.0.{block}.gate.weight"].dtype == torch.bfloat16
    assert not [name for name in arrays if ".experts." in name]
    made = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert made["num_experts"] == 3
    form = find_format("mlx-4bit-g64", "safetensors")
    with open_checkpoint(source) as original, open_checkpoint(tmp_path / "out") as again:
        want = {t.name for t in original.tensors}
        assert {t.name for t in again.tensors} == want
        for name in (n for n in want if ".experts." in n):
            x = original.read_rows(original.tensor(name))
            parts = form.encode(x, EncodeOptions(method=Method.ROUND))
            assert np.array_equal(again.read_rows(again.tensor(name)), form.decode(parts, *x.shape))
            assert np.array_equal(again.read_rows(again.tensor(name), 7, 30), again.read_rows(again.tensor(name))[7:30])


def test_experts_that_are_kept_are_stacked_in_16_bits(tmp_path: Path) -> None:
    source = experts(tmp_path / "m", "qwen3_moe", ("gate_proj", "up_proj", "down_proj"), "mlp")
    converted(source, Recipe("mlx-4bit-g64", Method.ROUND, (Rule("experts", "keep"),)), tmp_path / "out")
    arrays, before = load_file(tmp_path / "out" / "model.safetensors"), load_file(source / "model.safetensors")
    stack = arrays["model.layers.0.mlp.switch_mlp.up_proj.weight"]
    assert torch.equal(stack, torch.stack([before[f"model.layers.0.mlp.experts.{e}.up_proj.weight"] for e in range(3)]))
    with open_checkpoint(source) as original, open_checkpoint(tmp_path / "out") as again:
        assert {t.name for t in again.tensors} == {t.name for t in original.tensors}
        for t in (t for t in original.tensors if ".experts." in t.name):
            own = again.tensor(t.name)
            assert (own.role, own.layer, own.expert) == (t.role, t.layer, t.expert)
            assert np.array_equal(again.read_rows(own, 3, 40), original.read_rows(t, 3, 40))


def test_experts_of_an_unknown_model_are_refused(tmp_path: Path) -> None:
    source = experts(tmp_path / "m", "newmoe", ("gate_proj", "up_proj", "down_proj"), "mlp")
    with open_checkpoint(source) as checkpoint, pytest.raises(UserError, match="newmoe is not known"):
        make_plan(checkpoint, Recipe("mlx-4bit-g64"))


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    source = experts(tmp_path / "m", "qwen3_moe", ("gate_proj", "up_proj", "down_proj"), "mlp")
    arrays = load_file(source / "model.safetensors")
    del arrays["model.layers.0.mlp.experts.1.up_proj.weight"]
    save_file(arrays, source / "model.safetensors")
    with open_checkpoint(source) as checkpoint, pytest.raises(UserError, match=r"up_proj.weight' should have expert 1"):
        make_plan(checkpoint, Recipe("mlx-4bit-g64"))


@pytest.mark.parametrize("target", ["w4a16-g64", "w2a16-g32", "w8a16-g128"])
def test_symmetric_integers_become_mlx_without_loss(target: str, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", layers=1)
    converted(source, Recipe(target, Method.ROUND), tmp_path / "ct")
    bits, group = re.findall(r"\d+", target.replace("a16", ""))
    plan = converted(tmp_path / "ct", Recipe(f"mlx-{bits}bit-g{group}"), tmp_path / "mlx")
    with open_checkpoint(tmp_path / "ct") as ct, open_checkpoint(tmp_path / "mlx") as mlx:
        moved = [t for t in plan.tensors if t.lossless]
        assert len(moved) == 7
        for t in moved:
            one, other = ct.packed[t.name], mlx.packed[t.name]
            assert np.array_equal(one.codes(0, 40).codes, other.codes(0, 40).codes)
            assert np.array_equal(one.values(0, t.rows), other.values(0, t.rows))


def test_asymmetric_integers_are_not_called_lossless(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", layers=1)
    converted(source, Recipe("w4a16-g64-asym", Method.ROUND), tmp_path / "ct")
    with open_checkpoint(tmp_path / "ct") as checkpoint:
        assert not any(t.lossless for t in make_plan(checkpoint, Recipe("mlx-4bit-g64")).tensors)


def test_the_method_is_refused_where_there_are_no_zero_points(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", layers=1)
    with open_checkpoint(source) as checkpoint:
        for target in ("w4a16-g64", "Q4_K_M", "w4a16-channel-asym"):
            with pytest.raises(UserError, match="half-quadratic"):
                make_plan(checkpoint, Recipe(target, Method.HALF_QUADRATIC))
        for target in ("w4a16-g64-asym", "mlx-4bit-g64"):
            make_plan(checkpoint, Recipe(target, Method.HALF_QUADRATIC))


@pytest.mark.parametrize("name", ["w4a16-g64-asym", "mlx-4bit-g64"])
def test_half_quadratic_has_the_smaller_error_of_the_power_that_it_minimises(name: str) -> None:
    x = np.random.default_rng(0).standard_t(3, (64, 512)).astype(np.float32)
    form = find_format(name, "safetensors")

    def error(method: Method) -> float:
        back = form.decode(
            [p if p.size else np.zeros(16, np.uint8) for p in form.encode(x, EncodeOptions(method=method))], *x.shape
        )
        return float((np.abs(x - back).astype(np.float64) ** 0.7).sum())

    assert error(Method.HALF_QUADRATIC) < error(Method.ROUND)


Break = Callable[[dict[str, torch.Tensor], dict], None]
DOWN = "model.layers.0.mlp.down_proj"


def without_biases(arrays: dict[str, torch.Tensor], _: dict) -> None:
    del arrays[f"{DOWN}.biases"]


def short_scales(arrays: dict[str, torch.Tensor], _: dict) -> None:
    arrays[f"{DOWN}.scales"] = arrays[f"{DOWN}.scales"][:, :-1].contiguous()


def short_biases(arrays: dict[str, torch.Tensor], _: dict) -> None:
    arrays[f"{DOWN}.biases"] = arrays[f"{DOWN}.biases"][:-1].contiguous()


def other_bits(_: dict[str, torch.Tensor], config: dict) -> None:
    config["quantization"][DOWN] = {"group_size": 64, "bits": 8, "mode": "affine"}


def no_words(_: dict[str, torch.Tensor], config: dict) -> None:
    del config["quantization"]


def said_to_be_plain(_: dict[str, torch.Tensor], config: dict) -> None:
    config["quantization"][DOWN] = False


def other_mode(_: dict[str, torch.Tensor], config: dict) -> None:
    config["quantization"]["mode"] = "spiral"


@pytest.mark.parametrize(
    ("broken", "named", "words"),
    [
        (without_biases, f"{DOWN}.biases", "not there"),
        (short_scales, f"{DOWN}.scales", "as config.json says"),
        (short_biases, f"{DOWN}.biases", "needs BF16 256 × 8"),
        (other_bits, f"{DOWN}.weight", "8 bits in groups of 64"),
        (no_words, ".weight", "does not say"),
        (said_to_be_plain, f"{DOWN}.weight", "does not say"),
        (other_mode, ".weight", "'spiral'"),
    ],
)
def test_what_contradicts_is_named(broken: Break, named: str, words: str, tmp_path: Path) -> None:
    converted(write_llama(tmp_path / "m", layers=1), Recipe("mlx-4bit-g64", Method.ROUND), tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    arrays, config = load_file(file), json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    broken(arrays, config)
    save_file(arrays, file, metadata={"format": "mlx"})
    (tmp_path / "out" / "model.safetensors.index.json").unlink()
    (tmp_path / "out" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert isinstance(checkpoint, Checkpoint)
        problem = checkpoint.packed_problem
        assert problem is not None
        assert named in problem.message
        assert words in problem.message
