"""Plain Hugging Face folders: 16-bit weights that every loader reads, and no word on quantization."""

from __future__ import annotations

from collections.abc import Mapping

from core.checkpoint.base import Checkpoint
from core.export.ecosystem import Ecosystem, Words
from core.formats.coded import Coded
from core.tensor_info import Role


class PlainFolder(Ecosystem):
    """Every matrix of it is in 16 bits, experts stored as one tensor too."""

    name = "plain"
    roles = frozenset(Role) - {Role.NORM, Role.ROPE, Role.CONV, Role.ROUTER, Role.BIAS}
    stacks = True

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        return Words({})
