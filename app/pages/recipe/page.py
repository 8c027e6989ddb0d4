"""The Recipe page: presets or advanced controls at the left, the live result at the right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QHBoxLayout,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.jobs.convert import Order
from app.jobs.convert_queue import ConversionQueue
from app.jobs.plan import COSTS_KEY, PLAN_KEY, PlanReply, costs_work, plan_work, reply_work, with_target
from app.jobs.plan_presets import FEW_KEY, PRESETS_KEY, Offer, few_work, presets_work, rejudged, rejudged_alone
from app.pages.base import Page
from app.pages.recipe.advanced import AdvancedPanel
from app.pages.recipe.calibrating import Calibrating
from app.pages.recipe.outcome import OutcomeCard
from app.pages.recipe.output import OutputRow
from app.pages.recipe.presets import PresetCards
from app.pages.recipe.preview import PreviewCard
from app.pages.recipe.sizing import Sizing
from app.services import Services
from app.session import Session
from app.theme import PAGE_MARGIN, SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import EmptyState, PrimaryButton, Splitter, button, label, quiet_button, set_available
from app.widgets.scrolled import scrolled
from app.widgets.text import ElidedLabel
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod
from core.plan import Plan
from core.recipe import Misfit, Recipe
from core.targets import find_target

EVEN, WIDE = [430, 470], [510, 390]  # widths of controls and result without and with Advanced
STACKED = 950  # px of the page below which the result stands under the controls
PLAN_DELAY = 30  # ms of rest before a plan is made
SIZE_DELAY = 40  # ms: the Model page is painted before; a worker that plans meanwhile would make that twice as long
NEXT_TURN = 1  # ms: with 0 Qt calls it within the same turn of the event loop


class RecipePage(Page):
    """Chooses a recipe for the session's model, shows what it gives, and hands it to the queue."""

    key = "recipe"
    title = "Recipe"
    icon = "sliders-horizontal"

    def __init__(
        self, services: Services, parent: QWidget | None = None, made: Mapping[str, QWidget] | None = None
    ) -> None:
        super().__init__(services, parent, made)
        self._queue = ConversionQueue.of(services.jobs, services.settings)
        self._offers: tuple[Offer, ...] = ()
        self._few: tuple[Offer, ...] = ()
        self._good: Recipe | None = None  # the last recipe that had a plan
        self._own: Recipe | None = None  # the last recipe that this page has put in force
        self._last_target = services.session.current.target
        self._plan_timer = QTimer(self, singleShot=True, interval=PLAN_DELAY)
        self._plan_timer.timeout.connect(self._make_plan)
        self._size_timer = QTimer(self, singleShot=True, interval=SIZE_DELAY)
        self._size_timer.timeout.connect(self._size_presets)
        self._make_parts()
        self._lay_out()
        services.session.changed.connect(self._on_session)
        services.shell.settings_changed.connect(self._on_settings)
        self._start(services.session.current)

    # ---- what the window asks --------------------------------------------------------------------------------------

    @classmethod
    def pieces(cls) -> Mapping[str, Callable[[], QWidget]]:
        return {"advanced": AdvancedPanel}

    def primary(self) -> QAbstractButton | None:
        return self.convert if self._stack.currentWidget() is self._loaded else self.empty_button

    def parts(self) -> tuple[QWidget, ...]:
        bars = [area.verticalScrollBar() for area in (self._choices, self._results)]
        return self._empty, self._head, self._simple, self.advanced, self.where, self.outcome, self.preview, *bars

    def shown(self) -> None:
        self._refresh_output()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        shell = self.services.shell
        self.empty_button = PrimaryButton("Open a model…", shell.choose_file.emit, icon="folder-open")
        self.convert = PrimaryButton(
            "Convert", self._convert, icon="play", hint="Start the conversion in the background (Ctrl+Enter)"
        )
        self.reason = label("", "muted", wrap=True)  # why the primary button is off, readable without a pointer
        self.model_name = ElidedLabel(role="muted")
        self.presets = PresetCards()
        self.advanced = self.piece("advanced")
        self.calibrating = Calibrating(self.services, self.advanced.methods, self.presets, self.advanced.by_size)
        self.sizing = Sizing(self.services, self.advanced.by_size)
        self.outcome = OutcomeCard()
        self.preview = PreviewCard(self.services)
        self.where = OutputRow()
        self.output = self.where.text
        self.more = button("Advanced", self._toggle_advanced, icon="sliders-horizontal")
        self.more.setCheckable(True)
        self.more.setToolTip("Every format, number, exception and rule")
        self.again = quiet_button("", self._use_last)
        self.presets.chosen.connect(self._choose_offer)
        self.presets.calibrate.connect(self._calibrate)
        self.presets.few_shown.connect(self._on_few_shown)
        self.advanced.edited.connect(self.set_recipe)
        self.advanced.tabs.currentChanged.connect(lambda _tab: self.calibrating.refresh())
        self.advanced.tensor_chosen.connect(self.preview.choose)
        self.advanced.inspect_asked.connect(shell.inspect_tensor)

    def _lay_out(self) -> None:
        self._empty = EmptyState(
            "No model is open yet",
            "Here you choose how small the model shall become, and see at once what that costs in quality.",
            self.empty_button,
            icon=self.icon,
        )
        self._head = QWidget()
        head = QHBoxLayout(self._head)
        head.setContentsMargins(0, 0, 0, 0)
        head.setSpacing(SPACE_2)
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(label("Choose a format", "title"))
        words.addWidget(self.model_name)
        head.addLayout(words, 1)
        head.addWidget(self.reason, 1)
        head.addWidget(self.more)
        head.addWidget(self.convert)
        self._simple = QWidget()
        column = QVBoxLayout(self._simple)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addWidget(self.presets)
        column.addWidget(self.again, 0, Qt.AlignmentFlag.AlignLeft)
        column.addStretch(1)
        self._left = QStackedWidget()
        self._choices = scrolled(self._simple)
        self._left.addWidget(self._choices)
        self._left.addWidget(self.advanced)
        left = QWidget()
        choices = QVBoxLayout(left)
        choices.setContentsMargins(0, 0, 0, 0)
        choices.setSpacing(SPACE_2)
        choices.addWidget(self._left, 1)
        choices.addWidget(self.where)
        right = QWidget()
        results = QVBoxLayout(right)
        results.setContentsMargins(0, 0, 0, 0)
        results.setSpacing(SPACE_3)
        results.addWidget(self.outcome)
        results.addWidget(self.preview, 1)
        self._split = Splitter(SPACE_4)
        self._split.addWidget(left)
        self._results = scrolled(right)
        self._split.addWidget(self._results)
        self._split.setSizes(EVEN)
        self._loaded = QWidget()
        layout = QVBoxLayout(self._loaded)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_4, PAGE_MARGIN, SPACE_3)
        layout.setSpacing(SPACE_3)
        layout.addWidget(self._head)
        layout.addWidget(self._split, 1)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._loaded)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._stack)

    # ---- the model changes -----------------------------------------------------------------------------------------

    def _on_session(self, old: Session, new: Session) -> None:
        if new.checkpoint is not old.checkpoint:
            self._start(new)
        elif new.recipe is not None and new.recipe is not old.recipe and new.recipe is not self._own:
            self._follow(new, new.recipe)
        elif new.device is not old.device or (new.context, new.batch) != (old.context, old.batch):
            self._rejudge(new)

    def _on_settings(self) -> None:
        """Results may go elsewhere now, and sizes be written otherwise."""
        self.where.forget()
        self._refresh_output()
        self._rejudge(self.services.session.current)

    def _start(self, session: Session) -> None:
        """Another model, or none: everything of the one before goes."""
        for key in (PLAN_KEY, COSTS_KEY, PRESETS_KEY, FEW_KEY):
            self.services.jobs.discard(key)
        self._plan_timer.stop()
        self._size_timer.stop()
        self.calibrating.forget()
        self._offers, self._few, self._good = (), (), None
        self.presets.show_offers(())
        self.presets.show_few(())
        self.presets.show_recipe(None)
        self.preview.set_plan(None, None)
        self.outcome.show_working()
        self._stack.setCurrentWidget(self._loaded if session.checkpoint is not None else self._empty)
        if session.checkpoint is None:
            return
        self.model_name.setText(str(session.checkpoint.path))
        QTimer.singleShot(NEXT_TURN, self, self._show_model)
        self._set_ready("The sizes are still being worked out.")
        self._size_timer.start()

    def _size_presets(self) -> None:
        self.services.jobs.run(
            "Size the presets", presets_work(self.services.session.current), self._on_offers, self._on_offers_failed,
            latest_key=PRESETS_KEY, owner=self,
        )  # fmt: skip

    def _on_few_shown(self) -> None:
        if not self._few:
            self._size_few()
        last = self.presets.few[-1]
        QTimer.singleShot(NEXT_TURN, self, lambda: self._choices.ensureWidgetVisible(last))  # once it has its place

    def _size_few(self) -> None:
        session = self.services.session.current
        if session.checkpoint is None:
            return
        self.services.jobs.run(
            "Size the recipes of few bits", few_work(session), self._on_few, self._on_offers_failed,
            latest_key=FEW_KEY, owner=self,
        )  # fmt: skip

    def _on_few(self, offers: tuple[Offer, ...]) -> None:
        self._few = rejudged_alone(offers, self.services.session.current)
        self.presets.show_few(self._few)
        self.presets.show_recipe(self.services.session.current.recipe)

    def _show_model(self) -> None:
        self.advanced.show_model(self.services.session.current)

    def _rejudge(self, session: Session) -> None:
        self.advanced.show_model(session)
        if not self._offers or session.checkpoint is None:
            return
        automatic = session.recipe is not None and any(
            o.recommended and o.recipe == session.recipe for o in self._offers
        )
        self._offers = rejudged(self._offers, session)
        self.presets.show_offers(self._offers)
        self._few = rejudged_alone(self._few, session)
        self.presets.show_few(self._few)
        recommended = next((o for o in self._offers if o.recommended), None)
        if automatic and recommended is not None and recommended.recipe != session.recipe:
            self._use_offer(recommended)  # nobody has chosen yet: keep proposing what suits the device
        else:
            self.presets.show_recipe(session.recipe)

    def _on_offers(self, offers: tuple[Offer, ...]) -> None:
        self._offers = rejudged(offers, self.services.session.current)
        self.presets.show_offers(self._offers)
        if self.presets.fewer.isChecked():
            self._size_few()
        recommended = next((o for o in self._offers if o.recommended), None)
        if recommended is not None:
            self._use_offer(recommended)
        else:
            self._fail(next(o.problem for o in self._offers if o.problem is not None))
        last = self._last_target
        different = recommended is not None and last and last != recommended.recipe.target
        self.again.setText(f"Use {last} as last time" if different else "")
        self.again.setToolTip("The target that was in force when the program was closed")
        self.again.setVisible(bool(different))

    def _on_offers_failed(self, error: BaseException) -> None:
        self._fail(error)

    # ---- the recipe changes ----------------------------------------------------------------------------------------

    def _use_offer(self, offer: Offer | None) -> None:
        if offer is None or offer.plan is None:
            return
        self._plan_timer.stop()
        self.services.jobs.discard(PLAN_KEY)
        self._own = offer.recipe
        self.services.session.update(recipe=offer.recipe, target=offer.recipe.target)
        self._show_recipe(offer.recipe)
        if offer.reply is not None:
            self._on_plan(offer.reply)

    def _choose_offer(self, offer: Offer | None) -> None:
        """A click on a preset. What is measured first stays so, and makes another plan."""
        recipe = self.services.session.current.recipe
        calibrated = recipe.calibrated if recipe is not None else None
        own = offer is not None and offer.recipe.calibrated is not None
        if offer is None or calibrated is None or own or not self.presets.calibrated.isVisible():
            self._use_offer(offer)
        else:
            self.set_recipe(with_target(replace(offer.recipe, calibrated=calibrated), offer.recipe.target))

    def _calibrate(self, on: bool) -> None:
        recipe = self.services.session.current.recipe
        if recipe is not None:
            self.set_recipe(replace(recipe, calibrated=Calibrated(DataMethod.IMPORTANCE) if on else None))

    def _follow(self, session: Session, recipe: Recipe) -> None:
        """Another page has changed the recipe, and may have brought its plan."""
        self._own = recipe
        self._show_recipe(recipe)
        self.preview.set_plan(session.checkpoint, None)
        if session.plan is None or session.plan.recipe != recipe:
            self.outcome.show_working()
            self._set_ready("The plan is still being worked out.")
            self._plan_timer.start()
            return
        self._plan_timer.stop()
        self.services.jobs.run(
            "Show the plan", reply_work(session.plan), self._on_plan, self._on_plan_failed, latest_key=PLAN_KEY,
            owner=self,
        )  # fmt: skip

    def _use_last(self) -> None:
        self.again.hide()
        self.set_recipe(replace(Recipe(), target=self._last_target))

    def set_recipe(self, recipe: Recipe) -> None:
        """Put a recipe in force; its plan follows in the background, the newest wins."""
        try:
            find_target(recipe.target)
        except UserError as error:
            self.advanced.error.show_error(error)
            return
        self._own = recipe
        self.services.session.update(recipe=recipe, target=recipe.target)  # the old plan stays until there is a new one
        self._show_recipe(recipe)
        self.outcome.show_working()
        self.preview.set_plan(self.services.session.current.checkpoint, None)
        self._set_ready("The plan is still being worked out.")
        self._plan_timer.start()

    def _show_recipe(self, recipe: Recipe) -> None:
        self.presets.show_recipe(recipe)
        self.advanced.show_recipe(recipe)
        self.calibrating.refresh()
        self.convert.setText(f"Convert to {recipe.target}")
        self.convert.setAccessibleName(self.convert.text())
        self._refresh_output()

    def _make_plan(self) -> None:
        session = self.services.session.current
        if session.checkpoint is None or session.recipe is None:
            return
        self.services.jobs.run(
            "Plan", plan_work(session, session.recipe), self._on_plan, self._on_plan_failed,
            latest_key=PLAN_KEY, owner=self,
        )  # fmt: skip

    def _on_plan(self, reply: PlanReply) -> None:
        session = self.services.session.current
        plan = reply.plan
        if plan.recipe != session.recipe:
            return
        if self._good is not None and len(plan.recipe.rules) > len(self._good.rules):
            self.advanced.rules.accepted()
        self._good = plan.recipe
        self.services.session.update(plan=plan)
        self.outcome.show_plan(reply)
        self._refresh_output()
        self._set_ready("")
        # With ten thousand tensors each of these takes a while; the event loop turns in between.
        for turn, show in enumerate((self._show_preview, partial(self._show_fates, reply)), 1):
            QTimer.singleShot(turn * NEXT_TURN, self, partial(self._if_in_force, plan, show))
        if self.more.isChecked():
            self._ask_costs()

    def _if_in_force(self, plan: Plan, show: Callable[[], None]) -> None:
        if self.services.session.current.plan is plan:
            show()

    def _show_preview(self) -> None:
        session = self.services.session.current
        self.preview.set_plan(session.checkpoint, session.plan)

    def _show_fates(self, reply: PlanReply) -> None:
        self.advanced.show_plan(reply.plan, reply.rules)

    def _on_plan_failed(self, error: BaseException) -> None:
        recipe, good = self.services.session.current.recipe, self._good
        new_rule = good is not None and recipe is not None and len(recipe.rules) > len(good.rules)
        if new_rule and good is not None and isinstance(error, UserError):
            self.set_recipe(good)  # the rule is not taken; its text stays in the box beside the error
            self.advanced.rules.show_error(error)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.services.session.update(plan=None)
        self.outcome.show_problem(error)
        self.preview.set_plan(None, None)
        self.advanced.show_no_plan()
        self._set_ready("This recipe gives no file; the result at the right says why.")

    def _ask_costs(self) -> None:
        session = self.services.session.current
        if session.checkpoint is None or session.recipe is None:
            return
        self.advanced.keep.show_costs(None)
        self.services.jobs.run(
            "Cost of each policy", costs_work(session.checkpoint, session.recipe), self._on_costs, lambda _e: None,
            latest_key=COSTS_KEY, owner=self,
        )  # fmt: skip

    def _on_costs(self, costs: dict[Misfit, int | None]) -> None:
        self.advanced.keep.show_costs(costs)

    def _toggle_advanced(self) -> None:
        on = self.more.isChecked()
        self._left.setCurrentWidget(self.advanced if on else self._choices)
        if self._split.orientation() == Qt.Orientation.Horizontal:
            self._split.setSizes(WIDE if on else EVEN)
        self.more.setToolTip("Back to the presets" if on else "Every format, number, exception and rule")
        self.calibrating.refresh()
        if on and self.convert.isEnabled():
            self._ask_costs()

    def take_drop(self, path: Path, place: QPoint) -> bool:
        """A text, or an importance matrix, dropped on the calibration's card; elsewhere it is a model."""
        card = self.advanced.methods.calibration
        return card.isVisible() and card.rect().contains(card.mapFrom(self, place)) and card.take_path(path)

    # ---- the output ------------------------------------------------------------------------------------------------

    def _refresh_output(self) -> None:
        session = self.services.session.current
        if session.checkpoint is not None and session.recipe is not None:
            self.where.follow(session.checkpoint.path, find_target(session.recipe.target))

    def set_output(self, path: Path) -> None:
        """Write to this file or folder; one that exists is replaced once the new one is whole."""
        self.where.set_path(path)

    # ---- start -----------------------------------------------------------------------------------------------------

    def _set_ready(self, reason: str) -> None:
        set_available(self.convert, reason)
        self.reason.setText(reason)
        self.reason.setVisible(bool(reason))

    def _convert(self) -> None:
        session = self.services.session.current
        if session.plan is None or session.plan.recipe != session.recipe or session.checkpoint is None:
            return
        self._refresh_output()
        where = self.where
        if where.path is None:
            return
        if not any(entry.order.output == where.path for entry in self._queue.pending):  # a second press changes nothing
            source, recipe, plan = session.checkpoint.path, session.recipe, session.plan
            self._queue.add(Order(source, recipe, where.path, plan, overwrite=where.overwrite))
            where.overwrite = False  # meant for this once
        show = self.services.shell.show_page.emit
        self.services.jobs.turns.ask((self, "show"), lambda: show("convert"))

    def showEvent(self, event: object) -> None:
        super().showEvent(event)
        self.calibrating.refresh()
        self.preview.set_active(True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        stacked = self.width() < STACKED
        wanted = Qt.Orientation.Vertical if stacked else Qt.Orientation.Horizontal
        if wanted != self._split.orientation():
            self._split.setOrientation(wanted)
            self._split.setSizes([3, 2] if stacked else WIDE if self.more.isChecked() else EVEN)

    def hideEvent(self, event: object) -> None:
        super().hideEvent(event)
        self.preview.set_active(False)
