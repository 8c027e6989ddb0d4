"""Folders of packed weights that contradict themselves: one sentence that names the tensor, never other numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.verify import verify_alone

Tensors = dict[str, torch.Tensor]
Q = "model.layers.0.self_attn.q_proj"
SCHEMES = ("gptq-4bit-g32-asym", "awq-g32", "mlx-4bit-g32", "w4a16-g32", "nvfp4a16", "mxfp4a16")
MAIN = {"gptq": ".qweight", "awq": ".qweight", "mlx": ".weight"}


def main(target: str) -> str:
    """The name of the tensor that holds the codes."""
    return Q + MAIN.get(target.partition("-")[0], ".weight_packed")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("packed")
    source = write_llama(root / "m", hidden=128, ffn=128, layers=1, tied=False)

    def folder(target: str) -> Path:
        if not (root / target).exists():
            convert(source, target, root / target)
        return root / target

    return folder


def convert(source: Path, target: str, output: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        for _ in run(make_plan(checkpoint, Recipe(target)), checkpoint, output, CancelToken()):
            pass


def changed(
    folder: Path,
    to: Path,
    tensors: Callable[[Tensors], object] = lambda t: None,
    config: Callable[[dict], object] = lambda c: None,
) -> Path:
    shutil.copytree(folder, to)
    stored = {name: value.clone() for name, value in load_file(to / "model.safetensors").items()}
    tensors(stored)
    save_file(stored, to / "model.safetensors", metadata={"format": "pt"})
    words = json.loads((to / "config.json").read_text())
    for key in ("quantization_config", "quantization"):
        if key in words:
            config(words[key])
    (to / "config.json").write_text(json.dumps(words))
    return to


def refused(folder: Path, target: str = "hf-bf16") -> str:
    with open_checkpoint(folder) as checkpoint, pytest.raises(UserError) as problem:
        make_plan(checkpoint, Recipe(target))
    assert problem.value.hint
    return problem.value.message


def same(folder: Path, as_in: Path) -> bool:
    with open_checkpoint(folder) as a, open_checkpoint(as_in) as b:
        assert [t.name for t in a.tensors] == [t.name for t in b.tensors]
        return all((a.read_rows(t) == b.read_rows(b.tensor(t.name))).all() for t in a.tensors)


@pytest.mark.parametrize("target", SCHEMES)
def test_what_is_left_of_a_weight_is_not_carried_along(target: str, packed: Callable, tmp_path: Path) -> None:
    said = refused(changed(packed(target), tmp_path / "m", lambda t: t.pop(main(target))))
    assert f"'{Q}." in said


@pytest.mark.parametrize("target", ["gptq-4bit-g32-asym", "awq-g32", "w4a16-g32", "nvfp4a16"])
def test_a_weight_is_not_there_packed_and_plain(target: str, packed: Callable, tmp_path: Path) -> None:
    twice = changed(packed(target), tmp_path / "m", lambda t: t.update({Q + ".weight": torch.zeros(128, 128)}))
    assert refused(twice) == f"'{Q}.weight' is there packed, as '{main(target)}', and a second time without."


@pytest.mark.parametrize("target", ["gptq-4bit-g32-asym", "mlx-4bit-g32", "w4a16-g32"])
@pytest.mark.parametrize("part", [".weight_scale_inv", ".SCB", ".weight.absmax", ".W_q", ".pre_quant_scale"])
def test_parts_of_another_scheme_are_not_dropped(target: str, part: str, packed: Callable, tmp_path: Path) -> None:
    stray = changed(packed(target), tmp_path / "m", lambda t: t.update({Q + part: torch.ones(128)}))
    assert f"'{Q}" in refused(stray)


@pytest.mark.parametrize("target", ["gptq-4bit-g32-asym", "awq-g32", "w4a16-g32", "nvfp4a16", "mxfp4a16"])
def test_config_names_the_method_that_the_weights_are_packed_by(target: str, packed: Callable, tmp_path: Path) -> None:
    said = refused(changed(packed(target), tmp_path / "m", config=lambda c: c.update(quant_method="fp8")))
    assert "_proj" in said
    assert said.endswith("but config.json says 'fp8'.")


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "hqq"])
def test_8_bit_weights_are_of_a_method_that_has_them(method: str, packed: Callable, tmp_path: Path) -> None:
    said = refused(changed(packed("fp8-dynamic"), tmp_path / "m", config=lambda c: c.update(quant_method=method)))
    assert "_proj.weight'" in said


@pytest.mark.parametrize("target", ["fp8-dynamic", "hf-fp8", "w8a8"])
def test_integers_are_not_read_as_floats_nor_floats_as_integers(target: str, packed: Callable, tmp_path: Path) -> None:
    other = torch.float8_e4m3fn if target == "w8a8" else torch.int8
    said = refused(
        changed(packed(target), tmp_path / "m", lambda t: t.update({main("mlx"): t[main("mlx")].view(other)}))
    )
    assert said.startswith(f"'{Q}.weight' holds 8-bit {'floats' if target == 'w8a8' else 'integers'}")


@pytest.mark.parametrize("target", ["fp8-dynamic", "hf-fp8", "w8a8", "w4a16-g32", "nvfp4a16"])
def test_a_weight_without_rows_is_no_weight(target: str, packed: Callable, tmp_path: Path) -> None:
    name = main("mlx") if "8" in target else main(target)
    assert f"'{Q}.weight" in refused(changed(packed(target), tmp_path / "m", lambda t: t.update({name: t[name][:0]})))


@pytest.mark.parametrize("kind", [None, [], {}, [None], 4])
def test_words_of_config_that_are_none_do_no_harm(kind: object, packed: Callable, tmp_path: Path) -> None:
    def change(c: dict) -> None:
        c["config_groups"]["group_0"]["weights"]["type"] = kind

    assert same(changed(packed("fp8-dynamic"), tmp_path / "m", config=change), packed("fp8-dynamic"))


@pytest.mark.parametrize("target", ["w8a8", "mlx-mxfp4", "mlx-4bit-g32", "fp8-dynamic", "bnb-int8"])
def test_codes_are_not_taken_for_values(target: str, packed: Callable, tmp_path: Path) -> None:
    """Without its scales a weight of integers is no weight, whatever a file of another kind would make of them."""

    def drop(t: Tensors) -> None:
        for part in (".weight_scale", ".scales", ".biases", ".SCB", ".weight_format"):
            t.pop(Q + part, None)

    assert f"'{Q}.weight" in refused(changed(packed(target), tmp_path / "m", drop))


def test_a_damaged_output_is_not_verified(packed: Callable, tmp_path: Path) -> None:
    for target in ("awq-g32", "gptq-4bit-g32-asym", "w4a16-g32"):
        name = main(target)
        damaged = changed(packed(target), tmp_path / target, lambda t, name=name: t.pop(name))
        with open_checkpoint(damaged) as checkpoint, pytest.raises(UserError, match=Q):
            verify_alone(checkpoint, CancelToken())


def test_mlx_is_read_by_the_words_that_mlx_reads(packed: Callable, tmp_path: Path) -> None:
    folder = changed(packed("mlx-4bit-g32"), tmp_path / "m")
    words = json.loads((folder / "config.json").read_text())
    words["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(words))
    assert same(folder, packed("mlx-4bit-g32"))
    words["quantization"]["bits"] = 8
    (folder / "config.json").write_text(json.dumps(words))
    assert "are not 8 bits in groups of 32" in refused(folder)


def test_bytes_are_scales_of_groups_of_32_alone(packed: Callable, tmp_path: Path) -> None:
    name = Q + ".weight_scale"
    bare = changed(packed("fp8-dynamic"), tmp_path / "m", lambda t: t.update({name: torch.full((128, 1), 120).byte()}))
    assert refused(bare) == f"'{name}' has a scale for each row in U8, which are no such scales."


def test_awq_with_rows_and_columns_exchanged_is_no_gptq(packed: Callable, tmp_path: Path) -> None:
    turned = changed(
        packed("awq-g32"), tmp_path / "m", lambda t: t.update({main("awq"): t[main("awq")].T.contiguous()})
    )
    assert refused(turned) == f"'{Q}.qweight' is packed as GPTQ does it, but config.json says 'awq'."


def test_transforms_are_not_forgotten(packed: Callable, tmp_path: Path) -> None:
    """Those that compressed-tensors writes: test_rotations.py."""
    for target in ("w4a16-g32", "nvfp4a16", "fp8-dynamic"):
        rotated = changed(packed(target), tmp_path / target, config=lambda c: c.update(transform_config={"u": {}}))
        assert "transform_config" in refused(rotated)


def test_groups_of_columns_are_as_config_says(packed: Callable, tmp_path: Path) -> None:
    folder, name = packed("gptq-4bit-g32-asym"), Q + ".g_idx"
    zeros = changed(folder, tmp_path / "zeros", lambda t: t.update({name: torch.zeros_like(t[name])}))
    assert same(zeros, folder)  # how some programs write that there is no order
    halves = torch.arange(128, dtype=torch.int32) // 64
    other = changed(folder, tmp_path / "other", lambda t: t.update({name: halves}))
    assert refused(other) == f"'{name}' puts 64 columns into group 0, but config.json says 32."
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    uneven = changed(
        folder,
        tmp_path / "uneven",
        lambda t: t.update({name: torch.cat([t[name][:1] + 1, t[name][1:]])[order]}),
        lambda c: c.update(desc_act=True),
    )
    assert refused(uneven) == f"'{name}' puts 31 columns into group 0, but config.json says 32."


@pytest.mark.parametrize("size", ["32", 32.5, [32], True])
@pytest.mark.parametrize("target", ["gptq-4bit-g32-asym", "awq-g32"])
def test_a_group_size_is_a_whole_number(target: str, size: object, packed: Callable, tmp_path: Path) -> None:
    said = refused(changed(packed(target), tmp_path / "m", config=lambda c: c.update(group_size=size)))
    assert "_proj.qweight'" in said


def test_gptq_without_a_word_on_its_layout_is_not_guessed(packed: Callable, tmp_path: Path) -> None:
    folder = changed(packed("gptq-4bit-g32-asym"), tmp_path / "m")
    words = json.loads((folder / "config.json").read_text())
    beside = words.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(words))
    (folder / "quantize_config.json").unlink()
    said = refused(folder)
    assert "_proj.qweight'" in said
    assert "less one" in said
    (folder / "quantize_config.json").write_text(json.dumps(beside))
    assert same(folder, packed("gptq-4bit-g32-asym"))


@pytest.mark.parametrize(
    ("target", "part", "to"),
    [
        ("gptq-4bit-g32-asym", ".scales", "hf-bf16"),
        ("gptq-4bit-g32-asym", ".scales", "awq-g32"),
        ("awq-g32", ".scales", "hf-bf16"),
        ("mlx-4bit-g32", ".biases", "hf-bf16"),
        ("mlx-4bit-g32", ".scales", "mlx-4bit-g32"),
        ("w4a16-g32", ".weight_scale", "w4a16-g32"),
        ("nvfp4a16", ".weight_scale", "NVFP4"),
        ("mxfp4a16", ".weight_scale", "mxfp4a16"),
    ],
)
def test_scales_that_are_no_numbers_do_not_reach_a_file(
    target: str, part: str, to: str, packed: Callable, tmp_path: Path
) -> None:
    def spoil(t: Tensors) -> None:
        scales = t[Q + part]
        if scales.dtype.itemsize == 1:
            scales.view(torch.uint8)[5, 1] = 255  # NaN in E4M3 and in E8M0
        else:
            scales[1, 5 % scales.shape[1]] = float("nan")

    damaged = changed(packed(target), tmp_path / "m", spoil)
    with pytest.raises(UserError, match=r"(q_proj|attn_q).weight' unpacks to \d+ NaN or infinite values"):
        convert(damaged, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()
