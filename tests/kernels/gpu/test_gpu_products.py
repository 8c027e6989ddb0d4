"""Every kernel, format and batch under Triton's interpreter against float64, and what each touches of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernels.gpu.weights.forms import GGML_FORMS

pytestmark = pytest.mark.triton

# Of Σ |x · w|: float32 sums of a few hundred terms. Levels are exact in 16 bits but those of a table; the library's
# product rounds weights and result to 16 bits.
EXACT = 3e-6
ROUNDED = {"float16": 1e-3, "bfloat16": 8e-3}
TABLE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.fixture(scope="session")
def told(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("gpu_cases")


@pytest.fixture(scope="session")
def results(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in told if "case" in line]


def test_every_weight_is_decoded_exactly(told: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Of the largest weight: scale · level + offset has one rounding more than the reference where they are fused."""
    found = {line["decoded"]: line["error"] for line in told if "decoded" in line}
    assert set(found) == {r["case"] for r in results if r["regime"] == "dequantize"}
    assert not {case: error for case, error in found.items() if error > 2.0**-23}


def test_every_product_is_that_of_the_reference(results: list[dict[str, Any]]) -> None:
    wrong = []
    for result in results:
        limit = EXACT
        if result["regime"] == "dequantize":
            limit = ROUNDED[result["dtype"]]
        elif result["regime"] == "tile" and result["table"]:
            limit = TABLE[result["dtype"]]
        if not result["finite"] or result["error"] > limit:
            wrong.append((result["case"], result["tokens"], result["dtype"], result["error"]))
    assert not wrong


def test_every_regime_and_batch_was_run(results: list[dict[str, Any]]) -> None:
    vector, tile, library = (
        {r["case"] for r in results if r["regime"] == regime} for regime in ("vector", "tile", "dequantize")
    )
    assert len(vector) > 30
    assert vector == tile >= library
    for unrolled in (True, False):
        for regime in ("vector", "tile"):
            assert library <= {r["case"] for r in results if r["regime"] == regime and r["unrolled"] == unrolled}
    for case in library:
        assert {r["tokens"] for r in results if r["case"] == case} >= {1, 3, 16, 33}
    assert {r["tokens"] for r in results if r["regime"] == "vector"} == {1, 2, 3, 4}
    assert {r["rows"] for r in results} >= {1, 5, 23, 33, 37, 53}
    assert {case.split()[0] for case in library} >= set(GGML_FORMS)
    assert any(r["split"] > 1 and r["regime"] == "tile" for r in results)
    assert {r["dtype"] for r in results if r["regime"] == "tile"} == {"float16", "bfloat16"}


def test_weights_are_read_once_and_little_else(results: list[dict[str, Any]]) -> None:
    """Addresses of weights that a program touches, summed over programs, and x, parts and results."""
    once = [r for r in results if r["tuned"] and r["programs_of_tokens"] == 1 and r["regime"] != "dequantize"]
    assert len(once) > 150
    shares = {}
    for result in once:
        moved = result["weight_bytes"] + result["x_bytes"] + result["parts_bytes"] + result["out_size"]
        least = result["packed_bytes"] + result["x_size"] + result["out_size"]
        shares[result["case"], result["tokens"], result["unrolled"]] = (
            moved / least,
            result["weight_bytes"] / result["packed_bytes"],
        )
    assert not {case: share for case, share in shares.items() if share[0] > 1.05}
    assert not {case: share for case, share in shares.items() if not 1 <= share[1] <= 1.001}


def test_parts_are_read_once_for_their_sum(told: list[dict[str, Any]]) -> None:
    assert {r["sum of parts"]: r["share"] for r in told if "sum of parts" in r} == {3: 1.0, 5: 1.0, 2: 1.0}


@pytest.fixture(scope="session")
def mixtures(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("expert_cases")


def test_products_with_experts_that_are_read_from_memory(mixtures: list[dict[str, Any]]) -> None:
    found = [r for r in mixtures if "case" in r]
    assert {r["case"] for r in found} > set(GGML_FORMS)
    assert len(found) == 51
    assert {r["tokens"] for r in found} == {1, 3, 4}
    assert {r["split"] for r in found} == {1, 2}
    assert not [r for r in found if r["error"] > EXACT]


def test_of_experts_only_those_that_are_met_are_read_and_once(mixtures: list[dict[str, Any]]) -> None:
    found = [r for r in mixtures if "case" in r]
    assert not [r for r in found if r["strangers"] or not 1 <= r["share"] <= 1.001]


def test_experts_that_no_kernel_reads_are_refused_with_the_reason(mixtures: list[dict[str, Any]]) -> None:
    refused = {r["refused"]: r["reason"] for r in mixtures if "refused" in r}
    assert "several formats" in refused["formats"]
    assert "order of their own" in refused["order"]
    assert "multiples of 16" in refused["place"]
    assert "does not multiply 3 matrices" in refused["pairs"]
    assert "not torch.float32" in refused["types"]
