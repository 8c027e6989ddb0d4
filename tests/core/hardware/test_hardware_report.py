"""Reports for the command line, the bandwidth measurement, and the glossary file."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from core.hardware import bandwidth, report
from core.hardware.device import Device, Machine
from core.targets import TARGETS
from core.tensor_info import Role
from resources import glossary, meaning

CPU = Device(
    "cpu",
    "Some CPU",
    "AMD",
    "cpu",
    "x86_avx2",
    16 * 10**9,
    9 * 10**9,
    40e9,
    "measured",
    instruction_sets=("avx", "avx2"),
)
MACHINE = Machine((CPU,), ("No NVIDIA driver is installed.",))


def test_devices_report_is_plain_json() -> None:
    data = report.devices_report(known=True, machine=MACHINE)
    assert json.loads(json.dumps(data))["devices"][0]["hardware_class_label"] == "x86 processor with AVX2"
    assert len(data["known"]) == 80
    lines = report.device_lines(data)
    assert "Some CPU, 16.00 GB (14.90 GiB), 40.00 GB/s (measured), avx avx2" in lines[1]
    assert any("No NVIDIA driver" in line for line in lines)
    assert "known" not in report.devices_report(machine=MACHINE)


def test_bandwidth_is_plausible_and_soon_there() -> None:
    rate = bandwidth.read_bandwidth(8 * 2**20, 2, budget=0.01)
    assert 1e8 < rate < 1e14


@pytest.mark.skipif(sys.platform == "win32", reason="Windows counts a thread's time in steps of 16 ms")
def test_a_thread_that_waits_does_not_make_memory_look_slow() -> None:
    class Waiting:
        nbytes = 2**20

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            time.sleep(0.05)  # as while another program has the processor
            return np.zeros(1)

    assert bandwidth._rate(Waiting(), threading.Barrier(1)) > 4 * Waiting.nbytes / 0.05  # type: ignore[arg-type]


def test_the_array_is_larger_than_the_cache_and_leaves_memory_alone() -> None:
    assert bandwidth.array_size(32 * 2**20, 2**34) == 128 * 2**20
    assert bandwidth.array_size(2**20, 2**34) == bandwidth.SMALLEST
    assert bandwidth.array_size(2**30, 2**36) == bandwidth.LARGEST
    assert bandwidth.array_size(2**20, 100 * 2**20) == 0


def test_last_level_cache(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "36M", "nonsense")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert bandwidth.last_level_cache(tmp_path) == 36 * 2**20
    assert bandwidth.last_level_cache(tmp_path / "none") == bandwidth.DEFAULT_CACHE


def test_glossary_is_short_and_says_everything_once() -> None:
    terms = glossary()
    assert len(terms) >= 90
    assert len({term.casefold() for term in terms}) == len(terms)
    for term, text in terms.items():
        assert 3 <= len(text.split()) <= 25, term
        assert text.endswith("."), term


def test_glossary_knows_every_target_and_role() -> None:
    assert not [t.name for t in TARGETS if not meaning(t.name)]
    assert not [role.value for role in Role if not meaning(role.value)]


def test_a_format_is_explained_by_the_beginning_of_its_name() -> None:
    assert meaning("W4A16-g128-asym") == glossary()["w4a16"]
    assert meaning("gptq-4bit-channel-asym-v2") == glossary()["gptq-4bit"]
    assert meaning("group-wise") == meaning("x4-g128") == ""
