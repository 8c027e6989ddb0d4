"""Caches in codes on the GPU under Triton's interpreter: the reference's bytes, attention over them, and what waits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernels import dispatch
from kernels import matrix as _matrix  # noqa: F401  (registers)
from kernels.gpu.runtime.held import Held
from kernels.gpu.runtime.needed import cache_class, query_type
from kernels.kv import CACHE_FORMATS
from kernels.program import CacheLayout

pytestmark = pytest.mark.triton

EXACT = 5e-6  # of the largest value: float32 sums in another order
BFLOAT16 = 2.0**-7  # queries and shares are rounded to it beside a side that is kept so
CODED = [name for name, form in CACHE_FORMATS.items() if not form.is_float]
ROWS = [name for name in CODED if not CACHE_FORMATS[name].channels]
WIDTHS, CONTEXTS = (64, 80, 96, 128, 256), (1, 31, 32, 33, 127, 128, 129)

Run = Callable[..., list[dict[str, Any]]]


def test_rows_have_the_bytes_of_the_reference(interpreted: Run) -> None:
    """Of every format, with values that are hard; one token at a time gives what a batch gives."""
    found = interpreted("kv_cases", "rows")
    assert {(r["name"], r["width"]) for r in found} == set(product(ROWS, (64, 80)))
    assert all(r["bytes"] > 1000 for r in found)
    assert not [r for r in found if r["wrong"] or r["apart"] or r["beside"]]


def test_attention_reads_codes_as_the_reference_does(interpreted: Run) -> None:
    found = interpreted("kv_cases", "attention")
    assert {r["dtype"].split("/")[0] for r in found} >= set(CODED)
    assert {r["width"] for r in found} == set(WIDTHS)
    assert {r["context"] for r in found} >= set(CONTEXTS)
    assert not [r for r in found if r["error"] > (BFLOAT16 if "BF16" in r["dtype"] else EXACT)]


def test_each_code_and_scale_of_the_past_is_read_once(interpreted: Run) -> None:
    shares = {(r["dtype"], r["context"]): r["share"] for r in interpreted("kv_cases", "attention")}
    counted = {key: share for key, share in shares.items() if share is not None}
    assert {dtype for dtype, _ in counted} >= set(ROWS)
    assert max(counted.values()) <= 1.05
    assert min(counted.values()) >= 0.99


def test_tokens_that_wait_turn_or_are_kept_before_the_rotary_step(interpreted: Run) -> None:
    """In pieces of any size, going back, beside another sequence; what is codes has the reference's bytes."""
    found = interpreted("kv_cases", "waiting")
    assert len(found) == 14
    assert {r["sizes"] for r in found} >= {1, 40, 92, 4}
    assert {bool(r["rope"]) for r in found} == {True, False}
    assert not [r for r in found if r["error"] > EXACT or r["wrong"]]


def test_what_is_taken_is_what_was_planned(interpreted: Run) -> None:
    found = interpreted("kv_cases", "sizes")
    assert len(found) == len(CODED) + 4
    assert not [r for r in found if abs(r["taken"] - r["planned"]) > 0.01 * r["planned"]]


def test_what_is_not_taken_is_said(interpreted: Run) -> None:
    refused = {r["refused"]: r["reason"] for r in interpreted("kv_cases", "refused")}
    assert "not Q9" in refused["format"]
    assert "3 scales are not one for each of 2 heads" in refused["scales"]
    assert "position 3 of a sequence with 0 tokens leaves a gap" in refused["gap"]
    assert "wait" in refused["waiting"]


@pytest.mark.slow
def test_every_format_with_every_head_and_context(interpreted: Run) -> None:
    found = interpreted("kv_cases", "every")
    assert len(found) == len(CODED) * len(WIDTHS) * len(CONTEXTS)
    assert not [r for r in found if r["error"] > EXACT]
    assert max(r["share"] for r in found if r["share"] is not None) <= 1.05


def test_the_host_knows_what_is_codes() -> None:
    held = Held(CacheLayout(((1, 64),), 200, 2, "U2-t32/U2-g32", window=10, sinks=3))
    step = held.begin(np.array([1]), np.array([0]), np.array([100]))
    held.end(step)
    assert held.ends[:, 1].tolist() == [64, 90]
    step = held.begin(np.array([1]), np.array([50]), np.array([1]))  # in the middle of a group that is codes
    assert step.cuts == ((0, (1, 32, 50)),)
    assert [done.tolist() for done in step.done] == [[32], [50]]
    held.end(step)
    assert held.ends[:, 1].tolist() == [32, 50]
    step = held.begin(np.array([1]), np.array([20]), np.array([1]))  # before the first group that may be codes
    assert step.cuts == ()
    held.lose(step.sequences)
    assert held.count.tolist() == [0, 0]


def test_classes_of_self_tests_name_what_a_layer_has() -> None:
    layout = CacheLayout(((1, 64),) * 2, 64, 1, "U2-t32/U2-g32", kept=frozenset([0]))
    assert [cache_class(layout, i) for i in (0, 1)] == ["float16", "U2-t32/U2-g32, waiting"]
    assert cache_class(CacheLayout(((1, 64),), 64, 1, "Q8_0"), 0, before_rope=True) == "Q8_0, before the rotary step"
    types = {"F16": "float16", "BF16": "bfloat16", "Q4_0": "float16", "BF16/Q4_0": "bfloat16", "F16/F32": "float32"}
    assert {dtype: query_type(CacheLayout((), 1, 1, dtype)) for dtype in types} == types


def test_dispatch_names_each_kind_of_cache() -> None:
    lines = {line.variant for line in dispatch.report() if line.op == "gpu_cache_attention"}
    assert {name.split("/")[0] for name in lines} == set(CODED)
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 3, 2, 32)).astype(np.float32)
    with dispatch.only("reference"):
        run = dispatch.find("gpu_cache_attention", "Q8_0").function
    found = run("Q8_0", q, k, v, np.array([0, 1, 1]), np.array([0, 1, 0]), 0.25)
    assert np.abs(found[[0, 2]] - v[[0, 2]]).max() < 0.02  # a first token sees its own value alone
    assert np.abs(found[1] - v[1]).max() > 0.1
