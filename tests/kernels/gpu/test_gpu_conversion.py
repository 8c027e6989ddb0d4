"""Conversions with the GPU's encoders: the same bytes as without, said in the report; no trouble ends one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.encoded_on import encoded_on
from kernels import dispatch, gpu, ops
from kernels.gpu import user_files
from kernels.gpu.backends import conversion


@pytest.fixture(scope="session")
def told(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("conversion_cases")


@pytest.mark.triton
def test_files_are_the_same_byte_for_byte(told) -> None:
    found = [line for line in told if "target" in line]
    assert len(found) >= 6
    assert any(line["data"] for line in found)
    assert not [line["target"] for line in found if not line["same"]]


@pytest.mark.triton
def test_the_gpu_had_its_part_and_it_is_said(told) -> None:
    for line in (line for line in told if "target" in line):
        assert line["on_gpu"] > 0, line["target"]
        assert line["plain"] == 0
        assert any(note.startswith("Encoded on Card 9: ") for note in line["notes"]), line
        assert not [note for note in line["silent"] if "Encoded on" in note]


@pytest.mark.triton
def test_no_trouble_of_the_gpu_ends_a_conversion(told) -> None:
    found = {line["trouble"]: line for line in told if "trouble" in line}
    assert all(found[name]["same"] for name in ("memory", "breaks", "known", "self-test"))
    assert found["memory"]["on_gpu"] > 0
    assert any("blocks to the processor: its memory was full." in note for note in found["memory"]["notes"])
    assert any("'encode groups' failed, CUDA error: misaligned address" in note for note in found["breaks"]["notes"])
    assert found["known"]["on_gpu"] == 0
    assert any("The GPU's 'encode groups' is switched off: it failed" in note for note in found["known"]["notes"])
    assert any("'encode groups' is switched off, 3 of 40 bytes" in note for note in found["self-test"]["notes"])
    assert found["NaN"]["reason"] == "NaN or Inf can not be encoded"


def test_without_a_gpu_all_is_as_before() -> None:
    x = np.ones((1024, 512), np.float32)
    with dispatch.tally() as tally:
        ops.encode_groups(x, 4, 32, True, search=False)
    assert tally.values.total() == x.size > conversion.LEAST
    if not gpu.state().ready:
        assert not encoded_on(tally)
        assert "gpu:triton" not in dispatch.backends("encode_groups")
        line = next(line for line in dispatch.report() if line.op == "encode_groups")
        assert line.reason == f"gpu:triton: {gpu.state().reason}"


def test_small_blocks_and_searches_stay_where_they_are(monkeypatch) -> None:
    """Nothing asks the GPU about work that it would not take: asking imports torch."""

    def asked() -> gpu.GpuState:
        raise AssertionError("the state was asked for")

    monkeypatch.setattr(gpu, "state", asked)
    ops.encode_groups(np.ones((8, 64), np.float32), 4, 32, True, search=False)
    ops.encode_blocks("Q4_0", np.ones((8, 64), np.float32), search=False)


def test_blocks_go_to_the_gpu_from_where_it_was_measured_to_win(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(user_files, "folder", lambda: tmp_path / "gpu")
    assert conversion.least() == conversion.LEAST
    assert conversion.keep_least("sm_90", 1 << 20)
    assert conversion.keep_least("sm_75", conversion.NEVER)
    assert conversion.least() == 1 << 20
    user_files.write("encode-from.json", {"sm_90": "many", "sm_75": -1})
    assert conversion.least() == conversion.LEAST


def test_a_call_that_is_declined_goes_to_the_next_and_is_counted() -> None:
    def full(*_arguments: object) -> object:
        raise dispatch.Declined("its memory was full")

    def never(*_arguments: object) -> object:
        raise dispatch.Declined("never taken", said=False)

    dispatch.register("test op", "gpu:one", full, priority=3, least=10)
    dispatch.register("test op", "gpu:two", never, priority=2, least=10)
    dispatch.register("test op", "reference", lambda value: value + 1)
    try:
        with dispatch.tally() as tally:
            assert [dispatch.run("test op", "", size, 1) for size in (9, 10, 11)] == [2, 2, 2]
        assert tally.values == {"reference": 30}
        assert tally.declined == {("gpu:one", "its memory was full"): 2}
        assert encoded_on(tally) == ("The GPU left 2 blocks to the processor: its memory was full.",)
        assert dispatch.find("test op").backend == "reference"
        assert "gpu:one: takes 10 values and more" in dispatch.reason("test op")
    finally:
        del dispatch._implementations["test op"]
