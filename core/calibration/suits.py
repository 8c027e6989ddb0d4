"""Whether a calibration text is of a kind that the model was made for: its words, its script, and programs."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from core.calibration.remarks import Coverage
from core.checkpoint.base import Checkpoint
from core.runtime.tokenizer import Text
from core.runtime.tokenizer.vocabulary import byte_of
from core.units import format_percent
from resources import read_text

LOOKED_AT = 400_000  # characters, of which lines and letters are counted
ORDINARY = 8_000  # characters of the bundled prose that a vocabulary is measured on
# Of bytes a token of ordinary text. Measured: programs 0.8 (SmolLM2, Gemma), Chinese in Gemma's vocabulary 0.75;
# Russian in SmolLM2's 0.57, Chinese in it 0.43.
LEAST_RATIO = 0.6
UNKNOWN = 0.02  # of tokens that the vocabulary has no piece for; ordinary text has a few in ten thousand
BYTES_PER_TOKEN = 2.0  # below: prose has 3 to 5 in every language that the vocabulary knows, code and tables 2.5 to 3.5
PARTS = 0.10  # of tokens that are parts of letters; the bundled chats, with emoji and all alphabets, have 0.03
MOSTLY = 0.5  # of letters
LEAST_CODE = 0.05  # of lines; prose and articles of the bundled text have 0.003 and less, its chats 0.1, programs 0.7
SCRIPTS = {"CJK": "Chinese characters", "HIRAGANA": "Japanese letters", "KATAKANA": "Japanese letters"}
JUDGED = "Latin letters"  # of the text that a verdict is measured on where nobody chooses another

# What stands in lines of programs and hardly ever in prose. A verse may end in a semicolon.
_CODE = re.compile(
    r"""^\s*(?:def\ \w+\(|class\ \w+[:({]|import\ \w|from\ [\w.]+\ import|\#include|return\b.*[;)\w]$|elif\b.*:$
        |(?:if|for|while|switch)\ ?\(|(?:if|for|while)\b.*:$|else\s*[:{]$
        |(?:public|private|static|const|let|var|fn|func|package|using)\ \w|@\w+|//|/\*|\}|[\])]+[;,]?$)
    |[)\]}];$|[{}]$|==|!=|->|=>|::|\(\)|\+=|\w\[\w+\]|^\s+\w+(?:\.\w+)*\s=\s|\w\(.*\):$|\w\([^()\s]*\)$""",
    re.VERBOSE,
)
_MAKERS_OF_CODE = frozenset(("starcoder", "starcoder2", "gpt_bigcode", "codegen", "codeshell", "refact"))
_NAMES_OF_CODE = re.compile(r"^(?:code(?!c|x?book).*|.*coder\d*|codestral|devstral|.*starcoder\d*)$")
# Mark a gap to be filled in a program. Sources: StarCoder, Qwen2.5-Coder, DeepSeek-Coder, CodeLlama, Codestral.
_GAPS = ("<fim_prefix>", "<|fim_prefix|>", "<\uff5cfim\u2581begin\uff5c>", "\u2581<PRE>", "[PREFIX]")
# Families of which every model has them, whatever it was made for.
_SHARED_GAPS = ("qwen", "deepseek", "mistral", "glm")


@dataclass
class Looked:
    """Counts over text that goes by; `look` at each piece of it."""

    lines: int = 0
    code_lines: int = 0
    letters: Counter[str] = field(default_factory=Counter)  # character → how often
    read: int = 0

    def look(self, text: str) -> None:
        """Counts of the text, while LOOKED_AT is not reached."""
        text = text[: max(LOOKED_AT - self.read, 0)]
        self.read += len(text)
        self.letters.update(text)
        for line in text.splitlines():
            if line := line.rstrip():
                self.lines += 1
                self.code_lines += bool(_CODE.search(line))

    @property
    def code_share(self) -> float:
        """Of lines that look like those of a program."""
        return self.code_lines / max(self.lines, 1)

    def script(self) -> tuple[str, float]:
        """The most frequent script of its letters, as people call it, and its share; ('', 0) without letters."""
        found: Counter[str] = Counter()
        for letter, count in self.letters.items():
            if letter.isalpha():
                word = unicodedata.name(letter, "OTHER").split(" ", 1)[0]
                found[SCRIPTS.get(word, f"{word.capitalize()} letters")] += count
        if not found:
            return "", 0.0
        name, count = found.most_common(1)[0]
        return name, count / found.total()


def about_vocabulary(looked: Looked, coverage: Coverage, text: Text, own: bool) -> list[str]:
    """Where the vocabulary has few words of the text, or not even its letters. own: of the user's own, which is held
    against the bundled text, too."""
    script, share = looked.script()
    where = f" The text is mostly in {script}." if share > MOSTLY and script != JUDGED else ""
    advice = "Choose text in a language that the model was made for."
    unknown = _share(coverage.ids, lambda token: _is_unknown(text, token))
    parts = _share(coverage.ids, lambda token: not _is_whole(text, token))
    if unknown > UNKNOWN or parts > PARTS:
        missing = format_percent(max(unknown, parts))
        words = (
            f"{missing} of the tokens are parts of letters that the model's vocabulary does not have.{where} {advice}"
        )
        return [words]
    least, usual = BYTES_PER_TOKEN, "where 3 to 5 are usual"
    if own:
        ordinary = ordinary_bytes(text)
        if LEAST_RATIO * ordinary > least:
            least, usual = LEAST_RATIO * ordinary, f"and for {ordinary:.1f} of ordinary English"
    if coverage.bytes_per_token >= least:
        return []
    reason = "has few of its words" if where else "does not fit it, or it is mostly digits and signs"
    found = f"A token stands for {coverage.bytes_per_token:.1f} bytes of the text, {usual}"
    return [f"{found}: the model's vocabulary {reason}.{where} {advice}"]


def about_script(looked: Looked) -> list[str]:
    """Where a verdict would be measured on another script than what the numbers are chosen for."""
    script, share = looked.script()
    if share <= MOSTLY or script == JUDGED:
        return []
    words = f"The text is mostly in {script}, and quality is measured on English text where none is chosen."
    return [f"{words} Measure it on one like this: page Test, Quality, or bitsmith eval --text."]


def about_code(looked: Looked, checkpoint: Checkpoint, text: Text) -> list[str]:
    """Where a model was made for programs and the text has none."""
    why = code_evidence(checkpoint, text)
    if not why or looked.code_share >= LEAST_CODE:
        return []
    return [f"The model seems to be made for programs ({why}), and the text has none. Add source code to the text."]


def code_evidence(checkpoint: Checkpoint, text: Text) -> str:
    """What says that a model was made for programs; '' where nothing does."""
    if checkpoint.architecture.lower() in _MAKERS_OF_CODE:
        return f"its architecture is {checkpoint.architecture}"
    known = checkpoint.metadata
    for name in (known.get("general.name"), known.get("_name_or_path"), checkpoint.path.stem):
        words = re.split(r"[^a-z0-9]+", str(name or "").lower())
        if any(_NAMES_OF_CODE.match(word) for word in words):
            return f"its name is {str(name).rsplit('/', 1)[-1]}"
    gap = next((name for name in _GAPS if text.vocabulary.find(name) is not None), "")
    if gap and not checkpoint.architecture.lower().startswith(_SHARED_GAPS):
        return f"its vocabulary has {gap}, for gaps in programs"
    return ""


def ordinary_bytes(text: Text) -> float:
    """Bytes that a token stands for in the bundled prose."""
    prose = read_text("text/prose.txt")[:ORDINARY]
    return len(prose.encode()) / max(len(text.encode(prose, add_special=False)), 1)


def _share(ids: np.ndarray, holds: Callable[[int], bool]) -> float:
    distinct, counts = np.unique(ids, return_counts=True)
    return sum(int(n) for i, n in zip(distinct, counts, strict=True) if holds(int(i))) / max(ids.size, 1)


def _is_whole(text: Text, token: int) -> bool:
    """Whether a token is whole characters; vocabularies of bytes write in parts what they have no piece for."""
    if token in text.vocabulary.special:
        return True
    try:
        text.vocabulary.piece(token).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_unknown(text: Text, token: int) -> bool:
    """The unknown token, or a byte of a letter without a piece; bytes of ASCII are line ends and the like."""
    byte = byte_of(text.vocabulary.token_text(token)) if token not in text.vocabulary.special else None
    if byte is None and token == text.ids.unk and token not in (text.ids.bos, text.ids.eos, text.ids.pad):
        return True
    return byte is not None and byte >= 0x80
