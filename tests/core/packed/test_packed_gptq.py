"""GPTQ and AWQ folders as sources: what tools write opens, and goes losslessly where the same numbers exist."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_models import weights_of
from gguf import GGUFReader, dequantize
from gptq_files import Arrays, Layer, write_quantized
from job_help import convert
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.plan import Action, make_plan
from core.recipe import Recipe
from core.runtime.load import decoder_config
from kernels.matrix import read_rows

BASE = "model.layers.0.mlp.up_proj"  # 512 × 256
UP = f"{BASE}.weight"


def check_values(folder: Path, layers: dict[str, Layer]) -> None:
    with open_checkpoint(folder) as checkpoint:
        packed = {t.name: t for t in checkpoint.tensors if t.packed}
        assert packed.keys() == layers.keys()
        assert not [t.name for t in checkpoint.tensors if t.name.endswith(("qweight", "qzeros", "scales", "g_idx"))]
        for name in (UP, "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
            t = packed[name]
            whole = checkpoint.read_rows(t)
            assert np.array_equal(whole, layers[name].values)  # products of 11 and 8 bits are exact
            for start, stop in ((0, 1), (3, 70), (t.rows - 1, t.rows), (5, 5)):
                assert np.array_equal(checkpoint.read_rows(t, start, stop), whole[start:stop])
            assert np.array_equal(checkpoint.read_rows(t, 2, 4, (16, 48)), whole[2:4, 16:48])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("group", "symmetric", "version"), [(32, True, 1), (64, False, 1), (128, False, 2), (0, False, 1), (0, True, 2)]
)
def test_gptq_values_at_any_rows(bits: int, group: int, symmetric: bool, version: int, tmp_path: Path) -> None:
    layers = write_quantized(tmp_path / "m", bits, group, symmetric, version)
    check_values(tmp_path / "m", layers)
    with open_checkpoint(tmp_path / "m") as checkpoint:
        groups = f"g{group}" if group else "per row"
        labels = {t.dtype for t in checkpoint.tensors if t.packed}
        assert labels == {f"int{bits} {groups}" + ("" if symmetric else " asymmetric")}


@pytest.mark.parametrize(("bits", "borrow"), [(4, True), (2, True), (8, True), (3, False)])
def test_zero_points_of_zero_are_read_as_gptqmodel_reads_them(bits: int, borrow: bool, tmp_path: Path) -> None:
    """It takes 1 from whole words, so that a 0 borrows from the next field, and adds it to whole words again."""
    layers = write_quantized(tmp_path / "m", bits, symmetric=False, lowest=0, borrow=borrow)
    assert any((layer.zeros == 0).any() for layer in layers.values())
    check_values(tmp_path / "m", layers)


@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (3, False)])
def test_columns_in_the_order_of_activations(bits: int, symmetric: bool, tmp_path: Path) -> None:
    layers = write_quantized(tmp_path / "m", bits, 64, symmetric, ordered=True)
    check_values(tmp_path / "m", layers)
    with open_checkpoint(tmp_path / "m") as checkpoint:
        assert all(t.numbers is None for t in checkpoint.tensors)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_last_group_that_is_shorter(ordered: bool, tmp_path: Path) -> None:
    layers = write_quantized(tmp_path / "m", 4, 96, ordered=ordered)  # 256 = 96 + 96 + 64
    check_values(tmp_path / "m", layers)


def test_awq_values_at_any_rows(tmp_path: Path) -> None:
    layers = write_quantized(tmp_path / "m", 4, 64, symmetric=False, awq=True, lowest=0)
    check_values(tmp_path / "m", layers)


@pytest.mark.parametrize("awq", [False, True])
def test_pytorch_files_and_missing_words_of_config(awq: bool, tmp_path: Path) -> None:
    layers = write_quantized(tmp_path / "m", group=64, symmetric=False, awq=awq, config=lambda c: c.pop("bits"))
    arrays = load_file(tmp_path / "m" / "model.safetensors")
    torch.save({k: v for k, v in arrays.items() if not k.endswith("g_idx")}, tmp_path / "m" / "pytorch_model.bin")
    (tmp_path / "m" / "model.safetensors").unlink()
    check_values(tmp_path / "m", layers)


def test_autoround_writes_gptqs_layout_under_its_own_name(tmp_path: Path) -> None:
    def config(own: dict) -> None:
        own.pop("checkpoint_format")
        own |= {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}

    check_values(tmp_path / "m", write_quantized(tmp_path / "m", symmetric=False, config=config))


def test_scales_in_bfloat16_and_a_layer_of_other_bits(tmp_path: Path) -> None:
    """As GPTQModel's `dynamic` has it; scales of any 16-bit type are read."""

    def change(arrays: Arrays) -> None:
        name = f"{BASE}.scales"
        arrays[name] = arrays[name].bfloat16()

    config = {"dynamic": {r"+:.*down_proj$": {"bits": 8}}}
    layers = write_quantized(tmp_path / "m", change=change, config=lambda c: c.update(config))
    layers[UP].scales = torch.from_numpy(layers[UP].scales).half().bfloat16().float().numpy()
    check_values(tmp_path / "m", layers)


SPOILED: dict[str, tuple[dict, str]] = {
    "no scales": ({"change": lambda a: a.pop(f"{BASE}.scales")}, f"{BASE}.scales'"),
    "no zero points": ({"change": lambda a: a.pop(f"{BASE}.qzeros")}, f"{BASE}.qzeros'"),
    "scales of another type": (
        {"change": lambda a: a.update({f"{BASE}.scales": torch.zeros(8, 512, dtype=torch.int32)})},
        f"{BASE}.scales'",
    ),
    "zero points of another size": (
        {"change": lambda a: a.update({f"{BASE}.qzeros": a[f"{BASE}.qzeros"][:4].clone()})},
        f"{BASE}.qweight'",
    ),
    "a group that is not there": (
        {"change": lambda a: a[f"{BASE}.g_idx"].fill_(8)},
        f"{BASE}.g_idx' puts column 0 into group 8; there are 8",
    ),
    "a negative group": ({"change": lambda a: a[f"{BASE}.g_idx"].fill_(-1)}, f"{BASE}.g_idx'"),
    "an index of another length": (
        {"change": lambda a: a.update({f"{BASE}.g_idx": a[f"{BASE}.g_idx"][:100].clone()})},
        f"{BASE}.qweight'",
    ),
    "groups of no size": (
        {"change": lambda a: [a.pop(f"{BASE}.g_idx"), a.update({f"{BASE}.scales": torch.ones(7, 512).half()}),
                              a.update({f"{BASE}.qzeros": torch.zeros(7, 64, dtype=torch.int32)})]},
        f"{BASE}",
    ),
    "other bits in config": ({"config": lambda c: c.update(bits=8)}, "config.json says otherwise"),
    "other groups in config": ({"config": lambda c: c.update(group_size=128)}, "config.json says otherwise"),
    "another method in config": ({"config": lambda c: c.update(quant_method="awq")}, "config.json says 'awq'"),
    "no order in config": (
        {"ordered": True, "config": lambda c: c.update(desc_act=False)},
        "g_idx' orders columns by activations",
    ),
    "another layout": ({"config": lambda c: c.update(checkpoint_format="marlin")}, "the layout 'marlin'"),
    "two schemes": (
        {"change": lambda a: a.update({
            f"{BASE}x.weight_packed": torch.zeros(32, 4, dtype=torch.int32), f"{BASE}x.weight_scale": torch.ones(32, 1),
            f"{BASE}x.weight_shape": torch.tensor([32, 32])})},
        f"{BASE}x.weight_packed' is packed as compressed-tensors does",
    ),
    "AWQ in another layout": (
        {"awq": True, "symmetric": False, "config": lambda c: c.update(version="gemv")},
        "AWQ's layout 'gemv'",
    ),
    "AWQ with other groups in config": (
        {"awq": True, "symmetric": False, "config": lambda c: c.update(group_size=128)},
        "config.json says otherwise",
    ),
    "AWQ without zero points": (
        {"awq": True, "symmetric": False, "change": lambda a: a.pop(f"{BASE}.qzeros")},
        f"{BASE}.qzeros'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILED)
def test_what_contradicts_itself_is_named(how: str, tmp_path: Path) -> None:
    options, words = SPOILED[how]
    write_quantized(tmp_path / "m", **options)
    with open_checkpoint(tmp_path / "m") as checkpoint, pytest.raises(UserError) as problem:
        make_plan(checkpoint, Recipe("w4a16-g32"))
    assert words in str(problem.value)
    assert problem.value.hint


def test_zero_points_that_are_not_the_middle_are_named_when_they_are_read(tmp_path: Path) -> None:
    write_quantized(tmp_path / "m", symmetric=False, config=lambda c: c.update(sym=True))
    with open_checkpoint(tmp_path / "m") as checkpoint:
        (up,) = [t for t in checkpoint.tensors if t.name == UP]
        with pytest.raises(UserError, match=r"up_proj\.weight' can not be read: config.json calls it symmetric"):
            checkpoint.read_rows(up)


@pytest.mark.parametrize(
    "options",
    [
        {"symmetric": False, "lowest": 0},
        {"bits": 3, "group": 0},
        {"group": 64, "ordered": True},
        {"bits": 8, "group": 96, "symmetric": False, "ordered": True},
        {"awq": True, "symmetric": False, "group": 128},
    ],
)
def test_the_engine_takes_it_packed(options: dict, tmp_path: Path) -> None:
    """Every layer as the file has it, none decoded; its rows are the file's values in the columns' own order."""
    layers = write_quantized(tmp_path / "m", **options)
    with open_checkpoint(tmp_path / "m") as checkpoint:
        weights, conversions = weights_of(checkpoint, decoder_config(checkpoint))
    assert not conversions
    for ours, theirs in (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("ffn_down", "mlp.down_proj")):
        matrix = weights.matrices[f"blk.1.{ours}.weight"]
        assert matrix.format.startswith(f"int{options.get('bits', 4)} ")
        got = read_rows(matrix, np.arange(matrix.rows))
        assert np.array_equal(got, layers[f"model.layers.1.{theirs}.weight"].values)


def linear(checkpoint) -> dict:  # type: ignore[no-untyped-def]
    return {t.name: t for t in checkpoint.tensors if t.packed}


CHAINS = {
    "GPTQ to compressed-tensors": ({}, "w4a16-g32"),
    "GPTQ of 3 bits": ({"bits": 3, "group": 64}, "w3a16-g64"),
    "GPTQ's whole rows": ({"bits": 8, "group": 0}, "w8a16-channel"),
    "GPTQ with zero points": ({"symmetric": False, "lowest": 0}, "w4a16-g32-asym"),
    "GPTQ's first layout to its second": ({"symmetric": False, "lowest": 0}, "gptq-4bit-g32-asym-v2"),
    "GPTQ's second layout": ({"symmetric": False, "version": 2, "lowest": 0}, "w4a16-g32-asym"),
    "GPTQ to AWQ": ({"symmetric": False, "lowest": 0}, "awq-g32"),
    "symmetric GPTQ to AWQ": ({}, "awq-g32"),
    "AWQ to compressed-tensors": ({"awq": True, "symmetric": False, "lowest": 0}, "w4a16-g32-asym"),
    "AWQ to GPTQ": ({"awq": True, "symmetric": False, "lowest": 0}, "gptq-4bit-g32-asym-v2"),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_the_same_numbers_are_only_packed_anew(chain: str, tmp_path: Path) -> None:
    """And lead back: codes, scales and zero points of the way there and of the way back are the source's."""
    options, target = CHAINS[chain]
    layers = write_quantized(tmp_path / "m", **options)
    with open_checkpoint(tmp_path / "m") as source:
        plan = make_plan(source, Recipe(target))
        assert sum(t.action is Action.REPACK for t in plan.tensors) == 14
        want = {name: source.packed[name].codes(0, t.shape[0]) for name, t in linear(source).items()}  # type: ignore[attr-defined]
    _, result = convert(tmp_path / "m", target, tmp_path / "out")
    assert result.predicted_bytes == result.actual_bytes
    with open_checkpoint(tmp_path / "out") as made:
        assert linear(made).keys() == layers.keys()
        for name, t in linear(made).items():
            assert np.array_equal(made.read_rows(t), layers[name].values)
            got = made.packed[name].codes(0, t.shape[0])  # type: ignore[attr-defined]
            assert np.array_equal(got.codes, want[name].codes)
            assert np.array_equal(got.scales, want[name].scales)
            middle = np.full_like(layers[name].zeros, 1 << (options.get("bits", 4) - 1))
            for found in (got.zeros, want[name].zeros):
                assert np.array_equal(middle if found is None else found, layers[name].zeros)


def test_back_to_gptq_gives_the_files_arrays(tmp_path: Path) -> None:
    write_quantized(tmp_path / "m", group=64)
    convert(tmp_path / "m", "w4a16-g64", tmp_path / "there")
    convert(tmp_path / "there", "gptq-4bit-g64", tmp_path / "back")
    want, got = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "back"))
    assert want.keys() == got.keys()
    assert all(torch.equal(want[name], got[name]) for name in want)
    words = load_file(tmp_path / "there" / "model.safetensors")
    assert torch.equal(words[f"{UP}_packed"], want[f"{BASE}.qweight"].T)  # the identity that makes it lossless


def test_a_zero_point_of_zero_does_not_go_into_the_first_layout_losslessly(tmp_path: Path) -> None:
    write_quantized(tmp_path / "m", symmetric=False, version=2, lowest=0)
    with open_checkpoint(tmp_path / "m") as checkpoint:
        plan = make_plan(checkpoint, Recipe("gptq-4bit-g32-asym"))
        assert not any(t.action is Action.REPACK for t in plan.tensors)


@pytest.mark.parametrize(("bits", "target"), [(4, "Q4_0"), (8, "Q8_0")])
def test_into_ggufs_blocks(bits: int, target: str, tmp_path: Path) -> None:
    layers = write_quantized(tmp_path / "m", bits)
    with open_checkpoint(tmp_path / "m") as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
        assert sum(t.action is Action.REPACK for t in plan.tensors) == 14
    convert(tmp_path / "m", target, tmp_path / "out.gguf")
    found = {t.name: t for t in GGUFReader(tmp_path / "out.gguf").tensors}
    for ours, name, heads in (
        ("blk.1.attn_q", "model.layers.1.self_attn.q_proj.weight", 4),
        ("blk.1.attn_v", "model.layers.1.self_attn.v_proj.weight", 0),
        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj.weight", 0),
    ):
        t, want = found[f"{ours}.weight"], layers[name].values
        if heads:
            want = want.reshape(heads, 2, -1, want.shape[1]).swapaxes(1, 2).reshape(want.shape)
        assert t.tensor_type.name == target
        assert np.array_equal(dequantize(np.array(t.data), t.tensor_type).reshape(want.shape), want)


def test_scales_in_bfloat16_go_where_float16_holds_them(tmp_path: Path) -> None:
    """All but one tensor, which has one scale below float16's last digit: that is not known from its type."""
    write_llama(tmp_path / "m")
    convert(tmp_path / "m", "w4a16-g32", tmp_path / "ct")
    file = tmp_path / "ct" / "model.safetensors"
    arrays = load_file(file)
    arrays[f"{UP}_scale"][3, 2] = 2.0**-30
    save_file(arrays, file, metadata={"format": "pt"})
    for target, count in (("gptq-4bit-g32", 13), ("Q4_0", 13), ("awq-g32", 13), ("w4a16-g32-asym", 14)):
        with open_checkpoint(tmp_path / "ct") as checkpoint:
            plan = make_plan(checkpoint, Recipe(target))
            moved = [t.name for t in plan.tensors if t.action is Action.REPACK]
            assert len(moved) == count, target
            assert UP not in moved or count == 14
    convert(tmp_path / "ct", "gptq-4bit-g32", tmp_path / "gptq")
    with open_checkpoint(tmp_path / "ct") as source, open_checkpoint(tmp_path / "gptq") as made:
        for name, t in linear(source).items():
            same = np.array_equal(source.read_rows(t), made.read_rows(linear(made)[name]))
            assert same or name == UP


def test_config_is_no_longer_the_sources(tmp_path: Path) -> None:
    write_quantized(tmp_path / "m")
    convert(tmp_path / "m", "w4a16-g32", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
