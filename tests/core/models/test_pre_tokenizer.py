"""Text splitters are recognised by what they do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models
from tokenizers import pre_tokenizers as pre

from core.errors import UserError
from core.models.pre_tokenizer import detect_pre_tokenizer

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# From the tokenizer.json of Mistral Nemo.
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = TEKKEN.replace("]+|[^", "]+" + CONTRACTIONS + "?|[^", 1).replace(
    r"]*|\p{N}|", "]*" + CONTRACTIONS + r"?|\p{N}{1,3}|"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
GPT2_EXPRESSION = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SEED = QWEN2.replace(r"\p{N}|", r"\p{N}{1}|", 1).replace(r"[^\s\p{L}\p{N}]+[\r\n]*", "[^\\s\\p{L}\\p{N}\r\n]+")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre.ByteLevel(add_prefix_space=False, use_regex=True)


def saved(steps: pre.PreTokenizer, ignore_merges: bool = False) -> dict[str, Any]:
    """What the tokenizers library writes for these steps."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = steps
    return json.loads(tokenizer.to_str())


def split(expression: str) -> pre.PreTokenizer:
    return pre.Sequence([pre.Split(Regex(expression), "isolated"), BYTES])


def splits(*expressions: str, digits: bool = False) -> pre.PreTokenizer:
    """One Split after the other, then perhaps each digit alone, then bytes."""
    last = [pre.Digits(individual_digits=True), BYTES] if digits else [BYTES]
    return pre.Sequence([*(pre.Split(Regex(e), "isolated") for e in expressions), *last])


@pytest.mark.parametrize(
    ("steps", "ignore_merges", "name"),
    [
        (split(LLAMA3), True, "llama-bpe"),
        (split(LLAMA3), False, "dbrx"),
        (split(QWEN2), False, "qwen2"),
        (split(QWEN35), False, "qwen35"),
        (split(TEKKEN), False, "tekken"),
        (split(GPT4O), False, "gpt-4o"),
        (GPT2, False, "gpt-2"),
        (split(GPT2_EXPRESSION), False, "gpt-2"),
        (split(CL100K), False, "dbrx"),
        (split(SEED), False, "seed-coder"),
        (splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, digits=True), False, "deepseek-coder"),
        (splits(r"\p{N}{1,3}", KANA, DEEPSEEK3), False, "deepseek-v3"),
        (pre.Sequence([pre.Digits(individual_digits=True), GPT2]), False, "smollm"),
        (pre.Sequence([pre.Split(Regex(QWEN2), "removed", invert=True), BYTES]), False, "qwen2"),
        (pre.Sequence([pre.Sequence([pre.Split(Regex(QWEN2), "isolated")]), BYTES]), False, "qwen2"),
    ],
)
def test_known_splitters(steps: pre.PreTokenizer, ignore_merges: bool, name: str) -> None:
    assert detect_pre_tokenizer(saved(steps, ignore_merges)) == name


@pytest.mark.parametrize(
    "steps",
    [
        split(LLAMA3.replace("{1,3}", "{1,4}")),
        pre.Sequence([pre.Split(Regex(LLAMA3), "merged_with_next"), BYTES]),
        pre.Sequence([pre.Split(LLAMA3, "isolated"), BYTES]),  # a plain string, not an expression
        pre.Sequence([pre.Split(Regex(QWEN2), "isolated"), GPT2]),
        pre.Sequence([pre.Digits(individual_digits=False), GPT2]),
        pre.Sequence([pre.Punctuation(), GPT2]),
        splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK),
        splits(KANA, r"\p{N}{1,3}", DEEPSEEK3),
        pre.ByteLevel(add_prefix_space=True),
        pre.Whitespace(),
        pre.Metaspace(),
    ],
)
def test_changed_splitters_are_not_taken_for_known_ones(steps: pre.PreTokenizer) -> None:
    with pytest.raises(UserError) as caught:
        detect_pre_tokenizer(saved(steps))
    assert caught.value.hint


def test_no_splitter_at_all() -> None:
    with pytest.raises(UserError, match="none"):
        detect_pre_tokenizer({"pre_tokenizer": None, "model": {"type": "BPE"}})


def test_other_spellings_split_alike() -> None:
    text = "I'VE 12345 apples…\n\n  \r\n x\t'll don't!?\n /a b  c\u3000d  "
    ours, other = (Tokenizer(models.BPE()) for _ in range(2))
    ours.pre_tokenizer, other.pre_tokenizer = pre.Split(Regex(LLAMA3), "isolated"), pre.Split(Regex(CL100K), "isolated")
    assert ours.pre_tokenizer.pre_tokenize_str(text) == other.pre_tokenizer.pre_tokenize_str(text)
