"""The prompt and how it is answered: the few controls always in view, and the rest under Advanced."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QGridLayout, QHBoxLayout, QLineEdit, QPlainTextEdit, QWidget

from app.jobs.testing import SIDES, Question, Sampling
from app.jobs.testing_bench import Bench
from app.pages.test.cache_combo import CacheCombo
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import Card, number_box, set_available
from app.widgets.calm import CalmCombo
from app.widgets.text import explain, term

DEFAULT_PROMPT = "The capital of France is"
PROMPT_HEIGHT, LOW_HEIGHT = 56, 34  # px: two lines, and one
LONGEST_ANSWER = 4096
COLUMNS = 6  # of fields
CONTRACTS = (  # keys of core.runtime.arithmetic.ARITHMETICS
    ("fast: int8", "fast"),
    ("exact: fp32", "exact"),
    ("W8A8: per token", "token"),
    ("LLM.int8()", "llm.int8"),
)


class PromptRow(QWidget):
    """The prompt, chat or not, and how many tokens may come back."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.prompt = QPlainTextEdit(DEFAULT_PROMPT)
        self.prompt.setPlaceholderText("What both files shall go on from")
        self.prompt.setAccessibleName("Prompt")
        self.prompt.setTabChangesFocus(True)
        self.prompt.setFixedHeight(PROMPT_HEIGHT)
        self.chat = QCheckBox("Chat")
        self.chat.setToolTip(explain("chat"))
        self.tokens = number_box(
            "Longest answer, tokens", 1, LONGEST_ANSWER, 64, suffix=" tokens", hint="The answer ends here at the latest"
        )
        self.tokens.setMinimumWidth(120)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addWidget(self.prompt, 1)
        layout.addWidget(self.chat)
        layout.addWidget(self.tokens)

    def set_low(self, on: bool) -> None:
        """One line instead of two, where the height is needed for something else."""
        self.prompt.setFixedHeight(LOW_HEIGHT if on else PROMPT_HEIGHT)


class AdvancedCard(Card):
    """Sampling, stop strings, activations, context, and each column's cache."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self.setAccessibleName("Advanced")
        self.temperature = _decimal("Temperature", 0.0, 5.0, 0.0, 0.1, "greedy")
        self.top_k = number_box("Top-k", 0, 1000, 0, hint=explain("top-k"))
        self.top_k.setSpecialValueText("off")
        self.top_p = _decimal("Top-p", 0.01, 1.0, 1.0, 0.05)
        self.min_p = _decimal("Min-p", 0.0, 1.0, 0.0, 0.05, "off")
        self.repetition = _decimal("Repetition", 1.0, 2.0, 1.0, 0.05, "off")
        self.seed = number_box("Seed", 0, 2**31 - 1, 0, hint=explain("seed"))
        self.stop = QLineEdit()
        self.stop.setPlaceholderText("none")
        self.stop.setAccessibleName("Stop strings")
        self.stop.setToolTip(f"{explain('stop strings')} Write \\n for a new line.")
        self.activations = CalmCombo()
        for text, arithmetic in CONTRACTS:
            self.activations.addItem(text, arithmetic)
        self.activations.setAccessibleName("Activations")
        self.activations.setToolTip(explain("activations contract"))
        self.context = number_box("Context", 64, 131072, 2048, suffix=" tokens", hint=explain("context"))
        self.caches = tuple(CacheCombo(f"KV cache of the {title.lower()} file", True) for title in SIDES)
        self.fallback = QCheckBox("allowed")
        self.fallback.setAccessibleName("CPU instead, if the GPU can not")
        self.fallback.setToolTip(explain("CPU instead"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        fields = (
            ("Temperature", "temperature", self.temperature),
            ("Top-k", "top-k", self.top_k),
            ("Top-p", "top-p", self.top_p),
            ("Min-p", "min-p", self.min_p),
            ("Repetition", "repetition", self.repetition),
            ("Seed", "seed", self.seed),
            ("Stop strings", "stop strings", self.stop),
            ("Activations", "activations contract", self.activations),
            ("Context", "context", self.context),
            ("CPU instead", "CPU instead", self.fallback),
            *((f"Cache, {title.lower()}", "cache format", box) for title, box in zip(SIDES, self.caches, strict=True)),
        )
        for number, (title, word, control) in enumerate(fields):
            row, column = divmod(number, COLUMNS)
            name = term(word, title, "caption")
            name.setBuddy(control)
            grid.addWidget(name, 2 * row, column)
            grid.addWidget(control, 2 * row + 1, column)
        for column in range(COLUMNS):
            grid.setColumnStretch(column, 1)
        self.layout().setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        self.add(grid)

    def show_cache(self, bench: Bench, side: int) -> None:
        """What a column's keys and values are kept in, and what its engine does not keep them in."""
        slot, chooser = bench.slots[side], self.caches[side]
        chooser.show_cache(slot.cache, lambda cache: bench.backend.refuses(cache, slot.device))
        set_available(chooser, "Wait until the running work has ended, or cancel it." if bench.busy else "")

    def sampling(self) -> Sampling:
        return Sampling(
            self.temperature.value(),
            self.top_k.value(),
            self.top_p.value(),
            self.min_p.value(),
            self.repetition.value(),
            self.seed.value(),
        )

    def stops(self) -> tuple[str, ...]:
        """Stop strings, parted by semicolons, with \\n and \\t meant as such."""
        parts = (part.replace("\\n", "\n").replace("\\t", "\t") for part in self.stop.text().split(";"))
        return tuple(part for part in parts if part)

    @property
    def arithmetic(self) -> str:
        return str(self.activations.currentData())

    def minimumSizeHint(self) -> QSize:
        return QSize(400, super().minimumSizeHint().height())


def question(row: PromptRow, advanced: AdvancedCard) -> Question:
    """What the controls say now."""
    return Question(
        row.prompt.toPlainText(), row.chat.isChecked(), row.tokens.value(), advanced.stops(), advanced.sampling()
    )


def _decimal(name: str, low: float, high: float, value: float, step: float, special: str = "") -> QDoubleSpinBox:
    box = QDoubleSpinBox()
    box.setRange(low, high)
    box.setDecimals(2)
    box.setSingleStep(step)
    box.setValue(value)
    box.setSpecialValueText(special)
    box.setAccessibleName(name)
    box.setToolTip(explain(name))
    box.lineEdit().setTextMargins(SPACE_2, 0, 0, 0)
    return box
