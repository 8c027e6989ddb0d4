"""How each product is cut up, by card and shape: read from a table, never searched while something is timed.

What `python -m kernels.gpu.bench --tune` found on this computer goes before the table.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernels.gpu import user_files

_TUNED = "configurations.json"
_TABLE = Path(__file__).with_name("configurations.json")
VECTOR, TILE, LIBRARY = "vector", "tile", "dequantize"
VECTOR_BATCH = 4  # tokens that the vector product takes at most
# Parts of a split product are written and read again as float32: at most this share of the weight's own bytes.
_PARTS_SHARE = 0.02
_LEAST_POSITIONS, _MOST_PARTS = 256, 64  # of a part of a token's past; parts
_WIDE_HEAD = 256  # bytes
# How the names of cards begin that are not in the table → one there of the same family, with no more shared memory.
_LIKE = (
    *(("gfx9", "gfx942"), ("gfx10", "gfx1100"), ("gfx11", "gfx1100"), ("gfx12", "gfx1201")),
    *(("sm_87", "sm_86"), ("sm_10", "sm_100"), ("sm_110", "sm_100"), ("sm_12", "sm_120")),
)
_WIDEST_GROUP = 128  # columns; a step of a product has whole groups


@dataclass(frozen=True)
class Configuration:
    """regime: VECTOR, TILE or LIBRARY. rows, batch: of weights and tokens, what one program takes.

    split: programs that share a row; stages: of the loop along a row; unrolled: of the loop within a tile.
    """

    regime: str
    rows: int
    warps: int
    batch: int = 1
    split: int = 1
    stages: int = 1
    unrolled: bool = True

    @property
    def short(self) -> str:
        """For people."""
        parts = f", in {self.split} parts" if self.split > 1 else ""
        return f"{self.regime} {self.rows} × {self.batch}{parts}"


@dataclass(frozen=True)
class ScaledConfiguration:
    """Of products of codes with codes. regime: VECTOR or TILE; block: bytes of a row in one step. Else as above."""

    regime: str
    rows: int
    batch: int
    block: int
    warps: int
    stages: int
    split: int


@dataclass(frozen=True)
class AttentionConfiguration:
    """rows: queries of a program; positions: of the cache in one step. programs: that all parts together should be.

    vector: without matrix instructions. registers: that a thread may have, of NVIDIA's cards only; 0: not said.
    """

    rows: int
    positions: int
    warps: int
    stages: int
    programs: int
    vector: bool = False
    registers: int = 0

    def split(self, groups: int, longest: int, share: int) -> int:
        """Parts of a token's past, for so many tokens · key heads. share: query heads of a key head.

        A part's result is float32 for each of these, written and read: it is little beside the keys and values of as
        many positions as a part has at least.
        """
        least = max(_LEAST_POSITIONS, 64 * share)
        return max(min(self.programs // groups, longest // least, _MOST_PARTS), 1)


@cache
def _table() -> dict[str, Any]:
    return json.loads(_TABLE.read_text(encoding="utf-8"))


def _own(card: str) -> dict[str, Any]:
    """The card's lines, or those of the one in the table that is built like it."""
    lines = _table()["cards"]
    like = card if card in lines else next((known for start, known in _LIKE if card.startswith(start)), "")
    return lines.get(like, {})


def cards() -> tuple[str, ...]:
    """The cards that have lines of their own."""
    return tuple(_table()["cards"])


def library_from() -> int:
    """Tokens from which dequantizing and the library's product are used."""
    return int(_table()["library_from"])


def measured(card: str) -> bool:
    """Whether the card's lines come from measurements of it."""
    return card in _table()["measured_on"] or bool(_tuned(card))


def tuned_key(tokens: int, rows: int, words: int, tiles: int, nbytes: int) -> str:
    """Names a product: arguments as those of `configuration`."""
    batch = tokens if regime(tokens) == VECTOR else _batch(tokens, 64)
    return f"{batch} tokens, {rows} rows of {tiles} × {words} words, {nbytes} bytes"


def keep_tuned(card: str, key: str, how: Configuration) -> bool:
    """Into the user's cache folder; False where that can not be written to."""
    kept = user_files.read(_TUNED)
    own = kept.get(card)
    found = user_files.write(_TUNED, {**kept, card: {**(own if isinstance(own, dict) else {}), key: asdict(how)}})
    _tuned.cache_clear()
    return found


@cache
def _tuned(card: str) -> dict[str, Configuration]:
    """What was tuned on this computer; what is damaged is left out."""
    own = user_files.read(_TUNED).get(card)
    found = {}
    for key, values in (own if isinstance(own, dict) else {}).items():
        try:
            how = Configuration(**values)
        except TypeError:
            continue
        if how.regime in (VECTOR, TILE) and _sound(how):
            found[key] = how
    return found


def _sound(how: Configuration) -> bool:
    """Whether a kernel takes these numbers; a vector product has one to four tokens, all else is powers of two."""
    counts: tuple[Any, ...] = (how.rows, how.warps, how.batch, how.split, how.stages)
    if not all(type(count) is int and 0 < count <= 1024 for count in counts):
        return False
    powers = (how.rows, how.warps, *((how.batch,) if how.regime == TILE else ()))
    few = how.batch <= VECTOR_BATCH if how.regime == VECTOR else how.batch >= 16
    return few and how.warps <= 16 and not any(n & (n - 1) for n in powers)


def _batch(tokens: int, most: int) -> int:
    """Tokens of one program of matrix instructions."""
    return min(max(16, 1 << (tokens - 1).bit_length()), most)


def regime(tokens: int) -> str:
    if tokens <= VECTOR_BATCH:
        return VECTOR
    return TILE if tokens < library_from() else LIBRARY


def _lines(card: str, kind: str, codes: tuple[str, ...]) -> dict[str, Any]:
    """What the table has for a kind of product, and for what is particular of a format's codes; the card's own last."""
    line: dict[str, Any] = {}
    for table in (_table()["default"], _own(card)):
        for key in (kind, *(f"{kind}, {name}" for name in codes)):
            line |= table.get(key, {})
    return line


def configuration(
    card: str, tokens: int, rows: int, words: int, tiles: int, nbytes: int, codes: tuple[str, ...] = ()
) -> Configuration:
    """For a product of `tokens` with `rows` rows of `tiles` tiles of `words` words, `nbytes` in all.

    card: 'sm_90', 'gfx942' … codes: what the table may have lines of its own for (`weights.forms.Form.codes`).
    """
    kind = regime(tokens)
    line = _lines(card, kind, codes)
    if kind == LIBRARY:
        return Configuration(kind, line["rows"], line["warps"])
    tuned = _tuned(card).get(tuned_key(tokens, rows, words, tiles, nbytes))
    if tuned is not None and tuned.regime == kind and (kind == TILE or tuned.batch == tokens):
        return tuned
    batch = tokens if kind == VECTOR else _batch(tokens, line["batch"])
    line |= _lines(card, f"{kind} of {batch}", codes)  # what so many tokens of one program need otherwise
    height = line["rows"] * 32 // words if kind == VECTOR else line["rows"]
    programs = -(-rows // height)
    split = max(min(line["programs"] // programs, tiles // 2, int(_PARTS_SHARE * nbytes) // (8 * tokens * rows)), 1)
    split = -(-tiles // -(-tiles // split))  # without programs that have no tile
    loops = line.get("stages", 1), line.get("unrolled", True)
    return Configuration(kind, height, line["warps"], batch, split, *loops)


def scaled_configuration(
    card: str, work: str, tokens: int, rows: int, row_bytes: int, bits: int = 8
) -> ScaledConfiguration:
    """For a product of `tokens` with `rows` rows of codes of `bits` bits. work: 'int8', 'fp8', 'scaled', 'upcast', or
    'blocks', 8-bit floats with scales of 128 columns.
    """
    own = _own(card).get("scaled", {})
    kind = "vector" if tokens <= VECTOR_BATCH or own.get("vector only") else "tile"
    kind = "prompt" if kind == "tile" and tokens >= library_from() else kind
    lines = (_table()["scaled"], own)
    line: dict[str, Any] = {}
    for table in lines:
        line |= table.get(kind, {}) | table.get(f"{kind}, {work}", {})
    batch = min(1 << (tokens - 1).bit_length(), line["batch"])
    batch = batch if kind == "vector" else max(batch, 16)
    block = max(line["columns"] // (batch if kind == "vector" else 1), _WIDEST_GROUP) * bits // 8
    steps, programs = -(-row_bytes // block), -(-rows // line["rows"]) * -(-tokens // batch)
    most = int(_PARTS_SHARE * row_bytes) // (8 * tokens)
    split = max(min(line["programs"] // programs, steps // 2, most), 1)
    split = -(-steps // -(-steps // split))
    regime = VECTOR if kind == "vector" else TILE
    return ScaledConfiguration(regime, line["rows"], batch, block, line["warps"], line["stages"], split)


def attention_configuration(
    card: str, kind: str, width: int, value_bytes: int, codes: tuple[str, ...] = ()
) -> AttentionConfiguration:
    """kind: 'prompt' or 'token'. width: of a head, a power of two. value_bytes: of a query's values. codes: names of
    what the cache has of them (`attend.codes_of`), which take registers on their way to a product.
    """
    own = _own(card).get("attention", {})
    size = (
        "wide" if width * value_bytes > _WIDE_HEAD else "middle" if width * value_bytes > _WIDE_HEAD // 2 else "narrow"
    )
    line: dict[str, Any] = {}
    for table in (_table()["attention"], own):
        line |= table.get(kind, {}) | table.get(f"{size} {kind}", {})
        for name in codes:
            line |= table.get(f"{kind} of {name}", {}) | table.get(f"{size} {kind} of {name}", {})
    return AttentionConfiguration(
        *(line.get("rows", 0), line["positions"], line["warps"], line["stages"], line.get("programs", 0)),
        vector=own.get("vector only", False),
        registers=line.get("registers", 0),
    )
