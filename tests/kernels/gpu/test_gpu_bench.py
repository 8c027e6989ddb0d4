"""The benchmark runs to its end on a stand-in, writes what it found, and survives whatever its peers do."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernels import gpu
from kernels.gpu import configurations, user_files
from kernels.gpu.bench.plot import svg
from kernels.gpu.configurations import Configuration, configuration, keep_tuned, tuned_key

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def told(interpreted: Callable[..., list[dict[str, Any]]], tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    found: dict[str, Any] = {"folder": folder}
    for line in interpreted("bench_cases", str(folder)):
        found.update(line)
    return found


@pytest.mark.triton
def test_every_section_is_measured_and_written(told) -> None:
    results = json.loads((told["folder"] / "gpu-bench.json").read_text(encoding="utf-8"))
    assert told["code"] == 0, told["printed"]
    assert "stand-in" in results["about"]["card"]
    assert results["ceilings"]["copy_bytes_a_second"] > 0
    assert len(results["correctness"]["rows"]) > 4
    assert not [row for row in results["correctness"]["rows"] if row["reason"]]
    rows = results["products"]["rows"]
    assert {row["name"] for row in rows} == {"bfloat16", "int4 g128"}
    assert {row["batch"] for row in rows} == {1, 16, 70}
    assert all(row["share_of_copy"] > 0 for row in rows if row["name"] != "bfloat16")
    assert {row["name"] for row in results["formats"]["rows"]} == {"Q4_K", "int8"}
    assert [row["batch"] for row in results["step"]["rows"]] == [1, 8]
    assert all(row["bound_seconds"] > 0 for row in results["step"]["rows"])
    assert {(row["name"], row["values"]) for row in results["encoders"]["rows"]} == {
        (name, values) for name in ("int4 g128", "Q4_0") for values in (1024, 2048)
    }
    names = {row["name"].split()[0] for row in results["peers"]["rows"]}
    assert names == {"bitsandbytes", "torchao", "gemlite", "Marlin"}
    assert not [name for name, section in results.items() if "failed" in section or "left_out" in section]


@pytest.mark.triton
def test_it_prints_as_it_goes(told) -> None:
    for words in ("ceilings, at most", "copy: ", "tuned 1 of 4", "int4 g128, 48 × 128, 16 tokens: ", "× bfloat16",
                  "step of 8: ", "encoding on the GPU is quicker ",
                  "Marlin int4 g128 (vLLM), 48 × 128, 1 tokens", "gpu-bench.json"):  # fmt: skip
        assert words in told["printed"], words


@pytest.mark.triton
def test_encoding_pays_from_where_it_is_quicker_at_all_larger_sizes() -> None:
    from kernels.gpu.backends.conversion import NEVER
    from kernels.gpu.bench.encoding import crossover

    def rows(*wins: bool) -> list[dict[str, Any]]:
        return [{"values": 1 << n, "seconds": 2 - win, "processor_seconds": 1.5} for n, win in enumerate(wins)]

    assert crossover(rows(True, False, True, True)) == 4
    assert crossover(rows(True, True) + rows(True, False)) == NEVER


@pytest.mark.triton
def test_the_picture_has_a_line_for_each(told) -> None:
    picture = (told["folder"] / "gpu-bench.svg").read_text(encoding="utf-8")
    tree = ET.fromstring(picture)
    assert len(tree.findall(".//{*}polyline")) == 5
    for name in ("int4 g128", "bitsandbytes NF4 g64", "48 × 128", "decode step"):
        assert name in picture


@pytest.mark.triton
def test_peers_that_are_missing_or_different_are_named_and_passed_over(told) -> None:
    peers = told["peers"]
    assert "AttributeError" in peers["torchao int4 g128"][0]
    assert "does not run" in peers["gemlite int4 g128"][0]
    assert "does not run" in peers["Marlin int4 g128 (vLLM)"][0]
    assert [count for _, count in peers.values()] == [2, 0, 0, 0]
    assert "no_such_thing" in told["versions"]["bitsandbytes NF4 g64"]


@pytest.mark.triton
def test_what_was_tuned_is_used_and_what_is_wrong_is_not_tuned(told) -> None:
    assert told["tuned"]
    assert told["others"]
    assert told["measured"]
    assert told["chosen"] not in (2, 4)


@pytest.mark.triton
def test_a_section_without_time_says_what_it_left_out(told) -> None:
    assert "48 × 128 from 1 tokens on" in told["left"]
    assert told["failed"].startswith("ZeroDivisionError")
    assert told["copy"] > 0
    assert any("out of time, left out: 48 × 128" in line for line in told["said"])


@pytest.mark.triton
def test_the_clock_times_a_captured_graph_or_else_a_loop(told) -> None:
    assert told["captured"]
    assert told["seconds"] == pytest.approx(0.006 / 3)
    assert told["rounds"] == 25
    assert told["replays"] == 26
    assert told["looped"] == [False, pytest.approx(0.004)]
    assert told["copies"] == [19, 1, 64]  # so that three times the cache is read
    assert told["about"] == ["card", "chip", "driver", "sources", "torch", "triton"]


def test_without_a_gpu_it_says_why() -> None:
    if gpu.state().ready:
        return
    command = [sys.executable, "-m", "kernels.gpu.bench", "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 1
    assert run.stderr.startswith(f"The GPU's kernels can not run: {gpu.state().reason}.")


def test_a_picture_of_nothing_says_so() -> None:
    ET.fromstring(svg({}))
    assert "no product was measured" in svg({"about": {"card": "A <card>"}})


@pytest.mark.parametrize(
    "damage",
    [
        "", "[]", '{"sm_90": 3}', '{"sm_90": {"KEY": {"regime": "vector"}}}',
        '{"sm_90": {"KEY": {"regime": "vector", "rows": 48, "warps": 4}}}',
        '{"sm_90": {"KEY": {"regime": "vector", "rows": 32, "warps": 4, "batch": 3}}}',
        '{"sm_90": {"KEY": {"regime": "tile", "rows": 32, "warps": 4, "batch": 16}}}',
        '{"sm_90": {"KEY": {"regime": "vector", "rows": "32", "warps": 4}}}',
        '{"sm_90": {"KEY": {"regime": "vector", "rows": 32, "warps": 4, "more": 1}}}',
        '{"sm_90": {"KEY": {"regime": "vector", "rows": 32, "warps": 4, "split": 0}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_of_configurations_changes_nothing(damage: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(user_files, "folder", lambda: tmp_path)
    product = (1, 4096, 32, 16, 8 << 20)
    configurations._tuned.cache_clear()
    before = configuration("sm_90", *product)
    (tmp_path / "configurations.json").write_text(damage.replace("KEY", tuned_key(*product)), encoding="utf-8")
    configurations._tuned.cache_clear()
    assert configuration("sm_90", *product) == before
    configurations._tuned.cache_clear()


def test_a_sound_one_is_used_for_its_product_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(user_files, "folder", lambda: tmp_path)
    how = Configuration("tile", 32, 8, 16, 3, 2, False)
    product = (11, 4096, 32, 16, 8 << 20)
    assert keep_tuned("sm_90", tuned_key(*product), how)
    assert configuration("sm_90", *product) == how
    assert configuration("sm_90", 16, *product[1:]) == how  # the same tile of sixteen tokens
    for other in ((33, *product[1:]), (11, 4097, *product[2:]), (11, 4096, 32, 17, 8 << 20)):
        assert configuration("sm_90", *other) != how
    assert configuration("sm_80", *product) != how
    assert configurations.measured("sm_90")
    assert json.loads((tmp_path / "configurations.json").read_text())["sm_90"][tuned_key(*product)] == asdict(how)
    configurations._tuned.cache_clear()
