"""The self-check: states, remedies, the exit code, and that nobody is named in it."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path

import pytest

from core import cli, privacy
from core.hardware import check
from core.hardware.device import Device, Machine

CPU = Device("cpu", "Some CPU", "AMD", "cpu", "x86_avx2", 16 * 10**9, 9 * 10**9, 40e9, "measured")
MACHINE = Machine((CPU,), ("No NVIDIA driver is installed.",))


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of somebody whose name has spaces and umlauts; also the host is theirs."""
    home = tmp_path / "Jörg Karl Müller"
    home.mkdir()
    for key in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(key, "jörg müller")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setattr(platform, "node", lambda: "müllers-pc.example")
    return home


def test_every_line_is_well_or_says_what_to_do(tmp_path: Path) -> None:
    checks = {c.name: c for c in check.check_report(tmp_path / "new" / "deep", MACHINE)}
    names = {"Python", "numpy", "Instruction sets", "Compiled kernels", "Memory", "Memory bandwidth", "Graphics"}
    names |= {"PyTorch", "GPU kernels", "Output folder", "Scratch folder", "Settings folder", "Cache folder", "Display"}
    assert names <= set(checks)
    for name in ("Python", "Memory", "Memory bandwidth", "Output folder"):
        assert checks[name].state == check.GREEN
    for found in checks.values():
        assert found.sentence.endswith("."), found
        assert found.state == check.GREEN or found.remedy, found


def test_too_little_is_amber() -> None:
    poor = Device("cpu", "", "", "cpu", "x86_avx2", 4 * 10**9, 10**9)
    assert check._memory(poor).state == check._bandwidth(poor).state == check.AMBER
    assert check._display({}, "linux").state == check.AMBER
    assert check._display({"WAYLAND_DISPLAY": "wayland-0"}, "linux").state == check.GREEN
    assert check._display({}, "win32").state == check.GREEN


@pytest.mark.parametrize(
    ("note", "state"),
    [
        ("No NVIDIA driver is installed.", check.GREEN),
        ("Only Intel graphics inside the processor were found; they share its memory.", check.GREEN),
        ("The NVIDIA driver was updated while running; restart the computer to use its devices.", check.AMBER),
        ("AMD devices could not be examined (no).", check.AMBER),
        ("NVIDIA devices were not looked for: the package nvidia-ml-py is not installed.", check.AMBER),
    ],
)
def test_graphics_that_are_not_there_are_no_fault_and_broken_ones_are(note, state, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(check, "has_nvidia_card", lambda: False)
    assert [c.state for c in check._graphics(Machine((CPU,), (note,)))] == [state]


def test_a_card_without_driver_is_seen_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, maker, kind in (("audio", "0x10de", "0x040300"), ("other", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(maker + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    assert not check.has_nvidia_card(tmp_path)
    (tmp_path / "audio" / "class").write_text("0x030200\n")
    assert check.has_nvidia_card(tmp_path)
    monkeypatch.setattr(check, "has_nvidia_card", lambda: True)
    assert check._graphics(MACHINE)[0].state == check.AMBER


def test_a_set_that_the_processor_lists_and_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import cpu

    monkeypatch.delenv("BITSMITH_ISA", raising=False)
    for name, value in (("engine", cpu), ("engine_missing", ""), ("engine_sets", ("avx2", "portable"))):
        monkeypatch.setattr(cpu, name, value)
    monkeypatch.setattr(cpu, "engine_refused", {"amx": "its instructions fault"})
    first, second = check._instruction_sets()
    assert (first.state, first.sentence) == (check.GREEN, "Models run with avx2; portable can be used too.")
    assert second.state == check.AMBER
    assert "amx is listed" in second.sentence
    assert "its instructions fault" in second.sentence


def test_each_compiled_kernel_is_tested_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import trial

    found = check._kernel_trials()
    if found:
        (line,) = found
        assert line.state == check.GREEN
        named = {op: rest.split(", ") for op, _, rest in (n.partition(" of ") for n in line.sentence[:-1].split("; "))}
        assert {"Q4_K", "IQ4_XS"} <= {*named["decode_blocks"]}
        for name in ("encode_groups", "solve_feedback", "crc32"):
            assert name in named
    results = [trial.Trial("scan", "", "cpu:avx2", ""), trial.Trial("encode_blocks", "Q4_0", "cpu:avx2", "it differs")]
    monkeypatch.setattr(trial, "trials", lambda: iter(results))
    good, bad = check._kernel_trials()
    assert good.sentence == "1 give the reference's bits with cpu:avx2: scan."
    assert (bad.state, bad.name) == (check.RED, "Compiled kernel encode_blocks Q4_0")
    assert bad.sentence == "Its self-test fails on cpu:avx2: it differs."


def test_each_gpu_kernel_has_a_line_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from kernels import gpu
    from kernels.gpu import selftest

    monkeypatch.setattr(gpu, "state", lambda: gpu.GpuState("ready", card="sm_90", name="Card 9"))
    results = [
        selftest.Result("norm", "float16", ""), selftest.Result("norm", "bfloat16", ""),
        selftest.Result("product", "Q4_K, vector 32 × 1", ""),
        selftest.Result("product", "Q6_K", "3 of 9 sums are wrong"),
        selftest.Result("outliers", "", "its self-test failed: x"),
    ]  # fmt: skip
    monkeypatch.setattr(selftest, "survey", lambda: iter(results))
    lines = {one.name: one for one in check._gpu_trials()}
    assert lines["GPU kernel: norm"].sentence == "Agrees with the reference (float16; bfloat16)."
    assert lines["GPU kernel: product"].state == check.AMBER
    assert lines["GPU kernel: product"].sentence == "Switched off, Q6_K: 3 of 9 sums are wrong."
    assert lines["GPU kernel: outliers"].sentence == "Switched off, its self-test failed: x."
    assert lines["GPU kernel: outliers"].remedy
    assert cli.main(["check", "--json"]) in (0, 1)
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["checks"]]
    assert {"GPU kernel: norm", "GPU kernel: product"} <= set(names)

    def broken() -> None:
        raise RuntimeError("CUDA driver error: unknown error\nmore")

    monkeypatch.setattr(selftest, "survey", broken)
    (line,) = check._gpu_trials()
    assert line.sentence == "Their self-tests can not be made: CUDA driver error: unknown error."


def test_red_alone_makes_the_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    amber = check.Check("A", check.AMBER, "Little.", "More.")
    red = check.Check("B", check.RED, "None.", "Some.")
    for lines, code in (([amber], 0), ([amber, red], 1)):
        monkeypatch.setattr(check, "check_report", lambda _folder, lines=lines: lines)
        assert cli.main(["check", "--json"]) == code
        assert json.loads(capsys.readouterr().out)["checks"][0] == {
            "name": "A", "state": "amber", "sentence": "Little.", "remedy": "More.",
        }  # fmt: skip
        assert cli.main(["check"]) == code
        assert "amber  A: Little. More." in capsys.readouterr().out


def test_an_output_folder_that_can_not_be_written_to_is_red(tmp_path: Path, monkeypatch) -> None:
    def refuse(**_where):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(check.tempfile, "TemporaryFile", refuse)
    found = check._disk("Output folder", tmp_path, check.RED)
    assert (found.state, found.remedy) == (check.RED, "Choose another folder.")
    assert check._disk("Scratch folder", tmp_path, check.AMBER).state == check.AMBER


def test_the_report_names_nobody(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import cpu, gpu

    cache = person / ".triton" / "my secret cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    state = gpu.GpuState("cache not writable", f"Triton can not write its cache in {cache}", "Set TRITON_CACHE_DIR.")
    monkeypatch.setattr(gpu, "state", lambda: state)
    monkeypatch.setattr(cpu, "engine", None)
    monkeypatch.setattr(cpu, "engine_missing", f"can not load {person}/lib/x.so on Müllers-PC for jörg müller")
    notes = (f"AMD devices could not be examined ([Errno 13] Permission denied: '{person}/.config').",)
    text = check.report_text(check.check_report(person / "out", Machine((CPU,), notes)))
    for word in ("Jörg", "Karl", "Müller", "müller", "jörg", str(person), str(person.parent), "secret", "pc.example"):
        assert word not in text, text
    assert "can not load" in text


def test_names_are_taken_out_in_every_spelling(person: Path) -> None:
    import unicodedata
    from urllib.parse import quote

    for form in (str(person), unicodedata.normalize("NFD", str(person)), quote(str(person)), str(person) + "/a b"):
        assert privacy.shorten_home(f"in {form}!").startswith("in ~"), form
    assert privacy.shorten_home(f"{person}-2/x") == f"{person}-2/x"  # another folder
    assert privacy.anonymous("JÖRG MÜLLER on müllers-pc") == "user on host"
    assert privacy.anonymous("a/b GB/s") == "a/b GB/s"
    assert privacy.without_paths("no module (/srv/me/x.so: bad), 3 GB/s, C:\\Users\\x and '/a b/c'") == (
        "no module (… bad), 3 GB/s, … and …"
    )


def test_the_present_user_and_folder_stay_out(tmp_path: Path) -> None:
    text = check.report_text(check.check_report(tmp_path, MACHINE))
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text
    assert getpass.getuser() not in text.split()
