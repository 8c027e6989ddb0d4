"""What calibration says about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockProgress:
    """done of total blocks are finished; name: of the weight that was chosen last, '' between blocks."""

    done: int
    total: int
    name: str = ""
