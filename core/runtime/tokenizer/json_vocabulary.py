"""Tokenizers that the library `tokenizers` runs: a folder's tokenizer.json, and byte-level BPE out of a GGUF."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from core.errors import UserError
from core.models.pre_tokenizer import split_expressions, takes_whole_words
from core.models.tokenizer import TokenType
from core.runtime.tokenizer.vocabulary import Pieces, Vocabulary, byte_of

_AGAIN = "Download tokenizer.json again from the model's page."
LONG = 4096  # letters: some milliseconds of work


@contextmanager
def _library(message: str, hint: str) -> Iterator[None]:
    """Errors of the library, which raises plain Exception, and for its panics what is none, become a UserError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as e:
        raise UserError(f"{message}.", hint) from e


class JsonVocabulary(Vocabulary):
    """A `tokenizers.Tokenizer` whose pieces are byte-level ('Ġthe') or marked ('▁the', with '<0x0A>' for bytes)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        byte_level: bool,
        special: frozenset[int],
        as_they_are: Mapping[int, str],
        space_in_front: bool = False,
    ) -> None:
        """as_they_are: added tokens, whose text is not written in symbols."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if getattr(tokenizer.model, "dropout", None):  # for training: merges left out by chance, other tokens each time
            tokenizer.model.dropout = None
        self._tokenizer = tokenizer
        self._as_they_are = as_they_are
        self._pieces = Pieces(byte_level)
        self._byte_level = byte_level
        self._lock = threading.Lock()  # whether special tokens are parsed is a state of the library's object
        self.space_in_front = space_in_front
        self.special = special
        self.count = tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        with self._lock, _library("The tokenizer can not split this text", _AGAIN):
            self._tokenizer.encode_special_tokens = not parse_special
            if len(text) < LONG:
                return self._tokenizer.encode(text, add_special_tokens=False).ids
            # The library lets other threads of Python go on only here; a window would stand still for a long text.
            return self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids

    def around(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts before and after a text."""
        with self._lock, _library("The tokenizer can not split a text", _AGAIN):
            found = self._tokenizer.encode("a", add_special_tokens=True)
        inner = [i for i, mask in enumerate(found.special_tokens_mask) if not mask]
        if not inner:
            return [], []
        return found.ids[: inner[0]], found.ids[inner[-1] + 1 :]

    def token_text(self, token: int) -> str:
        return self._tokenizer.id_to_token(token) or ""

    def find(self, text: str) -> int | None:
        try:
            return self._tokenizer.token_to_id(text)
        except UnicodeEncodeError:  # half a surrogate pair, out of a damaged side file
            return None

    def piece(self, token: int) -> bytes:
        if token in self._as_they_are:
            return self._as_they_are[token].encode()
        text = self.token_text(token)
        if not self._byte_level and (byte := byte_of(text)) is not None:
            return bytes([byte])
        return self._pieces.decode(text)


def from_file(path: Path, settings: Mapping[str, Any]) -> JsonVocabulary:
    """settings: the same file's JSON. Raises UserError when the library does not read it or it decodes otherwise."""
    with _library("tokenizer.json is not a tokenizer that can be read", _AGAIN):
        tokenizer = Tokenizer.from_file(str(path))
    added = {int(t["id"]): t for t in settings.get("added_tokens") or []}
    steps = _steps(settings.get("decoder"), "decoders")
    kinds = {step.get("type") for step in steps}
    if kinds - {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        raise UserError(
            f"The tokenizer writes its text in a way that is not known here ({', '.join(sorted(map(str, kinds)))}).",
            "Choose a decoder-only language model.",
        )
    return JsonVocabulary(
        tokenizer,
        byte_level="ByteLevel" in kinds,
        special=frozenset(i for i, token in added.items() if token.get("special")),
        as_they_are={i: token["content"] for i, token in added.items()},
        space_in_front="Strip" in kinds or any(_prepends(s) for s in steps if s.get("type") == "Metaspace"),
    )


def _prepends(step: Mapping[str, Any]) -> bool:
    return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False


def _steps(outer: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    if not outer:
        return []
    if not isinstance(outer, Mapping):  # the library reads some of these its own way
        raise UserError("tokenizer.json is not a tokenizer that can be read.", _AGAIN)
    return [step for item in outer[inner] for step in _steps(item, inner)] if inner in outer else [outer]


def from_merges(tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], splitter: str) -> JsonVocabulary:
    """Byte-level BPE. types: TokenType of each token. merges: 'left right', first ones first. splitter: by name.

    Raises UserError for an unknown splitter or merges of tokens that are not there.
    """
    vocabulary: dict[str, int] = {}
    for i, text in enumerate(tokens):
        # Only padding comes twice; the real token keeps the text.
        if vocabulary.setdefault(text, i) != i:
            vocabulary[f"{text}\x00{i}"] = i
    pairs = [_pair(merge) for merge in merges]
    with _library(
        "The tokenizer in this file is damaged: its merges join tokens that it does not have",
        "Download or convert the file again.",
    ):
        model = models.BPE(vocabulary, pairs, ignore_merges=takes_whole_words(splitter))
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in split_expressions(splitter)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    steering = {TokenType.CONTROL, TokenType.UNKNOWN}
    special = [i for i, kind in enumerate(types) if kind in steering and tokens[i]]
    plain = [i for i, kind in enumerate(types) if kind == TokenType.USER_DEFINED and tokens[i]]
    tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in special])
    tokenizer.add_tokens([AddedToken(tokens[i], normalized=False) for i in plain])
    return JsonVocabulary(tokenizer, True, frozenset(special), {i: tokens[i] for i in [*special, *plain]})


def _pair(merge: str) -> tuple[str, str]:
    """A token can start with a space in files that are not byte-level, so the parting space is looked for after it."""
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")


def read_settings(path: Path) -> dict[str, Any] | None:
    """tokenizer.json as an object; None when there is none. Raises UserError when it is no JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise UserError("tokenizer.json can not be read.", _AGAIN) from e
    if not isinstance(found, dict):
        raise UserError("tokenizer.json is not a tokenizer that can be read.", _AGAIN)
    return found
