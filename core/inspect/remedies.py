"""What can be done about a finding, as recipe rules, with the price in bytes and the gain in error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from core.checkpoint.base import Checkpoint
from core.formats import Method
from core.plan import Plan
from core.progress import CancelToken, ErrorStats
from core.recipe import Recipe, Rule

if TYPE_CHECKING:
    from core.inspect.survey import SurveyRow


class FindingKind(Enum):
    OUTLIER = "outlier channel"
    ERROR = "large error"
    GROUP_GAIN = "smaller groups gain"


@dataclass(frozen=True)
class Finding:
    """tensor: as the plan calls it; index: its number there. axis, channel: of an outlier ('output'/'input', number).

    ratio: channel maximum over the median of channel maxima (outlier), dB below the model's median SNR (error), dB that
    smaller groups gain (group gain). weight: for ranking, higher is worse. text: one sentence.
    because: one clause for a rule's reason ('channel 1,247 is 38 × the median').
    """

    kind: FindingKind
    tensor: str
    index: int
    text: str
    because: str
    ratio: float
    weight: float
    axis: str = ""
    channel: int | None = None


class RemedyKind(Enum):
    KEEP = "keep in 16 bits"
    EIGHT = "8 bits here"
    GROUP = "smaller group"
    ASYMMETRIC = "asymmetric"
    SEARCH = "clipping search"
    FORMAT = "another format"


@dataclass(frozen=True)
class Remedy:
    """rules: put before the recipe's own; empty for the clipping search, which sets the recipe's `method`.

    possible: False with why_not, one clause. format: what the tensor gets. bytes_change: the new plan's total less the
    old one's. before, after: errors of the tensor, None where the bytes are copied (exact). sampled: measured on evenly
    spread rows; the same remedy comes again with the whole tensor measured.
    """

    kind: RemedyKind
    title: str
    format: str
    rules: tuple[Rule, ...]
    method: Method | None
    possible: bool
    why_not: str
    bytes_change: int
    before: ErrorStats | None
    after: ErrorStats | None
    sampled: bool

    @property
    def gain_db(self) -> float:
        """SNR after less SNR before, dB; inf when it becomes exact, 0 when both are."""
        raise NotImplementedError


def findings(rows: Iterable[SurveyRow], plan: Plan) -> tuple[Finding, ...]:
    """Worst first, in words."""
    raise NotImplementedError


def remedies(checkpoint: Checkpoint, plan: Plan, finding: Finding, token: CancelToken) -> Iterator[Remedy]:
    """All that the target can carry, and those that it can not with the reason; quick figures first (`sampled`)."""
    raise NotImplementedError


def apply(recipe: Recipe, remedy: Remedy) -> Recipe:
    """A new recipe; the old value is the undo. A rule for the same tensor that an earlier remedy made is replaced."""
    raise NotImplementedError
