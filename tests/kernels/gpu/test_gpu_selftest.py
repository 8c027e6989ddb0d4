"""Each kernel proves itself once a card; what fails, or ends the program, is switched off, named, and remembered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernels import dispatch, gpu
from kernels import matrix as _matrix  # noqa: F401  (registers)
from kernels.gpu import selftest, user_files

ROOT = Path(__file__).resolve().parents[3]


class Bench:
    """Stands in for the checks: what they answer, and how often they were asked."""

    def __init__(self) -> None:
        self.answer: str | BaseException = ""
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def run(self, kernel: str, shape_class: tuple[Any, ...], _device: str) -> str:
        self.asked.append((kernel, shape_class))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A stand-in device whose results go to a folder of the test."""
    bench = Bench()
    module = ModuleType("kernels.gpu.selftest.checks")
    module.run = bench.run  # type: ignore[attr-defined]
    module.common = lambda: [("norm", ("float16",)), ("rotate", (True,))]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernels.gpu.selftest.checks", module)
    monkeypatch.setattr(selftest, "checks", module, raising=False)
    monkeypatch.setattr(user_files, "folder", lambda: tmp_path / "gpu")
    with selftest.on("a card"):
        yield bench


def kept() -> dict[str, Any]:
    return user_files.read(selftest.file_name())


def test_a_class_is_tested_once_and_remembered(checks: Bench) -> None:
    assert selftest.usable("norm", "float16", False) is None
    assert selftest.usable("norm", "float16", False) is None
    assert selftest.usable("norm", "bfloat16", False) is None
    assert [asked[1] for asked in checks.asked] == [("float16", False), ("bfloat16", False)]
    selftest.forget()  # as another process
    assert selftest.usable("norm", "float16", False) is None
    assert len(checks.asked) == 2
    assert [(found.kernel, found.shape_class) for found in selftest.results()] == [
        ("norm", "bfloat16"), ("norm", "float16"),
    ]  # fmt: skip


def test_what_fails_is_switched_off_and_said(checks: Bench) -> None:
    checks.answer = "3 of 40 sums are wrong"
    assert selftest.usable("rotate", True) == "3 of 40 sums are wrong"
    checks.answer = ""
    selftest.forget()
    assert selftest.usable("rotate", True) == "3 of 40 sums are wrong"
    assert len(checks.asked) == 1
    assert selftest.failing("rotate") == "True: 3 of 40 sums are wrong"
    assert selftest.failing("rotate", "False") == selftest.failing("norm") == ""


def test_it_is_named_in_the_dispatch_report(checks: Bench, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "state", lambda: gpu.GpuState("ready", card="sm_90", name="A card"))
    checks.answer = "1 of 8 values is wrong"
    selftest.usable("norm", "float32", False)
    selftest.usable("scaled product", "int8", "vector", False)
    lines = {(line.op, line.variant): line for line in dispatch.report()}
    assert lines["gpu_norm", ""].backend == "reference"
    assert "float32: 1 of 8 values is wrong" in lines["gpu_norm", ""].reason
    assert lines["gpu_scaled_product", "int8"].backend == "reference"
    assert lines["gpu_scaled_product", "e4m3"].backend == lines["gpu_rotate", ""].backend == "gpu:triton"


def test_the_key_has_all_that_a_result_depends_on(checks: Bench, monkeypatch) -> None:
    selftest.usable("norm", "float16")
    before = selftest.file_name()
    for name, value in (("sources", lambda: "others"), ("environment", lambda: ("another card", "driver 2"))):
        with monkeypatch.context() as patch:
            patch.setattr(selftest, name, value)
            selftest.forget()
            assert selftest.file_name() != before
            selftest.usable("norm", "float16")
    assert len(checks.asked) == 3
    selftest.forget()
    assert selftest.file_name() == before


def test_the_sources_of_kernels_are_in_it(tmp_path: Path, monkeypatch) -> None:
    selftest.sources.cache_clear()
    before = selftest.sources()
    (tmp_path / "products").mkdir()
    (tmp_path / "products" / "matmul.py").write_text("another", encoding="utf-8")
    monkeypatch.setattr(selftest, "__file__", str(tmp_path / "selftest" / "__init__.py"))
    selftest.sources.cache_clear()
    assert selftest.sources() != before
    monkeypatch.undo()
    selftest.sources.cache_clear()


def test_a_real_card_is_named_with_all_its_versions(monkeypatch) -> None:
    properties = SimpleNamespace(name="Card 9", major=9, minor=0)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(get_device_properties=lambda _index: properties)  # type: ignore[attr-defined]
    torch.__version__, torch.version = "2.9.0", SimpleNamespace(cuda="12.8", hip=None)  # type: ignore[attr-defined]
    torch._C = SimpleNamespace(_cuda_getDriverVersion=lambda: 12090)  # type: ignore[attr-defined]
    triton = ModuleType("triton")
    triton.__version__ = "3.5.0"  # type: ignore[attr-defined]
    for name, module in (("torch", torch), ("triton", triton)):
        monkeypatch.setitem(sys.modules, name, module)
    name, chip, driver, *versions, sources = selftest.environment()
    assert (name, chip, versions) == ("Card 9", "9.0", ["torch 2.9.0 12.8", "triton 3.5.0"])
    assert driver
    assert len(sources) == 64


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", "{\"norm | ('float16',)\": 7}", "\x00\xff"])
def test_a_damaged_file_is_made_again(checks: Bench, damage: str) -> None:
    selftest.usable("norm", "float16")
    (user_files.folder() / selftest.file_name()).write_text(damage, encoding="utf-8")
    selftest.forget()
    assert selftest.usable("norm", "float16") is None
    assert len(checks.asked) == 2
    assert list(kept().values()) == [["norm", "float16", ""]]


def test_a_folder_that_can_not_be_written_to_costs_only_the_memory(checks: Bench, tmp_path: Path) -> None:
    (tmp_path / "gpu").write_text("a file where the folder would be", encoding="utf-8")
    for _ in range(2):
        assert selftest.usable("norm", "float16") is None
    assert len(checks.asked) == 1
    selftest.forget()
    assert selftest.usable("norm", "float16") is None
    assert len(checks.asked) == 2


def test_an_error_is_a_result_and_a_full_memory_or_the_users_end_is_none(checks: Bench) -> None:
    checks.answer = RuntimeError("\n\nassertion `x` failed\nmore")
    assert selftest.usable("norm", "float16") == "its self-test failed: RuntimeError, assertion `x` failed"
    checks.answer = RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    assert "out of memory" in str(selftest.usable("rotate", True))
    checks.answer = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        selftest.usable("quantize", "int8", 0)
    assert [value[0] for value in kept().values()] == ["norm"]
    checks.answer = ""
    selftest.forget()
    assert selftest.usable("rotate", True) is selftest.usable("quantize", "int8", 0) is None
    assert selftest.usable("norm", "float16") is not None


def test_a_test_that_ended_the_program_twice_is_not_run_again(tmp_path: Path) -> None:
    """As a compiler that aborts: the program itself is gone, and the next ones find its mark."""
    code = (
        "import os, sys\nfrom types import ModuleType\nfrom kernels.gpu import selftest, user_files\n"
        "module = ModuleType('kernels.gpu.selftest.checks')\n"
        "module.run = lambda *_: os._exit(34)\nsys.modules['kernels.gpu.selftest.checks'] = selftest.checks = module\n"
        "with selftest.on('a card'):\n    print(selftest.usable('norm', 'float16'))\n"
    )
    places = {name: str(tmp_path) for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME")}
    environment = {**os.environ, **places, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    told = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        for _ in range(3)
    ]
    assert [run.returncode for run in told] == [34, 34, 0]
    assert told[2].stdout.strip() == "its self-test ended the program 2 times"


def test_a_mark_of_a_program_that_is_at_it_now_counts_not(checks: Bench) -> None:
    key = selftest._key("norm", ("float16",))
    parent = os.getppid()
    user_files.write(selftest.file_name(), {key: f"began: 2 {parent} {time.time():.0f}"})
    assert selftest.usable("norm", "float16") is None
    user_files.write(selftest.file_name(), {key: "began: nonsense"})
    selftest.forget()
    assert selftest.usable("norm", "float16") is None


def test_results_of_two_programs_stand_beside_each_other(checks: Bench) -> None:
    selftest.usable("norm", "float16")
    user_files.write(selftest.file_name(), {**kept(), "other | ()": ["other", "", "broken"]})
    selftest.usable("rotate", False)
    assert {value[0] for value in kept().values()} == {"norm", "other", "rotate"}


def test_a_lost_device_switches_all_off_and_only_the_cause_is_remembered(checks: Bench, monkeypatch) -> None:
    checks.answer = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(selftest, "_is_lost", lambda: True)
    assert "illegal memory access" in str(selftest.usable("norm", "float16"))
    assert "answers no more since the self-test of 'norm'" in str(selftest.usable("rotate", True))
    assert [value[0] for value in kept().values()] == ["norm"]


def test_the_survey_names_each_and_says_what_was_known(checks: Bench) -> None:
    first, second = list(selftest.survey()), list(selftest.survey())
    assert [found.kernel for found in first] == ["norm", "rotate"]
    assert [found.seconds for found in second] == [0, 0]
    assert len(checks.asked) == 2


def test_without_a_gpu_the_reason_is_the_states() -> None:
    if not gpu.state().ready:
        assert selftest.usable("norm", "float16") == gpu.state().reason


@pytest.fixture(scope="session")
def told(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("selftest_cases")


@pytest.mark.triton
def test_every_kernel_passes_under_the_interpreter(told) -> None:
    found = [line for line in told if "kernel" in line]
    assert {line["kernel"] for line in found} >= {
        *("product", "norm", "norm to codes", "activate", "activate to codes", "quantize", "outliers", "rotate"),
        *("expert product", "scaled product", "store cache", "attention prompt", "attention token"),
        *("encode groups", "encode blocks", "encode float8", "encode fp4", "feedback"),
    }
    assert not [line for line in found if line["reason"]]


@pytest.mark.triton
def test_every_kind_of_fault_is_found(told) -> None:
    faults = {line["fault"]: line["reason"] for line in told if "fault" in line}
    assert len(faults) >= 9
    assert not [fault for fault, reason in faults.items() if not reason]
    assert "sums are wrong" in faults["product"]
    assert "not numbers" in faults["NaN"]
    assert "are not the reference's" in faults["encode groups"]
    assert json.dumps(faults)
