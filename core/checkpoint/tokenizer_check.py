"""Does the tokenizer that lies beside the weights fit them?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.checkpoint.architecture import text_config
from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.files import LFS_PREFIX, read_start
from core.checkpoint.findings import Finding, Severity
from core.checkpoint.gguf_header import LazyMetadata
from core.errors import UserError
from core.tensor_info import Role
from core.units import format_count

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")
MAX_TOKENIZER = 64 << 20  # a larger tokenizer.json is not looked into


def tokenizer_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Missing or broken tokenizer, and a vocabulary of another size than the embedding."""
    embed = next((tensor for tensor in checkpoint.tensors if tensor.role is Role.EMBED), None)
    rows = embed.shape[0] if embed is not None and len(embed.shape) == 2 else 0
    if checkpoint.container is Container.GGUF:
        yield from _gguf(checkpoint.metadata, rows)
        return
    if not checkpoint.path.is_dir():
        return
    names = {path.name: path for path in checkpoint.side_files}
    present = [names[name] for name in TOKENIZER_FILES if name in names]
    present += [path for name, path in names.items() if name.endswith(".tiktoken")]
    if not present:
        message = "There is no tokenizer beside the weights, so the model can not be written as GGUF."
        yield Finding(
            "warning", "no-tokenizer", message, "Download tokenizer.json (or tokenizer.model) into the folder."
        )
        return
    for path in present:
        problem = _broken(path)
        if problem:
            yield Finding("error", "tokenizer-broken", problem, "Download it again; with Git, run `git lfs pull`.")
            return
    claimed = text_config(checkpoint.config).get("vocab_size", 0)
    if rows and isinstance(claimed, int) and claimed and claimed != rows:
        more = "more" if claimed > rows else "fewer"
        message = (
            f"The config speaks of {format_count(claimed)} tokens, {more} than the embedding's "
            f"{format_count(rows)} rows."
        )
        severity: Severity = "error" if claimed > rows else "info"
        hint = "Set vocab_size in config.json to the embedding's rows." if claimed > rows else "Nothing to do: padding."
        yield Finding(severity, "vocabulary-config", message, hint)
    tokenizer = names.get("tokenizer.json")
    if tokenizer is None or tokenizer.stat().st_size > MAX_TOKENIZER:
        return
    raw = read_start(tokenizer, MAX_TOKENIZER)
    if not raw.rstrip().endswith(b"}"):
        message = "tokenizer.json is cut off."
        yield Finding("error", "tokenizer-broken", message, "Download it again.")
        return
    yield from _compare(vocabulary_of(raw), rows)


def _gguf(metadata: Mapping[str, Any], rows: int) -> Iterator[Finding]:
    key = "tokenizer.ggml.tokens"
    records = metadata.records if isinstance(metadata, LazyMetadata) else {}
    if key in records:
        yield from _compare(records[key].count, rows)
    elif rows and metadata.get("tokenizer.ggml.model") not in ("none", "no_vocab"):
        message = "The file holds no tokenizer, so programs can not turn text into tokens with it."
        yield Finding("warning", "no-tokenizer", message, "Convert or download the model again, with its tokenizer.")


def _compare(tokens: int, rows: int) -> Iterator[Finding]:
    if not tokens or not rows or tokens == rows:
        return
    if tokens > rows:
        message = (
            f"The tokenizer has {format_count(tokens)} tokens, more than the embedding's {format_count(rows)} rows."
        )
        hint = "Use the tokenizer that came with these weights, or resize the embedding in training."
        yield Finding("error", "vocabulary-larger", message, hint)
    else:
        message = (
            f"The tokenizer has {format_count(tokens)} tokens, fewer than the embedding's {format_count(rows)} rows."
        )
        yield Finding("info", "vocabulary-smaller", message, "Nothing to do: the rows left over are padding.")


def _broken(path: Path) -> str:
    """Why the file can not be the tokenizer that its name promises, or ''."""
    try:
        start = read_start(path, 512)
    except UserError as error:
        return error.message
    if not start:
        return f"{path.name} is empty."
    if start.startswith(LFS_PREFIX):
        return f"{path.name} is a Git LFS pointer, not the file itself."
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return f"{path.name} is a web page, not a tokenizer."
    if not any(start):
        return f"{path.name} begins with zeros."
    return ""


def vocabulary_of(raw: bytes) -> int:
    """Highest token number + 1 of a tokenizer.json; 0 when it is not told.

    Takes numbers out of the text: parsing 33 MB (262,144 tokens and their merges) as JSON is five times slower.
    """
    start = _VOCABULARY.search(raw)
    if not start:
        return _unigram(raw)
    region = _ENTRIES.match(raw, start.end())
    numbers = _NUMBER.findall(raw, start.end(), region.end() if region else start.end())
    numbers += _ADDED.findall(raw, 0, start.start())
    return max(map(int, numbers), default=-1) + 1


_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
_VOCABULARY = re.compile(rb'"vocab"\s*:\s*\{')
_ENTRIES = re.compile(rb"(?:\s*+" + _TEXT + rb"\s*+:\s*+\d{1,18}\s*+,?+)*+")
_NUMBER = re.compile(_TEXT + rb"\s*+:\s*+(\d{1,18})")
_ADDED = re.compile(rb'"id"\s*:\s*(\d{1,18})')


def _unigram(raw: bytes) -> int:
    """The same for a vocabulary that is a list of [piece, score], as SentencePiece models have it."""
    try:
        model = json.loads(raw).get("model")
    except (ValueError, RecursionError, AttributeError):
        return 0
    pieces = model.get("vocab") if isinstance(model, dict) else None
    return len(pieces) if isinstance(pieces, list) else 0
