"""`bitsmith generate` and `bitsmith bench`, with a model whose text and times are known."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeEngine, FakeModel
from tiny_models import write_llama

from core import cli_generate
from core.cli import main
from core.progress import CancelToken
from core.runtime import sweep as sweeping
from core.runtime.results import ResultStore
from core.runtime.steps import Watch


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FakeModel]:
    """Every model that a command loads; the file's name is the text that it writes."""
    models: list[FakeModel] = []

    def load(
        stack: Any, path: Path, args: Any, capacity: int | None, token: CancelToken, sequences: int = 1
    ) -> FakeModel:
        model = FakeModel(path.name.encode(), capacity or 256, sequences)
        if path.name == "slow":
            model.engine.pause = 0.01
        stack.callback(model.unload)
        models.append(model)
        return model

    monkeypatch.setattr(cli_generate, "open_model", load)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("core.runtime.speed._bandwidth", lambda: 1e6)
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    monkeypatch.setattr(sweeping, "_empty_caches", lambda: None)
    monkeypatch.setattr(sweeping, "BATCHES", (1, 2))
    return models


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], loaded: list[FakeModel]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        out, err = capsys.readouterr()
        assert all(model.unloaded for model in loaded)
        return code, out, err

    return call


def test_text_on_stdout_and_figures_on_stderr(run: Run) -> None:
    code, out, err = run("generate", "xHelo!", "--prompt", "x")
    assert (code, out) == (0, "Helo!\n")
    assert "6 tokens (eos)" in err
    assert "tokens/s" in err


def test_json_of_generate(run: Run) -> None:
    code, out, err = run("generate", "xHelo!", "--prompt", "x", "--stop", "o", "--json")
    data = json.loads(out)
    assert code == 0
    assert err == ""
    assert (data["text"], data["finish"], data["prompt_tokens"], data["generated_tokens"]) == ("Hel", "stop", 2, 4)
    assert set(data["itl_ms"]) == {"p50", "p95"}
    assert data["kernels"][0]["isa"] == "AVX2"


def test_chat_file_and_standard_input(
    run: Run, loaded: list[FakeModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("generate", "\nok", "--chat", "Hi 🙂", "--system", "Be short.")[1] == "ok\n"
    model = loaded[-1]
    sent = model.text.decode(model.engine.kept[0], skip_special=False)
    assert sent.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi 🙂<|im_end|>\n")
    (tmp_path / "prompt.txt").write_text("some x", encoding="utf-8")
    assert run("generate", "xa", "--file", str(tmp_path / "prompt.txt"))[1] == "a\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("🙂x".encode())))
    assert run("generate", "xa", "--file", "-")[1] == "a\n"
    assert len(loaded[-1].engine.kept[0]) == 1 + 4 + 1 + 1


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--prompt", "x", "--max-tokens", "300"), 1, "and 300 new ones take 301 places, but the cache holds 256"),
        (("--prompt", "x", "--context", "1"), 1, "has 2 tokens, but the cache holds 1"),
        (("--prompt", "x", "--max-tokens", "-1"), 1, "can not be generated"),
        (("--prompt", "x", "--temperature", "-2"), 1, "temperature can not be"),
        (("--prompt", "x", "--seed", "-1"), 1, "seed can not be -1"),
        (("--file", "none.txt"), 1, "can not be read"),
        ((), 2, "required"),
        (("--prompt", "a", "--chat", "b"), 2, "not allowed"),
        (("--prompt", "a", "--top-k", "many"), 2, "invalid int"),
    ],
)  # fmt: skip
def test_what_can_not_be_done(run: Run, words: tuple[str, ...], code: int, sentence: str) -> None:
    got, out, err = run("generate", "xab", *words)
    assert got == code
    assert sentence in err
    assert "Traceback" not in err
    assert out == ""
    assert sentence in json.loads(run("generate", "xab", *words, "--json")[1])["error"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "Standard input is closed"),
        (b"\xff", "Standard input is no text in UTF-8"),
        ("é".encode() * 3, "Standard input is longer than any context"),
    ],
)
def test_standard_input_that_is_no_prompt(
    run: Run, monkeypatch: pytest.MonkeyPatch, data: bytes | None, sentence: str
) -> None:
    monkeypatch.setattr(cli_generate, "MAX_PROMPT", 4)
    monkeypatch.setattr(sys, "stdin", data if data is None else io.TextIOWrapper(io.BytesIO(data)))
    code, out, err = run("generate", "xab", "--file", "-")
    assert (code, out) == (1, "")
    assert sentence in err


def test_a_closed_stderr_leaves_the_text_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert run("generate", "xHelo!", "--prompt", "x")[:2] == (0, "Helo!\n")
    assert run("generate", "xHelo!", "--prompt", "x", "--seed", "-1")[:2] == (1, "")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_inside_a_long_step_is_heard(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread is in compiled code, where Python calls no handler, until the engine is cancelled."""

    def busy(args: Any, token: CancelToken) -> int:
        with Watch((FakeModel(b"x"),), token):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # a second or so in C
            taken.append(time.monotonic() - began)
        heard[:] = [at - began for at in heard]
        token.check()
        return 0

    taken: list[float] = []
    heard: list[float] = []
    monkeypatch.setattr(FakeEngine, "cancel", lambda _: heard.append(time.monotonic()))
    monkeypatch.setitem(cli_generate.COMMANDS, "generate", busy)
    code, _, err = run("generate", "x", "--prompt", "x")
    assert (code, err) == (3, "Cancelled.\n")
    assert 0.1 < heard[0] < 0.3 < taken[0]


@pytest.mark.parametrize("threads", ["0", "-1", "1025", "1000000000000"])
@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("bench",)])
def test_threads_that_no_pool_has(
    command: tuple[str, ...], threads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*command, str(write_llama(tmp_path / "model", layers=1)), "--threads", threads])
    assert code == 1
    assert capsys.readouterr().err.endswith("threads can not compute.\nGive 1 to 1\u202f024.\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("q9", "There is no cache format 'q9'."),
        ("lm4", "must be rotated"),
        ("q8_0,windows=64", "'windows=64' means nothing for a cache."),
    ],
)
def test_cache_types_that_the_engine_has_not(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["generate", str(write_llama(tmp_path / "model", layers=1)), "--prompt", "x", "--cache-type", text])
    assert code == 1
    assert says in capsys.readouterr().err


def test_zero_tokens_means_no_limit(run: Run) -> None:
    _, out, _ = run("generate", "xa", "--prompt", "x", "--max-tokens", "0", "--context", "9", "--ignore-end", "--json")
    data = json.loads(out)
    assert data["finish"] == "capacity"
    assert data["generated_tokens"] == 8


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[CancelToken] = []
    real = cli_generate.generate
    monkeypatch.setitem(cli_generate.COMMANDS, "generate", lambda args, t: (tokens.append(t), real(args, t))[1])

    def press() -> None:
        while not tokens:
            time.sleep(0.01)
        time.sleep(0.1)
        tokens[0].cancel()

    thread = threading.Thread(target=press)
    thread.start()
    code, out, err = run("generate", "slow", "--prompt", "s", "--ignore-end", "--max-tokens", "0")
    thread.join()
    assert code == 3
    assert err == "Cancelled.\n"
    assert out.startswith("low")


def test_json_of_bench(run: Run) -> None:
    code, out, err = run("bench", "xab", "--prompt-tokens", "8", "--decode-tokens", "4", "--runs", "2", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    for key in (
        "prompt_tokens_per_s",
        "decode_tokens_per_s",
        "ttft_ms",
        "peak_rss_bytes",
        "weight_bytes",
        "bound_fraction",
    ):
        assert data[key] > 0
    assert set(data["itl_ms"]) == {"p50", "p95"}
    assert data["kernels"] == [
        {"op": "linear", "shape": "64 × 64", "kernel": "gemv", "isa": "AVX2", "reason": "the fastest here"}
    ]
    (kept,) = ResultStore().all()
    assert kept.kind == "bench"
    assert kept.title == "xab, prompt of 8, 4 tokens decoded"
    assert kept.contract == "activations int8 per 32 values, cache F16"
    assert kept.details["decode_tokens_per_s"] == data["decode_tokens_per_s"]


def test_bench_against_a_baseline(run: Run, loaded: list[FakeModel]) -> None:
    words = ("--prompt-tokens", "4", "--decode-tokens", "3", "--runs", "1", "--no-history")
    code, out, _ = run("bench", "slow", "--baseline", "xab", *words, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["ratio"]["decode"] < 0.9
    assert data["baseline"]["decode_tokens_per_s"] > data["decode_tokens_per_s"]
    assert "times as long as with the baseline" in data["why_slower"]
    assert len(loaded) == 2
    text = run("bench", "slow", "--baseline", "xab", *words)[1]
    assert "baseline" in text
    assert "times as long" in text
    assert ResultStore().all() == ()


def test_bench_with_sweeps(run: Run, loaded: list[FakeModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.runtime.layers.SQUARE", 64)
    monkeypatch.setattr(cli_generate, "SWEEP_SEQUENCES", (2,))
    table = tmp_path / "sweep.csv"
    words = ("--prompt-tokens", "4", "--decode-tokens", "3", "--runs", "1", "--sweep", "--csv", str(table))
    code, out, _ = run("bench", "xab", "--baseline", "xab", *words, "--json")
    data = json.loads(out)
    assert code == 0
    titles = [sweep["title"] for sweep in data["sweeps"]]
    assert titles == ["64 × 64", "32 × 64", "64 × 32", "decode step, context 128"]
    assert {p["batch"] for sweep in data["sweeps"][:3] for p in sweep["points"]} == {1, 2, 4, 8, 16, 32, 64, 128}
    assert len(table.read_text(encoding="utf-8").splitlines()) == 1 + sum(len(s["points"]) for s in data["sweeps"])
    assert [r.kind for r in ResultStore().all()] == ["sweep"] * 4 + ["bench"]
    text = run("bench", "xab", *words, "--no-history")[1]
    assert "Compression stops helping" in text


def test_a_sweeps_context_is_what_a_short_model_has(
    run: Run, loaded: list[FakeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.runtime.layers.SQUARE", 64)
    monkeypatch.setattr(cli_generate, "SWEEP_SEQUENCES", (2,))
    monkeypatch.setattr(FakeModel, "longest", 64)
    words = ("--prompt-tokens", "4", "--decode-tokens", "3", "--runs", "1", "--sweep", "--no-history", "--json")
    code, out, _ = run("bench", "xab", "--baseline", "xab", *words)
    assert code == 0
    assert json.loads(out)["sweeps"][-1]["title"] == "decode step, context 63"


def test_bench_refuses_before_it_loads(run: Run, loaded: list[FakeModel], tmp_path: Path) -> None:
    code, _, err = run("bench", "xab", "--prompt-tokens", "0")
    assert code == 1
    assert "needs a prompt" in err
    for options, sentence in (
        (("--csv", str(tmp_path / "a.csv")), "--csv writes the points of a sweep"),
        (("--sweep", "--csv", str(tmp_path / "none" / "a.csv")), "a.csv can not be written"),
        (("--sweep", "--csv", str(tmp_path)), "can not be written"),
    ):
        code, _, err = run("bench", "xab", *options)
        assert code == 1
        assert sentence in err
    assert loaded == []
    assert not list(tmp_path.glob("*.csv"))


def test_starting_the_command_line_imports_no_runtime() -> None:
    import subprocess

    code = "import sys, core.cli; print([m for m in sys.modules if m.startswith(('core.runtime', 'numpy', 'jinja2'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
