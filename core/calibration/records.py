"""Records of data sets: what of a JSON object is text, and what is a chat. Names of fields are those in common use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from core.runtime.tokenizer import Message

TEXT_FIELDS = ("text", "content", "document", "body")
CHAT_FIELDS = ("messages", "conversations", "conversation")
# Question → answers; the first that is there counts.
PAIR_FIELDS = {
    "prompt": ("completion", "response", "answer", "chosen"),
    "instruction": ("output", "response"),
    "question": ("answer", "response"),
}
FIELDS = (*TEXT_FIELDS[:1], *CHAT_FIELDS[:2], "prompt", "completion", "instruction", "output", "question", "answer")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
}


@dataclass(frozen=True)
class Record:
    """A piece of text, or the turns of a chat. source: the file or the domain that it is from."""

    source: str
    text: str = ""
    turns: tuple[Message, ...] = ()

    @property
    def plain(self) -> str:
        """The text, or the turns written as people write dialogues, for models without a chat template."""
        if not self.turns:
            return self.text
        return "\n\n".join(f"{turn.role.capitalize()}: {turn.content}" for turn in self.turns) + "\n\n"


def record_of(value: object, source: str) -> Record | None:
    """What a parsed line or row holds; None when it has none of the known fields, or they are empty."""
    if text := _text(value):
        return Record(source, text)
    if isinstance(value, list):
        turns = _turns(value)
        return Record(source, turns=turns) if turns else None
    if not isinstance(value, Mapping):
        return None
    for name in CHAT_FIELDS:
        if turns := _turns(value.get(name)):
            return Record(source, turns=turns)
    for question, answers in PAIR_FIELDS.items():
        if turns := _pair(value, question, answers):
            return Record(source, turns=turns)
    for name in TEXT_FIELDS:
        if text := _text(value.get(name)):
            return Record(source, text)
    return None


def _text(value: object) -> str:
    """A text, or a list of paragraphs, as one; '' for what is none, or says nothing."""
    if isinstance(value, bytes):  # a column of Parquet may have no type of text
        value = value.decode("utf-8", "replace")
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = "\n\n".join(value)
    return value if isinstance(value, str) and value.strip() else ""


def known_columns(names: list[str]) -> list[str]:
    """Those of a table's columns that `record_of` looks at."""
    known = {*TEXT_FIELDS, *CHAT_FIELDS, *PAIR_FIELDS, "input", *(a for found in PAIR_FIELDS.values() for a in found)}
    return [name for name in names if name in known]


def _pair(value: Mapping[str, object], question: str, answers: tuple[str, ...]) -> tuple[Message, ...]:
    asked = value.get(question)
    answer = next((a for name in answers if (a := value.get(name))), None)
    before = _turns(asked) if isinstance(asked, list) else _said("user", asked, value.get("input"))
    after = _turns(answer) if isinstance(answer, list) else _said("assistant", answer)
    return (*before, *after) if before and after else ()


def _said(role: str, *parts: object) -> tuple[Message, ...]:
    text = "\n\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())
    return (Message(role, text),) if text else ()


def _turns(value: object) -> tuple[Message, ...]:
    """Turns whose role is known and that say something; () when that leaves no chat. A list may be written as a text of
    JSON, as in tables that know no lists, or be the only one in another."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list):
        return ()
    found = []
    for turn in value:
        if not isinstance(turn, Mapping):
            return ()
        role = _ROLES.get(str(turn.get("role", turn.get("from", ""))).lower())
        text = _content(turn.get("content", turn.get("value", turn.get("text"))))
        if role and text.strip():
            found.append(Message(role, text))
    return tuple(found) if any(turn.role != "system" for turn in found) else ()


def _content(value: object) -> str:
    """Text of a turn; of one made of parts, those that are text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, Mapping)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""
