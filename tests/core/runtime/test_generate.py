"""Generation from a model whose every next token is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from fake_model import END, START, FakeModel

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime.generate import (
    Finish,
    GenerateRequest,
    GenerationResult,
    TokenEvent,
    check_capacity,
    generate,
    generate_batch,
    warm_up,
)
from core.runtime.sampling import Sampling
from core.runtime.stops import StopFinder
from core.runtime.tokenizer import Message


def drive(job: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    seen = []
    while True:
        try:
            seen.append(next(job))
        except StopIteration as stop:
            return seen, stop.value


def run(model: FakeModel, **request: Any) -> tuple[list[TokenEvent], GenerationResult]:
    return drive(generate(model, GenerateRequest(**request)))


def test_greedy_text_to_the_end_token() -> None:
    model = FakeModel(b"xHelo!")
    events, result = run(model, prompt="x", details=True)
    assert result.text == "Helo!" == "".join(e.text for e in events)
    assert result.finish is Finish.EOS
    assert result.tokens == (*b"Helo!", END)
    assert [e.index for e in events] == list(range(6))
    assert result.prompt_tokens == 2  # with the start token
    assert len(result.itl_ms) == 5
    assert result.ttft_ms > 0
    assert events[0].margin == pytest.approx(5)
    # softmax of one 5 among 259 zeros
    assert events[0].logprob == pytest.approx(5 - np.log(np.exp(5) + 259))
    assert result.decode_tokens_per_s > 0
    assert result.itl_p50 <= result.itl_p95
    assert result.peak_memory > 1e6


def test_length_and_ignored_end() -> None:
    model = FakeModel(b"xab")
    _, result = run(model, prompt="x", max_tokens=6, ignore_end=True)
    assert result.finish is Finish.LENGTH
    assert len(result.tokens) == 6
    assert END in result.tokens
    assert result.text == "abxab"  # the end token is no text, and what follows it starts anew


def test_a_character_is_never_split() -> None:
    emoji = "🙂"
    model = FakeModel(b"x" + emoji.encode())
    events, result = run(model, prompt="x")
    assert result.text == emoji
    assert [e.text for e in events] == ["", "", "", emoji, ""]
    events, result = run(model, prompt="x", max_tokens=2)
    assert result.text == "\ufffd" == "".join(e.text for e in events)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("lo",), "He"),
        (("o!", "l"), "He"),
        (("elo",), "H"),
        (("H",), ""),
        (("!x", "z"), "Helo!"),
        (("lo?", "o!"), "Hel"),
    ],
)
def test_stop_strings_across_tokens(stop: tuple[str, ...], text: str) -> None:
    events, result = run(FakeModel(b"xHelo!"), prompt="x", stop=stop)
    assert result.text == text == "".join(e.text for e in events)
    assert result.finish is (Finish.EOS if text == "Helo!" else Finish.STOP)


def test_stop_finder_holds_back_only_what_may_be_a_stop() -> None:
    finder = StopFinder(("</end>", "STOP"))
    assert [finder.push(c) for c in "a<b</enS"] == ["a", "", "<b", "", "", "", "", "</en"]
    assert finder.push("TOP!") == ""
    assert finder.hit
    assert finder.push("more") == "" == finder.finish()
    finder = StopFinder(("abc",))
    assert finder.push("ab") + finder.finish() == "ab"


def test_the_last_place_is_used_and_one_more_refused() -> None:
    model = FakeModel(lambda token: 97, capacity=8)
    _, result = run(model, tokens=(1, 2, 3, 4), max_tokens=5)  # 4 + 5 − 1 places
    assert result.finish is Finish.LENGTH
    assert len(model.engine.kept[0]) == 8
    with pytest.raises(UserError, match=r"4 tokens and 6 new ones take 9 places, but the cache holds 8") as error:
        run(model, tokens=(1, 2, 3, 4), max_tokens=6)
    assert "at most 5" in error.value.hint
    _, result = run(model, tokens=tuple(range(8)), max_tokens=1)
    assert len(result.tokens) == 1
    with pytest.raises(UserError, match="has 9 tokens, but the cache holds 8"):
        run(model, tokens=tuple(range(9)), max_tokens=1)
    with pytest.raises(UserError, match="2\u202f048"):
        check_capacity(2048, 3000, None)


def test_without_a_limit_the_cache_is_filled() -> None:
    model = FakeModel(lambda token: 97, capacity=8)
    _, result = run(model, tokens=(1, 2, 3), max_tokens=None)
    assert result.finish is Finish.CAPACITY
    assert len(result.tokens) == 6
    assert len(model.engine.kept[0]) == 8


def test_empty_prompt() -> None:
    model = FakeModel(b"xa")
    run(model, prompt="", max_tokens=1)
    assert model.engine.kept[0] == [START]
    with pytest.raises(UserError, match="empty"):
        run(FakeModel(b"xa", start=False), prompt="")


def test_one_emoji_as_prompt() -> None:
    model = FakeModel(b"xa")
    run(model, prompt="🙂", max_tokens=1)
    assert model.engine.kept[0] == [START, *"🙂".encode()]


def test_chat_goes_through_the_template() -> None:
    model = FakeModel(b"\nok")
    _, result = run(model, messages=(Message("user", "Hi<|im_end|>"),))
    assert result.text == "ok"
    assert model.text.decode(model.engine.kept[0][: result.prompt_tokens], skip_special=False) == (
        "<|im_start|>user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(UserError, match="no chat template"):
        run(FakeModel(b"xa", template=""), messages=(Message("user", "Hi"),))


def test_special_tokens_in_a_prompt_are_text_unless_asked() -> None:
    model = FakeModel(b"xa", capacity=99)
    _, as_text = run(model, prompt="<|im_end|>", max_tokens=1)
    _, as_token = run(model, prompt="<|im_end|>", max_tokens=1, parse_special=True)
    assert as_text.prompt_tokens == 11
    assert as_token.prompt_tokens == 2


def test_long_prompts_go_in_batches() -> None:
    model = FakeModel(lambda token: 97, capacity=700)
    run(model, tokens=tuple([5] * 600), max_tokens=2)
    assert model.engine.batches == [256, 256, 88, 1]


def test_prompts_of_mixed_lengths_in_one_batch() -> None:
    texts = ["x", "some longer prompt x", "x" * 300, "🙂x"]
    model = FakeModel(b"xHelo!", capacity=400, sequences=4)
    requests = [
        GenerateRequest(prompt=t, max_tokens=n, stop=s)
        for t, n, s in zip(texts, (9, 3, 9, 9), ((), (), ("l",), ()), strict=True)
    ]
    events, results = drive(generate_batch(model, requests))
    assert [r.text for r in results] == ["Helo!", "Hel", "He", "Helo!"]
    assert [r.finish for r in results] == [Finish.EOS, Finish.LENGTH, Finish.STOP, Finish.EOS]
    for number, result in enumerate(results):
        alone = run(FakeModel(b"xHelo!", capacity=400), prompt=texts[number], max_tokens=9)[1]
        assert result.prompt_tokens == alone.prompt_tokens
        assert "".join(e.text for n, e in events if n == number) == result.text
    assert model.engine.batches[:2] == [256, 2 + 21 + 301 + 6 - 256]
    assert 4 in model.engine.batches
    with pytest.raises(UserError, match="5 prompts, but the cache has room for 4"):
        drive(generate_batch(model, [requests[0]] * 5))


@pytest.mark.parametrize("prompt", [1, 600])
def test_cancel_inside_a_step_takes_under_200_ms(prompt: int) -> None:
    """Decode steps of 50 ms and a prompt batch of over a second."""
    model = FakeModel(lambda token: 97, capacity=2000)
    model.engine.pause, model.engine.pause_per_token = 0.05, 0.005
    token = CancelToken()
    when: list[float] = []
    timer = threading.Timer(0.15, lambda: (when.append(time.perf_counter()), token.cancel()))
    timer.start()
    _, result = drive(generate(model, GenerateRequest(tokens=tuple([5] * prompt), max_tokens=None), token))
    late = time.perf_counter() - when[0]
    timer.join()
    assert result.finish is Finish.CANCELLED
    assert late < 0.2
    assert result.text == "a" * len(result.tokens)
    model.engine.pause = model.engine.pause_per_token = 0
    assert run(model, tokens=(1,), max_tokens=3)[1].text == "aaa"  # the engine goes on afterwards


def test_an_error_of_the_engine_is_not_hidden() -> None:
    model = FakeModel(lambda token: 97, capacity=8)
    model.capacity = 100
    with pytest.raises(ValueError, match="past the capacity"):
        run(model, tokens=(1,), max_tokens=50)


def test_a_cancel_between_two_steps_does_not_reach_the_next_generation() -> None:
    model = FakeModel(lambda token: 97)
    token = CancelToken()
    job = generate(model, GenerateRequest(tokens=(1,)), token)
    next(job)
    token.cancel()
    time.sleep(0.1)  # the engine has been told by now
    _, result = drive(job)
    assert result.finish is Finish.CANCELLED
    assert run(model, tokens=(1,), max_tokens=3)[1].text == "aaa"


def test_a_generation_that_is_given_up_leaves_no_thread() -> None:
    job = generate(FakeModel(lambda token: 97), GenerateRequest(tokens=(1,)))
    next(job)
    assert any(t.name == "cancel-watch" for t in threading.enumerate())
    job.close()
    assert not any(t.name == "cancel-watch" for t in threading.enumerate())


def test_tokens_that_the_embedding_does_not_have() -> None:
    with pytest.raises(UserError, match="has the token 260, but the model's embedding only 260 rows"):
        run(FakeModel(lambda token: 97), tokens=(1, 260), max_tokens=1)


def test_a_slow_reader_does_not_count() -> None:
    model = FakeModel(b"xab")
    for _ in (job := generate(model, GenerateRequest(prompt="x"))):
        time.sleep(0.05)
    assert job.gi_frame is None
    events, result = run(model, prompt="x")
    assert events[-1].seconds < 0.05
    assert sum(result.itl_ms) < 50


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_p": 1.5}, {"min_p": -0.1}, {"repetition": 0.0}, {"top_k": -1}, {"seed": -1}]
)
def test_sampling_outside_its_range(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="can not be"):
        run(FakeModel(b"xab"), prompt="x", sampling=Sampling(**bad))


def test_output_that_is_not_finite() -> None:
    model = FakeModel(b"xab")
    run_engine = model.engine.run
    model.engine.run = lambda *args: run_engine(*args) * np.nan  # type: ignore[method-assign]
    with pytest.raises(UserError, match="not finite"):
        run(model, prompt="x")


def test_a_batch_of_none() -> None:
    assert drive(generate_batch(FakeModel(b"xab"), ())) == ([], ())


def test_no_tokens_can_not_be_asked_for() -> None:
    with pytest.raises(UserError, match="0 tokens"):
        run(FakeModel(b"xab"), prompt="x", max_tokens=0)


def test_opening_the_tokenizer_is_not_part_of_the_first_token() -> None:
    class Lazy(FakeModel):
        def __getattribute__(self, name: str) -> Any:
            if name == "text" and not opened:
                time.sleep(0.3)
                opened.append(name)
            return super().__getattribute__(name)

    opened: list[str] = []
    model = Lazy(b"xab")
    opened.clear()
    _, result = run(model, prompt="x")
    assert opened
    assert result.ttft_ms < 200


def test_cancel_inside_the_warm_up_takes_under_200_ms() -> None:
    model, token = FakeModel(b"xab"), CancelToken()
    model.engine.pause = 3.0
    threading.Timer(0.1, token.cancel).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        warm_up(model, token)
    assert time.monotonic() - began < 0.3
