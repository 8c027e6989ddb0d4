"""A folder's tokenizer as GGUF metadata.

Two kinds: byte-level BPE (GGUF model 'gpt2': tokens, merges, a named text splitter) and SentencePiece ('llama': pieces
with scores, byte pieces). SentencePiece comes as tokenizer.model, or only as tokenizer.json with `byte_fallback`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.models.pre_tokenizer import detect_pre_tokenizer
from core.models.sentencepiece_file import UNIGRAM, read_settings
from core.models.side_files import read_json, read_text

SPACE = "\u2581"  # SentencePiece writes a space so
ADDED_SCORE = -1000.0
PAD_SCORE = -10000.0
_TOKENIZER_HINT = "Choose a safetensors target, which copies the tokenizer as it is."


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Vocabulary:
    """tokens[i], types[i] (and scores[i] for SentencePiece) belong to id i. merges: 'left right', BPE only.

    space_in_front: SentencePiece only, whether a text is split as if it started with a space.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    space_in_front: bool = True
    tokenizer: Mapping[str, Any] | None = None

    @property
    def ids(self) -> dict[str, int]:
        """Id of each token that a text can have; padding left out."""
        return {
            t: i for i, (t, kind) in enumerate(zip(self.tokens, self.types, strict=True)) if kind != TokenType.UNUSED
        }


def read_vocabulary(folder: Path, architecture: str, count: int) -> Vocabulary:
    """The tokenizer of a folder, filled up with unused tokens to `count`, the rows of the embedding.

    Raises UserError when there is no tokenizer, it is of an unknown kind, has a token twice, or has more tokens than
    the embedding rows.
    """
    vocabulary = _read(folder, architecture, count)
    _make_unique(vocabulary)
    return vocabulary


def _make_unique(vocabulary: Vocabulary) -> None:
    """llama.cpp stops at two ids with one text. Padding gives way; two real tokens are an error."""
    seen: dict[str, int] = {}
    for i, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind == TokenType.UNUSED:
            continue
        if seen.setdefault(text, i) != i:
            raise UserError(
                f"The tokenizer has the token {text!r} twice, as {seen[text]} and {i}; llama.cpp loads no such file.",
                _TOKENIZER_HINT,
            )
    for i, kind in enumerate(vocabulary.types):
        if kind == TokenType.UNUSED:
            while seen.setdefault(vocabulary.tokens[i], i) != i:
                vocabulary.tokens[i] = f"[UNUSED {vocabulary.tokens[i]}]"


def _read(folder: Path, architecture: str, count: int) -> Vocabulary:
    tokenizer = read_json(folder / "tokenizer.json") or None
    if architecture != "qwen3moe":
        found = _sentencepiece(folder, tokenizer, count)
        if found is not None:
            return found
    if tokenizer is not None:
        model = tokenizer.get("model") or {}
        if model.get("type") == "BPE" and not model.get("byte_fallback"):
            _check_normalizer(tokenizer)
            return _byte_level(tokenizer, detect_pre_tokenizer(tokenizer), count)
        if model.get("type") in ("BPE", "Unigram"):
            return _sentencepiece_json(tokenizer, count)
        raise UserError(
            f"GGUF conversion does not know tokenizers of the type {model.get('type', 'unknown')}.",
            _TOKENIZER_HINT,
        )
    vocabulary = read_json(folder / "vocab.json")
    merges = read_text(folder / "merges.txt")
    if vocabulary and merges:
        return _byte_level_files(folder, vocabulary, merges, architecture, count)
    raise UserError(
        "The folder has no tokenizer (tokenizer.json or tokenizer.model).",
        "Download the tokenizer files of the model into the same folder.",
    )


def _check_normalizer(tokenizer: Mapping[str, Any]) -> None:
    """llama.cpp leaves text as it is; NFC (Qwen) changes only text that hardly anyone types, and is let pass."""
    outer = tokenizer.get("normalizer") or {}
    kinds = [step.get("type") for step in outer.get("normalizers", [outer]) if step]
    if other := [kind for kind in kinds if kind != "NFC"]:
        raise UserError(
            f"The tokenizer changes text first ({other[0]}), which llama.cpp would not do.", _TOKENIZER_HINT
        )


def looks_special(token: str) -> bool:
    """Tokens that steer the model though their file does not mark them (DeepSeek Coder, Gemma, Command R)."""
    return (
        token in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (token.startswith("<|") and token.endswith("|>"))
        or (token.startswith("<\uff5c") and token.endswith("\uff5c>"))
        or (token.startswith("<unused") and token.endswith(">"))
    )


def _added(content: str, special: bool) -> tuple[str, TokenType]:
    """Text and type of an added token; user-defined ones are matched against plain text, so they hold plain spaces."""
    if special or looks_special(content):
        return content, TokenType.CONTROL
    return content.replace(SPACE, " "), TokenType.USER_DEFINED


def _byte_level(tokenizer: Mapping[str, Any], pre: str, count: int) -> Vocabulary:
    model = tokenizer["model"]
    entries: dict[int, tuple[str, TokenType]] = {i: (text, TokenType.NORMAL) for text, i in model["vocab"].items()}
    for token in tokenizer.get("added_tokens") or []:
        entries[token["id"]] = _added(token["content"], bool(token.get("special")))
    largest = max(entries, default=-1)
    if largest >= count:
        raise UserError(
            f"The tokenizer has a token with the id {largest}, but the embedding only {count} rows.",
            "Use the tokenizer that belongs to these weights.",
        )
    rows = [entries.get(i) or (f"[PAD{i}]", TokenType.UNUSED) for i in range(count)]
    return Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=[text for text, _ in rows],
        types=[int(kind) for _, kind in rows],
        merges=_merges(model.get("merges") or []),
        tokenizer=tokenizer,
    )


def _merges(merges: Sequence[Any]) -> list[str]:
    """'left right' each. A space inside a part becomes U+0120, as byte-level BPE writes spaces."""
    if merges and isinstance(merges[0], str):
        return list(merges)
    return [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in merges]


def _byte_level_files(
    folder: Path, vocabulary: dict[str, int], merges: str, architecture: str, count: int
) -> Vocabulary:
    """vocab.json and merges.txt say nothing of the splitter; only Qwen's is certain from the architecture."""
    if not architecture.startswith("qwen"):
        raise UserError(
            "The folder has vocab.json but no tokenizer.json, which says how text is split.",
            "Download tokenizer.json from the model's page into the same folder.",
        )
    lines = [line.strip() for line in merges.splitlines()]
    pairs = [line for line in lines if line and not line.startswith("#version") and line.count(" ") == 1]
    settings = read_json(folder / "tokenizer_config.json")
    added = [
        {"id": int(i), "content": token["content"], "special": token.get("special", False)}
        for i, token in (settings.get("added_tokens_decoder") or {}).items()
    ]
    model = {"vocab": vocabulary, "merges": pairs}
    return _byte_level({"model": model, "added_tokens": added}, "qwen2", count)


def _blank(count: int) -> Vocabulary:
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=[f"[PAD{i}]" for i in range(count)],
        types=[int(TokenType.UNUSED)] * count,
        scores=[PAD_SCORE] * count,
    )


def _put(vocabulary: Vocabulary, number: int, text: str, score: float, kind: int) -> None:
    """Ids past the embedding can not be looked up by the model, so they are left out."""
    if 0 <= number < len(vocabulary.tokens):
        vocabulary.tokens[number] = text
        vocabulary.scores[number] = score
        vocabulary.types[number] = int(kind)


def _refuse_unigram() -> None:
    raise UserError(
        "The tokenizer is a Unigram model; llama.cpp would split text by its pieces in another way.", _TOKENIZER_HINT
    )


def _sentencepiece(folder: Path, tokenizer: Mapping[str, Any] | None, count: int) -> Vocabulary | None:
    """tokenizer.model, or None when there is none or (Llama 3's own format) only tokenizer.json can be read."""
    from sentencepiece import SentencePieceProcessor

    path = folder / "tokenizer.model"
    pieces = SentencePieceProcessor()
    try:
        data = path.read_bytes()
        settings = read_settings(data)
        pieces.LoadFromSerializedProto(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RuntimeError, ValueError) as error:
        if tokenizer is not None:
            return None
        raise UserError(
            "tokenizer.model is not a SentencePiece model.", "Download the file again from the model's page."
        ) from error
    if settings.kind == UNIGRAM:
        _refuse_unigram()
    result = _blank(count)
    # A list at a time: asking for each of 262,144 pieces alone takes ten times as long.
    numbers = list(range(pieces.GetPieceSize()))
    types = [TokenType.NORMAL] * len(numbers)
    for test, kind in (
        (pieces.IsByte, TokenType.BYTE),
        (pieces.IsUnused, TokenType.UNUSED),
        (pieces.IsControl, TokenType.CONTROL),
        (pieces.IsUnknown, TokenType.UNKNOWN),
    ):
        types = [kind if yes else old for yes, old in zip(test(numbers), types, strict=True)]
    for i, text, score, kind in zip(numbers, pieces.IdToPiece(numbers), pieces.GetScore(numbers), types, strict=True):
        _put(result, i, text, score, kind)
    for content, number in read_json(folder / "added_tokens.json").items():
        _put(result, int(number), content, ADDED_SCORE, TokenType.USER_DEFINED)
    decoder = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    added = [(int(i), token) for i, token in decoder.items()]
    if not added and tokenizer is not None:
        added = [(token["id"], token) for token in tokenizer.get("added_tokens") or []]
    for number, token in added:
        text, kind = _added(token["content"], bool(token.get("special")))
        _put(result, number, text, ADDED_SCORE, kind)
    result.tokenizer = tokenizer
    result.space_in_front = settings.space_in_front if tokenizer is None else _space_in_front(tokenizer)
    return result


def _outer_steps(tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The steps of normalizer and pre-tokenizer, in their order."""
    for key, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        outer = tokenizer.get(key) or {}
        yield from outer.get(inner) or [outer]


def _space_in_front(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a step of tokenizer.json puts a space before the text."""
    for step in _outer_steps(tokenizer):
        if step.get("type") == "Prepend":
            return True
        if step.get("type") == "Metaspace":
            return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False
    return False


def _sentencepiece_json(tokenizer: Mapping[str, Any], count: int) -> Vocabulary:
    """SentencePiece pieces from a tokenizer.json.

    llama.cpp joins the neighbours whose joint piece scores highest; a BPE tokenizer.json joins the pair that stands
    first among the merges. Minus the rank of the first merge that makes a piece is therefore a score of the same order.
    """
    model = tokenizer["model"]
    result = _blank(count)
    if model["type"] == "Unigram":
        _refuse_unigram()
    steps = list(_outer_steps(tokenizer))
    if not any(s.get("type") == "Metaspace" or (s.get("type"), s.get("content")) == ("Replace", SPACE) for s in steps):
        raise UserError(
            "The tokenizer keeps spaces as they are, where llama.cpp would write them as SentencePiece does.",
            _TOKENIZER_HINT,
        )
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model.get("merges") or []):
        left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        ranks.setdefault(left + right, rank)
    least = ADDED_SCORE * 1000.0  # pieces that no merge makes
    scored = [(text, i, -float(ranks[text]) if text in ranks else least) for text, i in model["vocab"].items()]
    unknown = model.get("unk_token")
    for text, i, score in scored:
        if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
            kind = TokenType.BYTE
        else:
            kind = TokenType.UNKNOWN if text == unknown else TokenType.NORMAL
        _put(result, i, text, 0.0 if kind is not TokenType.NORMAL else score, kind)
    for token in tokenizer.get("added_tokens") or []:
        number, content = int(token["id"]), token["content"]
        if 0 <= number < count and result.types[number] == TokenType.UNKNOWN:
            continue
        text, kind = _added(content, bool(token.get("special")))
        _put(result, number, text, ADDED_SCORE, kind)
    result.tokenizer = tokenizer
    result.space_in_front = _space_in_front(tokenizer)
    return result
