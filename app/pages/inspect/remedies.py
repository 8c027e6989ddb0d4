"""Findings beside every view, worst first, and what can be done about each: one click puts it into the recipe."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import (
    QHBoxLayout,
    QListWidgetItem,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.jobs.inspect_more import FINDINGS_KEY, REMEDIES_KEY, Offered, findings_work, remedies_work
from app.jobs.plan import PLAN_KEY, PlanReply, plan_work
from app.pages.inspect.changes import Change, Key, key_of
from app.pages.inspect.findings_list import FINDING, MOST, FindingsList
from app.pages.inspect.remedy_row import RemedyRow, gain_text, signed_bytes
from app.pages.inspect.state import InspectState
from app.services import Services
from app.theme import SPACE_1, SPACE_2
from app.widgets.basics import label, quiet_button, set_available
from app.widgets.inline_error import InlineError
from app.widgets.text import explain
from core.plan import Action
from core.recipe import Recipe
from core.units import format_count, format_decimals

REST = 300  # ms without news of the survey before findings are looked for


class RemediesPanel(QWidget):
    """Follows the survey; choosing a finding chooses its tensor and channel in every view."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state, self._services = state, services
        self.findings: tuple[Any, ...] = ()
        self.chosen: Any = None
        self._source = ""  # of the chosen finding: plans of other targets call the tensor otherwise
        self.rows: list[RemedyRow] = []
        self.changes: list[Change] = []
        self._pending: Change | None = None  # waits for its plan
        self._undoing = False
        self._next: tuple[Key, ...] = ()  # where to go once the finding that was dealt with is gone, …
        self._treated: Key = ()  # … which is this one
        self._moved_on = False
        self._stale = True
        self._timer = QTimer(self, singleShot=True, interval=REST)
        self._timer.timeout.connect(self._look)
        self._make_parts()
        self._lay_out()
        state.model_changed.connect(self._on_model)
        state.plan_changed.connect(self._on_plan)
        state.survey_changed.connect(self._renew)
        self.list.currentItemChanged.connect(lambda item, _old: self._on_item(item))
        self.list.itemActivated.connect(lambda _item: state.open(self._source))
        self._show_findings(())

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.count = label("", "muted")
        self.list = FindingsList()
        self.none = label("", "muted", wrap=True)
        self.none.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.heading = label("", "heading", wrap=True)
        self.now = label("", "muted", wrap=True)
        self.now.setAccessibleName("What the tensor keeps as planned")
        self.now.setToolTip(explain("SNR"))
        self.working = label("", "muted", wrap=True)
        self.error = InlineError()
        self.done = label("", "ok", wrap=True)
        self.done.setAccessibleName("What was put into the recipe")
        self.undo = quiet_button("Undo", self._undo, icon="undo-2", hint="Take the last remedy out of the recipe")

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        title = label("Findings", "heading")
        title.setToolTip(explain("finding"))
        title.setBuddy(self.list)
        head.addWidget(title)
        head.addWidget(self.count, 1)
        self._column = QVBoxLayout()
        self._column.setSpacing(SPACE_2)
        inside = QWidget()
        inner = QVBoxLayout(inside)
        inner.setContentsMargins(0, 0, SPACE_1, 0)
        inner.setSpacing(SPACE_2)
        inner.addWidget(self.now)
        inner.addWidget(self.heading)
        inner.addWidget(self.working)
        inner.addLayout(self._column)
        inner.addStretch(1)
        found = QWidget()
        both = QVBoxLayout(found)
        both.setContentsMargins(0, 0, 0, 0)
        both.setSpacing(SPACE_2)
        both.addWidget(self.list, 2)
        both.addWidget(_scrolled(inside), 3)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.none)
        self._stack.addWidget(found)
        last = QHBoxLayout()
        last.addWidget(self.done, 1)
        last.addWidget(self.undo, 0, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(head)
        layout.addWidget(self._stack, 1)
        layout.addWidget(self.error)
        layout.addLayout(last)
        self._show_undo()

    # ---- findings --------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        self._stale = True
        if self.isVisible():
            self._show_now(self.chosen)
            self._timer.start()

    def _look(self) -> None:
        checkpoint, plan, survey = self._state.checkpoint, self._state.plan, self._state.survey
        if checkpoint is None or plan is None or not survey or not self.isVisible():
            self._show_findings(())
            return
        self._services.jobs.run(
            "Look for findings", findings_work(checkpoint, survey.values(), plan), self._show_findings, self._on_error,
            lambda found: self._show_findings(found[-1].findings), latest_key=FINDINGS_KEY, owner=self,
        )  # fmt: skip

    def _show_findings(self, found: tuple[Any, ...]) -> None:
        """Replace the list; the finding that is looked at stays chosen if it is still there."""
        self._stale = not found
        kept = key_of(self.chosen) if self.chosen is not None else None
        self.findings = found
        self.list.show_findings(found, kept)
        more = f", the worst {MOST} are listed" if len(found) > MOST else ""
        slight = ", none of which matters much" if found and all(f.minor for f in found) else ""
        self.count.setText(f"{format_count(len(found))}{slight or more}" if found else "")
        self._stack.setCurrentIndex(1 if found else 0)
        self.none.setText(self._why_none())
        if found:
            self._go_on()
        if found and self.list.currentItem() is None:
            self.chosen = None
            self._show_remedies_of(None)

    def _go_on(self) -> None:
        """After a remedy, to the next finding once its own is gone or hardly matters; after Undo, back to it."""
        item = self.list.currentItem()
        now = item.data(FINDING) if item is not None else None
        if now is not None and not (now.minor and key_of(now) == self._treated):
            return  # such as one that the remedy was not enough for: what else can be done is shown
        going_on = bool(self._treated)
        if self.list.choose_first(self._next):
            self._moved_on = going_on
            self._show_undo()

    def _why_none(self) -> str:
        if self._state.checkpoint is None:
            return "Open a model; what stands out in it is listed here."
        if self._state.plan is None:
            return "There is no plan yet. Choose a format on the Recipe page; what it loses is listed here."
        if not self._state.survey:
            going_on = "The model is being measured. What stands out is listed here as it comes."
            return self._state.survey_stopped or going_on
        return "Nothing stands out so far: no channel or tensor loses much more than the others."

    def _on_item(self, item: QListWidgetItem | None) -> None:
        finding = item.data(FINDING) if item is not None else None
        self.chosen, self._next = finding, ()
        plan = self._state.plan
        sources = plan.tensors[finding.index].source.sources if finding is not None and plan is not None else ()
        self._source = sources[0].name if sources else ""
        self._show_remedies_of(finding)
        if finding is not None and sources:
            self._state.choose(self._source)
            self._state.choose_channel(finding.axis or "input", finding.channel)

    # ---- remedies --------------------------------------------------------------------------------------------------

    def _show_remedies_of(self, finding: Any) -> None:
        self._services.jobs.discard(REMEDIES_KEY)
        for row in self.rows:
            self._column.removeWidget(row)
            row.hide()
            row.deleteLater()
        self.rows = []
        self.heading.setVisible(finding is not None)
        self.heading.setText("What can be done")
        self._show_now(finding)
        checkpoint, plan = self._state.checkpoint, self._state.plan
        if finding is None or checkpoint is None or plan is None:
            self.working.setText("Choose a finding to see what can be done about it." if finding is None else "")
            self.working.setVisible(finding is None)
            return
        self.working.setText("Measuring what each remedy costs and gains…")
        self.working.show()
        self._services.jobs.run(
            "Price remedies", remedies_work(checkpoint, plan, finding), lambda _none: self._on_priced(),
            self._on_error, self._on_offers, latest_key=REMEDIES_KEY, owner=self,
        )  # fmt: skip

    def _show_now(self, finding: Any) -> None:
        """How much the format leaves of the tensor at present, so that one sees whether anything has to be done."""
        row = self._state.survey.get(self._source) if finding is not None else None
        found = row.predicted if row is not None else None
        planned = self._state.planned(self._source) if found is not None else None
        stale = planned is None or found is None or planned.format_name != found.format
        if stale or found is None or found.problem or not math.isfinite(found.snr_db):
            self.now.hide()
            return
        others = (r.predicted for r in self._state.survey.values() if r.predicted is not None)
        middle = median(p.snr_db for p in others if not p.problem and math.isfinite(p.snr_db))
        self.now.setText(
            f"In {found.format} the tensor keeps {format_decimals(found.snr_db, 1)} dB on a sample, the model's "
            f"median tensor "
            f"{format_decimals(middle, 1)} dB."
        )
        self.now.show()

    def _on_offers(self, offers: tuple[Offered, ...]) -> None:
        for remedy in (o.result for o in offers):
            row = next((r for r in self.rows if _kind(r.remedy) == _kind(remedy)), None)
            if row is None:
                row = RemedyRow(remedy)
                row.asked.connect(self._put)
                possible = sum(r.remedy.possible for r in self.rows)
                place = possible if remedy.possible else len(self.rows)  # what can not be done comes last
                self.rows.insert(place, row)
                self._column.insertWidget(place, row)
            row.show_remedy(remedy, taken=self._taken(remedy))

    def _on_priced(self) -> None:
        self.working.hide()
        plan = self._state.plan
        if not self.rows and self.chosen is not None and plan is not None:
            planned = plan.tensors[self.chosen.index]
            kept = planned.action is not Action.QUANTIZE
            lost = f"It is stored as {planned.format_name} now, which loses nothing here."
            self.working.setText(lost if kept else "There is no remedy for this in the recipe's target.")
            self.working.show()

    def _taken(self, remedy: Any) -> bool:
        recipe = self._services.session.current.recipe
        return recipe is not None and bool(remedy.rules) and all(rule in recipe.rules for rule in remedy.rules)

    # ---- the recipe ------------------------------------------------------------------------------------------------

    def _put(self, remedy: Any) -> None:
        """Make the plan of the recipe with this remedy; both are put in force together."""
        from core.inspect.remedies import apply

        recipe = self._services.session.current.recipe
        if recipe is None or self.chosen is None or self._pending is not None:
            return
        after = apply(recipe, remedy)
        because = f" ({self.chosen.because})" if self.chosen.because else ""
        words = (
            f"{self.chosen.tensor}: {remedy.title}{because}. {signed_bytes(remedy.bytes_change)}, {gain_text(remedy)}."
        )
        self._begin(Change(recipe, after, words, key_of(self.chosen)), after, undoing=False)

    def _undo(self) -> None:
        recipe = self._services.session.current.recipe
        if recipe is None or not self.changes or self._pending is not None:
            return
        change = self.changes[-1]
        self._begin(change, change.undone(recipe), undoing=True)

    def _begin(self, change: Change, recipe: Recipe, *, undoing: bool) -> None:
        self._pending, self._undoing = change, undoing
        self.error.hide()
        for row in self.rows:
            row.set_busy(True)
        self._services.jobs.run(
            "Plan", plan_work(self._services.session.current, recipe), self._on_planned, self._on_plan_failed,
            on_cancelled=self._end, latest_key=PLAN_KEY, owner=self,
        )  # fmt: skip

    def _on_planned(self, reply: PlanReply) -> None:
        change = self._pending
        if change is None:
            return
        keys, self._moved_on = [key_of(f) for f in self.findings], False
        if self._undoing:
            self.changes.pop()
            self._next, self._treated = (change.finding,), ()
            self.chosen = None
        else:
            self.changes.append(change)
            at = keys.index(change.finding) if change.finding in keys else 0
            self._next, self._treated = (*keys[at + 1 :], *keys[:at]), change.finding
        self._end()
        recipe = reply.plan.recipe
        self._services.session.update(recipe=recipe, target=recipe.target, plan=reply.plan)

    def _on_plan_failed(self, error: BaseException) -> None:
        self._end()
        self.error.show_error(error)

    def _end(self) -> None:
        self._pending = None
        for row in self.rows:
            row.set_busy(False)
        self._show_undo()

    def _show_undo(self) -> None:
        last = self.changes[-1] if self.changes else None
        further = " The next finding is chosen." if self._moved_on else ""
        self.done.setText(f"Put into the recipe: {last.words}{further}" if last is not None else "")
        self.done.setVisible(last is not None)
        self.undo.setVisible(last is not None)
        set_available(self.undo)

    def _on_error(self, error: BaseException) -> None:
        self.working.hide()
        self.error.show_error(error)

    # ---- state -----------------------------------------------------------------------------------------------------

    def _on_model(self) -> None:
        for key in (FINDINGS_KEY, REMEDIES_KEY):
            self._services.jobs.discard(key)
        self._timer.stop()
        self._pending, self.changes, self.chosen = None, [], None
        self._next, self._treated, self._moved_on = (), (), False
        self.error.hide()
        self._show_findings(())
        self._show_remedies_of(None)
        self._show_undo()
        self._renew()

    def _on_plan(self) -> None:
        """Prices are those of the plan in force: what was shown for another goes."""
        self._pending = None
        self._show_undo()
        self.chosen = self._in_plan(self.chosen)
        if self.isVisible():
            self._show_remedies_of(self.chosen)
        self._renew()

    def _in_plan(self, finding: Any) -> Any:
        """The finding as the plan in force calls and numbers its tensor; None where that is not part of it."""
        tensors = self._state.plan.tensors if finding is not None and self._state.plan is not None else ()
        for number, planned in enumerate(tensors):
            if any(source.name == self._source for source in planned.source.sources):
                return replace(finding, tensor=planned.name, index=number)
        return None

    # ---- Qt --------------------------------------------------------------------------------------------------------

    def showEvent(self, event: Any) -> None:
        super().showEvent(event)
        if self._stale:
            self._timer.start()


def _scrolled(widget: QWidget) -> QScrollArea:
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(widget)
    return area


def _kind(remedy: Any) -> tuple[Any, ...]:
    return remedy.kind, remedy.format, remedy.method
