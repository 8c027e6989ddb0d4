"""All that can be chosen of the key-value cache, and what it takes. Stands beside the window and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QCheckBox, QComboBox, QDialog, QGridLayout, QHBoxLayout, QSpinBox, QVBoxLayout, QWidget

from app.help import help_desk
from app.memory_view import cache_of, cache_of_recipe, plan_caches, room_text
from app.models.table import Column, RowsModel
from app.models.table_view import TablePanel
from app.services import Services
from app.session import Session
from app.theme import SPACE_2, SPACE_3, SPACE_4, themes
from app.widgets.basics import label, number_box, quiet_button, set_available
from app.widgets.text import KeyValue, explain, term
from core import units
from core.errors import UserError
from core.kv.flags import told_runtimes
from core.kv.planning import PlannedCache, offered
from core.kv.scheme import CacheScheme
from kernels.kv import CACHE_FORMATS

NO_MODEL = "Open a model first: what a cache takes depends on its layers and heads."
MOST_TOKENS, MOST_LAYERS = 1 << 16, 256
_LATENT = "This model keeps one vector for keys and values, in the format of the keys."
_FLOATS = "Nothing is quantized in 16 bits. Choose another format first."


class CacheDialog(QDialog):
    """Follows the session, and changes its cache at every move of a control. Esc closes it."""

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._store = services.session
        self._filling = False
        self.setWindowTitle("KV cache")
        self.setProperty("frameRole", "page")
        self.setModal(False)
        self._make_controls()
        self.figures = label("", wrap=True, selectable=True)
        self.figures.setAccessibleName("What the chosen cache takes")
        self.problem = label("", "error", wrap=True)
        self.table = TablePanel(
            RowsModel(_columns(), explain), "Cache formats", ("U8-t32/U2-g32,rotate", "16.000", "999.99 kB",
            "999.99 GB", "9 999 999 999", "9 999 999"), totals=False,
        )  # fmt: skip
        self.use = self.table.add_row_action("Use this format", "check", "Keep keys and values in it", self._use)
        self.table.row_activated.connect(self._use)
        self.told = KeyValue()
        self._lay_out()
        QShortcut(QKeySequence("F1"), self, self.help)
        self.resize(780, 640)
        themes().dress(self)
        self._store.changed.connect(lambda _old, new: self.isVisible() and self.show_session(new))
        self.show_session(self._store.current)
        self.keys.setFocus()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.keys, self.values = QComboBox(), QComboBox()
        for chooser, what, names in (
            (self.keys, "Format of keys", list(CACHE_FORMATS)),
            (self.values, "Format of values", [n for n, form in CACHE_FORMATS.items() if not form.channels]),
        ):
            chooser.addItems(names)
            chooser.setAccessibleName(what)
            chooser.setToolTip(explain("cache format"))
            chooser.activated.connect(self._on_change)
        self.numbers: dict[str, QSpinBox] = {
            "window": number_box("Recent tokens in 16 bits", 0, MOST_TOKENS, 0, hint=explain("recent window")),
            "sinks": number_box("First tokens in 16 bits", 0, MOST_TOKENS, 0, hint=explain("attention sinks")),
            "keep_first": number_box("First layers in 16 bits", 0, MOST_LAYERS, 0, hint=explain("kept layers")),
            "keep_last": number_box("Last layers in 16 bits", 0, MOST_LAYERS, 0, hint=explain("kept layers")),
        }
        self.switches: dict[str, QCheckBox] = {
            "rotate_keys": QCheckBox("rotate keys"),
            "rotate_values": QCheckBox("rotate values"),
            "before_rope": QCheckBox("keys before the rotary step"),
        }
        for box in self.numbers.values():
            box.setKeyboardTracking(False)
            box.valueChanged.connect(self._on_change)
        for name, switch in self.switches.items():
            switch.setToolTip(explain("before the rotary step" if name == "before_rope" else "cache rotation"))
            switch.clicked.connect(self._on_change)

    def _lay_out(self) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_3)
        grid.setVerticalSpacing(SPACE_2)
        for row, (word, title, control) in enumerate(
            (
                ("cache format", "Keys", self.keys),
                ("cache format", "Values", self.values),
                ("recent window", "Recent tokens in 16 bits", self.numbers["window"]),
                ("attention sinks", "First tokens in 16 bits", self.numbers["sinks"]),
                ("kept layers", "First layers in 16 bits", self.numbers["keep_first"]),
                ("kept layers", "Last layers in 16 bits", self.numbers["keep_last"]),
            )
        ):
            name = term(word, title, "muted")
            name.setBuddy(control)
            grid.addWidget(name, row // 2, 2 * (row % 2))
            grid.addWidget(control, row // 2, 2 * (row % 2) + 1)
        grid.setColumnStretch(1, 1)
        grid.setColumnStretch(3, 1)
        switches = QHBoxLayout()
        switches.setSpacing(SPACE_4)
        for switch in self.switches.values():
            switches.addWidget(switch)
        switches.addStretch(1)
        head = QHBoxLayout()
        head.addWidget(label("What keys and values are kept in", "title"), 1)
        head.addWidget(
            quiet_button(
                "Help", lambda: help_desk().asked.emit("cache"), icon="book-open", hint="The guide to the cache"
            )
        )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        layout.setSpacing(SPACE_3)
        layout.addLayout(head)
        layout.addLayout(grid)
        layout.addLayout(switches)
        layout.addWidget(self.figures)
        layout.addWidget(self.problem)
        layout.addWidget(self.table, 1)
        layout.addWidget(label("What programs are told at their start", "heading"))
        layout.addWidget(self.told)

    # ---- the session -----------------------------------------------------------------------------------------------

    def show_session(self, session: Session) -> None:
        """Set every control to the session's cache, and work out the figures of its model and device."""
        scheme, shape = cache_of(session), session.shape
        self._show_scheme(scheme, bool(shape and shape.latent_rank))
        planned = plan_caches(session, (scheme,))
        self.figures.setText(_sentence(planned[0], session) if planned else NO_MODEL)
        self.problem.hide()
        rows = plan_caches(session, offered())
        if rows != self.table.model.rows():
            self.table.model.set_rows(rows)
        for each in told_runtimes(scheme, shape.head_dim if shape else 0):
            role = "muted" if each.refused else ""
            self.told.set(each.runtime, each.refused or each.command, mono=not each.refused, role=role)

    def _show_scheme(self, scheme: CacheScheme, latent: bool) -> None:
        self._filling = True
        self.keys.setCurrentText(scheme.keys)
        self.values.setCurrentText(scheme.values)
        for name, box in self.numbers.items():
            box.setValue(getattr(scheme, name))
        for name, switch in self.switches.items():
            switch.setChecked(getattr(scheme, name))
        self._filling = False
        keys, values = scheme.key_format, scheme.value_format
        floats = keys.is_float and values.is_float
        set_available(self.values, _LATENT if latent else "")
        for control in (*self.numbers.values(), *self.switches.values()):
            set_available(control, _FLOATS if floats else "")
        for name, form in (("rotate_keys", keys), ("rotate_values", values)):
            if form.rotated:
                set_available(self.switches[name], f"{form.name} has the levels of rotated vectors: always on with it.")
            elif form.is_float and not floats:
                set_available(self.switches[name], _FLOATS)

    @staticmethod
    def help() -> None:
        """Open the guide at the page about this."""
        help_desk().asked.emit("cache")

    def _on_change(self, *_: object) -> None:
        if self._filling:
            return
        now = CacheScheme(
            self.keys.currentText(),
            self.values.currentText(),
            **{name: box.value() for name, box in self.numbers.items()},
            **{name: switch.isChecked() for name, switch in self.switches.items()},
        )
        self._take(now)

    def _use(self, planned: PlannedCache) -> None:
        self._take(replace(planned.scheme))

    def _take(self, scheme: CacheScheme) -> None:
        scheme = replace(
            scheme,
            rotate_keys=scheme.rotate_keys or scheme.key_format.rotated,
            rotate_values=scheme.rotate_values or scheme.value_format.rotated,
        )
        try:
            scheme.check()
        except UserError as error:
            self.problem.setText(str(error))
            self.problem.show()
            return
        own = cache_of_recipe(self._store.current).text
        self._store.update(cache="" if scheme.text == own else scheme.text)
        self.show_session(self._store.current)


def _sentence(planned: PlannedCache, session: Session) -> str:
    many = f" in each of {units.format_count(session.batch)} sequences" if session.batch > 1 else ""
    where = f"{units.format_bytes(planned.bytes)} for {units.format_count(session.context)} tokens{many}"
    device = f" beside the weights on {session.device.label}" if session.device and planned.room is not None else ""
    return f"{room_text(planned, session.context)}{device}. All of it: {where}."


def _columns() -> Sequence[Column]:
    def count(number: int | None, planned: PlannedCache) -> str:
        if planned.room is None:
            return "–"
        return "any" if number is None else units.format_count(number)

    return (
        Column("Format", lambda p: p.scheme.text, mono=True, term="cache format"),
        Column("Bits a value", lambda p: f"{p.bits:.3f}", lambda p: p.bits, number=True, term="effective bits"),
        Column("A token", lambda p: units.format_decimal(p.bytes_per_token), lambda p: p.bytes_per_token, number=True),
        Column(
            "All of it", lambda p: units.format_decimal(p.bytes), lambda p: p.bytes, number=True,
            tooltip=lambda p: units.format_bytes(p.bytes),
        ),
        Column("Tokens that fit", lambda p: count(p.tokens, p), lambda p: p.tokens or 0, number=True),
        Column("Sequences", lambda p: count(p.sequences, p), lambda p: p.sequences or 0, number=True),
    )  # fmt: skip
