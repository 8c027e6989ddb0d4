"""The facts of a model in one card."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from app.session import Session
from app.widgets.basics import Card
from app.widgets.text import KeyValue
from core import units

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint

TERMS = {  # fact → glossary term
    "Parameters": "parameter",
    "Layers": "layer",
    "Size": "checkpoint",
    "Types": "dtype",
    "Context": "context length",
    "Heads": "attention head",
}


class SummaryCard(Card):
    """Facts with their values; the terms have tooltips."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Summary", parent)
        self.facts = KeyValue()
        self.add(self.facts)
        self.body.addStretch(1)

    def show_session(self, session: Session) -> None:
        """Fill from a session that has a model."""
        checkpoint, shape = session.checkpoint, session.shape
        assert checkpoint is not None
        values = sum(t.values for t in checkpoint.tensors if not t.tied_to)
        facts = {
            "Architecture": checkpoint.architecture or "unknown",
            "Parameters": f"{short_count(values)} ({units.format_count(values)})",
            "Layers": units.format_count(shape.layers) if shape else "unknown",
            "Size": f"{units.format_bytes(checkpoint.total_bytes)} · {_container(checkpoint)}",
            "Types": type_mix(checkpoint),
            "Context": f"{units.format_count(shape.context)} tokens" if shape and shape.context else "unknown",
            "Heads": _heads(session),
            "Tokenizer": tokenizer_text(checkpoint, shape.vocab if shape else 0),
        }
        for name, text in facts.items():
            self.facts.set(name, text, term_name=TERMS.get(name, ""))


def short_count(n: int) -> str:
    """134 515 008 → '134.5 million', 8 030 261 248 → '8.03 billion'."""
    for limit, word, decimals in ((1e9, "billion", 2), (1e6, "million", 1)):
        if n >= limit:
            return f"{n / limit:.{decimals}f} {word}"
    return units.format_count(n)


def type_mix(checkpoint: Checkpoint) -> str:
    """'Q4_1 96 %, F32 4 %': shares of the stored bytes, largest first."""
    mix: Counter[str] = Counter()
    for t in checkpoint.tensors:
        if not t.tied_to:
            mix[t.dtype] += t.nbytes
    total = sum(mix.values()) or 1
    parts = [
        f"{name} {100 * n / total:.0f} %" if n / total >= 0.01 else f"{name} < 1 %" for name, n in mix.most_common(4)
    ]
    return ", ".join(parts) if len(mix) > 1 else "".join(mix)


def tokenizer_text(checkpoint: Checkpoint, vocab: int) -> str:
    """Which tokenizer the checkpoint brings, and how many tokens the model has."""
    kind = str(checkpoint.metadata.get("tokenizer.ggml.model", ""))
    names = {"gpt2": "byte-level BPE", "llama": "SentencePiece", "bert": "WordPiece", "t5": "Unigram"}
    if kind:
        found = names.get(kind, kind)
    else:
        files = {f.name for f in checkpoint.side_files}
        found = next((f for f in ("tokenizer.json", "tokenizer.model", "vocab.json") if f in files), "")
    if not found:
        return "none found"
    return f"{found}, {units.format_count(vocab)} tokens" if vocab else found


def _container(checkpoint: Checkpoint) -> str:
    count = len(checkpoint.files)
    return f"{count} {checkpoint.container.value} file{'s' if count != 1 else ''}"


def _heads(session: Session) -> str:
    shape = session.shape
    if shape is None or not shape.heads:
        return "unknown"
    text = f"{shape.heads} query, {shape.kv_heads} key and value"
    if shape.experts:
        text += f"; {shape.experts} experts, {shape.experts_used} used"
    return text
