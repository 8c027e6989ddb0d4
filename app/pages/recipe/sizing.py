"""What the tab Size asks for in the background: what measuring takes, the measurement, the curve and what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.jobs.budget import (
    CURVE_KEY,
    MEASURE_KEY,
    OUTLOOK_KEY,
    Outlook,
    Room,
    SizeCurve,
    curve_work,
    importance_for,
    measure_work,
    outlook_work,
)
from app.pages.recipe.by_size import BySizePanel
from app.services import Services
from app.session import Session
from core.targets import find_target

if TYPE_CHECKING:
    from app.jobs.runner import Job
    from core.budget.sensitivity import SensitivityProgress
    from core.budget.table import Sensitivities
    from core.checkpoint.base import Checkpoint
    from core.methods.choice import Calibrated
    from core.recipe import Recipe


class Sizing(QObject):
    """Keeps the tab up to date for the session's model, kind of output, device and recipe while it is looked at. A
    measurement goes on out of sight, until the model is another one."""

    def __init__(self, services: Services, panel: BySizePanel) -> None:
        super().__init__(panel)
        self._services, self._panel = services, panel
        self._asked: tuple[Checkpoint, str, str, Calibrated] | None = None  # what is shown is for this
        self._outlook: Outlook | None = None
        self._found: Sensitivities | None = None
        self._curve: SizeCurve | None = None
        self._room: Room | None = None  # that the curve was asked for
        self._job: Job | None = None
        panel.measure_asked.connect(self._measure)
        panel.cancel_asked.connect(self._cancel)
        panel.came_up.connect(self.refresh)
        services.session.changed.connect(self._on_session)

    def _on_session(self, old: Session, new: Session) -> None:
        if new.checkpoint is not old.checkpoint:
            self._services.jobs.discard(MEASURE_KEY)
            self._job = None
            self._forget()
        self.refresh()

    def _forget(self) -> None:
        for key in (OUTLOOK_KEY, CURVE_KEY):
            self._services.jobs.discard(key)
        self._asked = self._outlook = self._found = self._curve = self._room = None
        self._panel.show_nothing()

    def refresh(self) -> None:
        """Something of the session is another one, or the tab has come into sight."""
        session = self._services.session.current
        recipe, checkpoint = session.recipe, session.checkpoint
        if recipe is None or checkpoint is None or not self._panel.isVisible() or self._job is not None:
            return
        target = find_target(recipe.target)
        importance = importance_for(recipe)
        if self._asked is not None and recipe.calibrated is None:
            importance = self._asked[-1]  # nothing is said against what was measured with
        asked = (checkpoint, target.container, target.ecosystem, importance)
        if asked != self._asked:
            self._forget()
            self._asked = asked
            self._services.jobs.run(
                "What measuring takes", outlook_work(checkpoint, recipe), self._on_outlook, self._panel.show_error,
                latest_key=OUTLOOK_KEY, owner=self,
            )  # fmt: skip
        elif self._found is not None and _room(session) != self._room:
            self._ask_curve()
        self._show_recipe(session, recipe)

    def _show_recipe(self, session: Session, recipe: Recipe | None) -> None:
        plan = session.plan
        current = plan is not None and plan.recipe == recipe
        self._panel.show_recipe(recipe, plan.bytes_total if plan is not None and current else None)

    def _on_outlook(self, outlook: Outlook) -> None:
        self._outlook = outlook
        if outlook.known is not None:
            self._on_measured(outlook.known)
        else:
            self._panel.show_outlook(outlook)

    # ---- measuring -------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        checkpoint = self._services.session.current.checkpoint
        if checkpoint is None or self._outlook is None or self._outlook.wish is None:
            return
        self._panel.show_running()
        self._job = self._services.jobs.run(
            "Measure sensitivities", measure_work(checkpoint, self._outlook.wish), self._on_measured, self._on_failed,
            self._on_progress, on_cancelled=self._on_cancelled, latest_key=MEASURE_KEY, owner=self,
        )  # fmt: skip

    def _cancel(self) -> None:
        """While measuring or, after it, while the curve is worked out."""
        if self._job is not None:
            self._job.cancel()
            self._panel.show_cancelling()
            return
        self._services.jobs.discard(CURVE_KEY)
        self._found = self._room = None
        self._show_outlook()

    def _on_progress(self, steps: tuple[SensitivityProgress, ...]) -> None:
        if self._job is not None and not self._job.token.cancelled:
            self._panel.show_running(steps[-1])

    def _on_cancelled(self) -> None:
        self._job = None
        self._show_outlook()
        self.refresh()

    def _on_failed(self, error: BaseException) -> None:
        self._job = None
        self._panel.show_error(error)

    def _show_outlook(self) -> None:
        if self._outlook is not None:
            self._panel.show_outlook(self._outlook)

    def _on_measured(self, found: Sensitivities) -> None:
        self._job = None
        self._found = found
        self._panel.show_drawing()
        self._ask_curve()
        self.refresh()  # the kind of output may have become another one meanwhile

    # ---- the curve -------------------------------------------------------------------------------------------------

    def _ask_curve(self) -> None:
        session = self._services.session.current
        if session.checkpoint is None or self._found is None:
            return
        self._room = _room(session)
        points = self._curve.own if self._curve is not None else ()
        self._services.jobs.run(
            "Quality over size", curve_work(session.checkpoint, self._found, self._room, points), self._on_curve,
            self._on_failed, latest_key=CURVE_KEY, owner=self,
        )  # fmt: skip

    def _on_curve(self, curve: SizeCurve) -> None:
        self._curve = curve
        self._panel.show_curve(curve, self._room)
        session = self._services.session.current
        self._show_recipe(session, session.recipe)


def _room(session: Session) -> Room | None:
    device = session.device
    if device is None or device.capacity is None:
        return None
    return Room(device.label, device.capacity, session.context, session.batch)
