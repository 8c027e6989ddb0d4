"""The bundled engine behind the Test page: a tiny model and its Q8_0 conversion, from loading to the history."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_help import convert
from tiny_models import write_llama

from app.jobs.testing import AnswerEntry, LoadStep, Question, Sampling, Setup, Shape, SweepEntry, SweepOrder
from app.jobs.testing_core import CoreBackend
from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime.results import ResultStore


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model in BF16, and converted."""
    folder = tmp_path_factory.mktemp("files")
    source = write_llama(folder / "tiny", hidden=128, ffn=256)
    convert(source, "Q8_0", folder / "tiny-Q8_0.gguf")
    return source, folder / "tiny-Q8_0.gguf"


@pytest.fixture
def backend(tmp_path: Path) -> CoreBackend:
    return CoreBackend(ResultStore(tmp_path / "results.jsonl"))


def finish(steps: Iterator[Any]) -> tuple[list[Any], Any]:
    """What a generator yields, and what it returns."""
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as end:
            return seen, end.value


def load(backend: CoreBackend, path: Path, side: int = 0, arithmetic: str = "exact") -> Any:
    seen, model = finish(backend.load(side, Setup(path, arithmetic, 64), CancelToken()))
    assert all(isinstance(step, LoadStep) and step.side == side for step in seen)
    assert seen[-1].share == pytest.approx(1.0)
    return model


def test_answers_numbers_and_history(backend: CoreBackend, files: tuple[Path, Path]) -> None:
    question = Question("the the", tokens=6)
    entries = []
    for side, path in enumerate(files):
        model = load(backend, path, side)
        assert model.nbytes > model.loaded.weight_bytes
        assert model.summary.startswith(("BF16", "Q8_0")[side])
        pieces, measured = finish(backend.generate(side, model, question, CancelToken()))
        assert len(pieces) == measured.tokens <= 6
        assert all(piece.name and piece.margin >= 0 for piece in pieces)
        assert measured.prompt_tokens >= 2
        assert measured.first_token > 0
        assert 0 < measured.token_p50 <= measured.token_p95
        assert measured.bytes_per_token > 0
        assert measured.kernels
        assert measured.kernels[0].side == side
        assert (measured.energy is None) == bool(measured.energy_reason)
        entries.append((pieces, measured))
        model.close()
    assert entries[1][1].weight_bytes < entries[0][1].weight_bytes
    assert isinstance(backend.why_slower(entries[0][1], entries[1][1]), str)
    texts = tuple("".join(p.text for p in pieces) for pieces, _ in entries)
    setups = (Setup(files[0], "exact", 64), Setup(files[1], "exact", 64))
    backend.store(AnswerEntry(question, setups, (entries[0][1], entries[1][1]), (texts[0], texts[1]), 3, 0.25))
    (stored,) = backend.history()
    assert stored.title == "Generate: tiny and tiny-Q8_0.gguf"
    assert stored.contract == "float32, cache F16"
    assert stored.details["prompt"] == "the the"
    assert {n.name for n in stored.numbers} >= {
        "Source: generation",
        "Quantized: generation",
        "Equal tokens at the start",
    }
    backend.remove(stored)
    assert backend.history() == ()


def test_sampling_stop_and_seed_reach_the_engine(backend: CoreBackend, files: tuple[Path, Path]) -> None:
    model = load(backend, files[0])

    def texts(seed: int) -> str:
        question = Question("the", tokens=12, sampling=Sampling(temperature=2.0, seed=seed))
        pieces, _ = finish(backend.generate(0, model, question, CancelToken()))
        return "".join(p.text for p in pieces)

    assert texts(1) == texts(1) != texts(2)
    whole = texts(1)
    question = Question("the", tokens=12, stop=(whole[2:5],), sampling=Sampling(temperature=2.0, seed=1))
    pieces, measured = finish(backend.generate(0, model, question, CancelToken()))
    assert "".join(p.text for p in pieces) == whole[: whole.index(whole[2:5])]
    assert measured.end == "stop"
    with pytest.raises(UserError, match="cache holds 64"):
        finish(backend.generate(0, model, Question("the " * 70), CancelToken()))
    model.close()


def test_cancelled_while_the_configuration_is_read(
    backend: CoreBackend, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may start transformers, which takes seconds and can not be stopped."""
    release, ended = threading.Event(), threading.Event()

    def read(_checkpoint: object) -> None:
        release.wait(10)
        ended.set()

    monkeypatch.setattr("core.runtime.load.decoder_config", read)
    token = CancelToken()
    steps = backend.load(0, Setup(files[0]), token)
    next(steps)
    next(steps)
    token.cancel()
    begin = time.thread_time()
    try:
        with pytest.raises(Cancelled):
            finish(steps)
        assert not ended.is_set(), "it waited for the reading"
        assert time.thread_time() - begin < 0.2
    finally:
        release.set()


def test_cancel_and_unload_leave_nothing(backend: CoreBackend, files: tuple[Path, Path]) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        finish(backend.load(0, Setup(files[0]), token))
    model = load(backend, files[0])
    steps = backend.generate(0, model, Question("the", tokens=50), stop := CancelToken())
    next(steps)
    stop.cancel()
    with pytest.raises(Cancelled):
        finish(steps)
    del steps
    weights = weakref.ref(next(iter(model.loaded.program.steps)).weight)
    gc.disable()  # the window looks for cycles seldom, so there must be none
    try:
        model.close()
        del model
        assert weights() is None
    finally:
        gc.enable()


def test_a_damaged_file_is_refused_with_the_tensors_name(backend: CoreBackend, tmp_path: Path) -> None:
    def cut(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"][:-16]

    path = write_llama(tmp_path / "broken", hidden=128, ffn=256, change=cut)
    with pytest.raises(UserError, match="up_proj"):
        load(backend, path)


def test_shapes_and_sweeps(backend: CoreBackend, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.runtime.sweep.BATCHES", (1, 2, 4))
    monkeypatch.setattr("core.runtime.sweep.BUDGET", 0.0)
    assert backend.shapes((None, None), (None, None)) == ()
    shapes = backend.shapes(files, (None, None))
    assert shapes[0] == Shape("4\u202f096 × 4\u202f096, Q8_0", "Q8_0", 4096, 4096)
    assert Shape("128 × 256, Q8_0", "Q8_0", 128, 256) in shapes
    assert shapes[-1].decode
    model = load(backend, files[1], 1)
    assert set(backend.shapes(files, (None, model))) == set(shapes)  # the header says what the loaded model has
    model.close()
    assert backend.shapes((files[0], None), (None, None))[0].format == "Q4_K"
    for shape in (Shape("128 × 256, Q8_0", "Q8_0", 128, 256), shapes[-1]):
        order = SweepOrder(shape, files, context=16)
        points, sweep = finish(backend.sweep(order, CancelToken()))
        assert len(points) == len(sweep.points) >= 6
        assert all(p.seconds > 0 for p in points)
        assert len(sweep.traffic) == 3
        backend.store(SweepEntry(order, sweep))
    assert [r.kind for r in backend.history()] == ["sweep", "sweep"]
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        finish(backend.sweep(SweepOrder(shapes[-1], files, 16), token))
    with pytest.raises(UserError, match="two files"):
        finish(backend.sweep(SweepOrder(shapes[-1], (files[0], None), 16), CancelToken()))
