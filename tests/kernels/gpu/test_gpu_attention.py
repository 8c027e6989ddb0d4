"""Attention under Triton's interpreter against float64: widths, contexts, windows, caps, and shared key heads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernels import dispatch
from kernels import matrix as _matrix  # noqa: F401  (registers)
from kernels.gpu.configurations import attention_configuration, cards

# Of the largest value: float32 is that of the logic; 16-bit weights of the values are rounded, bfloat16's cut off.
LIMITS = {"F32": 5e-6, "F16": 1e-3, "BF16": 8e-3}


@pytest.fixture(scope="session")
def results(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("attention_cases")


@pytest.mark.triton
def test_attention_is_that_of_the_reference(results) -> None:
    found = [r for r in results if "error" in r]
    assert not [r for r in found if r["error"] > LIMITS[r["dtype"]]]
    for case in ("token", "prompt"):
        own = [r for r in found if r["case"] == case]
        assert {r["width"] for r in own} == {64, 80, 96, 128, 256}
        assert {bool(r["window"]) for r in own} == {bool(r["softcap"]) for r in own} == {True, False}
        assert {r["heads"][0] // r["heads"][1] for r in own} >= {1, 2}
    tried = {(r["width"], r["batch"], r["context"]) for r in found if r["case"] == "token"}
    widths, contexts = (64, 80, 96, 128, 256), (1, 31, 32, 33, 127, 129)
    assert tried >= set(product(widths, (1, 3, 16, 33), contexts)) | set(product(widths, (1,), (4096,)))
    assert {r["dtype"] for r in found} == set(LIMITS)
    assert {r["split"] for r in found if r["case"] == "token"} >= {1, 2, 3, 5}


@pytest.mark.triton
def test_each_key_and_value_of_the_past_is_read_once(results) -> None:
    shares = [r["share"] for r in results if r.get("case") == "token"]
    assert len(shares) > 130
    assert max(shares) <= 1.05
    assert min(shares) >= 0.999


@pytest.mark.triton
def test_the_cache_is_filled_and_nothing_beside_it(results) -> None:
    stored = [r for r in results if r.get("case") == "store"]
    assert len(stored) == 3
    assert all(r["same"] for r in stored)


@pytest.mark.triton
def test_what_no_kernel_attends_to_is_refused_with_the_reason(results) -> None:
    refused = {r["refused"]: r["reason"] for r in results if "refused" in r}
    assert "do not share" in refused["heads"]
    assert "[M, heads, 64]" in refused["width"]
    assert "16 to 256" in refused["wide"]
    assert "int32 [1]" in refused["numbers"]


def test_parts_are_little_beside_what_they_are_parts_of() -> None:
    for card in (*cards(), "sm_90", "a card of tomorrow"):
        for width in (64, 128, 256):
            how = attention_configuration(card, "token", width, 2)
            for share in (1, 4, 8, 16):
                for longest in (1, 300, 4096, 131072):
                    split = how.split(8, longest, share)
                    parts = 8 * split * share * width if split > 1 else 0
                    assert parts <= 0.035 * longest * 2 * 2 * width
                    assert split == 1 or longest // split >= 256


def test_the_reference_attends_to_its_own_past_alone() -> None:
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 3, 2, 16)).astype(np.float32)
    with dispatch.only("reference"):
        run = dispatch.find("gpu_attention").function
    found = run(q, k, v, np.array([0, 1, 1]), np.array([0, 0, 1]), 0.25)
    assert np.allclose(found[:2], v[:2])
    assert not np.allclose(found[2], v[2])
