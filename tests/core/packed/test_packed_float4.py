"""Folders of 4-bit floats as sources: what tools write opens, and goes losslessly where the same numbers exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from job_help import convert
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint.opening import open_checkpoint
from core.errors import UserError
from core.formats.float4 import TensorScale
from core.inspect.group_map import stored_group
from core.plan import Action, make_plan
from core.recipe import Recipe

Arrays = dict[str, torch.Tensor]
CT = "compressed-tensors"
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
MXFP4 = NVFP4 | {"strategy": "group", "group_size": 32}
UP = "model.layers.0.mlp.up_proj.weight"
LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def linear(name: str) -> bool:
    return name.endswith("proj.weight")


def quantized(weight: torch.Tensor, seed: int, kind: str, divisor: float) -> Arrays:
    """Any codes and scales of a weight's shape: what follows shall move them, whatever they are."""
    rng = torch.Generator().manual_seed(seed)
    rows, columns = weight.shape
    group = 16 if kind == "nvfp4" else 32
    out = {"_packed": torch.randint(0, 256, (rows, columns // 2), generator=rng, dtype=torch.uint8)}
    if kind == "mxfp4":
        return out | {"_scale": torch.randint(115, 122, (rows, columns // group), generator=rng, dtype=torch.uint8)}
    scales = torch.randint(0x30, 0x7E, (rows, columns // group), generator=rng, dtype=torch.uint8)
    return out | {"_scale": scales.view(torch.float8_e4m3fn), "_global_scale": torch.tensor([divisor])}


def write_packed(
    folder: Path,
    kind: str = "nvfp4",
    divisor: float = 4096.0,
    modelopt: bool = False,
    change: Callable[[Arrays], object] = lambda arrays: None,
    config: Callable[[dict], object] = lambda config: None,
    **model: object,
) -> Path:
    """A folder as llm-compressor or ModelOpt writes it; change and config may spoil it."""
    write_llama(folder, **model)
    arrays: Arrays = {}
    for seed, (name, tensor) in enumerate(load_file(folder / "model.safetensors").items()):
        if not linear(name):
            arrays[name] = tensor
            continue
        for suffix, part in quantized(tensor, seed, kind, divisor).items():
            if modelopt:
                suffix = {"_packed": "", "_global_scale": "_scale_2"}.get(suffix, suffix)
                part = part.reshape(()) if suffix == "_scale_2" else part
            arrays[name + suffix] = part
    change(arrays)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    group = {"weights": dict(NVFP4 if kind == "nvfp4" else MXFP4), "targets": ["Linear"], "input_activations": None}
    own = {"quant_method": "modelopt", "quant_algo": "NVFP4"} if modelopt else {"quant_method": CT}
    about["quantization_config"] = own if modelopt else own | {"config_groups": {"group_0": group}}
    config(about["quantization_config"])
    path.write_text(json.dumps(about), encoding="utf-8")
    return folder


def values(arrays: Arrays, name: str, factor: float | None = None) -> np.ndarray:
    """The weight that stored arrays stand for, float64 in between."""
    packed = arrays[name + "_packed"]
    codes = torch.stack([packed & 15, packed >> 4], dim=2).reshape(len(packed), -1).long()
    scales = arrays[name + "_scale"]
    if scales.dtype is torch.uint8:
        each = 2.0 ** (scales.double() - 127)
    else:
        each = scales.double() * (1 / arrays[name + "_global_scale"].double() if factor is None else factor)
    return (LEVELS.double()[codes].reshape(len(codes), scales.shape[1], -1) * each[:, :, None]).flatten(1).numpy()


@pytest.mark.parametrize(("kind", "divisor"), [("nvfp4", 4096.0), ("nvfp4", 4095.3), ("mxfp4", 1.0)])
def test_values_at_any_rows(kind: str, divisor: float, tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "m", kind, divisor)
    arrays = load_file(folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        packed = [t for t in checkpoint.tensors if t.packed]
        assert len(packed) == 14
        assert all("_scale" not in t.name and "_packed" not in t.name for t in checkpoint.tensors)
        for t in packed[:3]:
            want = values(arrays, t.name)
            assert np.allclose(checkpoint.read_rows(t), want, rtol=2**-22, atol=0)
            for start, stop in ((0, 1), (3, 20), (t.rows - 1, t.rows), (5, 5)):
                assert np.array_equal(checkpoint.read_rows(t, start, stop), checkpoint.read_rows(t)[start:stop])
            assert np.array_equal(checkpoint.read_rows(t, 2, 4, (16, 48)), checkpoint.read_rows(t, 2, 4)[:, 16:48])


def test_a_pytorch_file_opens_too(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "m")
    arrays = load_file(folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        want = {t.name: checkpoint.read_rows(t) for t in checkpoint.tensors if t.packed}
    (folder / "model.safetensors").unlink()
    torch.save(arrays, folder / "pytorch_model.bin")
    with open_checkpoint(folder) as checkpoint:
        got = {t.name: checkpoint.read_rows(t) for t in checkpoint.tensors if t.packed}
    assert got.keys() == want.keys()
    assert all(np.array_equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(("divisor", "kind"), [(4096.0, TensorScale.POWER), (4095.3, TensorScale.DIVISOR)])
def test_what_a_tensor_scale_is_belongs_to_the_numbers(divisor: float, kind: TensorScale, tmp_path: Path) -> None:
    with open_checkpoint(write_packed(tmp_path / "m", divisor=divisor)) as checkpoint:
        assert {t.numbers.tensor for t in checkpoint.tensors if t.packed} == {kind}  # type: ignore[union-attr]


def blocks_of(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    return {t.name: (t.tensor_type.name, np.array(t.data)) for t in GGUFReader(path).tensors}


def split_halves(packed: torch.Tensor, scales: torch.Tensor, group: int, per_block: int) -> np.ndarray:
    """GGML's blocks by hand: the scales of a block, then each group's first half in low nibbles, second in high."""
    rows = len(packed)
    codes = torch.stack([packed & 15, packed >> 4], dim=2).reshape(rows, -1, group).numpy()
    nibbles = codes[:, :, : group // 2] | codes[:, :, group // 2 :] << 4
    parts = [
        scales.view(torch.uint8).numpy().reshape(rows, -1, per_block),
        nibbles.reshape(rows, -1, per_block * group // 2),
    ]
    return np.concatenate(parts, axis=2).reshape(rows, -1)


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize(
    ("kind", "modelopt", "divisor", "exact"),
    [
        ("nvfp4", False, 4096.0, True),
        ("nvfp4", False, 4095.3, False),
        ("nvfp4", True, 0.000123, True),
        ("mxfp4", False, 1.0, True),
    ],
)
def test_into_gguf_the_bytes_are_only_shuffled(
    kind: str, modelopt: bool, divisor: float, exact: bool, tmp_path: Path
) -> None:
    folder = write_packed(tmp_path / "m", kind, divisor, modelopt)
    arrays = load_file(folder / "model.safetensors")
    target = kind.upper()
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target=target))
        moved = [t for t in plan.tensors if t.action is Action.REPACK]
        assert len(moved) == 14
        assert all(t.lossless and bool(t.rounding) is not exact for t in moved)
        assert any("as its reciprocal" in w for w in plan.warnings) is not exact
    _, result = convert(folder, target, tmp_path / "out.gguf")
    assert result.predicted_bytes == result.actual_bytes
    found = blocks_of(tmp_path / "out.gguf")
    end = "" if modelopt else "_packed"
    group, per_block = (16, 4) if kind == "nvfp4" else (32, 1)
    for ours, theirs, heads in (
        ("blk.1.attn_q", "self_attn.q_proj", 4),
        ("blk.1.attn_k", "self_attn.k_proj", 2),
        ("blk.1.attn_v", "self_attn.v_proj", 0),
        ("blk.1.ffn_down", "mlp.down_proj", 0),
    ):
        name = f"model.layers.1.{theirs}.weight"
        want = split_halves(arrays[name + end], arrays[name + "_scale"], group, per_block)
        dtype, got = found[f"{ours}.weight"]
        assert dtype == target
        assert np.array_equal(got.reshape(want.shape), interleave(want, heads) if heads else want)
        if kind == "nvfp4":
            factor = np.float32(divisor) if modelopt else np.float32(1) / np.float32(divisor)
            assert found[f"{ours}.scale"][1].item() == factor


SPOILED: dict[str, tuple[dict, str]] = {
    "no scale": ({"change": lambda a: a.pop(UP + "_scale")}, "up_proj.weight_scale'"),
    "no tensor scale": (
        {"change": lambda a: a.pop(UP + "_global_scale")},
        "up_proj.weight_global_scale'",
    ),
    "scales of another size": (
        {"change": lambda a: a.update({UP + "_scale": torch.zeros(512, 8).to(torch.float8_e4m3fn)})},
        "up_proj.weight_scale'",
    ),
    "scales of another type": (
        {"change": lambda a: a.update({UP + "_scale": torch.zeros(512, 16)})},
        "no scales of 4-bit floats",
    ),
    "a tensor scale of zero": (
        {"change": lambda a: a.update({UP + "_global_scale": torch.zeros(1)})},
        "up_proj.weight_global_scale' is 0",
    ),
    "a tensor scale that is not a number": (
        {"change": lambda a: a.update({"model.layers.1.mlp.up_proj.weight_global_scale": torch.tensor([torch.nan])})},
        "up_proj.weight_global_scale' is nan",
    ),
    "a zero point": (
        {"change": lambda a: a.update({UP + "_zero_point": torch.zeros(512, 16, dtype=torch.int8)})},
        "up_proj.weight_zero_point'",
    ),
    "groups that do not divide": (
        {"change": lambda a: a.update({UP + "_packed": torch.zeros(512, 127, dtype=torch.uint8)})},
        "254 values do not divide into groups of 16",
    ),
    "a config of another group": (
        {"config": lambda c: c["config_groups"]["group_0"]["weights"].update(group_size=32)},
        "config.json says otherwise",
    ),
    "a config of integers": (
        {"config": lambda c: c["config_groups"]["group_0"]["weights"].update(type="int")},
        "config.json says otherwise",
    ),
    "a config of another method": ({"config": lambda c: c.update(quant_method="gptq")}, "config.json says 'gptq'"),
    "MXFP4 with a tensor scale": (
        {
            "kind": "mxfp4",
            "change": lambda a: a.update({UP + "_global_scale": torch.ones(1)}),
        },
        "up_proj.weight_global_scale'",
    ),
    "ModelOpt without its second scale": (
        {"modelopt": True, "change": lambda a: a.pop(UP + "_scale_2")},
        "up_proj.weight_scale_2'",
    ),
    "ModelOpt with scaled inputs": (
        {
            "modelopt": True,
            "change": lambda a: a.update({"model.layers.0.mlp.up_proj.pre_quant_scale": torch.ones(256)}),
        },
        "up_proj.pre_quant_scale'",
    ),
    "ModelOpt's second scale beside a plain weight": (
        {
            "modelopt": True,
            "change": lambda a: a.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(512, 256)}),
        },
        "up_proj.weight_scale_2'",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_contradicts_itself_is_named(case: str, tmp_path: Path) -> None:
    spoil, named = SPOILED[case]
    with open_checkpoint(write_packed(tmp_path / "m", **spoil)) as checkpoint:
        assert checkpoint.packed_problem is not None
        assert named in checkpoint.packed_problem.message
        assert checkpoint.packed_problem.message.count(". ") == 0
        with pytest.raises(UserError):
            make_plan(checkpoint, Recipe(target="Q8_0"))


def test_scales_that_gguf_has_not_are_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    name = UP + "_scale"

    def negative(arrays: Arrays) -> None:
        raw = arrays[name].view(torch.uint8).clone()
        raw[3, 3] = 0xB8
        arrays[name] = raw.view(torch.float8_e4m3fn)

    folder = write_packed(tmp_path / "m", change=negative)
    with pytest.raises(UserError, match=r"blk\.0\.ffn_up\.weight' has scales that NVFP4 can not hold"):
        convert(folder, "NVFP4", tmp_path / "out.gguf")


def with_inputs(modelopt: bool) -> Callable[[Arrays], object]:
    """Static scales of activations beside every packed weight, each its own."""

    def change(arrays: Arrays) -> None:
        bases = [n.removesuffix(".weight_scale") for n in arrays if n.endswith(".weight_scale")]
        for number, base in enumerate(bases):
            scale = torch.tensor(0.001 * (number + 1))
            if modelopt:
                arrays[f"{base}.input_scale"] = scale
            else:
                arrays[f"{base}.input_global_scale"] = (1 / scale).reshape(1)

    return change


@pytest.mark.parametrize("scale", [2.0**-12, 0.000123])
@pytest.mark.parametrize("modelopt", [True, False])
def test_compressed_tensors_and_modelopt_exchange_codes(modelopt: bool, scale: float, tmp_path: Path) -> None:
    """The bytes of codes and group scales are the same; the others are each other's reciprocals, in float32."""
    stored = np.float32(scale) if modelopt else np.float32(1) / np.float32(scale)
    folder = write_packed(tmp_path / "m", divisor=float(stored), modelopt=modelopt, change=with_inputs(modelopt))
    target = "nvfp4a4" if modelopt else "modelopt-nvfp4"
    power = scale == 2.0**-12
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target=target))
        moved = [t for t in plan.tensors if t.action is Action.REPACK]
        assert len(moved) == 14
        assert not any(t.needs_input for t in moved)
        assert all(bool(t.rounding) is not power for t in moved)
        assert any("as its reciprocal" in w for w in plan.warnings) is not power
        assert plan.lossless_note.startswith("Lossless") is power
    convert(folder, target, tmp_path / "out")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    ends = {"weight": "weight_packed", "weight_scale_2": "weight_global_scale", "input_scale": "input_global_scale"}
    for ours, theirs in {**ends, "weight_scale": "weight_scale"}.items():
        source, made = (ours, theirs) if modelopt else (theirs, ours)
        for layer in ("0.mlp.up_proj", "1.self_attn.q_proj"):
            old, new = before[f"model.layers.{layer}.{source}"], after[f"model.layers.{layer}.{made}"]
            if ours in ("weight", "weight_scale"):
                assert torch.equal(old.view(torch.uint8), new.view(torch.uint8))
            else:
                assert new.item() == (1 / old).item()
                assert new.shape == (() if not modelopt else (1,))
    with open_checkpoint(folder) as one, open_checkpoint(tmp_path / "out") as other:
        assert other.packed_problem is None
        for t in (t for t in one.tensors if t.packed):
            a, b = one.read_rows(t), other.read_rows(other.tensor(t.name))
            assert np.array_equal(a, b) if power else np.allclose(a, b, rtol=2**-22, atol=0)


def test_a_scale_of_activations_that_is_none_is_named(tmp_path: Path) -> None:
    def change(arrays: Arrays) -> None:
        with_inputs(True)(arrays)
        arrays["model.layers.0.mlp.up_proj.input_scale"] = torch.tensor(-1.0)

    with open_checkpoint(write_packed(tmp_path / "m", modelopt=True, change=change)) as checkpoint:
        assert checkpoint.packed_problem is not None
        assert "up_proj.input_scale' is -1" in checkpoint.packed_problem.message


@pytest.mark.parametrize("modelopt", [True, False])
def test_inspect_shows_what_a_value_is_read_with(modelopt: bool, tmp_path: Path) -> None:
    """The tensor scale as a factor, even where the file has a divisor; nothing of the activations."""
    divisor = 0.000123 if modelopt else 4095.3
    folder = write_packed(tmp_path / "m", divisor=divisor, modelopt=modelopt, change=with_inputs(modelopt))
    with open_checkpoint(folder) as checkpoint:
        t = checkpoint.tensor(UP)
        shown = stored_group(checkpoint, t, 3, 37)
        scale, tensor_scale = shown.metadata
        assert (scale.meaning, tensor_scale.meaning) == ("scale", "tensor scale")
        want = LEVELS.numpy()[shown.codes] * scale.value * tensor_scale.value
        assert np.allclose(checkpoint.read_rows(t, 3, 4, shown.columns)[0], want, rtol=2**-22, atol=0)
