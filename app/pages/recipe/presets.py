"""The presets as cards, for those who do not want to know formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QButtonGroup, QCheckBox, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from app.jobs.calibration import Choice, about
from app.jobs.plan_presets import BEST, FEW, PRESETS, Offer, Preset
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import label, quiet_button, set_available
from app.widgets.text import explain
from app.widgets.verdict import Verdict
from core import units
from core.recipe import Recipe
from core.targets import find_target

CALIBRATE = "Lower the error by measuring first"
FEWER_HINT = "Recipes of 2 and 3 bits, for vLLM, and what they lose"
LOW_PADDING = 6  # px: four cards, what is below them and their reason are seen whole in a window of 1100 × 700
FITS = {True: ("ok", "fits"), False: ("error", "too large"), None: ("unknown", "not known")}


class PresetCard(QPushButton):
    """One preset: title, exact size, whether it fits, one sentence. Checked while its recipe is in force."""

    def __init__(self, preset: Preset, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.preset = preset
        self.offer: Offer | None = None
        self.setCheckable(True)
        self.setProperty("buttonRole", "card")
        self._title = label(preset.title, "heading")
        self._size = label("working out the size…", "muted")
        self._recommended = Verdict("info", "recommended")
        self._fits = Verdict("unknown", "")
        self._sentence = label(preset.sentence, "muted", wrap=True)
        first, second = QHBoxLayout(), QHBoxLayout()
        first.addWidget(self._title)
        first.addSpacing(SPACE_2)
        first.addWidget(self._recommended)
        first.addStretch(1)
        first.addWidget(self._fits)
        second.addWidget(self._size)
        second.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_3 + 2, LOW_PADDING, SPACE_3 + 2, LOW_PADDING)
        layout.setSpacing(SPACE_1 // 2)
        layout.addLayout(first)
        layout.addLayout(second)
        layout.addWidget(self._sentence)
        for child in self.findChildren(QWidget):
            child.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.show_offer(None)

    def show_offer(self, offer: Offer | None) -> None:
        """None while sizes are being worked out."""
        self.offer = offer
        self._recommended.setVisible(offer is not None and offer.recommended)
        if offer is None:
            self._size.setText("working out the size…")
            self._fits.hide()
            set_available(self, "The sizes are still being worked out.")
        elif offer.plan is None:
            self._size.setText("not possible for this model")
            self._fits.hide()
            set_available(self, str(offer.problem))
        else:
            change = units.format_percent(offer.plan.change, signed=True)
            self._size.setText(f"{units.format_bytes(offer.plan.bytes_total)} · {change} · {offer.recipe.target}")
            if offer.recipe.calibrated is not None:
                self._sentence.setText(f"{offer.preset.sentence} Takes {about(offer.plan.expected_seconds)}.")
            self._fits.show()
            state, word = {True: ("ok", "fits"), False: ("error", "too large"), None: ("unknown", "not known")}[
                offer.fits
            ]
            self._fits.set(state, word)
            target = find_target(offer.recipe.target)
            self.setProperty("ownToolTip", f"{target.name}: {target.summary}.\n{offer.reason}")
            set_available(self)
        title = offer.title if offer is not None and offer.title else self.preset.title
        self._title.setText(title)
        recommended = ", recommended" if offer is not None and offer.recommended else ""
        self.setAccessibleName(f"{title}{recommended}: {self._size.text()}, {self._fits.text}")
        self.setAccessibleDescription(f"{self._sentence.text()} {offer.reason if offer else ''}".strip())

    def sizeHint(self) -> QSize:
        return self.layout().sizeHint()

    def minimumSizeHint(self) -> QSize:
        return QSize(200, max(self.layout().minimumSize().height(), self.layout().sizeHint().height()))


class PresetCards(QWidget):
    """`chosen(offer)` when a card is clicked; `calibrate(on)` when its weights shall be measured first, or not;
    `few_shown` when the cards with 2 and 3 bits are opened."""

    chosen = Signal(object)
    calibrate = Signal(bool)
    few_shown = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Presets")
        self.cards = [PresetCard(p) for p in (BEST, *PRESETS)]
        self.few = [PresetCard(p) for p in FEW]
        self._clicked: PresetCard | None = None  # of two with the same recipe, the one that was chosen
        self.reason = label("", "", wrap=True)
        self.calibrated = QCheckBox(CALIBRATE)
        self.calibrated.setToolTip(f"The size stays as it is. {explain('importance')}")
        self.calibrated.clicked.connect(self.calibrate)
        self._group = QButtonGroup(self)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        for card in self.cards:
            self._group.addButton(card)
            layout.addWidget(card)
        self.fewer = quiet_button("Fewer bits", self._show_few, hint=FEWER_HINT)
        self.fewer.setCheckable(True)
        more = QHBoxLayout()
        more.addWidget(self.calibrated)
        more.addStretch(1)
        more.addWidget(self.fewer)
        layout.addLayout(more)
        for card in self.few:
            self._group.addButton(card)
            layout.addWidget(card)
            card.hide()
        layout.addWidget(self.reason)
        self._group.buttonClicked.connect(self._choose)

    def _show_few(self) -> None:
        shown = self.fewer.isChecked()
        for card in self.few:
            card.setVisible(shown)
        if shown:
            self.few_shown.emit()

    def show_few(self, offers: Sequence[Offer]) -> None:
        """One offer for each card of few bits; empty while they are being worked out, or another model is open."""
        for card, offer in zip(self.few, offers or [None] * len(self.few), strict=True):
            card.show_offer(offer)

    def _choose(self, card: PresetCard) -> None:
        self._clicked = card
        self.chosen.emit(card.offer)

    def show_offers(self, offers: Sequence[Offer]) -> None:
        """One offer a card, the best first, then in the order of PRESETS; empty while they are being worked out."""
        if not offers:
            self._clicked = None
        for card, offer in zip(self.cards, offers or [None] * len(self.cards), strict=True):
            card.show_offer(offer)

    def show_recipe(self, recipe: Recipe | None) -> None:
        """Check the card whose recipe is in force; none for a recipe of the user's own."""
        plain = None if recipe is None else replace(recipe, calibrated=None)
        alike = [
            card
            for cards, wanted in ((self.cards, plain), (self.few, recipe))
            for card in cards
            if card.offer is not None and card.offer.plan is not None and card.offer.recipe == wanted
        ]
        chosen = self._clicked if self._clicked in alike else next(iter(alike), None)
        self._group.setExclusive(False)
        for card in (*self.cards, *self.few):
            card.setChecked(card is chosen)
        self._group.setExclusive(True)
        if chosen is not None and chosen.offer is not None:
            self.reason.setText(chosen.offer.reason)
        elif recipe is not None:
            self.reason.setText(f"Your own recipe is in force: {recipe.target}. A click on a preset replaces it.")
        else:
            self.reason.setText("")
        self.calibrated.setVisible(chosen is not None and chosen not in self.few)
        self.calibrated.setChecked(recipe is not None and recipe.calibrated is not None)

    def show_calibration(self, choice: Choice | None) -> None:
        """What measuring the importance costs for the present recipe, or why it is of no use; None: not known yet."""
        problem = choice.problem if choice is not None else ""
        cost = f" ({about(choice.seconds)})" if choice is not None and choice.seconds else ""
        self.calibrated.setText(CALIBRATE + cost)
        set_available(self.calibrated, "" if self.calibrated.isChecked() else problem)
        self.calibrated.setAccessibleDescription(problem)
