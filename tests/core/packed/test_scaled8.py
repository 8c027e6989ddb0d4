"""Weights of a byte a value beside their scales: every way such a folder is written, read, refused and repacked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from job_help import convert, drive
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.export.compressed_tensors import quantization_config
from core.formats import find_format
from core.formats.scaled8 import SCALED8
from core.plan import Action, make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run
from core.runtime.reading import Reading
from core.runtime.storage import stored_weights
from kernels.matrix import read_rows

Tensors = dict[str, torch.Tensor]
E4M3 = torch.float8_e4m3fn
Q = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def spread(scale: torch.Tensor, rows: int, columns: int, tile: tuple[int, int]) -> torch.Tensor:
    return scale.float().repeat_interleave(tile[0], 0).repeat_interleave(tile[1], 1)[:rows, :columns]


def stored(
    weight: torch.Tensor, dtype: torch.dtype, tile: tuple[int, int], kind: torch.dtype
) -> tuple[Tensors, torch.Tensor]:
    """Codes and scales of a weight, and what they stand for; tile: rows and columns that share a scale."""
    rows, columns = weight.shape
    high, wide = -(-rows // tile[0]), -(-columns // tile[1])
    if kind in (torch.uint8, torch.float8_e8m0fnu):
        exponents = torch.randint(110, 122, (high, wide), dtype=torch.uint8)
        scale = exponents if kind is torch.uint8 else exponents.view(kind)
        factor = torch.exp2(exponents.float() - 127)
    else:
        scale = (torch.rand(high, wide) * 0.01 + 1e-3).to(kind)
        factor = scale
    whole = spread(factor, rows, columns, tile)
    codes = (weight.float() / whole).clamp(-120, 120)
    codes = codes.round().to(dtype) if dtype is torch.int8 else codes.to(dtype)
    return {"": codes, "_scale": scale}, codes.float() * whole


def write(
    folder: Path,
    config: dict | None,
    tile: Callable[[int, int], tuple[int, int]],
    *,
    dtype: torch.dtype = E4M3,
    kind: torch.dtype = torch.float32,
    suffix: str = "_scale",
    scale_shape: Callable[[torch.Tensor], torch.Tensor] = lambda scale: scale,
    extra: Callable[[str], Tensors] = lambda _base: {},
    change: Callable[[Tensors], None] | None = None,
) -> dict[str, np.ndarray]:
    """A Llama whose projections are stored so; hidden 192, which tiles of 128 do not divide. → the dense weights."""
    torch.manual_seed(0)
    want: dict[str, np.ndarray] = {}

    def quantize(tensors: Tensors) -> None:
        for name in [n for n in tensors if n.endswith("proj.weight")]:
            arrays, dense = stored(tensors[name], dtype, tile(*tensors[name].shape), kind)
            want[name] = dense.numpy()
            tensors[name] = arrays[""]
            tensors[name + suffix if suffix.startswith("_") else name.removesuffix(".weight") + suffix] = scale_shape(
                arrays["_scale"]
            )
            tensors |= extra(name.removesuffix(".weight"))
        if change:
            change(tensors)

    write_llama(folder, hidden=192, heads=3, kv_heads=1, ffn=320, change=quantize)
    if config is not None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    return want


def ct(strategy: str, name: str = "float-quantized", **more: object) -> dict:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False, **more}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": {"weights": weights}}}


def whole(rows: int, columns: int) -> tuple[int, int]:
    return rows, columns


def row(_rows: int, columns: int) -> tuple[int, int]:
    return 1, columns


def tiles(_rows: int, _columns: int) -> tuple[int, int]:
    return 128, 128


def one(scale: torch.Tensor) -> torch.Tensor:
    return scale.reshape(1)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FORMS: dict[str, tuple[dict | None, Callable[[int, int], tuple[int, int]], dict, str]] = {
    "ct-channel": (ct("channel"), row, {"kind": torch.bfloat16}, "fp8 e4m3 per row"),
    "ct-tensor": (ct("tensor"), whole, {"kind": torch.bfloat16, "scale_shape": one}, "fp8 e4m3 per tensor"),
    "ct-static": (
        ct("tensor"), whole,
        {"scale_shape": one, "extra": lambda base: {base + ".input_scale": torch.tensor([0.25])}},
        "fp8 e4m3 per tensor",
    ),
    "ct-block": (ct("block", block_structure=[128, 128]), tiles, {"kind": torch.bfloat16}, "fp8 e4m3 128×128"),
    "ct-old-block": (ct("block", block_structure="64x64"), lambda *_: (64, 64), {}, "fp8 e4m3 64×64"),
    "ct-group": (ct("group", group_size=64), lambda *_: (1, 64), {"kind": torch.float16}, "fp8 e4m3 g64"),
    "ct-mxfp8": (ct("group", group_size=32), lambda *_: (1, 32), {"kind": torch.uint8}, "mxfp8 e4m3 g32"),
    "ct-int8": (
        ct("channel", type="int"), row, {"dtype": torch.int8, "kind": torch.bfloat16}, "int8 per row",
    ),
    "ct-int8-tensor": (ct("tensor", type="int"), whole, {"dtype": torch.int8}, "int8 per row"),
    "hf-block": (FP8, tiles, {"suffix": "_scale_inv"}, "fp8 e4m3 128×128"),
    "hf-ue8m0": (
        {**FP8, "scale_fmt": "ue8m0"}, tiles, {"suffix": "_scale_inv", "kind": torch.float8_e8m0fnu},
        "fp8 e4m3 128×128",
    ),
    "hf-scale": (FP8, tiles, {"suffix": ".scale"}, "fp8 e4m3 128×128"),
    "hf-tensor": (
        {"quant_method": "fp8", "activation_scheme": "static"}, whole, {"scale_shape": lambda s: s.reshape(())},
        "fp8 e4m3 per tensor",
    ),
    "fbgemm": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, row,
        {"extra": lambda base: {base + ".input_scale_ub": torch.tensor([1200.0])}}, "fp8 e4m3 per row",
    ),
    "modelopt": (
        MODELOPT, whole,
        {"scale_shape": lambda s: s.reshape(()), "extra": lambda base: {base + ".input_scale": torch.tensor(0.25)}},
        "fp8 e4m3 per tensor",
    ),
    "no-config": (None, row, {"scale_shape": lambda s: s.reshape(-1)}, "fp8 e4m3 per row"),
    "e5m2": (None, tiles, {"dtype": torch.float8_e5m2, "suffix": "_scale_inv"}, "fp8 e5m2 128×128"),
    "e4m3fnuz": (None, row, {"dtype": torch.float8_e4m3fnuz}, "fp8 e4m3fnuz per row"),
    "e5m2fnuz": (None, whole, {"dtype": torch.float8_e5m2fnuz}, "fp8 e5m2fnuz per tensor"),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", FORMS)


@EVERY
def test_values_are_code_times_scale(name: str, tmp_path: Path) -> None:
    """Of all rows, and of windows that begin and end inside of tiles."""
    config, tile, more, label = FORMS[name]
    want = write(tmp_path / "model", config, tile, **more)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        assert not checkpoint.packed_problem
        packed = {t.name: t for t in checkpoint.tensors if t.packed}
        assert packed.keys() == want.keys()
        assert {t.dtype for t in packed.values()} == {label}
        assert not [t.name for t in checkpoint.tensors if "scale" in t.name]
        for tensor in packed.values():
            assert np.array_equal(checkpoint.read_rows(tensor), want[tensor.name])
        for start, stop, columns in ((0, 1, (0, 192)), (5, 131, (64, 128)), (127, 128, (0, 7)), (100, 192, (1, 192))):
            got = checkpoint.read_rows(packed[Q], start, stop, columns)
            assert np.array_equal(got, want[Q][start:stop, slice(*columns)])


@EVERY
def test_the_engine_has_the_same_values(name: str, tmp_path: Path) -> None:
    """On the packed form where it has a layout for it; else decoded, which is told."""
    config, tile, more, label = FORMS[name]
    want = write(tmp_path / "model", config, tile, **more)
    reading = Reading(CancelToken())
    with open_checkpoint(tmp_path / "model") as checkpoint:
        weights, unknown = stored_weights(checkpoint)
        assert not unknown
        found = next(w for w in weights if w.name == DOWN)
        matrix = found.load(0, found.rows, reading)
    packed = "fnuz" not in label
    assert bool(reading.conversions) != packed
    got = read_rows(matrix, np.arange(matrix.rows))
    np.testing.assert_allclose(got, want[DOWN], rtol=0 if packed else 2**-10, atol=0 if packed else 1e-7)


def test_every_byte_of_amd_s_variant() -> None:
    """PyTorch's values of all 256 bytes of either type, by way of a file."""
    from core.contract import ElementType
    from core.formats.float8 import Float8
    from core.formats.numbers import Codes

    every = np.arange(256, dtype=np.uint8).reshape(1, -1)
    for element, dtype in ((ElementType.F8_E4M3, torch.float8_e4m3fnuz), (ElementType.F8_E5M2, torch.float8_e5m2fnuz)):
        numbers = Float8(element, fnuz=True)
        got = numbers.values(Codes(every, np.ones((1, 1), np.float32)))
        assert np.array_equal(got, torch.from_numpy(every).view(dtype).float().numpy(), equal_nan=True)


def test_asymmetric_integers(tmp_path: Path) -> None:
    """weight_zero_point is signed, as the codes are."""
    codes = torch.randint(-128, 128, (6, 32), dtype=torch.int8)
    zeros, scale = torch.randint(-128, 128, (6, 1), dtype=torch.int8), torch.rand(6, 1)
    tensors = {"a.weight": codes, "a.weight_scale": scale, "a.weight_zero_point": zeros}
    save_file(tensors, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        (tensor,) = checkpoint.tensors
        assert tensor.dtype == "int8 per row asymmetric"
        assert np.array_equal(checkpoint.read_rows(tensor), ((codes.float() - zeros.float()) * scale).numpy())


def test_pytorch_files(tmp_path: Path) -> None:
    want = write(tmp_path / "model", FP8, tiles, suffix="_scale_inv")
    torch.save(load_file(tmp_path / "model" / "model.safetensors"), tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    with open_checkpoint(tmp_path / "model") as checkpoint:
        for name, values in want.items():
            stop = min(140, len(values))
            assert np.array_equal(checkpoint.read_rows(checkpoint.tensor(name), 3, stop), values[3:stop])


def test_scales_of_the_cache_go_with_their_attention(tmp_path: Path) -> None:
    """They are no tensors of the model, in either spelling."""

    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.k_scale"] = torch.tensor([0.5])
        tensors["model.layers.1.self_attn.v_proj.v_scale"] = torch.tensor(0.5)

    write(tmp_path / "model", ct("channel"), row, change=change)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        assert not [t.name for t in checkpoint.tensors if t.name.endswith(("k_scale", "v_scale"))]
        plan = make_plan(checkpoint, Recipe("Q8_0"))
    assert any("key-value cache" in w for w in plan.warnings)


def drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def drop_all(tensors: Tensors) -> None:
    for name in [n for n in tensors if n.endswith("_scale")]:
        del tensors[name]


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


BAD: dict[str, tuple[dict | None, Callable[[int, int], tuple[int, int]], dict, str]] = {
    "no scale": (ct("channel"), row, {"change": drop(Q + "_scale")}, f"'{Q}' has no scale"),
    "no scale at all": (FP8, row, {"change": drop_all}, "has no scale"),
    "wrong number of scales": (
        None, row, {"change": put(Q + "_scale", torch.ones(7, 1))},
        f"'{Q}_scale' has 7 × 1 scales, which do not fit '{Q}'",
    ),
    "tiles of another size": (
        {**FP8, "weight_block_size": [64, 64]}, tiles, {"suffix": "_scale_inv"}, "which do not fit",
    ),
    "config says rows": (ct("channel"), whole, {"scale_shape": one}, "has one scale, but config.json"),
    "config says groups": (ct("group", group_size=32), lambda *_: (1, 64), {}, "each group of 64, but config.json"),
    "modelopt says a tensor": (MODELOPT, row, {}, "a scale for each row, but config.json"),
    "integers as scales": (
        None, row, {"change": put(Q + "_scale", torch.ones(192, 1, dtype=torch.int32))},
        "holds I32, which are no scales",
    ),
    "two kinds of scales": (
        None, row, {"change": put(Q + "_scale_inv", torch.ones(2, 2))}, f"'{Q}_scale' and '{Q}_scale_inv' both say",
    ),
    "stored twice": (None, row, {"change": put(Q + "_packed", torch.ones(2, 2, dtype=torch.uint8))}, f"'{Q}"),
    "a 16-bit weight with scales": (
        FP8, tiles, {"suffix": "_scale_inv", "change": put(Q, torch.ones(192, 192, dtype=torch.bfloat16))},
        f"'{Q}' is 192 × 192 in BF16, so its scales",
    ),
    "a stack of experts": (
        FP8, tiles,
        {
            "suffix": "_scale_inv",
            "change": lambda t: t.update(
                {"model.layers.0.mlp.experts.up_proj": torch.zeros(2, 8, 8).to(E4M3),
                 "model.layers.0.mlp.experts.up_proj_scale_inv": torch.ones(2, 1, 1)}
            ),
        },
        "is 2 × 8 × 8 in F8_E4M3, so its scales",
    ),
    "integers in tiles": (None, tiles, {"dtype": torch.int8}, "8-bit integers with a scale for each tile"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_contradicts_itself_is_named(name: str, tmp_path: Path) -> None:
    config, tile, more, sentence = BAD[name]
    write(tmp_path / "model", config, tile, **more)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        assert checkpoint.packed_problem is not None
        assert sentence in checkpoint.packed_problem.message
        assert checkpoint.packed_problem.hint
        with pytest.raises(UserError, match=r"^'model"):
            make_plan(checkpoint, Recipe("Q8_0"))
        with pytest.raises(UserError):
            stored_weights(checkpoint)


LOSSLESS = (
    ("ct-static", "modelopt-fp8"),
    ("ct-static", "fp8-static"),
    ("modelopt", "fp8-static"),
    ("modelopt", "fp8-dynamic"),
    ("modelopt", "hf-fp8"),
    ("modelopt", "fp8-block"),
    ("ct-block", "hf-fp8"),
    ("hf-block", "fp8-block"),
    ("hf-ue8m0", "hf-fp8"),
    ("hf-ue8m0", "fp8-block"),
    ("ct-channel", "fp8-dynamic"),
    ("fbgemm", "fp8-dynamic"),
    ("ct-mxfp8", "mxfp8"),
    ("ct-int8", "w8a16-channel"),
    ("ct-int8", "w8a8"),
    ("ct-int8-tensor", "w8a8"),
)


@pytest.mark.parametrize(("name", "target"), LOSSLESS)
def test_the_same_numbers_move(name: str, target: str, tmp_path: Path) -> None:
    """Codes, values and static scales of the activations are those of the source; nothing is measured."""
    config, tile, more, _ = FORMS[name]
    want = write(tmp_path / "model", config, tile, **more)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
    assert {t.action for t in plan.tensors if t.name in want} == {Action.REPACK}
    assert plan.lossless_note.startswith("Lossless")
    seen, _ = convert(tmp_path / "model", target, tmp_path / "out")
    assert {p.phase for p in seen} == {"writing", "verifying"}
    before = load_file(tmp_path / "model" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    with open_checkpoint(tmp_path / "out") as made:
        assert not made.packed_problem
        for weight, values in want.items():
            assert np.array_equal(made.read_rows(made.tensor(weight)), values)
            if weight in after:
                assert torch.equal(after[weight].view(torch.uint8), before[weight].view(torch.uint8))
            given = weight.removesuffix(".weight") + ".input_scale"
            assert given not in after or float(after[given]) == float(before[given])
    assert (Q.removesuffix(".weight") + ".input_scale" in after) == (target in ("fp8-static", "modelopt-fp8"))


def test_a_folder_of_several_schemes(tmp_path: Path) -> None:
    """compressed-tensors names the weights of each; what one folder of the others can not say is refused."""
    source = write_llama(tmp_path / "model")
    rules = (Rule("down_proj", "fp8-dynamic"), Rule("up_proj", "w8a8"), Rule("k_proj", "fp8-block"))
    recipe = Recipe("w4a16-g64", rules=rules)
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, recipe)
        drive(run(plan, checkpoint, tmp_path / "out", CancelToken()))
        assert any("end inside a tile" in w for w in make_plan(checkpoint, Recipe("hf-fp8")).warnings) is False
        with pytest.raises(UserError, match="can not stand in a folder for fp8"):
            make_plan(checkpoint, Recipe("hf-fp8", rules=(Rule("down_proj", "fp8-block"),)))
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert {g["format"] for g in config["config_groups"].values()} == {
        "pack-quantized", "int-quantized", "float-quantized"
    }  # fmt: skip
    QuantizationConfig.model_validate(config)
    with open_checkpoint(tmp_path / "out") as made:
        assert not made.packed_problem
        kinds = {t.name.split(".")[-2]: t.dtype for t in made.tensors if t.packed}
    assert kinds["down_proj"] == "fp8 e4m3 per row"
    assert kinds["up_proj"] == "int8 per row"
    assert kinds["k_proj"] == "fp8 e4m3 128×128"
    assert kinds["q_proj"] == "int4 g64"


@pytest.mark.parametrize("target", [f.name for f in SCALED8 if f.ecosystem == "compressed-tensors"])
def test_the_library_takes_the_config(target: str, tmp_path: Path) -> None:
    """compressed-tensors refuses keys that it does not know; what it reads is what was meant."""
    source = write_llama(tmp_path / "model")
    with open_checkpoint(source) as checkpoint:
        form = find_format(target, "safetensors")
        config = quantization_config(checkpoint.tensors, {Q: form})
    read = QuantizationConfig.model_validate(json.loads(json.dumps(config)))
    (group,) = read.config_groups.values()
    assert group.weights.num_bits == 8
    assert group.weights.strategy == {1: "channel", 0: "tensor", 128: "block"}[form.numbers.tile] or target == "mxfp8"
    dynamic = {"w8a8": True, "fp8-static": False}.get(target, True)
    assert group.input_activations.dynamic is dynamic


@pytest.mark.parametrize(
    ("name", "target"), [("ct-block", "fp8-dynamic"), ("e4m3fnuz", "fp8-dynamic"), ("hf-block", "mxfp8")]
)
def test_other_numbers_are_quantized_again_and_said_so(name: str, target: str, tmp_path: Path) -> None:
    config, tile, more, _ = FORMS[name]
    write(tmp_path / "model", config, tile, **more)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
    assert Action.REPACK not in {t.action for t in plan.tensors}
    assert any("already quantized" in w for w in plan.warnings)
