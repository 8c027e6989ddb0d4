"""What is done with each block of a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from core.methods.problem import Solver
from core.methods.transform import BlockTransform


@dataclass(frozen=True)
class Steps:
    """Transforms in their order, then the codes. solver: None where they are chosen as without data, or by a search
    that takes importance, which is then measured on the transformed model."""

    transforms: tuple[BlockTransform, ...] = ()
    solver: Solver | None = None
    measures_importance: bool = False
