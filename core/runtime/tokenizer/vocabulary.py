"""What every kind of tokenizer can do, without the special tokens that stand around a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

SPACE = "\u2581"  # SentencePiece writes a space so


class Vocabulary(ABC):
    """Ids 0 … count−1. Ids past it (padding rows of an embedding) stand for no bytes."""

    count: int
    special: frozenset[int]  # tokens that steer and are no text
    space_in_front = False  # whether a text is split as if it started with a space

    @abstractmethod
    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Ids of valid Unicode text. parse_special: special tokens written out in it are taken as such."""

    @abstractmethod
    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it ('Ġthe', '▁the', '<0x0A>'); '' past the vocabulary."""

    @abstractmethod
    def find(self, text: str) -> int | None:
        """Id of the token that the vocabulary writes so."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; a special one's are its name."""


def byte_symbols() -> dict[str, int]:
    """Symbol → byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100 onwards.

    Source: `bytes_to_unicode` of GPT-2's encoder.py.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


class Pieces:
    """Text of tokens → bytes, in both writings. Symbols that a byte-level piece can not have are taken as they are."""

    def __init__(self, byte_level: bool) -> None:
        self._byte_level = byte_level

    @cached_property
    def _symbols(self) -> dict[str, int]:
        return byte_symbols()

    def decode(self, text: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(map(self._symbols.__getitem__, text))
            except KeyError:
                return text.encode()
        return text.replace(SPACE, " ").encode()


def byte_of(text: str) -> int | None:
    """10 for '<0x0A>', the piece that stands for one byte; None for every other text."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None
    return None
