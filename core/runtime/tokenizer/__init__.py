"""Text into tokens and back, for checkpoints of every container."""

from __future__ import annotations

from core.checkpoint.base import Checkpoint, Container
from core.runtime.tokenizer.folder import open_folder
from core.runtime.tokenizer.gguf import open_gguf
from core.runtime.tokenizer.stream import Stream
from core.runtime.tokenizer.template import Message
from core.runtime.tokenizer.text import SpecialIds, Text

__all__ = ["Message", "SpecialIds", "Stream", "Text", "open_text"]


def open_text(checkpoint: Checkpoint) -> Text:
    """The checkpoint's tokenizer. Raises UserError when it has none, or one that can not be run here."""
    if checkpoint.container is Container.GGUF:
        return open_gguf(checkpoint.metadata)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    return open_folder(folder, checkpoint.config)
