"""Assignments as rules: they expand to exactly the assignment, and are few."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from core.budget.recipes import best, curve, rules_for
from core.budget.table import VERSION, Option, Sensitivities, UnitSensitivity
from core.cli_budget import parse_size
from core.errors import UserError
from core.recipe import Recipe, Rule

FORMATS = ("Q4_0", "Q5_0", "Q8_0", "keep")
GGUF = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
HF = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")


def unit(names: tuple[str, ...], layer: int | None, slope: float = 1.0, values: int = 32 * 64) -> UnitSensitivity:
    errors = (0.006, 0.0015, 2e-5, 0.0)
    sizes = (values * 9 // 16, values * 11 // 16, values * 17 // 16, values * 2)
    options = tuple(Option(f, b, e, slope * e) for f, b, e in zip(FORMATS, sizes, errors, strict=True))
    return UnitSensitivity(names, layer, values, slope, "Q4_0", options)


def gguf(layers: int) -> list[UnitSensitivity]:
    return [
        unit(("token_embd.weight",), None),
        *(unit((f"blk.{i}.{n}.weight",), i) for i in range(layers) for n in GGUF),
        unit(("output.weight",), None),
    ]


def folder(layers: int) -> list[UnitSensitivity]:
    return [
        *(unit((f"model.layers.{i}.{n}.weight",), i) for i in range(layers) for n in HF),
        *(
            unit(tuple(f"model.layers.{i}.mlp.experts.{e}.{p}.weight" for e in range(11) for p in ("up", "down")), i)
            for i in range(layers)
        ),
        unit(("lm_head.weight",), None),
    ]


def given(rules: tuple[Rule, ...], name: str) -> str:
    return next(r.format for r in rules if r.matches(name))


@pytest.mark.parametrize("units", [gguf(13), folder(13)], ids=["gguf", "folder"])
@pytest.mark.parametrize("seed", range(5))
def test_rules_expand_to_the_assignment(units: list[UnitSensitivity], seed: int) -> None:
    choice = [int(i) for i in np.random.default_rng(seed).integers(0, len(FORMATS), len(units))]
    rules = rules_for(units, choice)
    for u, i in zip(units, choice, strict=True):
        for name in u.tensors:
            assert given(rules, name) == FORMATS[i], (name, rules)
    assert all(any(r.matches(n) for u in units for n in u.tensors) for r in rules)


def test_kinds_that_are_alike_share_a_rule() -> None:
    units = gguf(30)
    choice = [2 if u.layer in (0, 29) and "ffn_down" in u.name else 0 for u in units]
    rules = rules_for(units, choice)
    assert [(r.pattern, r.format) for r in rules] == [
        (r"^token_embd\.weight$", "Q4_0"),
        (r"^output\.weight$", "Q4_0"),
        (r"^blk\.(?:0|29)\.ffn_down\.weight$", "Q8_0"),
        (r"^blk\.\d+\.(?:attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.weight$", "Q4_0"),
    ]
    assert all(r.reason.startswith("measured") for r in rules)


def test_experts_of_a_layer_are_one_rule() -> None:
    units = folder(3)
    rules = rules_for(units, [1 if len(u.tensors) > 1 else 0 for u in units])
    assert sum(".experts" in r.pattern for r in rules) == 1


def table(slopes: list[float]) -> Sensitivities:
    units = tuple(unit((f"blk.{i}.attn_v.weight",), i, s) for i, s in enumerate(slopes))
    return Sensitivities(Recipe("Q4_0").to_json(), units, 1000, 100_000, 64, 1.0)


def test_the_curve_falls_and_ends_at_sixteen_bits() -> None:
    found = table([1.0, 0.01, 5.0, 0.2])
    points = curve(found)
    assert [p.bytes for p in points] == sorted({p.bytes for p in points})
    assert all(a.kl > b.kl for a, b in pairwise(points))
    assert (points[0].bytes, points[-1].bytes, points[-1].kl) == (found.smallest, found.largest, 0.0)
    assert set(points[-1].formats) == {"keep"}


def test_bytes_go_where_they_save_most() -> None:
    found = table([1.0, 0.01, 5.0, 0.2])
    step = found.units[0].options[1].bytes - found.units[0].options[0].bytes
    assert best(found, found.smallest + step).formats == ("Q4_0", "Q4_0", "Q5_0", "Q4_0")


def test_bad_budgets_are_refused_in_one_sentence() -> None:
    found = table([1.0, 1.0])
    for budget, words in ((found.smallest - 1, "do not hold this model"), (found.largest, "in 16 bits")):
        with pytest.raises(UserError, match=words) as e:
            best(found, budget)
        assert e.value.message.count(". ") == 0
        assert e.value.hint
    assert best(found, found.smallest).bytes == found.smallest


def test_a_table_comes_back_from_json() -> None:
    found = table([1.0, 0.5])
    assert Sensitivities.from_json(found.to_json()) == found
    for bad in (
        "[]",
        "{}",
        found.to_json().replace(f'"version": {VERSION}', '"version": 0'),
        f'{{"version": {VERSION}}}',
    ):
        with pytest.raises(ValueError):
            Sensitivities.from_json(bad)


@pytest.mark.parametrize(
    ("text", "size"),
    [("80MB", 80_000_000), ("4.5 GiB", 4_831_838_208), ("1000", 1000), ("2k", 2000), ("3 Mi", 3 << 20)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-3GB", "4 bits", "9" * 400 + "GB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_size(text)
