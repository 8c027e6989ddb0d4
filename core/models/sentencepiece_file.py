"""What tokenizer.model says about its own training and text treatment, which the library has no functions for.

The file is a protocol buffer (sentencepiece_model.proto): pieces in field 1, the trainer's settings in field 2 (its
field 3: the kind), the normalizer's in field 3 (its field 3: whether text gets a space in front).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

UNIGRAM, BPE = 1, 2


@dataclass(frozen=True)
class SentencePieceSettings:
    """kind: UNIGRAM, BPE or another number. space_in_front: whether encoding starts with a space."""

    kind: int = UNIGRAM
    space_in_front: bool = True


def read_settings(data: bytes) -> SentencePieceSettings:
    """The settings, with the defaults of the format. Raises ValueError when the bytes are no such file."""
    kind, space = UNIGRAM, True
    try:
        for field, value in _fields(data, _after_pieces(data)):
            if field == 2 and isinstance(value, bytes):
                kind = next((v for f, v in _fields(value) if f == 3 and isinstance(v, int)), kind)
            elif field == 3 and isinstance(value, bytes):
                space = bool(next((v for f, v in _fields(value) if f == 3 and isinstance(v, int)), space))
    except IndexError as error:
        raise ValueError("the file ends too early") from error
    return SentencePieceSettings(kind, space)


def _after_pieces(data: bytes) -> int:
    """Where the first field that is no piece starts. On its own, since there are hundreds of thousands of pieces."""
    position = 0
    while position + 1 < len(data) and data[position] == 0x0A:
        size, position = _varint(data, position + 1) if data[position + 1] > 127 else (data[position + 1], position + 2)
        position += size
    return position


def _fields(data: bytes, position: int = 0) -> Iterator[tuple[int, int | bytes]]:
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, position = _varint(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        yield tag >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
