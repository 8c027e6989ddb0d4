"""Which text calibrates, and how much of it: one line for whom the defaults do, all settings for whom they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QFileDialog, QFormLayout, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.jobs.calibration import MatrixFacts
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import Card, button, label, quiet_button, set_available
from app.widgets.calm import CalmCombo, CalmNumber
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel, explain, term
from app.widgets.warning_line import show_warnings
from core import units
from core.calibration.settings import CalibrationText, Domain
from core.methods.choice import Calibrated, DataMethod

if TYPE_CHECKING:
    from core.calibration.text import Samples

BUNDLED, OWN_FILE, OWN_FOLDER = "bundled", "file", "folder"
MEASURED, FILE = "measured", "file"
MATRICES = (".gguf", ".dat", ".imatrix")
TEXT_FILTER = "Texts (*.txt *.md *.rst *.text *.jsonl *.ndjson *.json *.parquet *.gz);;All files (*)"
MATRIX_FILTER = "Importance matrices (*.gguf *.dat *.imatrix);;All files (*)"
DOMAINS = {
    Domain.PROSE: ("Prose", "Literature: running text of many styles"),
    Domain.ENCYCLOPAEDIC: ("Encyclopaedic", "Facts in running text and lists, as in a reference work"),
    Domain.CODE: ("Code", "Programs in several languages"),
    Domain.CHAT: ("Chat", "Questions with their answers"),
}
MOST_SAMPLES, MOST_LENGTH = 4096, 16_384  # that the boxes offer; the command line takes more
LARGEST_SEED = 2**31 - 1


class CalibrationCard(Card):
    """`edited(calibrated)` at every change; `text_asked` for a look at the text. Hidden while nothing needs data."""

    edited = Signal(object)
    text_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Calibration text", parent)
        self.setToolTip(explain("calibration"))
        self._calibrated = Calibrated()
        self.change = quiet_button("Change", self._toggle, icon="chevron-down", hint="Which text, and how much of it")
        self.change.setCheckable(True)
        self.show_text = button("Show the text", self.text_asked.emit, hint="Read what will be sent through the model")
        self.header.addWidget(self.show_text)
        self.header.addWidget(self.change)
        self.summary = label("", wrap=True)
        self.summary.setAccessibleName("Calibration in words")
        self.found = label("", "muted", wrap=True)
        self.found.setAccessibleName("What the text consists of")
        self.error = InlineError()
        self.error.set_dismissable(False)
        self._warnings = QVBoxLayout()
        self._warnings.setSpacing(SPACE_1)
        self._make_controls()
        self.settings = QWidget()
        self.settings.setLayout(self._form())
        self.settings.hide()
        for part in (self.summary, self.found, self._warnings, self.error, self.settings):
            self.add(part)
        self.show_calibrated(None)

    def _make_controls(self) -> None:
        self.text_kind = CalmCombo()
        self.text_kind.setAccessibleName("Text")
        self.text_kind.setToolTip("The bundled text suits most models; one like your own use suits yours better")
        self.text_kind.addItem("Bundled text", BUNDLED)
        self.text_kind.addItem("A file of my own…", OWN_FILE)
        self.text_kind.addItem("A folder of my own…", OWN_FOLDER)
        self.path = ElidedLabel(mono=True)
        self.other = button("Other…", self._choose_text, hint="Choose another one; it can be dropped here, too")
        self.domains = {d: QCheckBox(words) for d, (words, _) in DOMAINS.items()}
        for domain, box in self.domains.items():
            box.setToolTip(DOMAINS[domain][1])
            box.clicked.connect(lambda _checked=False, box=box: self._on_domain(box))
        self.samples = CalmNumber("Samples", 1, MOST_SAMPLES, explain("samples"))
        self.length = CalmNumber("Tokens a sample", 2, MOST_LENGTH, explain("tokens a sample"))
        self.seed = CalmNumber("Seed", 0, LARGEST_SEED, "Which passages are taken, and in which order")
        self.chat = QCheckBox("Write it in the model's chat template")
        self.chat.setToolTip(explain("chat template"))
        self.importance = CalmCombo()
        self.importance.setAccessibleName("Importance")
        self.importance.setToolTip(explain("importance matrix"))
        self.importance.addItem("Measured on the text", MEASURED)
        self.importance.addItem("A file of llama.cpp's", FILE)
        self.matrix = ElidedLabel(mono=True)
        self.matrix_file = button(
            "Importance file…", self._choose_matrix, hint="An importance matrix that llama-imatrix has written"
        )
        self.text_kind.activated.connect(self._on_text_kind)
        for box in (self.samples, self.length, self.seed):
            box.valueChanged.connect(self._on_numbers)
        self.chat.clicked.connect(lambda on: self._edit(chat=on))
        self.importance.activated.connect(self._on_importance)

    def _form(self) -> QFormLayout:
        self._rows = form = QFormLayout()
        form.setContentsMargins(0, SPACE_2, 0, 0)
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        form.setHorizontalSpacing(SPACE_3)
        form.setVerticalSpacing(SPACE_2)
        self._matrix_row = _row(self.matrix, self.matrix_file, stretch=0)
        self._own_row = _row(self.path, self.other, stretch=0)
        self._domain_row = QWidget()
        grid = QGridLayout(self._domain_row)
        grid.setContentsMargins(0, 0, 0, 0)
        for i, box in enumerate(self.domains.values()):
            grid.addWidget(box, i // 2, i % 2)
        self._samples_row = _row(self.samples, QWidget(), stretch=1)
        self._length_row = _row(self.length, label("tokens", "muted"), QWidget(), stretch=2)
        self._seed_row = _row(self.seed, QWidget(), stretch=1)
        for title, word, row, buddy in (
            ("Importance", "importance matrix", self.importance, self.importance),
            ("File", "importance matrix", self._matrix_row, self.matrix_file),
            ("Text", "calibration", self.text_kind, self.text_kind),
            ("Path", "", self._own_row, self.other),
            ("Kinds", "", self._domain_row, self.domains[Domain.PROSE]),
            ("Samples", "samples", self._samples_row, self.samples),
            ("Each of", "tokens a sample", self._length_row, self.length),
            ("Seed", "", self._seed_row, self.seed),
            ("", "", self.chat, None),
        ):
            name = term(word, title, "muted") if word else label(title, "muted")
            if not name.toolTip() and buddy is not None:
                name.setToolTip(buddy.toolTip())
            if buddy is not None:
                name.setBuddy(buddy)
            form.addRow(name, row)
        return form

    # ---- what is shown ---------------------------------------------------------------------------------------------

    @property
    def needs_text(self) -> bool:
        """Whether a text is sent through the model."""
        return not self._calibrated.imatrix

    def show_calibrated(self, calibrated: Calibrated | None) -> None:
        """Set every control; nothing is emitted. None: nothing needs data."""
        self.setVisible(calibrated is not None)
        if calibrated is None:
            return
        changed = calibrated.text != self._calibrated.text or calibrated.imatrix != self._calibrated.imatrix
        self._calibrated, text = calibrated, calibrated.text
        if changed:
            self.show_nothing()
        self._set_number(self.samples, text.samples)
        self._set_number(self.length, text.length)
        self._set_number(self.seed, text.seed)
        self.text_kind.setCurrentIndex(self.text_kind.findData(_kind_of(text.path)))
        self.path.setText(text.path)
        for domain, box in self.domains.items():
            box.setChecked(not text.domains or domain in text.domains)
        self.chat.setChecked(text.chat)
        self.importance.setCurrentIndex(self.importance.findData(FILE if calibrated.imatrix else MEASURED))
        self.matrix.setText(calibrated.imatrix)
        transformed = "Transforms change the inputs, so the importance is measured after them."
        set_available(self.importance, transformed if calibrated.transforms else "")
        self._show_rows()
        self.summary.setText(in_words(calibrated))
        set_available(self.show_text, "" if self.needs_text else "No text is needed: the file has the importance.")

    def _show_rows(self) -> None:
        text, measured = self._calibrated.text, self.needs_text
        self._rows.setRowVisible(self.importance, self._calibrated.method is DataMethod.IMPORTANCE)
        self._rows.setRowVisible(self._matrix_row, bool(self._calibrated.imatrix))
        self._rows.setRowVisible(self.text_kind, measured)
        self._rows.setRowVisible(self._own_row, measured and bool(text.path))
        self._rows.setRowVisible(self._domain_row, measured and not text.path)
        for row in (self._samples_row, self._length_row, self._seed_row, self.chat):
            self._rows.setRowVisible(row, measured)

    @staticmethod
    def _set_number(box: CalmNumber, value: int) -> None:
        box.blockSignals(True)
        box.setMaximum(max(box.maximum(), value))
        box.setValue(value)
        box.blockSignals(False)

    def show_nothing(self, words: str = "") -> None:
        """What was found of other settings goes; words: what is being done."""
        self.found.setText(words)
        self.found.setVisible(bool(words))
        self.error.hide()
        self._warn(())

    def show_samples(self, samples: Samples) -> None:
        """What the text consists of, and what is to be said of it."""
        self.show_nothing(f"Consists of {shares_text(samples)}.")
        self._warn(samples.warnings)

    def show_matrix(self, facts: MatrixFacts) -> None:
        """What the importance matrix has."""
        self.show_nothing(
            f"The file has the importance of {units.format_count(facts.weights)} of the model's weights, from "
            f"{units.format_count(facts.chunks)} pieces of text."
        )
        self._warn(facts.notes)

    def show_error(self, error: BaseException) -> None:
        """The text or the file can not be used."""
        self.show_nothing()
        self.error.show_error(error)

    def _warn(self, warnings: tuple[str, ...]) -> None:
        show_warnings(self._warnings, warnings)

    # ---- what is asked ---------------------------------------------------------------------------------------------

    def _toggle(self) -> None:
        self.settings.setVisible(self.change.isChecked())
        self.change.setText("Done" if self.change.isChecked() else "Change")

    def take_path(self, path: Path) -> bool:
        """A file or folder that was dropped here: a text, or an importance matrix where one is of use."""
        if path.suffix.lower() in MATRICES:
            if self._calibrated.method is not DataMethod.IMPORTANCE or self._calibrated.transforms:
                return False
            self._take(replace(self._calibrated, imatrix=str(path)))
        else:
            text = replace(self._calibrated.text, path=str(path), domains=())
            self._take(replace(self._calibrated, text=text, imatrix=""))
        return True

    def _choose_text(self) -> None:
        """By the kind that the chooser shows."""
        before = self._calibrated.text.path
        if self.text_kind.currentData() == OWN_FOLDER:
            name = QFileDialog.getExistingDirectory(self, "Folder of texts to calibrate on", before)
        else:
            name, _ = QFileDialog.getOpenFileName(self, "Text to calibrate on", before, TEXT_FILTER)
        if name:
            self._edit(path=name, domains=())
        else:
            self.show_calibrated(self._calibrated)  # the chooser goes back to what is in force

    def _choose_matrix(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Importance matrix", self._calibrated.imatrix, MATRIX_FILTER)
        if name:
            self._take(replace(self._calibrated, imatrix=name))
        else:
            self.show_calibrated(self._calibrated)

    def _on_text_kind(self) -> None:
        if self.text_kind.currentData() == BUNDLED:
            self._edit(path="")
        elif self.text_kind.currentData() != _kind_of(self._calibrated.text.path):
            self._choose_text()

    def _on_importance(self) -> None:
        if self.importance.currentData() == MEASURED:
            self._take(replace(self._calibrated, imatrix=""))
        elif not self._calibrated.imatrix:
            self._choose_matrix()

    def _on_domain(self, clicked: QCheckBox) -> None:
        chosen = tuple(d for d, box in self.domains.items() if box.isChecked())
        if not chosen:
            clicked.setChecked(True)  # some text there must be
        else:
            self._edit(domains=() if len(chosen) == len(self.domains) else chosen)

    def _on_numbers(self) -> None:
        self._edit(samples=self.samples.value(), length=self.length.value(), seed=self.seed.value())

    def _edit(self, **changes: object) -> None:
        self._take(replace(self._calibrated, text=replace(self._calibrated.text, **changes)))  # type: ignore[arg-type]

    def _take(self, calibrated: Calibrated) -> None:
        if calibrated != self._calibrated:
            self.edited.emit(calibrated)


def _kind_of(path: str) -> str:
    if not path:
        return BUNDLED
    return OWN_FOLDER if Path(path).is_dir() else OWN_FILE


def in_words(calibrated: Calibrated) -> str:
    """'64 samples of 512 tokens, 32 768 in all, of the bundled text'."""
    if calibrated.imatrix:
        return f"The importance comes from {Path(calibrated.imatrix).name}; no text is needed."
    return text_in_words(calibrated.text)


def text_in_words(text: CalibrationText) -> str:
    """The same of the text alone."""
    where = Path(text.path).name if text.path else "the bundled text"
    if text.domains:
        where += f" ({', '.join(d.value for d in text.domains)})"
    chat = ", as chats" if text.chat else ""
    return (
        f"{units.format_count(text.samples)} samples of {units.format_count(text.length)} tokens, "
        f"{units.format_count(text.tokens)} in all, of {where}{chat}."
    )


def shares_text(samples: Samples) -> str:
    """'prose 27 %, encyclopaedic 25 %'."""
    return ", ".join(f"{share.name} {units.format_percent(share.share, 0)}" for share in samples.shares)


def _row(*parts: QWidget, stretch: int) -> QWidget:
    """Parts side by side; the one with that number takes what room is left."""
    row = QWidget()
    layout = QHBoxLayout(row)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(SPACE_2)
    for number, part in enumerate(parts):
        layout.addWidget(part, int(number == stretch))
    return row
