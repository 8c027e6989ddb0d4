"""Bytes of tokens as text, a token at a time: a character comes out when its last byte is there."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Stream:
    """Give it token ids, take text. What all pushes and `finish` return is what decoding the ids at once gives.

    Bytes that are no UTF-8 become U+FFFD, one for each longest part of a character that is broken off.
    """

    def __init__(self, piece: Callable[[int], bytes], drop_space: bool = False) -> None:
        """piece: id → the bytes that it stands for. drop_space: one space in front of the text is the tokenizer's."""
        self._piece = piece
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes; '' when it is only part of one."""
        data = self._piece(token)
        if self._drop_space and data:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """U+FFFD when the tokens end inside a character, else ''."""
        return self._decoder.decode(b"", final=True)
