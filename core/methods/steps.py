"""What is done with each block of a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from core.methods.block_method import BlockMethod
from core.methods.problem import Solver
from core.methods.transform import BlockTransform


@dataclass(frozen=True)
class Steps:
    """Transforms in their order, then the codes: solver chooses them weight by weight, learner a block at a time. Where
    there is neither they are chosen as without data, or by a search that takes importance, which is then measured on
    the transformed model."""

    transforms: tuple[BlockTransform, ...] = ()
    solver: Solver | None = None
    learner: BlockMethod | None = None
    measures_importance: bool = False

    @property
    def chooser(self) -> Solver | BlockMethod | None:
        """Whatever chooses codes."""
        return self.learner or self.solver

    @property
    def follows_full(self) -> bool:
        """Whether the unchanged model is run beside the quantized one."""
        return self.learner is not None or (self.solver is not None and self.solver.follows_full)
