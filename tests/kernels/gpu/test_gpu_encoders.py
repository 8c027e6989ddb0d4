"""The GPU's encoders and GPTQ's updates under Triton's interpreter, bit for bit those of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import dispatch, gpu, ops
from kernels import matrix as _matrix  # noqa: F401  (registers)


@pytest.fixture(scope="session")
def results(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("encoder_cases")


@pytest.mark.triton
def test_every_code_and_scale_is_the_references(results) -> None:
    cases = [r for r in results if "same" in r]
    assert not [r["case"] for r in cases if not r["same"]]
    names = {r["case"].split()[0] for r in cases}
    assert names >= {f"int{bits}" for bits in range(1, 9)}
    assert names >= {"F8_E4M3", "F8_E5M2", "E8M0", "E4M3", "Q4_0", "Q8_0", "gptq"}


@pytest.mark.triton
def test_values_are_read_once(results) -> None:
    shares = [r["share"] for r in results if "share" in r]
    assert len(shares) > 20
    assert max(shares) <= 1.05
    assert {r["kernel"] for r in results if "kernel" in r} == {"feedback_block", "feedback_update"}


@pytest.mark.triton
def test_what_no_encoder_takes_is_refused_with_the_reason(results) -> None:
    refused = {r["refused"]: r["reason"] for r in results if "refused" in r}
    assert "NaN or Inf" in refused["NaN"]
    assert "groups of 24" in refused["group"]
    assert "longer than 32768" in refused["long"]
    assert "not Q4_K" in refused["kind"]
    assert "[32, 32]" in refused["matrix"]


def test_encoders_are_listed_with_the_reason_why_they_can_not_run() -> None:
    lines = {(line.op, line.variant): line for line in dispatch.report() if line.op.startswith("gpu_encode")}
    assert {("gpu_encode_groups", "int4"), ("gpu_encode_blocks", "Q8_0"), ("gpu_encode_fp4", "NVFP4")} <= set(lines)
    if not gpu.state().ready:
        assert {line.reason for line in lines.values()} == {f"gpu:triton: {gpu.state().reason}"}
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    with dispatch.only("reference"):
        codes, scales, zeros = dispatch.find("gpu_encode_groups", "int4").function("int4", x, 32, False, "F16")
        blocks = dispatch.find("gpu_encode_blocks", "Q4_0").function("Q4_0", x)
    expected = ops.encode_groups(x, 4, 32, False, "F16", search=False)
    assert all(np.array_equal(a, b) for a, b in zip((codes, scales, zeros), expected, strict=True))
    assert np.array_equal(blocks, ops.encode_blocks("Q4_0", x, search=False))
