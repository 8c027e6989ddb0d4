"""llama.cpp loads what we write, and it goes on as the source model does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from interop.cases import QUESTION, Converted, Source
from interop.llama import Llama

pytestmark = pytest.mark.interop
Convert = Callable[[Path, str], Converted]

# Mean |Δ log-probability| of the source's three likeliest next tokens over PROMPTS, in nats. BF16 is the same model, so
# its budget is what the arithmetic of two programs differs by. This small model is touchy: with Q8_0 the weights alone
# move it by 0.07, and llama.cpp's 8-bit activations by as much again.
BUDGETS = {"BF16": 0.05, "Q8_0": 0.2, "Q6_K": 0.3, "Q5_K_M": 0.6, "Q4_K_M": 0.9, "IQ4_XS": 1.3}

GEMMA_PROMPTS = (
    "One, two, three, four, five, six, seven,",
    "Paris is the capital of France. Rome is the capital of Italy. Madrid is the capital of",
    "The sun rises in the east and sets in the",
    "Monday, Tuesday, Wednesday,",
)


def likeliest(logprobs: list[float]) -> dict[int, float]:
    """The three likeliest tokens of a whole vocabulary's log-probabilities."""
    return {token: logprobs[token] for token in sorted(range(len(logprobs)), key=logprobs.__getitem__)[-3:]}


def difference(llama: Llama, wanted: dict[str, dict[int, float]]) -> float:
    """Mean |Δ log-probability| over the tokens named for each prompt; one below the first 200 counts as −20."""
    total = []
    for prompt, tokens in wanted.items():
        got = llama.logprobs(prompt, top=200)
        total += [abs(want - got.get(token, -20.0)) for token, want in tokens.items()]
    return sum(total) / len(total)


@pytest.mark.parametrize("target", BUDGETS)
def test_continues_as_the_source_does(target: str, converted: Convert, smollm2_folder: Path, source: Source) -> None:
    made = converted(smollm2_folder, target)
    assert made.path.stat().st_size == made.plan["bytes_total"] == made.run["actual_bytes"]
    llama = Llama(made.path)
    found = difference(llama, {prompt: likeliest(all_) for prompt, all_ in source.logprobs.items()})
    print(f"{target}: mean |Δ log p| {found:.4f} nats")
    assert found < BUDGETS[target]
    answer = llama.complete(QUESTION, 12)
    assert "Paris" in answer
    if target == "BF16":
        assert answer == source.answer


@pytest.mark.parametrize("target", ["BF16", "Q4_K_M"])
def test_the_chat_template_came_along(target: str, converted: Convert, smollm2_folder: Path) -> None:
    llama = Llama(converted(smollm2_folder, target).path)
    assert "Paris" in llama.chat("What is the capital of France?", 12, system="You are a helpful assistant.")


@pytest.mark.parametrize("target", ["Q8_0", "Q4_K_M"])
def test_a_gguf_as_source(target: str, converted: Convert, smollm2_gguf: Path) -> None:
    """The sample is Q4_1 already: its conversion goes on as itself, byte-level tokenizer and template included."""
    made = converted(smollm2_gguf, target)
    assert made.path.stat().st_size == made.plan["bytes_total"] == made.run["actual_bytes"]
    want, got = Llama(smollm2_gguf), Llama(made.path)
    assert "Paris" in got.complete(QUESTION, 12)
    assert "Paris" in want.complete(QUESTION, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "budget"), [("Q8_0", 0.2), ("Q4_K_M", 0.01), ("IQ4_XS", 0.8)])
def test_gemma(target: str, budget: float, converted: Convert, gemma3_gguf: Path) -> None:
    """262,144 tokens, SentencePiece, norms with an offset. The source is Q4_K_M, so that target copies every tensor."""
    made = converted(gemma3_gguf, target)
    assert made.path.stat().st_size == made.plan["bytes_total"] == made.run["actual_bytes"]
    want, got = Llama(gemma3_gguf), Llama(made.path)
    found = difference(got, {prompt: want.logprobs(prompt, 3) for prompt in GEMMA_PROMPTS})
    print(f"{target}: mean |Δ log p| {found:.4f} nats")
    assert found < budget
    assert got.complete(GEMMA_PROMPTS[0], 3) == want.complete(GEMMA_PROMPTS[0], 3)
