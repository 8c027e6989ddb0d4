"""Colours, sizes and type of the window, light and dark, and live switching between them.

Nothing else in `app` writes a colour or a font size. Every pair that may meet on the screen stands in `Theme.pairs`,
with the least contrast it must have, and a test computes each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import shiboken6
from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from app.assets import FONTS

# Type sizes and the 4 px space grid, in device-independent pixels.
CAPTION, BASE, HEADING, TITLE, DISPLAY = 11, 13, 15, 20, 28
SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, SPACE_8 = 4, 8, 12, 16, 24, 32
PAGE_MARGIN = 24
CONTROL_HEIGHT = 32
ROW_HEIGHT = 28
RADIUS = 6
FOCUS_WIDTH = 2

UI_FAMILY = "Inter"
MONO_FAMILY = "JetBrains Mono"

SEGMENTS = ("weights", "scales", "kept", "kv", "work")  # what `Theme.series` colours stand for in the memory bar


@dataclass(frozen=True)
class Theme:
    """One set of colours as '#RRGGBB'. window, surface, sunken, hover and selected are backgrounds."""

    name: str
    window: str
    surface: str
    sunken: str
    hover: str
    selected: str
    text: str
    muted: str
    disabled: str
    border: str
    hairline: str
    accent: str
    accent_hover: str
    on_accent: str
    ok: str
    warning: str
    error: str
    series: tuple[str, str, str, str, str]

    @property
    def dark(self) -> bool:
        return self.name == "dark"

    def color(self, role: str) -> QColor:
        """The colour of a role, a field's name."""
        return QColor(getattr(self, role))

    def series_color(self, index: int) -> QColor:
        return QColor(self.series[index % len(self.series)])

    def pairs(self) -> Iterator[tuple[str, str, str, float]]:
        """Every (what, foreground, background, least contrast ratio) that the window may show."""
        grounds = {name: getattr(self, name) for name in ("window", "surface", "sunken", "hover", "selected")}
        for ground, background in grounds.items():
            for role in ("text", "muted", "accent", "ok", "warning", "error"):
                yield f"{role} on {ground}", getattr(self, role), background, 4.5
            yield f"disabled on {ground}", self.disabled, background, 4.0
            yield f"border on {ground}", self.border, background, 3.0
            yield f"focus on {ground}", self.accent, background, 3.0
        for name, color in zip(SEGMENTS, self.series, strict=True):
            yield f"series {name} on surface", color, self.surface, 3.0
        yield "text on accent", self.on_accent, self.accent, 4.5
        yield "text on hovered accent", self.on_accent, self.accent_hover, 4.5


LIGHT = Theme(
    name="light",
    window="#F5F6F8",
    surface="#FFFFFF",
    sunken="#EBEDF1",
    hover="#EDEFF3",
    selected="#E6EEFA",
    text="#1A1D23",
    muted="#555D6B",
    disabled="#6B7381",
    border="#7A8290",
    hairline="#DADDE3",
    accent="#1B5FC9",
    accent_hover="#174FA8",
    on_accent="#FFFFFF",
    ok="#0D6747",
    warning="#8A5300",
    error="#8C0C25",
    series=("#2F6FBF", "#E07821", "#2BA680", "#7A2A62", "#7C8593"),
)

DARK = Theme(
    name="dark",
    window="#15181D",
    surface="#1D2127",
    sunken="#101216",
    hover="#242930",
    selected="#202E46",
    text="#E8EAEE",
    muted="#A3ABB8",
    disabled="#858D9A",
    border="#6F7785",
    hairline="#2E343D",
    accent="#7AB0FF",
    accent_hover="#9BC3FF",
    on_accent="#0B1B33",
    ok="#4CC594",
    warning="#F2C04A",
    error="#FF7C74",
    series=("#4E81E4", "#F2A24A", "#39B89A", "#B95299", "#C9D0DA"),
)

THEMES = {"light": LIGHT, "dark": DARK}
MODES = ("system", "light", "dark")


def ui_font(size: int = BASE, *, bold: bool = False) -> QFont:
    """Inter with tabular digits, `size` px, weight 400 or 600."""
    return _font(UI_FAMILY, size, bold)


def mono_font(size: int = BASE, *, bold: bool = False) -> QFont:
    """JetBrains Mono for names and code."""
    return _font(MONO_FAMILY, size, bold)


@lru_cache(maxsize=32)  # tables ask for one a cell; a QFont is copied when it is changed elsewhere
def _font(family: str, size: int, bold: bool) -> QFont:
    font = QFont(family)
    font.setPixelSize(size)
    font.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def load_fonts() -> None:
    """Register the shipped fonts. A missing file leaves the system's font in place, which is no reason to stop."""
    if UI_FAMILY in _loaded and MONO_FAMILY in _loaded:
        return
    for path in sorted(FONTS.iterdir()) if FONTS.is_dir() else ():
        if path.suffix in (".ttf", ".otf"):
            number = QFontDatabase.addApplicationFont(str(path))
            _loaded.update(QFontDatabase.applicationFontFamilies(number))


_loaded: set[str] = set()


def palette(theme: Theme) -> QPalette:
    """Qt's own roles from the theme, for what the style sheet does not reach."""
    result = QPalette()
    role = QPalette.ColorRole
    normal = {
        role.Window: theme.window,
        role.WindowText: theme.text,
        role.Base: theme.surface,
        role.AlternateBase: theme.sunken,
        role.Text: theme.text,
        role.PlaceholderText: theme.muted,
        role.Button: theme.surface,
        role.ButtonText: theme.text,
        role.BrightText: theme.error,
        role.Highlight: theme.selected,
        role.HighlightedText: theme.text,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.ToolTipBase: theme.surface,
        role.ToolTipText: theme.text,
        role.Light: theme.hairline,
        role.Midlight: theme.hairline,
        role.Mid: theme.border,
        role.Dark: theme.border,
        role.Shadow: theme.border,
        role.Accent: theme.accent,
    }
    for key, color in normal.items():
        result.setColor(key, QColor(color))
    for key in (role.WindowText, role.Text, role.ButtonText, role.HighlightedText, role.PlaceholderText):
        result.setColor(QPalette.ColorGroup.Disabled, key, QColor(theme.disabled))
    return result


class ThemeManager(QObject):
    """Holds the theme in force and applies it: palette, icons, and the style sheet of what was dressed.

    `changed` carries the new Theme. The style sheet is not the application's: Qt would style everything below a widget
    anew each time that one is given a parent, and all widgets, hidden ones too, at once.
    """

    changed = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._mode = "system"
        self._theme = LIGHT
        self._applied = False
        self._sheet = ""
        self._roots: list[QWidget] = []
        self._waiting: list[QWidget] = []  # dressed in an older theme, what can be seen first
        self._next = QTimer(self, singleShot=True, interval=1)
        self._next.timeout.connect(self._dress_next)
        with contextlib.suppress(AttributeError):  # no application yet: tests that only read colours
            QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_system_changed)

    @property
    def theme(self) -> Theme:
        return self._theme

    @property
    def mode(self) -> str:
        return self._mode

    def set_mode(self, mode: str) -> None:
        """'system', 'light' or 'dark'. Raises ValueError for anything else."""
        if mode not in MODES:
            raise ValueError(f"no such theme mode: {mode}")
        self._mode = mode
        self._apply(_system_theme() if mode == "system" else THEMES[mode])

    def dress(self, root: QWidget, *, later: bool = False) -> None:
        """Give a widget and all below it the style sheet, from now on that of the theme in force.

        When the theme changes, one root follows after the other and the event loop turns in between: a window has
        several, each small enough to be styled within a frame. later: the first time, too, wait for one's turn.
        """
        self._roots = [r for r in self._roots if shiboken6.isValid(r)]
        self._roots.append(root)
        if later:
            self._waiting.append(root)
            self._next.start()
        else:
            root.setStyleSheet(self._sheet)

    @property
    def dressing(self) -> bool:
        """Whether something still waits for its turn."""
        return bool(self._waiting)

    def _dress_next(self) -> None:
        root = next((r for r in self._waiting if shiboken6.isValid(r)), None)
        if root is None:
            self._waiting = []
            return
        del self._waiting[: self._waiting.index(root) + 1]
        root.setStyleSheet(self._sheet)
        root.setUpdatesEnabled(True)
        self._next.start()

    def _on_system_changed(self, _scheme: object) -> None:
        if self._mode == "system":
            self._apply(_system_theme())

    def _apply(self, theme: Theme) -> None:
        from app.icons import refresh_icons
        from app.stylesheet import stylesheet

        if self._applied and theme is self._theme:
            return
        app = QApplication.instance()
        self._theme = theme
        if isinstance(app, QApplication):
            if not self._applied:
                load_fonts()
                app.setStyle("Fusion")
                app.setFont(ui_font())
            self._applied = True
            app.setPalette(palette(theme))
            self._sheet = stylesheet(theme)
            self._waiting = [r for r in self._roots if shiboken6.isValid(r)]
            self._waiting.sort(key=lambda r: not r.isVisible())
            for root in self._waiting:
                root.setUpdatesEnabled(False)  # no picture of it while half of it has the old colours
            if self._waiting:
                self._next.start()
        if self._waiting:
            QTimer.singleShot(1, self, lambda: refresh_icons(self._theme))
        else:
            refresh_icons(theme)
        self.changed.emit(theme)


def _system_theme() -> Theme:
    scheme = QGuiApplication.styleHints().colorScheme()
    return DARK if scheme == Qt.ColorScheme.Dark else LIGHT


_manager: ThemeManager | None = None


def themes() -> ThemeManager:
    """The application's one theme manager. Custom painting reads `themes().theme` and repaints on `changed`."""
    global _manager
    if _manager is None:
        _manager = ThemeManager()
    return _manager


def current() -> Theme:
    """The theme in force."""
    return themes().theme
