"""What the tab Method asks for in the background: what each method would cost here, and what the text is like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QWidget

from app.dialogs.calibration_text import CalibrationTextDialog
from app.jobs.calibration import (
    MATRIX_KEY,
    METHODS_KEY,
    TEXT_KEY,
    Choice,
    Choices,
    MatrixFacts,
    matrix_work,
    methods_work,
)
from app.jobs.calibration import text_work as work_of_text
from app.jobs.warming import Warming
from app.pages.recipe.calibration import shares_text, text_in_words
from app.pages.recipe.methods import MethodsPanel
from app.pages.recipe.presets import PresetCards
from app.services import Services
from core.catalog import base_of
from core.formats import Method
from core.methods.choice import Calibrated, DataMethod
from core.recipe import Recipe
from core.targets import find_target

if TYPE_CHECKING:
    from core.calibration.settings import CalibrationText
    from core.calibration.text import Samples
    from core.checkpoint.base import Checkpoint

ENOUGH_BITS = 8
NOTHING_TO_GAIN = "With 8 bits there is next to nothing to gain by it."
TEXT_DELAY = 400  # ms of rest before the text is looked at: a number that is typed asks once


class Calibrating(QObject):
    """Keeps the tab, and what the presets say of it, up to date for the session's model and recipe, whichever of them
    is looked at."""

    def __init__(self, services: Services, panel: MethodsPanel, presets: PresetCards, by_size: QWidget) -> None:
        super().__init__(panel)
        self._by_size = by_size
        self._warming = Warming(services.jobs, self)
        self._services, self._panel, self._card, self._presets = services, panel, panel.calibration, presets
        self._asked: tuple[Checkpoint, Recipe, bool] | None = None  # what the costs shown are for
        self._looked: tuple[Checkpoint, CalibrationText | str] | None = None  # the text or file that was looked at
        self._samples: Samples | BaseException | None = None
        self.dialog: CalibrationTextDialog | None = None
        self._timer = QTimer(self, singleShot=True, interval=TEXT_DELAY)
        self._timer.timeout.connect(self._look)
        self._card.text_asked.connect(self.open_text)

    def forget(self) -> None:
        """Another model, or none."""
        for key in (METHODS_KEY, TEXT_KEY, MATRIX_KEY):
            self._services.jobs.discard(key)
        self._timer.stop()
        self._asked = self._looked = self._samples = None
        self._show_choices(Choices())
        self._card.show_nothing()
        if self.dialog is not None:
            self.dialog.close()

    def refresh(self) -> None:
        """The recipe may be another one, or the tab has come into sight."""
        session = self._services.session.current
        recipe, checkpoint = session.recipe, session.checkpoint
        if recipe is None or checkpoint is None:
            return
        calibrated = recipe.calibrated
        if calibrated is not None or self._panel.isVisible() or self._by_size.isVisible():
            self._warming.ask()
        wanted: CalibrationText | str | None = None
        if calibrated is not None:
            wanted = calibrated.imatrix or calibrated.text
        if self._looked is not None and self._looked != (checkpoint, wanted):
            self._stop_looking()
        if self._panel.isVisible() or self._presets.isVisible():
            self._ask_costs(checkpoint, recipe, transforms=self._panel.isVisible())
        if not self._panel.isVisible():
            return
        if wanted is not None and self._looked is None:
            self._looked = (checkpoint, wanted)
            self._card.show_nothing("Looking at it…")
            if self.dialog is not None and self.dialog.isVisible() and calibrated is not None:
                self.dialog.show_working(text_in_words(calibrated.text))
            self._timer.start()

    def _ask_costs(self, checkpoint: Checkpoint, recipe: Recipe, *, transforms: bool) -> None:
        """Of all methods and transforms. They do not depend on which of them is chosen."""
        text = recipe.calibrated.text if recipe.calibrated is not None else Calibrated().text
        plain = replace(recipe, method=Method.SEARCH, calibrated=Calibrated(DataMethod.GPTQ, text=text))
        if self._asked is not None:
            before, asked, with_transforms = self._asked
            if before is checkpoint and asked == plain and with_transforms >= transforms:
                return
            if asked.target != plain.target:
                self._show_choices(Choices())
        self._asked = (checkpoint, plain, transforms)
        self._services.jobs.run(
            "Cost of each method", methods_work(checkpoint, plain, transforms=transforms), self._show_choices,
            lambda _e: None, latest_key=METHODS_KEY, owner=self,
        )  # fmt: skip

    def _show_choices(self, choices: Choices) -> None:
        self._panel.show_choices(choices)
        recipe = self._services.session.current.recipe
        importance = choices.methods.get(DataMethod.IMPORTANCE)
        if recipe is not None and base_of(find_target(recipe.target)).contract.bits >= ENOUGH_BITS:
            importance = Choice(problem=NOTHING_TO_GAIN)
        self._presets.show_calibration(importance)

    # ---- the text --------------------------------------------------------------------------------------------------

    def _stop_looking(self) -> None:
        self._timer.stop()
        for key in (TEXT_KEY, MATRIX_KEY):
            self._services.jobs.discard(key)
        self._looked = self._samples = None
        self._card.show_nothing()

    def _look(self) -> None:
        if self._looked is None:
            return
        checkpoint, wanted = self._looked
        jobs = self._services.jobs
        if isinstance(wanted, str):
            jobs.run(
                "Read the importance matrix", matrix_work(checkpoint, Path(wanted)), self._show_matrix,
                self._card.show_error, latest_key=MATRIX_KEY, owner=self,
            )  # fmt: skip
        else:
            jobs.run(
                "Choose the calibration text", work_of_text(checkpoint, wanted), self._show_samples, self._show_error,
                latest_key=TEXT_KEY, owner=self,
            )  # fmt: skip

    def _show_matrix(self, facts: MatrixFacts) -> None:
        self._card.show_matrix(facts)

    def _show_samples(self, samples: Samples) -> None:
        self._samples = samples
        self._card.show_samples(samples)
        if self.dialog is not None and self.dialog.isVisible():
            self.dialog.show_samples(samples, shares_text(samples))

    def _show_error(self, error: BaseException) -> None:
        self._samples = error
        self._card.show_error(error)
        if self.dialog is not None and self.dialog.isVisible():
            self.dialog.show_error(error)

    def open_text(self) -> None:
        """Show the text, or that it is still being chosen, in a window of its own."""
        recipe = self._services.session.current.recipe
        if recipe is None or recipe.calibrated is None:
            return
        if self.dialog is None:
            self.dialog = CalibrationTextDialog(self._panel.window())
        self.dialog.show_working(text_in_words(recipe.calibrated.text))
        self.dialog.show()
        self.dialog.raise_()
        self.dialog.activateWindow()
        if isinstance(self._samples, BaseException):
            self.dialog.show_error(self._samples)
        elif self._samples is not None:
            self.dialog.show_samples(self._samples, shares_text(self._samples))
