"""`bitsmith download` and `bitsmith models` against a hub on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hub_server
import pytest
from hub_server import TOKEN, Hub, Repo, slow
from tiny_models import write_llama

from core import cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {p.name: p.read_bytes() for p in write_llama(tmp_path / "tiny").iterdir()}
    running = hub_server.serve(Hub({"owner/tiny": Repo(files), "owner/g": Repo({"g-Q8_0.gguf": b"GGUF" * 999})}))
    made = next(running)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    yield made
    running.close()


def test_fetched_and_opened(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["download", f"{hub.endpoint}/owner/tiny/tree/main", "--to", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "out")
    assert "owner/tiny, Safetensors" in printed.err
    assert cli.main(["info", str(tmp_path / "out"), "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["download", "owner/g:Q8_0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert Path(found["path"]) == tmp_path / "home" / "Models" / "owner" / "g" / "g-Q8_0.gguf"
    assert found["bytes"] == 3996
    assert cli.main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [(m["name"], m["origin"]) for m in listed] == [("owner/g-Q8_0", "Models")]
    assert cli.main(["models"]) == 0
    assert "owner/g-Q8_0" in capsys.readouterr().out


def test_listed_without_fetching(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repos["owner/tiny"].files["pytorch_model.bin"] = b"x" * 3000
    assert cli.main(["download", "owner/tiny", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "PyTorch's format" in printed
    assert "free on" in printed
    assert cli.main(["download", "owner/tiny", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {f["name"] for f in found["files"] if not f["fetched"]} == {"pytorch_model.bin"}
    assert not hub.asked("/resolve/")


def test_search(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--search", "tiny"]) == 0
    assert "owner/tiny  (apache-2.0, 1" in capsys.readouterr().out
    assert cli.main(["models", "--search", "nothing"]) == 0
    assert "No model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["owner/none"], "is not on"),
        (["owner/g:Q2_K"], "It has Q8_0"),
        (["two words"], "no name of a repository"),
        (["https://ollama.com/library/x"], "not a hub"),
        (["owner/g", "--file", "none.gguf"], "has no model"),
    ],
)
def test_one_sentence_and_a_next_step(
    hub: Hub, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["download", *words]) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.strip().splitlines()) == 2
    assert printed.out == ""


def test_gated(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["owner/g"].gated = "manual"
    assert cli.main(["download", "owner/g"]) == 1
    said = capsys.readouterr().err
    assert f"{hub.endpoint}/owner/g" in said
    assert "HF_TOKEN" in said
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert cli.main(["download", "owner/g"]) == 0
    assert TOKEN not in "".join(capsys.readouterr())


def test_offline(hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main(["download", "owner/g"]) == 1
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err
    assert cli.main(["models"]) == 0
    assert not hub.seen


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_interrupted(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repos["owner/g"].files["g-Q8_0.gguf"] = b"GGUF" * 200_000
    hub.fail("/cdn/", slow(0.2))
    words = [sys.executable, "-m", "core.cli", "download", "owner/g"]
    running = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    while "% ·" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=30)[1]
    assert running.returncode == 3
    assert "same command goes on" in said
    assert cli.main(["models"]) == 0
    assert "unfinished: owner/g" in capsys.readouterr().out
    assert cli.main(["download", "owner/g"]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes() == b"GGUF" * 200_000
