"""Calibration samples: windows of tokens, all of one length, out of text that suits the model or is said not to."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from core.calibration.records import Record
from core.calibration.remarks import Coverage, about_chats, about_tokens
from core.calibration.settings import CalibrationText
from core.calibration.sources import LETTERS, SMALLEST_PIECE, Source, open_sources
from core.calibration.suits import Looked, about_code, about_script, about_vocabulary
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.progress import CancelToken
from core.runtime.load import decoder_config
from core.runtime.tokenizer import Message, Text, open_text
from core.runtime.tokenizer.template import render
from core.threads import aside
from core.units import format_count

VERSION = 1  # of the fingerprint
PREVIEWS, PREVIEW_TOKENS = 4, 256
AT_ONCE = 2  # windows that one record fills while there are others
LONGEST_CHAT = 32  # times the characters of a part: a chat's first turns up to there
MOST_KEPT = 64 << 20  # characters, and tokens, of long records that are kept for when the others give out
LONGEST_QUESTION = 400  # characters of a plain text that become the user's turn


@dataclass(frozen=True)
class Share:
    """How much of the samples one file or domain makes up. share: 0 to 1."""

    name: str
    tokens: int
    share: float


@dataclass(frozen=True, eq=False)
class Samples:
    """ids: int32 [samples, length]. preview: the text of the first samples, their beginnings.

    fingerprint: hex digest of the ids, so that what was measured over them is found again wherever the text lies.
    """

    ids: np.ndarray
    fingerprint: str
    preview: tuple[str, ...]
    shares: tuple[Share, ...]
    warnings: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return int(self.ids.size)


def samples(checkpoint: Checkpoint, settings: CalibrationText, token: CancelToken | None = None) -> Samples:
    """Windows of `settings.length` tokens, none padded, each after the start token where the model has one.

    Every bundled domain gives as many tokens as far as it reaches. Chats are written in the model's template when it
    has one. The same settings, text and tokenizer give the same samples. Raises UserError when the text can not be
    read or fills not one window, for a chat template that is asked for and is not there, and when the tokenizer does
    not belong to the weights; Cancelled.
    """
    token = token or CancelToken()
    config = decoder_config(checkpoint)
    text = aside(lambda: open_text(checkpoint), token)
    if settings.chat and not text.template:
        raise UserError("This model has no chat template.", "Turn the chat template off; the text is then used as is.")
    length = min(settings.length, config.context or settings.length)
    sources = open_sources(settings, token)
    writer = _Writer(text, settings.chat)
    found = _collect(sources, writer, settings, length, token)
    notes = [note for source in sources for note in source.finish()]
    windows = [window for group in found for window in group.windows]
    if not windows:
        raise _too_little(found, writer, length)
    order = np.random.default_rng(settings.seed).permutation(len(windows))[: settings.samples]
    ids = np.array([windows[i] for i in order], np.int32)
    if not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab:
        raise UserError(
            f"The tokenizer knows token {format_count(int(ids.max()))}, but the model has only "
            f"{format_count(config.vocab)}.",
            "Use the tokenizer that belongs to these weights.",
        )
    shares = _shares(found, order)
    coverage = Coverage(ids, writer.read_bytes / max(writer.read_tokens, 1), config.hidden, config.intermediate)
    warnings = [
        *_about_length(settings, length),
        *about_tokens(coverage, settings, text),
        *_about_kind(checkpoint, settings, writer, coverage),
        *about_chats(writer, settings, text),
        *notes,
    ]
    preview = tuple(text.decode(row[:PREVIEW_TOKENS].tolist(), skip_special=False) for row in ids[:PREVIEWS])
    return Samples(ids, _fingerprint(ids), preview, shares, tuple(warnings))


@dataclass
class _Group:
    """Windows of one source. rest: tokens that do not fill one yet; origin: the file of each of them.

    later: more of long records, which comes when there are no others.
    """

    records: Iterator[Record]
    windows: list[list[int]] = field(default_factory=list)
    origins: list[Counter[str]] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)
    origin: list[str] = field(default_factory=list)
    later: list[tuple[list[int], str]] = field(default_factory=list)
    tokens: int = 0
    kept: int = 0

    def take(self, ids: list[int], name: str, before: list[int], length: int) -> None:
        """A record: as much of it as fills `AT_ONCE` windows at once, the rest later."""
        limit = AT_ONCE * (length - len(before))
        if len(ids) > limit and self.kept < MOST_KEPT:
            self.later.append((ids[limit:], name))
            self.kept += len(ids) - limit
        self.push(ids[:limit], name, before, length)

    def push(self, ids: list[int], name: str, before: list[int], length: int) -> None:
        if not self.rest and before and ids[: len(before)] == before:
            ids = ids[len(before) :]  # a template wrote the start token already
        self.rest += ids
        self.origin += [name] * len(ids)
        self.tokens += len(ids)
        room = length - len(before)
        while len(self.rest) >= room:
            self.windows.append([*before, *self.rest[:room]])
            self.origins.append(Counter(self.origin[:room]))
            del self.rest[:room], self.origin[:room]


def _collect(
    sources: list[Source], writer: _Writer, settings: CalibrationText, length: int, token: CancelToken
) -> list[_Group]:
    """Read until the windows are full, always from the source that has given the fewest tokens."""
    before = list(writer.text.ids.before)[: length - 1]
    groups = []
    for number, source in enumerate(sources):
        generator = np.random.default_rng((settings.seed, number))
        size = max(SMALLEST_PIECE, LETTERS * length)
        groups.append(_Group(_in_parts(source.records(generator, token), size, generator)))
    waiting = list(groups)
    while waiting and sum(len(group.windows) for group in groups) < settings.samples:
        group = min(waiting, key=lambda g: g.tokens)
        record = next(group.records, None)
        if record is not None:
            group.take(writer.ids(record), record.source, before, length)
        elif group.later:
            group.push(*group.later.pop(), before, length)
        else:
            waiting.remove(group)
    return groups


def _in_parts(records: Iterator[Record], size: int, generator: np.random.Generator) -> Iterator[Record]:
    """Of long texts one part each, and the others when all is read: one book is not to fill every sample."""
    kept: list[Record] = []
    room = MOST_KEPT
    for record in records:
        if record.turns:
            yield _shortened(record, LONGEST_CHAT * size)
            continue
        if len(record.text) <= 2 * size:
            yield record
            continue
        cuts = [0, *range(size, len(record.text) - size // 2, size), len(record.text)]
        parts = [Record(record.source, record.text[a:b]) for a, b in pairwise(cuts)]
        first = int(generator.integers(len(parts)))
        yield parts.pop(first)
        for part in parts:
            if room >= len(part.text):
                room -= len(part.text)
                kept.append(part)
    for i in generator.permutation(len(kept)):
        yield kept[i]


def _shortened(record: Record, limit: int) -> Record:
    """A chat's first turns, the last of them cut: a template has to be filled in at once, and can not be stopped."""
    if sum(len(turn.content) for turn in record.turns) <= limit:
        return record
    turns = []
    for turn in record.turns:
        turns.append(Message(turn.role, turn.content[:limit]))
        limit -= len(turn.content)
        if limit <= 0:
            break
    return Record(record.source, turns=tuple(turns))


class _Writer:
    """Records into tokens. Counts what came in, for what is said about the text afterwards."""

    def __init__(self, text: Text, chat: bool) -> None:
        self.text = text
        self._as_chat = chat
        self.read_bytes = self.read_tokens = 0
        self.chats = self.plain = self.refused = 0
        self.problem: UserError | None = None
        self.looked = Looked()

    def ids(self, record: Record) -> list[int]:
        """Tokens without those around a text; [] for a chat that the template refuses."""
        turns = record.turns
        self.chats += bool(turns)
        self.plain += not turns
        for piece in (turn.content for turn in turns) if turns else (record.text,):
            self.looked.look(piece)
        if not turns and self._as_chat:
            turns = _as_turns(record.text)
        if turns and self.text.template:
            written = self._in_template(turns)
            ids = self.text.encode(written, add_special=False, parse_special=True)
        else:
            written = record.plain if record.plain.endswith("\n") else record.plain + "\n\n"
            ids = self.text.encode(written, add_special=False)
        self.read_bytes += len(written.encode("utf-8", "replace"))
        self.read_tokens += len(ids)
        return ids

    def _in_template(self, turns: tuple[Message, ...]) -> str:
        try:
            return render(self.text.template, turns, self.text.names, open_turn=False)
        except UserError as e:
            self.problem = e
        if turns[0].role == "system" and len(turns) > 1:  # some templates know no such turn
            first = Message(turns[1].role, f"{turns[0].content}\n\n{turns[1].content}")
            try:
                return render(self.text.template, (first, *turns[2:]), self.text.names, open_turn=False)
            except UserError as e:
                self.problem = e
        self.refused += 1
        return ""


def _as_turns(text: str) -> tuple[Message, ...]:
    """A plain text as a chat: its beginning is what the user says, the rest the answer."""
    text = text.strip()
    limit = min(LONGEST_QUESTION, max(len(text) // 2, 1))
    at = max(text.rfind("\n", 0, limit), text.rfind(" ", 0, limit)) + 1 or limit
    turns = (Message("user", text[:at].strip()), Message("assistant", text[at:].strip()))
    return tuple(turn for turn in turns if turn.content)


def _too_little(groups: list[_Group], writer: _Writer, length: int) -> UserError:
    count = max((group.tokens for group in groups), default=0)
    if writer.problem is not None and not count:
        return UserError(writer.problem.message, "Leave the chat template out, and take text that is no chat.")
    if count < 4:
        return UserError("The text is empty.", "Choose another text.")
    return UserError(
        f"The text has {format_count(count)} tokens, and a sample is to have {format_count(length)}.",
        f"Add text, or choose samples of at most {format_count(count // 2)} tokens.",
    )


def _about_length(settings: CalibrationText, length: int) -> list[str]:
    if length == settings.length:
        return []
    asked = format_count(settings.length)
    return [f"Samples have {format_count(length)} tokens, which is the model's context; {asked} were asked for."]


def _about_kind(checkpoint: Checkpoint, settings: CalibrationText, writer: _Writer, coverage: Coverage) -> list[str]:
    """On the text's language and kind. The bundled text is English, and has programs unless they are left out."""
    found = about_vocabulary(writer.looked, coverage, writer.text, bool(settings.path))
    if settings.path and not found:
        found = about_script(writer.looked)
    return [*found, *about_code(writer.looked, checkpoint, writer.text)]


def _shares(groups: list[_Group], order: np.ndarray) -> tuple[Share, ...]:
    """Largest first. Start tokens belong to nobody."""
    origins = [origin for group in groups for origin in group.origins]
    total: Counter[str] = Counter()
    for i in order:
        total.update(origins[i])
    everything = max(total.total(), 1)
    return tuple(Share(name, count, count / everything) for name, count in total.most_common())


def _fingerprint(ids: np.ndarray) -> str:
    head = f"calibration {VERSION} {ids.shape[0]} {ids.shape[1]} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(ids, "<i4").tobytes()).hexdigest()
