"""HQQ's qmodel.pt: hand-derived bytes, the file as PyTorch loads it, both axes, safetensors, and what contradicts."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import write_llama

from core.blocks import split
from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.formats import Method, find_format
from core.formats.hqq import PACKINGS, SLICES
from core.parts import Lanes
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run
from core.verify import verify_against

DOWN = "model.layers.0.mlp.down_proj"


def converted(source: Path, recipe: Recipe, output: Path) -> Plan:
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, recipe)
        for _ in run(plan, checkpoint, output, CancelToken()):
            pass
    assert sum(f.stat().st_size for f in output.iterdir()) == plan.bytes_total
    return plan


def loaded(folder: Path) -> dict[str, dict[str, Any]]:
    return torch.load(folder / "qmodel.pt", weights_only=True)


def by_hand(state: dict[str, Any]) -> np.ndarray:
    """HQQ's values in float32: slices of the first axis share a byte or word, the first in the highest bits."""
    bits, fields = state["nbits"], SLICES[state["nbits"]]
    packed = state["W_q"].numpy()
    slices = [packed >> (bits * (fields - 1 - k)) & ((1 << bits) - 1) for k in range(fields)]
    codes = np.concatenate(slices).astype(np.float32)
    if state["axis"] == 0:
        codes = codes[: state["group_size"]]
    else:
        codes = codes[: np.prod(state["shape"]) // state["group_size"]]
    values = (codes - state["zero"].float().numpy()) * state["scale"].float().numpy()
    return values.reshape(tuple(state["shape"]))


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_what_is_written_is_what_hqq_means(bits: int, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", hidden=96, heads=3, kv_heads=3, ffn=160, layers=1)
    plan = converted(source, Recipe(f"hqq-{bits}bit-g32", Method.HALF_QUADRATIC), tmp_path / "out")
    states = loaded(tmp_path / "out")
    assert torch.equal(states["lm_head"]["weight"], states["model.embed_tokens"]["weight"])
    with open_checkpoint(tmp_path / "out") as made, open_checkpoint(source) as original:
        names = [t.name for t in made.tensors if t.packed]
        assert len(names) == 7
        for name in names:
            state = states[name.removesuffix(".weight")]
            assert (state["packing"], state["axis"], state["group_size"]) == (PACKINGS[bits], 1, 32)
            want, tensor = by_hand(state), made.tensor(name)
            assert np.array_equal(made.read_rows(tensor), want)
            assert np.array_equal(made.read_rows(tensor, 5, 41, (3, 77)), want[5:41, 3:77])
        assert {t.name for t in made.tensors} >= {t.name for t in original.tensors}
        norm = original.tensor("model.norm.weight")
        assert np.array_equal(made.read_rows(made.tensor(norm.name)), original.read_rows(norm))
        assert len(list(verify_against(plan, original, made, CancelToken()))) == len(plan.tensors)
    with zipfile.ZipFile(tmp_path / "out" / "qmodel.pt") as archive:
        assert archive.read("qmodel/version") == b"3\n"


def test_blocks_cut_anywhere_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_llama(tmp_path / "m", hidden=96, heads=3, kv_heads=3, ffn=160, layers=1)
    recipe = Recipe("hqq-3bit-g32", Method.ROUND)
    plan = converted(source, recipe, tmp_path / "whole")
    monkeypatch.setattr("core.blocks.BLOCK_VALUES", 32 * 10 * 7)
    assert max(len(split(i, t, 2)) for i, t in enumerate(plan.tensors)) > 5
    converted(source, recipe, tmp_path / "cut")
    one, other = ((tmp_path / name / "qmodel.pt").read_bytes() for name in ("whole", "cut"))
    assert one == other


def test_lanes_have_each_run_once() -> None:
    for runs in (1, 9, 10, 11, 12, 99, 100, 101, 2048):
        lanes = Lanes(32, -(-runs // 10), runs, 10)
        for height in (1, 3, 1000):
            seen = [r for cut in lanes.cut(height) for a, b in lanes.pieces(*cut) for r in range(a, b)]
            assert sorted(seen) == list(range(runs))
            for start, stop in lanes.cut(height):
                assert len({b - a for a, b in lanes.pieces(start, stop)}) == 1


def test_modules_may_have_their_own_bits(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", layers=1)
    converted(source, Recipe("hqq-4bit-g64", rules=(Rule("down_proj", "hqq-8bit-g128"),)), tmp_path / "out")
    states = loaded(tmp_path / "out")
    assert (states[DOWN]["nbits"], states[DOWN]["group_size"]) == (8, 128)
    assert states["model.layers.0.mlp.up_proj"]["nbits"] == 4


def test_hqq_becomes_hqq_without_loss(tmp_path: Path) -> None:
    converted(write_llama(tmp_path / "m", layers=1), Recipe("hqq-3bit-g64"), tmp_path / "one")
    plan = converted(tmp_path / "one", Recipe("hqq-3bit-g64"), tmp_path / "two")
    assert sum(t.lossless for t in plan.tensors) == 7
    one, two = loaded(tmp_path / "one"), loaded(tmp_path / "two")
    for module, state in one.items():
        for key, value in state.items():
            same = (
                torch.equal(value, two[module][key]) if isinstance(value, torch.Tensor) else value == two[module][key]
            )
            assert same, (module, key)


def encoded(value: Any) -> torch.Tensor:
    """As the library hqq keeps a setting in safetensors."""
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    if isinstance(value, torch.Size):
        return torch.tensor(value)
    if isinstance(value, bool):
        return torch.tensor(int(value), dtype=torch.uint8)
    if isinstance(value, int):
        return torch.tensor(value, dtype=torch.int32)
    return torch.tensor([ord(c) for c in str(value)], dtype=torch.uint8)


def test_safetensors_are_read_too(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", layers=1)
    converted(source, Recipe("hqq-4bit-g64", Method.ROUND), tmp_path / "out")
    states = loaded(tmp_path / "out")
    del states["lm_head"]
    flat = {f"{module}.{key}": encoded(v) for module, state in states.items() for key, v in state.items()}
    (tmp_path / "st").mkdir()
    save_file(flat, tmp_path / "st" / "model.safetensors")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "hqq"}
    (tmp_path / "st" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with open_checkpoint(tmp_path / "st") as made, open_checkpoint(source) as original:
        assert {t.name for t in made.tensors} == {t.name for t in original.tensors}
        assert np.array_equal(made.read_rows(made.tensor(f"{DOWN}.weight")), by_hand(states[DOWN]))


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_groups_that_are_columns_are_read(bits: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(bits)
    rows, columns, group, fields = 32, 48, 16, SLICES[bits]
    step, groups = -(-group // fields), rows * columns // group
    codes = rng.integers(0, 1 << bits, (step * fields, groups))
    words = sum(codes[k * step : (k + 1) * step] << (bits * (fields - 1 - k)) for k in range(fields))
    state = {
        "W_q": torch.from_numpy(words.astype(np.int32 if bits == 3 else np.uint8)),
        "scale": torch.from_numpy(rng.normal(size=(1, groups)).astype(np.float16)),
        "zero": torch.from_numpy(rng.normal(size=(1, groups)).astype(np.float16)),
        "nbits": bits,
        "group_size": group,
        "shape": torch.Size((rows, columns)),
        "axis": 0,
        "packing": PACKINGS[bits],
        "view_as_float": False,
        "channel_wise": True,
    }
    torch.save({DOWN: state}, tmp_path / "qmodel.pt")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with open_checkpoint(tmp_path) as made:
        tensor = made.tensor(f"{DOWN}.weight")
        assert np.array_equal(made.read_rows(tensor), by_hand(state))
        assert np.array_equal(made.read_rows(tensor, 5, 9, (7, 30)), by_hand(state)[5:9, 7:30])


def test_experts_are_refused(tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.experts.0.up_proj.weight"] = torch.ones(64, 64, dtype=torch.bfloat16)

    source = write_llama(tmp_path / "m", layers=1, change=change)
    with open_checkpoint(source) as checkpoint, pytest.raises(UserError, match=r"experts\.0\.up_proj"):
        make_plan(checkpoint, Recipe("hqq-4bit-g64"))


Break = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize(
    ("key", "value", "named", "words"),
    [
        ("scale", None, f"{DOWN}.scale", "not there"),
        ("nbits", None, f"{DOWN}.nbits", "not there"),
        ("nbits", 8, f"{DOWN}.W_q", "not known"),
        ("packing", "9bit_u8", f"{DOWN}.W_q", "'9bit_u8'"),
        ("shape", torch.Size((256, 256)), f"{DOWN}.W_q", "needs U8"),
        ("group_size", 48, f"{DOWN}.W_q", "do not divide"),
        ("zero", torch.zeros(3, 1, dtype=torch.float16), f"{DOWN}.zero", "needs F16"),
        ("group_size", "64", f"{DOWN}.W_q", "whole numbers"),
        ("group_size", (64, 1), f"{DOWN}.W_q", "whole numbers"),
        ("shape", 256, f"{DOWN}.W_q", "not known"),
        ("shape", 1.5, f"{DOWN}.W_q", "whole numbers"),
        ("shape", (-256, -512), f"{DOWN}.W_q", "whole numbers"),
        ("view_as_float", True, f"{DOWN}.W_q", "as if it were floats"),
        ("quant_zero", True, f"{DOWN}.W_q", "quantized themselves"),
    ],
)
def test_what_contradicts_is_named(key: str, value: Any, named: str, words: str, tmp_path: Path) -> None:
    converted(write_llama(tmp_path / "m", layers=1), Recipe("hqq-4bit-g64", Method.ROUND), tmp_path / "out")
    states = loaded(tmp_path / "out")
    if value is None:
        del states[DOWN][key]
    else:
        states[DOWN][key] = value
    torch.save(states, tmp_path / "out" / "qmodel.pt")
    with open_checkpoint(tmp_path / "out") as made:
        problem = made.packed_problem
        assert problem is not None
        assert named in problem.message
        assert words in problem.message


def test_a_row_that_shares_no_byte_with_another_of_its_own_is_refused() -> None:
    form = find_format("hqq-4bit-g64", "safetensors")
    assert "slices" in form.accepts((3, 64))
    assert form.accepts((3, 128)) == ""
