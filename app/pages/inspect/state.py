"""What the views of the Inspect page look at together: a tensor, a channel of it, and a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from app.session import Session, SessionStore
from core.tensor_info import Role, TensorInfo

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.contract import NumericContract
    from core.plan import Plan, TensorPlan

KEEP = ""  # the format that the present plan gives
FIRST_ROLES = (Role.FFN_DOWN, Role.ATTN_V, Role.ATTN_QKV)  # what is looked at first: their error matters most


class InspectState(QObject):
    """Follows the session; views read it and call `choose…`. Every change is told once, after all fields are set.

    tensor: of the source checkpoint. expert: index into a stack [E, N, K], 0 for anything else. axis: 'output' (rows)
    or 'input' (columns) and channel: index along it, or None. format_name: the format under inspection, '' for the one
    that the plan gives this tensor. survey: row of each tensor that the survey has reached, by name;
    survey_stopped: why it did not reach all, one sentence, '' while it runs and when it did.
    statistics, outliers: of the chosen tensor, None and () until they are there.

    model_changed: another checkpoint or none; tensor_changed follows it. plan_changed: another plan.
    tensor_changed: another tensor or expert.
    channel_changed, format_changed, survey_changed, statistics_changed: as they say.
    teaching: made-up data is looked at in place of the tensor; teaching_changed tells.
    opened(name): somebody asked to see a tensor in the Tensor view.
    """

    model_changed = Signal()
    plan_changed = Signal()
    tensor_changed = Signal()
    channel_changed = Signal()
    format_changed = Signal()
    survey_changed = Signal()
    statistics_changed = Signal()
    opened = Signal(str)
    teaching_changed = Signal()

    def __init__(self, store: SessionStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store
        self._planned: dict[str, TensorPlan] | None = None
        self.tensor: TensorInfo | None = _first(store.current.checkpoint)
        self.expert = 0
        self.axis = "output"
        self.channel: int | None = None
        self.format_name = KEEP
        self.survey: Mapping[str, Any] = {}
        self.survey_stopped = ""
        self.teaching = False
        self.statistics: Any = None
        self.outliers: tuple[Any, ...] = ()
        store.changed.connect(self._on_session)

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self._store.current.checkpoint

    @property
    def plan(self) -> Plan | None:
        """The plan of this checkpoint under the recipe in force, or None while there is none."""
        return self._store.current.plan

    # ---- choosing --------------------------------------------------------------------------------------------------

    def choose(self, name: str, expert: int = 0) -> None:
        """Look at another tensor, by the name it has in the checkpoint; unknown names change nothing."""
        checkpoint = self.checkpoint
        found = next((t for t in checkpoint.tensors if t.name == name), None) if checkpoint is not None else None
        if found is None or (found is self.tensor and expert == self.expert):
            return
        self.tensor, self.expert, self.channel = found, expert, None
        self._forget_statistics()
        self.tensor_changed.emit()

    def open(self, name: str) -> None:
        """Look at a tensor and bring the Tensor view to the front."""
        self.choose(name)
        if self.tensor is not None and self.tensor.name == name:
            self.opened.emit(name)

    def choose_channel(self, axis: str, channel: int | None) -> None:
        """axis: 'output' or 'input'. None: no channel."""
        if (axis, channel) != (self.axis, self.channel):
            self.axis, self.channel = axis, channel
            self.channel_changed.emit()

    def choose_format(self, name: str) -> None:
        """'' for what the plan gives."""
        if name != self.format_name:
            self.format_name = name
            self.format_changed.emit()

    # ---- what jobs bring -------------------------------------------------------------------------------------------

    def set_survey(self, rows: Mapping[str, Any]) -> None:
        """The survey's rows so far, by tensor."""
        self.survey = rows
        self.survey_changed.emit()

    def set_survey_stopped(self, why: str) -> None:
        """The survey ended before the last tensor; '' when it begins."""
        if why != self.survey_stopped:
            self.survey_stopped = why
            self.survey_changed.emit()

    def set_statistics(self, statistics: Any, outliers: tuple[Any, ...]) -> None:
        """Of the chosen tensor."""
        self.statistics, self.outliers = statistics, outliers
        self.statistics_changed.emit()

    def set_teaching(self, on: bool) -> None:
        """Whether made-up data is in view."""
        if on != self.teaching:
            self.teaching = on
            self.teaching_changed.emit()

    # ---- the plan --------------------------------------------------------------------------------------------------

    def planned(self, name: str = "") -> TensorPlan | None:
        """What the plan makes of a source tensor, by default the chosen one; None without a plan or for an unused."""
        if self._planned is None:
            tensors = self.plan.tensors if self.plan is not None else ()
            self._planned = {s.name: t for t in tensors for s in t.source.sources}
        return self._planned.get(name or (self.tensor.name if self.tensor is not None else ""))

    @property
    def format_shown(self) -> str:
        """Name of the format under inspection: the chosen one, else the plan's; '' while neither is known."""
        if self.format_name:
            return self.format_name
        planned = self.planned()
        return planned.format_name if planned is not None else ""

    @property
    def contract(self) -> NumericContract | None:
        """Of the format under inspection; None while it is not known, or the tensor is kept as it is."""
        if self.format_name:
            from core.formats import FORMATS  # loads the kernels, which the first picture does not wait for

            return next((f.contract for f in FORMATS if f.name == self.format_name), None)
        planned = self.planned()
        return planned.format.contract if planned is not None and planned.format is not None else None

    def _forget_statistics(self) -> None:
        self.statistics, self.outliers = None, ()

    def _on_session(self, old: Session, new: Session) -> None:
        if new.checkpoint is not old.checkpoint:
            self._planned, self.expert, self.channel = None, 0, None
            self.survey, self.survey_stopped, self.format_name = {}, "", KEEP
            self._forget_statistics()
            self.tensor = _first(new.checkpoint)
            self.model_changed.emit()
            self.tensor_changed.emit()
        elif new.plan is not old.plan:
            self._planned = None
            self.plan_changed.emit()


def _first(checkpoint: Checkpoint | None) -> TensorInfo | None:
    tensors = checkpoint.tensors if checkpoint is not None else ()
    matrices = [t for t in tensors if len(t.shape) > 1]
    for role in FIRST_ROLES:
        found = next((t for t in matrices if t.role is role), None)
        if found is not None:
            return found
    return next(iter(matrices or tensors), None)
