"""Whether a text suits a model: scripts, words that the vocabulary has, programs; with values of real vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from core.calibration.remarks import Coverage
from core.calibration.settings import CalibrationText
from core.calibration.suits import Looked, about_code, about_script, about_vocabulary, code_evidence, ordinary_bytes
from core.calibration.text import samples
from core.checkpoint import open_checkpoint
from core.runtime.tokenizer import open_text
from resources import read_text

RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. "
CHINESE = "学而时习之，不亦说乎？有朋自远方来，不亦乐乎？"


def looked(text: str) -> Looked:
    found = Looked()
    found.look(text)
    return found


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("prose.txt", 0, 0.003), ("encyclopaedic.txt", 0, 0.003), ("code.txt", 0.6, 1), ("chat.jsonl", 0.08, 0.2)],
)
def test_programs_are_told_from_prose(name: str, low: float, high: float) -> None:
    text = read_text(f"text/{name}")
    if name.endswith(".jsonl"):
        text = "\n".join(turn["content"] for line in text.splitlines() for turn in json.loads(line)["messages"])
    assert low <= looked(text).code_share <= high


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("ordinary words", "Latin letters"),
        (RUSSIAN, "Cyrillic letters"),
        (CHINESE, "Chinese characters"),
        ("αβγ δ", "Greek letters"),
        ("こんにちは", "Japanese letters"),
        ("12 + 3", ""),
    ],
)
def test_the_script_is_named(text: str, script: str) -> None:
    assert looked(text).script()[0] == script


def test_only_a_text_that_is_mostly_in_another_script_is_said() -> None:
    assert about_script(looked("English words, and да")) == []
    assert about_script(looked("1 2 3")) == []
    (said,) = about_script(looked(RUSSIAN))
    assert said.startswith("The text is mostly in Cyrillic letters, and quality is measured on English text")
    assert "Measure it on one like this" in said


def test_only_the_beginning_is_looked_at() -> None:
    found = Looked()
    for _ in range(6):
        found.look("x = f()\n" * 20_000)
    assert found.read == 400_000
    assert found.lines == 50_000


def vocabulary_of(*names: str) -> SimpleNamespace:
    return SimpleNamespace(vocabulary=SimpleNamespace(find=lambda name: 1 if name in names else None))


def model_named(name: str, architecture: str = "llama", **metadata: str) -> SimpleNamespace:
    return SimpleNamespace(path=Path(name), architecture=architecture, metadata=metadata)


@pytest.mark.parametrize(
    ("model", "gaps", "said"),
    [
        (model_named("Qwen2.5-Coder-1.5B-Instruct", "qwen2"), (), "its name is"),
        (model_named("deepseek-coder-1.3b-q4.gguf"), (), "its name is"),
        (model_named("m", _name_or_path="bigcode/starcoder2-3b"), (), "its name is starcoder2-3b"),
        (model_named("CodeLlama-7b-hf"), (), "its name is"),
        (model_named("m", "starcoder2"), (), "its architecture is starcoder2"),
        (model_named("m"), ("▁<PRE>",), "its vocabulary has"),
        (model_named("Qwen2.5-0.5B", "qwen2"), ("<|fim_prefix|>",), ""),  # all of that family have them
        (model_named("encodec_24khz"), (), ""),
        (model_named("codec-lm"), (), ""),
        (model_named("SmolLM2-135M-Instruct"), (), ""),
    ],
)
def test_what_says_that_a_model_is_for_programs(model, gaps, said: str) -> None:  # type: ignore[no-untyped-def]
    evidence = code_evidence(model, vocabulary_of(*gaps))
    assert evidence.startswith(said)
    assert bool(evidence) == bool(said)
    prose, code = looked("A sentence.\n" * 50), looked("A sentence.\nreturn f(x);\n" * 50)
    assert bool(about_code(prose, model, vocabulary_of(*gaps))) == bool(said)
    assert about_code(code, model, vocabulary_of(*gaps)) == []


# ---- a real vocabulary -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm(smollm2_gguf: Path):  # type: ignore[no-untyped-def]
    return open_checkpoint(smollm2_gguf)


def test_ordinary_text_of_a_real_vocabulary(smollm) -> None:  # type: ignore[no-untyped-def]
    assert 3.8 < ordinary_bytes(open_text(smollm)) < 4.6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (read_text("text/prose.txt")[:20_000], ""),
        (read_text("text/code.txt")[:20_000], ""),
        (RUSSIAN * 80, "has few of its words. The text is mostly in Cyrillic letters."),
        (CHINESE * 80, "of the tokens are parts of letters"),
        ("3.14159 26535 89793\n" * 300, "mostly digits and signs"),
    ],
)
def test_texts_against_a_real_vocabulary(smollm, text: str, said: str) -> None:  # type: ignore[no-untyped-def]
    tokenizer = open_text(smollm)
    ids = np.array([tokenizer.encode(text, add_special=False)], np.int32)
    coverage = Coverage(ids, len(text.encode()) / ids.size, 8, 8)
    found = about_vocabulary(looked(text), coverage, tokenizer, own=True)
    assert (found == []) if not said else (len(found) == 1 and said in found[0]), found


def test_the_bundled_text_suits_a_real_model(smollm) -> None:  # type: ignore[no-untyped-def]
    assert samples(smollm, CalibrationText(samples=16)).warnings == ()


def test_a_text_in_another_language_is_said_once(smollm, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "t.txt"
    path.write_text(RUSSIAN * 400, encoding="utf-8")
    warnings = samples(smollm, CalibrationText(path=str(path), samples=8, length=128)).warnings
    assert sum("Cyrillic" in w for w in warnings) == 1
