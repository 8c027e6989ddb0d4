"""Verdicts on packed folders, on models that run through transformers, and what a report says of their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from job_help import convert
from tiny_models import byte_tokens, tokenizer_json, write_llama

from core.checkpoint import open_checkpoint
from core.verdict.evaluate import evaluate
from core.verdict.evaluation import Evaluation
from core.verdict.facts import facts_of, target_of
from core.verdict.settings import EvalSettings, EvalText

TEXT = "A sentence of common words that says nothing of any interest to those who read it. " * 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return write_llama(folder / "source", hidden=128, ffn=256)


def measure(source: Path, artifact: Path, **options: object) -> Evaluation:
    settings = EvalSettings(
        text=EvalText(str(source.parent / "text.txt"), 2, 48), use_cache=False, **{"layers": 8, **options}
    )
    with open_checkpoint(source) as a, open_checkpoint(artifact) as b:
        return evaluate(a, b, settings)


@pytest.mark.parametrize(
    ("target", "label", "contract", "command"),
    [
        ("w4a16-g64", "int4 g64", "one scale for 64 values, symmetric", "vllm serve"),
        ("gptq-4bit-g64-asym", "int4 g64 asymmetric", "one scale for 64 values, with a zero", "from transformers"),
        ("fp8-dynamic", "fp8", "one scale for each row, symmetric", "vllm serve"),
    ],
)
def test_packed_folders(source: Path, tmp_path: Path, target: str, label: str, contract: str, command: str) -> None:
    convert(source, target, tmp_path / "out")
    found = measure(source, tmp_path / "out")
    assert 1e-6 < found.quality.kl_mean.value < 0.2
    assert len(found.layers.layers) == 3
    rows = [row for row in found.artifact.contract if row.format.startswith(label)]
    assert rows, found.artifact.contract
    assert all(row.contract.startswith(contract) for row in rows)
    assert any(c.text.startswith(command) for c in found.serving)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert getattr(target_of(checkpoint), "name", None) == target


def test_plain_sources(source: Path, tmp_path: Path) -> None:
    convert(source, "BF16", tmp_path / "plain.gguf")
    with open_checkpoint(source) as folder, open_checkpoint(tmp_path / "plain.gguf") as file:
        assert getattr(target_of(folder), "name", None) == "hf-bf16"
        assert getattr(target_of(file), "name", None) == "BF16"
        assert {row.contract for row in facts_of(folder).contract} == {"values stand for themselves"}
        assert facts_of(folder).parameters == facts_of(file).parameters
    found = measure(source, tmp_path / "plain.gguf")
    assert found.quality.kl_mean.value < 1e-5
    assert found.layers.layers[-1].mean < 1e-5


def test_models_that_run_through_transformers(tmp_path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Olmo2Config(vocab_size=288, max_position_embeddings=128, pad_token_id=0, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    folders = [tmp_path / "source", tmp_path / "artifact"]
    for folder in folders:
        model.save_pretrained(folder)
        tokens = ["<|start|>", "<|end|>", *byte_tokens(), "Ġt", "he"]
        tokens += [f"<|x{i}|>" for i in range(288 - len(tokens))]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens)), encoding="utf-8")
        settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|start|>", "eos_token": "<|end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    found = measure(folders[0], folders[1], prompts=("The",), new_tokens=3)
    assert found.quality.kl_mean.value > 1e-4
    assert found.layers.layers == ()
    assert "run through transformers" in found.layers.note
    assert len(found.texts) == 1
