"""Norms, rotary positions, activations and codes of activations under Triton's interpreter against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import dispatch, gpu
from kernels import matrix as _matrix  # noqa: F401  (registers)

# Of the largest value of a row: one rounding to the type of the result; the interpreter cuts bfloat16 off.
LIMITS = {"float32": 1e-6, "float16": 2.0**-11, "bfloat16": 2.0**-7}


@pytest.fixture(scope="session")
def results(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("step_cases")


@pytest.mark.triton
def test_every_step_is_that_of_the_reference(results) -> None:
    errors = [r for r in results if "error" in r]
    assert len(errors) > 50
    assert not [r for r in errors if r["error"] > LIMITS[r["dtype"]]]
    assert {r["tokens"] for r in errors} == {1, 3, 16, 33}
    assert not [r for r in results if not r.get("same", True)]


@pytest.mark.triton
def test_every_kind_of_codes_by_every_number_of_tokens(results) -> None:
    tried = {(r["case"], r["tokens"]) for r in results if "same" in r and "tokens" in r}
    kinds = ("int8 g0", "int8 g32", "e4m3 g0", "e4m3 g128", "mxfp8 g0", "mxfp4 g0", "nvfp4 g0")
    ways = [f"{way} {kind}" for way in ("codes", "norm to", "silu to") for kind in kinds]
    assert tried >= {(way, tokens) for way in ways for tokens in (1, 3, 16, 33)}


@pytest.mark.triton
def test_codes_are_the_nearest_and_padded_with_zeros(results) -> None:
    codes = [r for r in results if "steps" in r]
    assert {r["dtype"] for r in codes} == {"int8", "e4m3"}
    assert not [r for r in codes if r["steps"] > 0.5001 or not r["padded"]]


@pytest.mark.triton
def test_a_step_reads_and_writes_each_value_once(results) -> None:
    shares = {r["case"]: r["share"] for r in results if "share" in r}
    words = ("norm", "norm + residual", "norm to codes g128", "silu to codes", "read for nvfp4 g0", "outliers")
    assert {*words, "rotate 3 × 64 halves", "rotate 4 × 64 pairs in place"} <= set(shares)
    assert max(r["share"] for r in results if "share" in r) <= 1.05


@pytest.mark.triton
def test_what_no_kernel_takes_is_refused_with_the_reason(results) -> None:
    refused = {r["refused"]: r["reason"] for r in results if "refused" in r}
    assert "longer than 32768" in refused["long row"]
    assert "not exp" in refused["activation"]
    assert "power of two" in refused["group"]
    assert "do not turn heads" in refused["tables"]


def test_steps_are_listed_with_the_reason_why_they_can_not_run() -> None:
    lines = {(line.op, line.variant): line for line in dispatch.report() if line.op.startswith("gpu_")}
    assert {("gpu_norm", ""), ("gpu_rotate", ""), ("gpu_activate_mul", "gelu")} <= set(lines)
    if not gpu.state().ready:
        assert lines["gpu_norm", ""].backend == "reference"
        assert lines["gpu_norm", ""].reason == f"gpu:triton: {gpu.state().reason}"
    x = np.ones((2, 3), np.float32)
    with dispatch.only("reference"):
        found = dispatch.find("gpu_activate_mul", "silu").function("silu", x, 2 * x)
    assert found == pytest.approx(2 / (1 + np.exp(-1)))
