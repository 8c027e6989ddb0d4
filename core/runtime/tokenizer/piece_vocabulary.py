"""SentencePiece vocabularies of the BPE kind ('llama' in GGUF), run by the library `sentencepiece`.

GGUF has the pieces but not the file, so one is written in memory (sentencepiece_model.proto). Special and user-defined
tokens are found here, the longest first at each place, and the library sees only the text between them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from sentencepiece import SentencePieceProcessor

from core.errors import UserError
from core.models.sentencepiece_file import BPE
from core.models.tokenizer import TokenType
from core.runtime.tokenizer.vocabulary import Pieces, Vocabulary, byte_of

# ModelProto.SentencePiece.Type. All that is not NORMAL or BYTE is CONTROL there: never found in a text.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_IN_FILE = {int(TokenType.NORMAL): _NORMAL, int(TokenType.BYTE): _BYTE}


class PieceVocabulary(Vocabulary):
    """tokens[i] and types[i] (TokenType) belong to id i; the processor's ids are the same."""

    def __init__(
        self, processor: SentencePieceProcessor, tokens: Sequence[str], types: Sequence[int], space_in_front: bool
    ) -> None:
        """space_in_front: whether the processor, too, puts a space before every text."""
        self._processor = processor
        self._tokens = tokens
        self._types = types
        self._pieces = Pieces(byte_level=False)
        self._ids = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind != TokenType.UNUSED}
        self.count = len(tokens)
        self.space_in_front = space_in_front
        steering = (TokenType.CONTROL, TokenType.UNKNOWN)
        self.special = frozenset(i for i, kind in enumerate(types) if kind in steering)
        plain = [tokens[i] for i, kind in enumerate(types) if kind == TokenType.USER_DEFINED and tokens[i]]
        self._written = _Finder([*plain, *(tokens[i] for i in self.special if tokens[i])])
        self._plain = _Finder(plain)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        for part, is_token in (self._written if parse_special else self._plain).split(text):
            if is_token:
                ids.append(self._ids[part])
            else:
                ids += [i for i in self._processor.EncodeAsIds(part) if i < self.count]
        return ids

    def token_text(self, token: int) -> str:
        return self._tokens[token] if 0 <= token < self.count else ""

    def find(self, text: str) -> int | None:
        return self._ids.get(text)

    def piece(self, token: int) -> bytes:
        text = self.token_text(token)
        if text and self._types[token] == TokenType.BYTE and (byte := byte_of(text)) is not None:
            return bytes([byte])
        return text.encode() if token in self.special else self._pieces.decode(text)


class _Finder:
    """Finds texts in a text. There can be thousands, so a place is tried only when its first letter fits."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Parts of the text, none empty, and whether each is one of the texts."""
        start = at = 0
        while at < len(text):
            for length in self._lengths.get(text[at], ()):
                if text[at : at + length] in self._texts:
                    if at > start:
                        yield text[start:at], False
                    yield text[at : at + length], True
                    start = at = at + length
                    break
            else:
                at += 1
        if start < len(text):
            yield text[start:], False


def from_scores(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], unknown: int | None, space_in_front: bool
) -> PieceVocabulary:
    """Pieces with their scores. unknown: id of the token for what no piece covers, by default the first of that type.

    Raises UserError when the library does not take the pieces.
    """
    if unknown is None:
        unknown = next((i for i, kind in enumerate(types) if kind == TokenType.UNKNOWN), None)
    kinds = [_IN_FILE.get(kind, _CONTROL) for kind in types]
    names = list(tokens)
    if unknown is None:  # the format wants one; past the ids of the model, where it is never used
        kinds, names, scores, unknown = [*kinds, _UNKNOWN], [*names, ""], [*scores, 0.0], len(names)
    kinds[unknown] = _UNKNOWN
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(_model(_unique(names), scores, kinds, space_in_front))
    except (RuntimeError, ValueError, struct.error) as e:
        raise UserError(
            "The tokenizer in this file is damaged: its pieces do not make a SentencePiece model.",
            "Download or convert the file again.",
        ) from e
    return PieceVocabulary(processor, tokens, types, space_in_front)


def _unique(names: Sequence[str]) -> list[str]:
    """The library takes no text twice and none empty. A second one of a text is never found; its name is free."""
    seen: set[str] = set()
    found: list[str] = []
    if len(set(names)) == len(names) and "" not in names:
        return list(names)
    for i, name in enumerate(names):
        if not name or name in seen:
            name = f"\uf8ff{i}"
        seen.add(name)
        found.append(name)
    return found


def _model(names: Sequence[str], scores: Sequence[float], kinds: Sequence[int], space_in_front: bool) -> bytes:
    """ModelProto: pieces (1: text, 2: score, 3: type), trainer (3: kind, 35: byte fallback), normalizer."""
    parts = []
    length = [_varint(n) for n in range(256)]  # nearly all; a call for each piece would take most of the time
    pack = struct.Struct("<f").pack
    for name, score, kind in zip(names, scores, kinds, strict=True):
        text = name.encode()
        size = length[len(text)] if len(text) < 256 else _varint(len(text))
        body = b"\x0a%b%b\x15%b\x18%c" % (size, text, pack(score), kind)
        parts.append(b"\x0a%b%b" % (length[len(body)] if len(body) < 256 else _varint(len(body)), body))
    unknown = kinds.index(_UNKNOWN)
    has_bytes = kinds.count(_BYTE) == 256  # the library insists on all of them
    trainer = b"\x18" + bytes([BPE]) + b"\xc0\x02" + _varint(unknown)  # fields 3 and 40
    trainer += b"".join(_varint(field << 3) + b"\xff" * 9 + b"\x01" for field in (41, 42, 43))  # bos, eos, pad: −1
    if has_bytes:
        trainer += b"\x98\x02\x01"  # field 35
    # name 'identity', and: 3 space in front, 4 remove repeated spaces, 5 write spaces as U+2581
    normalizer = b"\x0a\x08identity" + b"\x18" + bytes([space_in_front]) + b"\x20\x00\x28\x01"
    return b"".join([*parts, b"\x12", _varint(len(trainer)), trainer, b"\x1a", _varint(len(normalizer)), normalizer])


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
