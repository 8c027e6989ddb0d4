"""Products of codes with codes under Triton's interpreter against float64, and what is said where they are emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import dispatch
from kernels import matrix as _matrix  # noqa: F401  (registers)
from kernels.gpu.configurations import VECTOR, cards, scaled_configuration
from kernels.gpu.products.scaled_ways import KINDS, way_of, why_not_native, work_of
from kernels.gpu.runtime.report import scaled_use
from kernels.reference import scaled

SHAPES = ((37, 80), (5, 150), (70, 288))  # rows and columns of weights
EXACT = 1e-6  # of Σ |x · w|: every product is exact, sums are float32's


@pytest.fixture(scope="session")
def results(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("scaled_cases")


@pytest.mark.triton
def test_every_product_is_that_of_the_codes(results) -> None:
    assert not [r for r in results if r.get("error", 0) > EXACT]
    assert not [r for r in results if not r.get("same", True)]
    products = [r for r in results if "kind" in r]
    assert {r["kind"] for r in products} == set(KINDS)
    assert {(r["kind"], r["way"]) for r in products if r["regime"] != VECTOR} == {
        (kind, way_of(kind, card)) for kind in KINDS for card in ("sm_80", "sm_90", "sm_100")
    }
    tried = {(r["kind"], r["way"], r["tokens"], r["rows"], r["columns"]) for r in products}
    for kind in KINDS:
        for way in {way_of(kind, card) for card in ("sm_80", "sm_90", "sm_100")}:
            assert tried >= {(kind, way, tokens, *shape) for tokens in (16, 33) for shape in SHAPES}
            assert (kind, way, 70, 37, 150) in tried
        assert {t[2:] for t in tried if t[0] == kind} >= {(tokens, *shape) for tokens in (1, 3) for shape in SHAPES}
    assert any(r["split"] > 1 for r in products)
    assert len([r for r in results if r.get("case") == "halved"]) == 2


@pytest.mark.triton
def test_columns_of_outliers_keep_their_values(results) -> None:
    apart = [r for r in results if r.get("case") == "outliers"]
    assert {r["tokens"] for r in apart} == {1, 3, 16, 33}
    assert all(r["same"] for r in apart)
    assert any(r["count"] for r in apart)
    assert any(not r["count"] for r in apart)


@pytest.mark.triton
def test_codes_are_read_once_and_little_else(results) -> None:
    """What was cut in parts by force is left out: no configuration does it."""
    once = [r for r in results if "share" in r and r["programs_of_tokens"] == 1 and r["columns"] < 1000]
    assert len(once) > 90
    assert max(r["share"] for r in once) <= 1.05
    assert {r["codes_share"] for r in once} == {1.0}


@pytest.mark.triton
def test_what_no_kernel_multiplies_is_refused_with_the_reason(results) -> None:
    refused = {r["refused"]: r["reason"] for r in results if "refused" in r}
    assert "not int5" in refused["kind"]
    assert "not numbers" in refused["NaN"]
    assert "[2, 1]" in refused["scales"]
    assert "leave 32 bits" in refused["columns"]
    assert "do not multiply" in refused["activations"]


@pytest.mark.parametrize(
    ("kind", "card", "way"),
    [
        *(("int8", "sm_75", "int8"), ("e4m3", "sm_86", "upcast"), ("e4m3", "sm_89", "fp8"), ("e4m3", "gfx942", "fp8")),
        *(("e4m3", "gfx1100", "upcast"), ("e4m3 128 × 128", "gfx1201", "fp8"), ("mxfp4", "sm_90", "upcast")),
        *(("mxfp4", "sm_100", "scaled"), ("nvfp4", "sm_120", "scaled"), ("nvfp4", "gfx950", "upcast")),
        *(("mxfp8", "gfx950", "scaled"), ("mxfp8", "gfx942", "upcast")),
    ],
)
def test_a_card_that_emulates_says_so(kind, card, way) -> None:
    assert way_of(kind, card) == way
    assert bool(why_not_native(kind, card)) == (way == "upcast")
    use = scaled_use(kind, 4096, 4096, card, 16)
    assert ("emulated" in use.reason) == (way == "upcast" and card != "sm_75")
    assert f"not measured on {card}" in use.reason
    assert scaled_use(kind, 4096, 4096, card, 1).kernel.startswith(f"{kind} × {KINDS[kind].tokens}, vector units")


def test_every_card_has_whole_groups_in_a_step() -> None:
    for card in (*cards(), "sm_90", "a card of tomorrow"):
        for kind, shape in KINDS.items():
            for tokens in (1, 2, 3, 4, 5, 33, 64, 65, 4000):
                how = scaled_configuration(card, work_of(kind, way_of(kind, card)), tokens, 4096, 4096, shape.bits)
                assert how.block * 8 // shape.bits % 128 == 0
                assert how.split * how.rows * how.batch > 0
                if how.split > 1:  # what is added up again is little beside the weights
                    assert 8 * how.split * tokens <= 0.025 * 4096


def test_the_reference_multiplies_what_codes_stand_for() -> None:
    x = np.array([[1.0, -2.0, 0.5, 127.0]], np.float32)
    codes, scales = np.array([[1, 2, 3, 4], [0, 0, 0, -1]], np.int8), np.array([2.0, 0.5], np.float32)
    with dispatch.only("reference"):
        found = dispatch.find("gpu_scaled_product", "int8").function("int8", x, codes, scales)
    assert found.tolist() == [[2 * (1 - 4 + 0 + 508), -63.5]]
    assert {line.variant for line in dispatch.report() if line.op == "gpu_scaled_product"} == set(KINDS)
    values = scaled.round_codes(np.array([[6.0] + [1.2] * 31], np.float32), "mxfp4")
    assert values[0, :2].tolist() == [6.0, 1.0]
