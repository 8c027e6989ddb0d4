"""What is done with each block of a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from core.methods.block_method import BlockMethod
from core.methods.problem import Solver
from core.methods.transform import BlockTransform
from core.models.config import DecoderConfig


@dataclass(frozen=True)
class Steps:
    """Transforms in their order, then the codes: solver chooses them weight by weight, learner a block at a time. Where
    there is neither they are chosen as without data, or by a search that takes importance, which is then measured on
    the transformed model."""

    transforms: tuple[BlockTransform, ...] = ()
    solver: Solver | None = None
    learner: BlockMethod | None = None
    measures_importance: bool = False

    def statistics_tokens(self, config: DecoderConfig) -> int | None:
        """How many tokens the transforms' statistics take; None for all, 0 where there are none."""
        wanted = [t.enough_tokens for t in self.transforms if t.needs_statistics]
        if wanted and config.experts:  # one meets few of all tokens as it is
            return None
        return None if None in wanted else max((n for n in wanted if n is not None), default=0)

    @property
    def chooser(self) -> Solver | BlockMethod | None:
        """Whatever chooses codes."""
        return self.learner or self.solver

    @property
    def follows_full(self) -> bool:
        """Whether the unchanged model is run beside the quantized one."""
        return self.learner is not None or (self.solver is not None and self.solver.follows_full)
