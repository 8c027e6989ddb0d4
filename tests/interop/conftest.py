"""Conversions, each made once a run, and what the source model itself says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from interop.cases import PROMPTS, QUESTION, Converted, Source, bitsmith

from core.targets import find_target


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Converted]:
    """converted(source, target) → Converted."""
    folder = tmp_path_factory.mktemp("converted")
    made: dict[tuple[Path, str], Converted] = {}

    def convert(source: Path, target: str) -> Converted:
        key = (source, target)
        if key not in made:
            path = folder / (f"{source.stem}-{target}" + ("" if find_target(target).is_folder else ".gguf"))
            plan = bitsmith("plan", source, "--to", target)
            made[key] = Converted(path, plan, bitsmith("convert", source, "--to", target, "-o", path))
        return made[key]

    return convert


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
