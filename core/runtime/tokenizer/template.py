"""Chat templates: Jinja programs out of a downloaded file, run in a sandbox that also bounds their time and memory.

The sandbox of jinja2 keeps a template from reaching Python's internals or changing what it is given. What it lets pass
is work without end: loops in loops, and text that doubles. Every loop turn and call is counted here, and what can make
text longer than its input (joining, repeating, padding, replacing) is measured before it is done.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import UserError

MAX_TEMPLATE = 1 << 20  # characters; the longest in use, with tools, have some 20,000
MAX_TEXT = 4 << 20  # characters of the conversation as text, and of any text inside a template
MAX_STEPS = 1_000_000  # loop turns and calls
MAX_SECONDS = 2.0
MAX_NUMBER = 1 << 20  # as an argument of a call: repeat counts and widths
MAX_BITS = 4096  # of a whole number that a template computes
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)")  # a width in a %-format
_WIDE_BRACES = re.compile(r"\{[^{}]*(\d{5,}|\{)")  # one in str.format, or one that is itself put in
_SPACE_MAKERS = frozenset({"center", "wordwrap", "urlize", "format", "filesizeformat", "xmlattr", "pprint", "random"})
PROMPT_HINT = "Give a prompt instead of a chat; its text is continued as it stands."


@dataclass(frozen=True)
class Message:
    """One turn of a chat. role: 'system', 'user' or 'assistant'."""

    role: str
    content: str


class _Refused(Exception):
    """What a template says with raise_exception."""


class _TooMuch(Exception):
    """A template that would not end, or would fill the memory."""


def _concat(parts: Iterable[str]) -> str:
    parts = list(parts)
    if sum(map(len, parts)) > MAX_TEXT:
        raise _TooMuch
    return "".join(parts)


class _Generator(CodeGenerator):
    """Has `~` go through the environment, as operators and calls of a sandbox do."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("str(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")


class _GenerationTag(Extension):
    """`{% generation %}` marks for training what the assistant says; for prompting it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - a class attribute in jinja2

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(_concat)  # what a block, a macro and `~` are put together with
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        for name in _SPACE_MAKERS:
            self.filters.pop(name, None)
        self.filters |= {"tojson": _to_json, "join": self._join_filter, "replace": self._replace, "indent": _indent}
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}
        self.globals.pop("lipsum", None)
        self._steps, self._until = 0, 0.0

    def start(self) -> None:
        self._steps, self._until = 0, time.monotonic() + MAX_SECONDS

    def tick(self) -> str:
        self._steps += 1
        if self._steps > MAX_STEPS or time.monotonic() > self._until:
            raise _TooMuch
        return ""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop's body starts with a tick."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick, lineno=loop.lineno))
        return tree

    def call(__self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2
        __self.tick()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise _TooMuch
        if isinstance(owner, str):
            if name == "join" and args:
                return __self._join_filter(args[0], owner)
            if name == "replace" and len(args) > 1:
                return __self._replace(owner, *args)
            if name in ("format", "format_map") and _WIDE_BRACES.search(owner):
                raise _TooMuch
            if name in ("translate", "encode"):
                raise SecurityError(f"{name} is not for templates")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(v) if isinstance(v, str | list | tuple) else 0 for v in (left, right)]
        if operator == "*" and any(sizes):
            count = next((v for v in (left, right) if isinstance(v, int)), 0)
            if max(sizes) * max(count, 0) > MAX_TEXT:
                raise _TooMuch
        elif operator == "+" and sum(sizes) > MAX_TEXT:
            raise _TooMuch
        elif operator == "%" and isinstance(left, str):
            if _WIDE.search(left) or sum(sizes) > MAX_TEXT:
                raise _TooMuch
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise _TooMuch
        return super().call_binop(context, operator, left, right)

    def _join_filter(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            value = (self.getitem(item, attribute) for item in value)
        parts = [str(item) for item in value]
        if sum(map(len, parts)) + len(str(d)) * len(parts) > MAX_TEXT:
            raise _TooMuch
        return str(d).join(parts)

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        if len(text) + (text.count(old)) * len(new) > MAX_TEXT:
            raise _TooMuch
        return text.replace(old, new, -1 if count is None else count)


def _raise(message: Any) -> None:
    raise _Refused(str(message)[:300])


def _now(form: str) -> str:
    if len(form) > 100:
        raise _TooMuch
    return dt.datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own writes `<` as \\u003c, for web pages."""
    if indent is not None and indent > 16:
        raise _TooMuch
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    space = width if isinstance(width, str) else " " * min(max(width, 0), 64)
    if len(space) > 64:
        raise _TooMuch
    lines = str(s).split("\n")
    start = space if first else ""
    return start + "\n".join([lines[0], *(space + line if line or blank else line for line in lines[1:])])


@lru_cache(maxsize=8)
def _compiled(source: str) -> tuple[_Sandbox, Any]:
    sandbox = _Sandbox()
    return sandbox, sandbox.from_string(source)


def render(template: str, messages: Sequence[Message], tokens: Mapping[str, str], open_turn: bool = True) -> str:
    """The conversation as one text, special tokens written out.

    tokens: 'bos_token' and the like → text. open_turn: end with the start of the assistant's turn. Raises UserError
    when the template does not compile, fails, refuses the conversation, or does not come to an end.
    """
    if len(template) > MAX_TEMPLATE:
        raise UserError("The chat template is too long to be one.", PROMPT_HINT)
    try:
        sandbox, program = _compiled(template)
        sandbox.start()
        turns = [asdict(message) for message in messages]
        pieces, size = [], 0
        for piece in program.generate(messages=turns, add_generation_prompt=open_turn, tools=None, **tokens):
            pieces.append(piece)
            size += len(piece)
            sandbox.tick()
            if size > MAX_TEXT:
                raise _TooMuch
        return "".join(pieces)
    except _Refused as e:
        raise UserError(f"The chat template refuses this conversation: {e}.".replace("..", "."), PROMPT_HINT) from None
    except (_TooMuch, MemoryError, RecursionError):
        raise UserError("The chat template does not come to an end.", PROMPT_HINT) from None
    except TemplateError as e:
        raise UserError(f"The chat template can not be run: {_short(e)}.", PROMPT_HINT) from e
    except Exception as e:  # a template is a program: it can fail in any way that Python can
        raise UserError(f"The chat template fails with {type(e).__name__}: {_short(e)}.", PROMPT_HINT) from e


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")
