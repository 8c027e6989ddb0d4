"""How the numbers in the file are chosen: plain methods, those from data, and what is done to the weights before."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QButtonGroup, QCheckBox, QHBoxLayout, QRadioButton, QVBoxLayout, QWidget

from app.jobs.calibration import Choice, Choices, about
from app.pages.recipe.calibration import CalibrationCard
from app.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_6
from app.widgets.basics import Card, label, set_available
from app.widgets.calm import CalmCombo, CalmFraction
from app.widgets.text import explain
from core.catalog import base_of
from core.export.online import HINT as ONLINE_HINT
from core.export.online import why_no_online
from core.formats import Method
from core.methods.choice import Calibrated, DataMethod, Transform
from core.recipe import Recipe
from core.targets import Target, find_target

AnyMethod = Method | DataMethod

METHODS: dict[AnyMethod, tuple[str, str]] = {  # method → name with what it does, glossary term
    Method.SEARCH: ("Search: the scale with the smallest error", "search"),
    Method.ROUND: ("Round to nearest: the plain scale", "round to nearest"),
    Method.HALF_QUADRATIC: ("HQQ: the zero point that outliers do not move", "half-quadratic"),
    DataMethod.IMPORTANCE: ("Importance: a search that heeds what matters", "importance"),
    DataMethod.CLIPPING: ("Clipping: the range with the smallest output error", "clipping search"),
    DataMethod.GPTQ: ("GPTQ: later columns make up for earlier errors", "GPTQ"),
    DataMethod.LEARNED: ("Learned rounding: up or down, as suits the layer", "learned rounding"),
}
TRANSFORMS: dict[Transform, tuple[str, str]] = {
    Transform.ROTATION: ("Rotation: spreads outliers over all channels", "rotation"),
    Transform.SMOOTHQUANT: ("SmoothQuant: outliers move into the weights", "SmoothQuant"),
    Transform.AWQ: ("AWQ: columns that meet large inputs lose less", "AWQ"),
}
SEARCHED, GIVEN = "searched", "given"
HALF = 0.5  # SmoothQuant's alpha in its paper


class MethodsPanel(QWidget):
    """`edited(recipe)` at every change; `text_asked` when somebody wants to read the calibration text."""

    edited = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self._last = Calibrated()  # settings that are in force again when data is
        self._choices = Choices()
        self.methods = {m: QRadioButton(words) for m, (words, _) in METHODS.items()}
        self.transforms = {t: QCheckBox(words) for t, (words, _) in TRANSFORMS.items()}
        self.notes = {which: label("", "muted", wrap=True) for which in (*METHODS, *TRANSFORMS)}
        self._group = QButtonGroup(self)
        for method, radio in self.methods.items():
            self._group.addButton(radio)
            radio.setToolTip(explain(METHODS[method][1]))
            radio.clicked.connect(lambda _checked=False, method=method: self._choose(method))
        for transform, box in self.transforms.items():
            box.setToolTip(explain(TRANSFORMS[transform][1]))
            box.clicked.connect(self._on_transforms)
        self.aim = QCheckBox("Make up for earlier layers, too: closer, twice the time")
        self.aim.setToolTip(explain("aim"))
        self.aim.clicked.connect(self._on_aim)
        self.online = QCheckBox("Also while the model runs (down projection)")
        self.online.setToolTip(explain("online rotation"))
        self.online.clicked.connect(self._on_online)
        self.alpha_kind = CalmCombo()
        self.alpha_kind.setAccessibleName("How SmoothQuant's alpha is found")
        self.alpha_kind.setToolTip(explain("alpha"))
        self.alpha_kind.addItem("searched", SEARCHED)
        self.alpha_kind.addItem("given", GIVEN)
        self.alpha = CalmFraction("SmoothQuant's alpha", explain("alpha"))
        self.alpha_kind.activated.connect(self._on_alpha)
        self.alpha.valueChanged.connect(self._on_alpha)
        self.calibration = CalibrationCard()
        self.calibration.edited.connect(self._take_calibrated)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addWidget(self._method_card())
        layout.addWidget(self._transform_card())
        layout.addWidget(self.calibration)
        layout.addStretch(1)
        self.show_recipe(self._recipe)

    def _method_card(self) -> Card:
        card = Card("Method")
        card.setToolTip(explain("method"))
        card.body.setSpacing(2)
        from_data = "From data: a short text is sent through the model"
        for heading, kind in (("Without data", Method), (from_data, DataMethod)):
            words = label(heading, "muted")
            words.setContentsMargins(0, SPACE_1, 0, 0)
            card.add(words)
            for method, radio in self.methods.items():
                if isinstance(method, kind):
                    self._put(card, method, radio)
                if method is DataMethod.GPTQ and kind is DataMethod:
                    card.add(self._indented(self.aim))
        return card

    def _transform_card(self) -> Card:
        card = Card("Transforms")
        card.setToolTip(explain("transform"))
        card.add(
            label("Made first: the model computes the same after them, and is easier to quantize.", "muted", wrap=True)
        )
        card.body.setSpacing(2)
        for transform, box in self.transforms.items():
            self._put(card, transform, box)
            if transform is Transform.SMOOTHQUANT:
                card.add(self._make_alpha_row())
            if transform is Transform.ROTATION:
                card.add(self._indented(self.online))
        return card

    def _make_alpha_row(self) -> QWidget:
        name = label("Alpha", "muted")
        name.setToolTip(explain("alpha"))
        name.setBuddy(self.alpha_kind)
        self._alpha_row = self._indented(name, self.alpha_kind, self.alpha)
        return self._alpha_row

    def _indented(self, *parts: QWidget) -> QWidget:
        """What belongs to the choice above it."""
        row = QWidget()
        choice = QHBoxLayout(row)
        choice.setContentsMargins(SPACE_6, 0, 0, 0)
        choice.setSpacing(SPACE_2)
        for part in parts:
            choice.addWidget(part)
        choice.addStretch(1)
        return row

    def _put(self, card: Card, which: AnyMethod | Transform, control: QRadioButton | QCheckBox) -> None:
        """The control, and below it what it costs or why it is off."""
        card.add(control)
        self.notes[which].setContentsMargins(SPACE_6 + SPACE_1, 0, 0, SPACE_1)
        self.notes[which].hide()
        card.add(self.notes[which])

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def show_recipe(self, recipe: Recipe) -> None:
        """Set every control to the recipe's values; nothing is emitted."""
        self._recipe = recipe
        calibrated = recipe.calibrated
        if calibrated is not None:
            self._last = calibrated
        data = calibrated.method if calibrated is not None else DataMethod.NONE
        self.methods[recipe.method if data is DataMethod.NONE else data].setChecked(True)
        self.aim.setVisible(data is DataMethod.GPTQ)
        self.aim.setChecked(calibrated is not None and calibrated.aim)
        chosen = calibrated.transforms if calibrated is not None else ()
        for transform, box in self.transforms.items():
            box.setChecked(transform in chosen)
        self.online.setChecked(calibrated is not None and calibrated.online)
        alpha = self._last.alpha
        self._alpha_row.setVisible(Transform.SMOOTHQUANT in chosen)
        self.alpha_kind.setCurrentIndex(self.alpha_kind.findData(SEARCHED if alpha is None else GIVEN))
        self.alpha.setVisible(alpha is not None)
        self.alpha.blockSignals(True)
        self.alpha.setValue(HALF if alpha is None else alpha)
        self.alpha.blockSignals(False)
        self.calibration.show_calibrated(calibrated)
        self._show_choices()

    def show_choices(self, choices: Choices) -> None:
        """What each method and transform would do here; empty while that is worked out."""
        self._choices = choices
        self._show_choices()

    def _show_choices(self) -> None:
        target = find_target(self._recipe.target)
        base = base_of(target)
        for method, control in self.methods.items():
            if isinstance(method, DataMethod):
                self._show_choice(method, control, self._choices.methods.get(method))
            elif target.needs_importance:
                why = f"{target.name} needs to know which channels matter."
                self._show_choice(method, control, Choice(problem=why, hint="Take the method Importance."))
            elif base.contract.scale is None:
                self._show_choice(method, control, Choice(problem=f"{base.name} has no scales to be chosen."))
            else:
                why = "" if method in base.methods else f"Not for {base.name}: it has no zero points of its own."
                self._show_choice(method, control, Choice(problem=why, hint="Take a format with zero points."))
        for transform, box in self.transforms.items():
            self._show_choice(transform, box, self._choices.transforms.get(transform))
        set_available(self.online, "" if self.online.isChecked() else self._why_no_online(target))

    def _why_no_online(self, target: Target) -> str:
        """Why nothing can be rotated while the model runs, and what to do then; '' where it can."""
        if why := why_no_online(target):
            return f"{why} {ONLINE_HINT}"
        if not self.transforms[Transform.ROTATION].isChecked():
            return "It goes on from the rotation of the weights. Check Rotation first."
        choice = self._choices.online
        return f"{choice.problem} {choice.hint}".strip() if choice is not None and choice.problem else ""

    def _show_choice(
        self, which: AnyMethod | Transform, control: QRadioButton | QCheckBox, choice: Choice | None
    ) -> None:
        """None: not known yet. What is in force stays on, so that it can be switched off."""
        problem = choice.problem if choice is not None else ""
        words = problem[:1].upper() + problem[1:]
        if choice is not None and not problem:
            words = " ".join(
                filter(None, (f"{about(choice.seconds).capitalize()}." if choice.seconds else "", choice.note))
            )
        off = f"{problem} {choice.hint if choice is not None else ''}".strip() if problem else ""
        keep = isinstance(control, QCheckBox) and control.isChecked()
        set_available(control, "" if keep else off)
        self.notes[which].setText(words)
        self.notes[which].setVisible(bool(words))
        control.setAccessibleDescription(words)

    # ---- what is asked ---------------------------------------------------------------------------------------------

    def _choose(self, method: AnyMethod) -> None:
        now = self._recipe.calibrated
        transforms = now.transforms if now is not None else ()
        if isinstance(method, DataMethod):
            imatrix = self._last.imatrix if method is DataMethod.IMPORTANCE and not transforms else ""
            aim = self._last.aim and method is DataMethod.GPTQ
            online = now is not None and now.online
            wanted = replace(self._last, method=method, transforms=transforms, imatrix=imatrix, aim=aim, online=online)
            self._take_calibrated(wanted)
        elif transforms and now is not None:
            self._take(
                replace(
                    self._recipe,
                    method=method,
                    calibrated=replace(now, method=DataMethod.NONE, imatrix="", aim=False),
                )
            )
        else:
            self._take(replace(self._recipe, method=method, calibrated=None))

    def _on_transforms(self) -> None:
        chosen = tuple(t for t, box in self.transforms.items() if box.isChecked())
        now = self._recipe.calibrated
        method = now.method if now is not None else DataMethod.NONE
        if method is DataMethod.NONE and not chosen:
            self._take(replace(self._recipe, calibrated=None))
        else:
            # An importance that was measured before says nothing of transformed weights.
            imatrix = "" if chosen or method is not DataMethod.IMPORTANCE else self._last.imatrix
            aim = self._last.aim and method is DataMethod.GPTQ
            online = self.online.isChecked() and Transform.ROTATION in chosen
            wanted = replace(self._last, method=method, transforms=chosen, imatrix=imatrix, aim=aim, online=online)
            self._take_calibrated(wanted)

    def _on_online(self, on: bool) -> None:
        if self._recipe.calibrated is not None:
            self._take_calibrated(replace(self._recipe.calibrated, online=on))

    def _on_aim(self, on: bool) -> None:
        if self._recipe.calibrated is not None:
            self._take_calibrated(replace(self._recipe.calibrated, aim=on))

    def _on_alpha(self, *_: object) -> None:
        if self._recipe.calibrated is not None:
            alpha = round(self.alpha.value(), 2) if self.alpha_kind.currentData() == GIVEN else None
            self._take_calibrated(replace(self._recipe.calibrated, alpha=alpha))

    def _take_calibrated(self, calibrated: Calibrated) -> None:
        self._take(replace(self._recipe, calibrated=calibrated))

    def _take(self, recipe: Recipe) -> None:
        if recipe != self._recipe:
            self.edited.emit(recipe)
