"""How two answers to one prompt compare, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.jobs.testing import Piece
from core import units
from core.runtime.logits import LogitDifference

NEAR_TIE = 0.1  # a margin of logits: the likelier token is at most e^0.1 = 1.1 times as likely
LONGEST = 2000  # tokens up to which answers are aligned; the work grows with the square


@dataclass(frozen=True)
class Comparison:
    """same: equal tokens at the start. differs: whether they part there. marks: numbers of the tokens, one set a side,
    that the other answer does not have in that place. first: both tokens at the first difference, '' for an end.
    margin: of the source at that place, None when it is not known."""

    same: int
    differs: bool
    first: tuple[str, str] = ("", "")
    margin: float | None = None
    marks: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())

    def sentence(self) -> str:
        """What the page says about it."""
        tokens = f"{self.same} token{'' if self.same == 1 else 's'}"
        if not self.differs:
            return f"The same for all {tokens}." if self.same else "Nothing to compare yet."
        here = [f"“{_visible(text)}”" if text else "the end" for text in self.first]
        start = f"Same for {tokens}, then they differ" if self.same else "They differ from the first token on"
        words = f"{start}: {here[0]} against {here[1]}"
        if self.margin is None:
            return words + "."
        if self.margin < NEAR_TIE:
            return f"{words}; near-tie margin {self.margin:.2f}."
        return f"{words}; margin {self.margin:.2f}, no near-tie."


def logits_sentence(found: LogitDifference) -> str:
    """How far the logits of one file on two devices are from each other."""
    same = "every one" if found.agreement == 1.0 else units.format_percent(found.agreement, 0)
    tokens = f"{units.format_count(found.tokens)} tokens"
    return (
        f"Logits over {tokens}: relative error at most {100 * found.largest:.2g} %, mean {100 * found.mean:.2g} %; the "
        f"likeliest token is the same after {same}."
    )


def common_start(a: Sequence[Piece], b: Sequence[Piece]) -> int:
    """How many tokens at the start are equal."""
    same = 0
    for left, right in zip(a, b, strict=False):
        if _key(left) != _key(right):
            break
        same += 1
    return same


def compare(a: Sequence[Piece], b: Sequence[Piece]) -> Comparison:
    """Both answers whole. An answer that only stops earlier differs by its end."""
    same = common_start(a, b)
    if same == len(a) == len(b):
        return Comparison(same, differs=False)
    first = (_name(a[same]) if same < len(a) else "", _name(b[same]) if same < len(b) else "")
    margin = a[same].margin if same < len(a) else None
    return Comparison(same, True, first, margin, _marks(a, b, same))


def _marks(a: Sequence[Piece], b: Sequence[Piece], same: int) -> tuple[frozenset[int], frozenset[int]]:
    if max(len(a), len(b)) > LONGEST:
        return frozenset(range(same, len(a))), frozenset(range(same, len(b)))
    keys = [_key(p) for p in a], [_key(p) for p in b]
    left, right = set(), set()
    for tag, i, j, k, m in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag != "equal":
            left.update(range(i, j))
            right.update(range(k, m))
    # The place where they part is marked on both sides, also where the alignment would call it an insertion.
    left.update(range(same, min(same + 1, len(a))))
    right.update(range(same, min(same + 1, len(b))))
    return frozenset(left), frozenset(right)


def _key(piece: Piece) -> tuple[int, str]:
    return piece.id, _name(piece)


def _name(piece: Piece) -> str:
    return piece.name or piece.text


def _visible(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "→")
