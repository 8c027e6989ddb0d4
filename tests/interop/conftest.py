"""Conversions through the command line, each made once a run, and what the source model itself says."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core import cli

ChatML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTION = ChatML.format("What is the capital of France?")
PROMPTS = (
    QUESTION,
    ChatML.format("Name three fruits."),
    "The capital of Italy is",
    "Once upon a time, there was a",
    "In 1969, the first human being walked on the",
    "Water boils at 100 degrees",
    "def add(a, b):\n    return a +",
    "To be, or not to be, that is the",
)


def bitsmith(*words: object) -> dict[str, Any]:
    """Run one command in this process with --json; it must succeed. Returns what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.main([*map(str, words), "--json"])
    assert status == 0, out.getvalue()
    return json.loads(out.getvalue())


@dataclass(frozen=True)
class Converted:
    """A finished conversion: where it is, and the JSON of its plan and its run."""

    path: Path
    plan: dict[str, Any]
    run: dict[str, Any]


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Converted]:
    """converted(source, target) → Converted."""
    folder = tmp_path_factory.mktemp("converted")
    made: dict[tuple[Path, str], Converted] = {}

    def convert(source: Path, target: str) -> Converted:
        key = (source, target)
        if key not in made:
            path = folder / (f"{source.stem}-{target}" + ("" if target.startswith("w") else ".gguf"))
            plan = bitsmith("plan", source, "--to", target)
            made[key] = Converted(path, plan, bitsmith("convert", source, "--to", target, "-o", path))
        return made[key]

    return convert


@dataclass(frozen=True)
class Source:
    """The unconverted model in transformers, in float32: next-token log-probabilities and greedy text by prompt."""

    logprobs: dict[str, list[float]]
    answer: str


@pytest.fixture(scope="session")
def source(smollm2_folder: Path) -> Source:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    logprobs = {}
    with torch.inference_mode():
        for prompt in PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            logprobs[prompt] = model(ids).logits[0, -1].log_softmax(-1).tolist()
        ids = tokenizer(QUESTION, return_tensors="pt").input_ids
        written = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    return Source(logprobs, tokenizer.decode(written, skip_special_tokens=True))
