"""Checkpoints: `open_checkpoint(path)` reads headers of any supported container; values follow in row blocks."""

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.opening import open_checkpoint

__all__ = ["Checkpoint", "Container", "open_checkpoint"]
