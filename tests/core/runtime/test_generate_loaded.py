"""Generation by the real engine: a tiny made-up model for the rules, SmolLM2 for the words."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.progress import CancelToken
from core.runtime.arithmetic import ARITHMETICS
from core.runtime.generate import Finish, GenerateRequest, GenerationResult, generate, generate_batch, warm_up
from core.runtime.load import LoadedModel, load
from core.runtime.sampling import Sampling
from core.runtime.speed import BenchSettings, measure
from core.runtime.tokenizer import Message

PROMPTS = ["the heat", "", "🙂", "x" * 90, "a b c"]


def drive(job: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    seen = []
    while True:
        try:
            seen.append(next(job))
        except StopIteration as stop:
            return seen, stop.value


def run(model: LoadedModel, prompt: str = "the heat", **more: Any) -> GenerationResult:
    return drive(generate(model, GenerateRequest(prompt=prompt, **more)))[1]


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[LoadedModel]:
    with open_checkpoint(path) as checkpoint:
        model = load(checkpoint, **options)
        try:
            yield model
        finally:
            model.unload()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny") / "model", hidden=64, heads=4, kv_heads=2, ffn=96)


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Iterator[LoadedModel]:
    with opened(folder, capacity=128, sequences=len(PROMPTS), threads=2, arithmetic=ARITHMETICS["exact"]) as model:
        yield model


def test_a_batch_of_mixed_lengths_says_what_each_says_alone(tiny: LoadedModel) -> None:
    requests = [
        GenerateRequest(prompt=p, max_tokens=n, ignore_end=True)
        for p, n in zip(PROMPTS, (9, 30, 1, 38, 20), strict=True)
    ]
    events, results = drive(generate_batch(tiny, requests))
    for number, (request, result) in enumerate(zip(requests, results, strict=True)):
        alone = drive(generate(tiny, request))[1]
        assert result.tokens == alone.tokens
        assert result.text == alone.text
        assert [e.token for n, e in events if n == number] == list(result.tokens)


def test_the_last_place_of_the_cache(tiny: LoadedModel) -> None:
    ids = tuple(range(2, 102))
    result = drive(generate(tiny, GenerateRequest(tokens=ids, max_tokens=29, ignore_end=True)))[1]
    assert (result.finish, len(result.tokens)) == (Finish.LENGTH, 29)
    with pytest.raises(UserError, match="take 129 places, but the cache holds 128"):
        drive(generate(tiny, GenerateRequest(tokens=ids, max_tokens=30)))
    filled = drive(generate(tiny, GenerateRequest(tokens=ids, max_tokens=None, ignore_end=True)))[1]
    assert filled.finish is Finish.CAPACITY
    assert filled.tokens == result.tokens


def test_seeds(tiny: LoadedModel) -> None:
    def text(seed: int, **more: Any) -> tuple[int, ...]:
        sampling = Sampling(temperature=2.0, seed=seed, **more)
        return run(tiny, max_tokens=20, ignore_end=True, sampling=sampling).tokens

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(5)}) > 1
    greedy = run(tiny, max_tokens=20, ignore_end=True).tokens
    assert text(1, top_k=1) == greedy == text(7, min_p=1.0)


def test_repetition_is_punished(tiny: LoadedModel) -> None:
    plain = run(tiny, max_tokens=40, ignore_end=True).tokens
    other = run(tiny, max_tokens=40, ignore_end=True, sampling=Sampling(repetition=50.0)).tokens
    assert len(set(other)) > len(set(plain))


def test_details_do_not_change_the_text(tiny: LoadedModel) -> None:
    events, result = drive(generate(tiny, GenerateRequest(prompt="the", max_tokens=5, details=True)))
    assert result.tokens == run(tiny, "the", max_tokens=5).tokens
    assert all(e.logprob < 0 <= e.margin for e in events)


def test_cancelled_and_used_again(tiny: LoadedModel) -> None:
    expected = run(tiny, max_tokens=10, ignore_end=True).tokens
    token = CancelToken()
    job = generate(tiny, GenerateRequest(prompt="the heat", max_tokens=100, ignore_end=True), token)
    for _ in range(5):
        next(job)
    token.cancel()
    result = drive(job)[1]
    assert result.finish is Finish.CANCELLED
    assert result.tokens == expected[: len(result.tokens)]
    assert run(tiny, max_tokens=10, ignore_end=True).tokens == expected


def test_a_thousand_generations_do_not_grow(tiny: LoadedModel) -> None:
    def some(count: int) -> int:
        for number in range(count):
            run(tiny, PROMPTS[number % 3], max_tokens=2, stop=("zzz",), ignore_end=True)
        gc.collect()
        return psutil.Process().memory_info().rss

    before = some(200)
    assert some(1000) - before < 4 << 20


def test_two_models_at_once(folder: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other", hidden=128, seed=1)
    with opened(folder, capacity=64) as first, opened(other, capacity=64) as second:
        expected = [run(model, max_tokens=8, ignore_end=True).tokens for model in (first, second)]
        assert expected[0] != expected[1]
        jobs = [generate(m, GenerateRequest("the heat", max_tokens=8, ignore_end=True)) for m in (first, second)]
        for _ in range(8):  # a token of each in turn
            for job in jobs:
                next(job)
        assert [drive(job)[1].tokens for job in jobs] == expected


def test_unloading_gives_the_memory_back(tmp_path: Path) -> None:
    """An allocator keeps some, now more, now less, and uses it again; twelve models that were kept would show."""
    path = write_llama(tmp_path / "big", hidden=512, ffn=2048, layers=2, heads=8)
    left = []
    for _ in range(13):
        with opened(path, capacity=64) as model:
            warm_up(model)
            weights = model.weight_bytes
        with pytest.raises(RuntimeError, match="unloaded"):
            _ = model.engine
        gc.collect()
        left.append(psutil.Process().memory_info().rss)
    assert weights > 12e6
    assert left[-1] - left[0] < 4 * weights


def test_speed_of_the_real_engine(tiny: LoadedModel) -> None:
    results = drive(measure([tiny], BenchSettings(64, 8, runs=2)))[1]
    (result,) = results
    assert result.decode_tokens_per_s > 0
    assert result.bytes_per_token > 0
    assert {use.op for use in result.kernels}
    assert all(use.kernel and use.isa and use.reason for use in result.kernels)


@pytest.mark.interop
def test_smollm2_knows_the_capital_of_france(smollm2_folder: Path, smollm2_gguf: Path) -> None:
    chat = (Message("system", "You are a helpful assistant."), Message("user", "What is the capital of France?"))
    for path in (smollm2_folder, smollm2_gguf):
        with opened(path, capacity=128) as model:
            events, result = drive(generate(model, GenerateRequest(messages=chat, max_tokens=20, details=True)))
            assert "Paris" in result.text
            assert result.finish is Finish.EOS
            assert "".join(event.text for event in events) == result.text
