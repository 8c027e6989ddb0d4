"""Which of llama.cpp's text splitters does what a tokenizer.json's pre-tokenizer does.

llama.cpp knows splitters by name (`tokenizer.ggml.pre`) and carries the regular expression for each. The name is found
here from the steps that tokenizer.json spells out, not from the model's name, so that a fine-tune with another name
is recognised and one with a changed splitter is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import UserError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _either(*alternatives: str) -> str:
    return "|".join(alternatives)


def _cased(suffix: str, digits: str) -> str:
    return _either(
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{suffix}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{suffix}",
        digits,
        _SYMBOLS_SLASH,
        _SPACES,
    )


# The expression of a Split step that is followed by ByteLevel without one of its own → llama.cpp's name.
# Sources: the tokenizer.json of Llama 3, Qwen 2, Qwen 3.5, Mistral Nemo (tekken) and GPT-4o (Phi-4-mini, Llama 4).
_LLAMA3 = _either(_CONTRACTIONS, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACES)
_QWEN2 = _either(_CONTRACTIONS, _WORD, r"\p{N}", _SYMBOLS, _SPACES)
_QWEN35 = _either(
    _CONTRACTIONS,
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    _SPACES,
)
_SPLITS = {
    _QWEN2: "qwen2",
    _QWEN35: "qwen35",
    _cased("", r"\p{N}"): "tekken",
    _cased(_CONTRACTIONS + "?", r"\p{N}{1,3}"): "gpt-4o",
}

# GPT-2's own, as a Split step instead of ByteLevel's built-in one.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPLITS[_GPT2] = "gpt-2"
_SPLITS[_either(_CONTRACTIONS, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES)] = "seed-coder"

# Other spellings of the same, by tiktoken's newer expressions and Seed-Coder: what a possessive quantifier gives back
# could not go on matching here, and [\r\n]+ at the end of \s* finds no more than [\r\n].
_SPELLINGS = (
    (r"'(?i:[sdmt]|ll|ve|re)", _CONTRACTIONS),
    ("?+", "?"),
    ("++", "+"),
    (r"\s*[\r\n]|", r"\s*[\r\n]+|"),
    (r"\p{N}{1}|", r"\p{N}|"),
    ("\r", r"\r"),
    ("\n", r"\n"),
)

# Splitters of several Split steps one after the other, in llama.cpp's table of expressions. 'Digits' stands for that
# step with each digit alone. Sources: the tokenizer.json of DeepSeek LLM and Coder, DeepSeek V3, Viking.
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CHAINS = {
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, "Digits"): "deepseek-coder",
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
    ): "deepseek-v3",
    (" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", "Digits"): "viking",
}

# The other way round, for reading GGUF: name → the expressions that are applied one after the other. Names that other
# converters write for the same splitting, and splitters that only old files have, are added from llama.cpp's table.
_DIGIT = r"\p{N}"
_BY_NAME: dict[str, tuple[str, ...]] = {
    **{name: (expression,) for expression, name in _SPLITS.items()},
    **{name: tuple(_DIGIT if step == "Digits" else step for step in chain) for chain, name in _CHAINS.items()},
    "llama-bpe": (_LLAMA3,),
    "dbrx": (_LLAMA3,),
    "smollm": (_DIGIT, _GPT2),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "bailingmoe": (_either(_CONTRACTIONS, _WORD, _DIGIT, _SYMBOLS, r"\s*[\r\n]|\s+(?!\S)|\s+"),),
    "poro-chat": (" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",),
}
_ALIASES = {
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "dbrx": "smaug-bpe chatglm-bpe glm4 glm5",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
    "gpt-4o": "llama4 kanana2 talkie minimax-m2",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "gpt-2": "phi-2 gigachat a.x-4.0 mellum modern-bert mpt olmo jais exaone4 trillion granite-docling",
    "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
    "bailingmoe": "bailingmoe2 llada-moe",
    "poro-chat": "bloom gpt3-finnish",
}
_NAMED = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_WHOLE_WORDS = {"llama-bpe", "tekken", "glm4", "glm5", *_ALIASES["llama-bpe"].split()}


def split_expressions(name: str) -> tuple[str, ...]:
    """The regular expressions of llama.cpp's splitter `name`, each isolating its matches in what the last one left.

    Raises UserError when the name is not known: text split in another way would reach the model as other tokens.
    """
    found = _BY_NAME.get(_NAMED.get(name, name))
    if found is None:
        raise UserError(
            f"The file splits text by a rule that is not known here ({name[:40]!r}).",
            "Look for a newer Bitsmith, or for the same model as a folder with tokenizer.json.",
        )
    return found


def takes_whole_words(name: str) -> bool:
    """Whether a word that is a token is taken before any merges, as Llama 3, GLM-4 and tekken files ask for."""
    return name in _WHOLE_WORDS


_UNKNOWN_HINT = "Choose a safetensors target, or convert with a newer version of Bitsmith."


def detect_pre_tokenizer(tokenizer: Mapping[str, Any]) -> str:
    """llama.cpp's name for the splitter of a byte-level BPE tokenizer.json. Raises UserError when it has none."""
    steps = _steps(tokenizer.get("pre_tokenizer"))
    kinds = [step.get("type") for step in steps]
    if kinds and kinds[-1] == "ByteLevel" and not steps[-1].get("add_prefix_space", False):
        own_regex = steps[-1].get("use_regex", True)
        if own_regex and kinds == ["ByteLevel"]:
            return "gpt-2"
        if own_regex and kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
            return "smollm"
        if not own_regex and len(kinds) > 2:
            chain = tuple(_chained(step) for step in steps[:-1])
            if chain in _CHAINS:
                return _CHAINS[chain]
        if not own_regex and kinds == ["Split", "ByteLevel"]:
            expression = _canonical(_expression(steps[0]))
            if expression == _LLAMA3:
                # One splitting under two names: the first also takes whole words that are tokens before it merges.
                return "llama-bpe" if (tokenizer.get("model") or {}).get("ignore_merges") else "dbrx"
            if expression in _SPLITS:
                return _SPLITS[expression]
    shown = " → ".join(str(k) for k in kinds) or "none"
    raise UserError(f"llama.cpp has no equivalent of this tokenizer's text splitting ({shown}).", _UNKNOWN_HINT)


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if not pre_tokenizer:
        return []
    if pre_tokenizer.get("type") != "Sequence":
        return [pre_tokenizer]
    return [step for item in pre_tokenizer.get("pretokenizers", []) for step in _steps(item)]


def _canonical(expression: str) -> str:
    for other, ours in _SPELLINGS:
        expression = expression.replace(other, ours)
    return expression


def _chained(step: Mapping[str, Any]) -> str:
    if step.get("type") == "Digits" and step.get("individual_digits"):
        return "Digits"
    isolates = step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
    return _expression(step).replace("\r", r"\r").replace("\n", r"\n") if isolates else ""


def _expression(step: Mapping[str, Any]) -> str:
    """The step's regular expression when it isolates matches, as all known ones do; '' otherwise."""
    pattern = step.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    if not isinstance(regex, str):
        return ""
    # 'Removed' with invert keeps the matches and drops what is between: the same, as the expressions match everything.
    isolates = step.get("behavior") == "Isolated" or (step.get("behavior") == "Removed" and step.get("invert"))
    return regex if isolates else ""
