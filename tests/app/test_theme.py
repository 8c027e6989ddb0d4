"""Every colour pair of both themes, told apart by every kind of colour vision; fonts, icons and switching."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from color_science import VISIONS, ciede2000, contrast, lab
from PySide6.QtGui import QFontInfo, QFontMetricsF, QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel, QPushButton

from app.assets import FONTS, ICONS
from app.icons import icon, pixmap, set_icon
from app.services import Services
from app.stylesheet import stylesheet
from app.theme import DARK, LIGHT, MONO_FAMILY, UI_FAMILY, Theme, mono_font, ui_font
from app.widgets.basics import PrimaryButton, button, number_box
from app.widgets.verdict import STATES

BOTH = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def test_difference_formula_reproduces_published_pairs() -> None:
    # Pairs 1, 4, 7, 17 and 25 of the test data of Sharma, Wu, Dalal 2005.
    pairs = (
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    )
    for first, second, expected in pairs:
        assert ciede2000(np.array(first), np.array(second)) == pytest.approx(expected, abs=1e-4)


@BOTH
def test_contrast_of_every_pair(theme: Theme) -> None:
    low = [f"{what}: {contrast(a, b):.2f} < {least}" for what, a, b, least in theme.pairs() if contrast(a, b) < least]
    assert not low, low


@BOTH
@pytest.mark.parametrize("vision", VISIONS)
def test_series_are_told_apart(theme: Theme, vision: str) -> None:
    for first, second in combinations(theme.series, 2):
        assert ciede2000(lab(first, vision), lab(second, vision)) >= 13.5, (first, second)


@BOTH
@pytest.mark.parametrize("vision", VISIONS)
def test_verdicts_are_told_apart(theme: Theme, vision: str) -> None:
    for first, second in combinations((theme.ok, theme.warning, theme.error), 2):
        assert ciede2000(lab(first, vision), lab(second, vision)) >= 10.5, (first, second)


def test_verdict_states_of_one_meaning_never_differ_by_colour_alone() -> None:
    for (first, (icon_a, color_a)), (second, (icon_b, color_b)) in combinations(STATES.items(), 2):
        if color_a != color_b:
            assert icon_a != icon_b, (first, second)


def test_shipped_fonts_are_used_with_tabular_digits(services: Services) -> None:
    assert QFontInfo(ui_font()).family() == UI_FAMILY
    assert QFontInfo(mono_font()).family() == MONO_FAMILY
    for size in (11, 13, 20):
        metrics = QFontMetricsF(ui_font(size))
        assert metrics.horizontalAdvance("111.1") == metrics.horizontalAdvance("888.8")


def test_style_sheet_keeps_tabular_digits(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    for role in ("", "title", "muted", "caption"):
        label = QLabel("111.1")
        qtbot.addWidget(label)
        label.setProperty("textRole", role)
        services.themes.dress(label)
        label.ensurePolished()
        width = label.fontMetrics().horizontalAdvance
        assert width("111.1") == width("888.8"), role


def test_licences_stand_beside_what_they_are_for() -> None:
    assert "ISC" in (ICONS / "LICENSE").read_text(encoding="utf-8")
    for family in ("Inter", "JetBrainsMono"):
        assert "SIL Open Font License" in (FONTS / f"{family}-LICENSE.txt").read_text(encoding="utf-8")


def test_every_shipped_icon_draws_something(services: Services) -> None:
    for path in ICONS.glob("*.svg"):
        image = pixmap(path.stem, LIGHT.text, 16).toImage()
        assert any(image.pixelColor(x, y).alpha() for x in range(16) for y in range(16)), path.name
    with pytest.raises(FileNotFoundError):
        icon("no-such-icon")


def test_icons_follow_the_theme(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    target = QPushButton()
    qtbot.addWidget(target)
    set_icon(target, "square")

    def ink() -> set[str]:
        image = target.icon().pixmap(48, 48).toImage()
        colors = (image.pixelColor(x, y) for x in range(48) for y in range(48))
        return {c.name().upper() for c in colors if c.alpha() == 255}

    services.themes.set_mode("light")
    qtbot.waitUntil(lambda: ink() == {LIGHT.text})
    services.themes.set_mode("dark")
    qtbot.waitUntil(lambda: ink() == {DARK.text})


def test_switching_restyles_and_tells(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    services.themes.set_mode("light")
    shown, hidden = QLabel("shown"), QLabel("hidden")
    for label in (hidden, shown):
        qtbot.addWidget(label)
        services.themes.dress(label)
        assert LIGHT.surface in label.styleSheet()
    shown.show()
    with qtbot.waitSignal(services.themes.changed):
        services.themes.set_mode("dark")
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    assert app.palette().window().color().name().upper() == DARK.window
    qtbot.waitUntil(lambda: DARK.surface in shown.styleSheet())
    assert shown.updatesEnabled()
    qtbot.waitUntil(lambda: DARK.surface in hidden.styleSheet())
    with pytest.raises(ValueError, match="purple"):
        services.themes.set_mode("purple")


def test_system_mode_takes_one_of_the_two(services: Services) -> None:
    services.themes.set_mode("system")
    assert services.themes.theme in (LIGHT, DARK)
    assert QGuiApplication.styleHints() is not None


@BOTH
def test_style_sheet_has_no_hole(services: Services, theme: Theme) -> None:
    assert "@" not in stylesheet(theme)


@BOTH
def test_focus_is_a_ring_of_two_pixels(services: Services, qtbot, theme: Theme) -> None:  # type: ignore[no-untyped-def]
    services.themes.set_mode(theme.name)
    for control, ring, inset in (
        (button("Copy"), theme.accent, 0),
        (number_box("Layers", 0, 9, 1), theme.accent, 0),
        (PrimaryButton("Convert"), theme.on_accent, 2),
    ):
        qtbot.addWidget(control)
        services.themes.dress(control)
        control.resize(120, 32)
        control.show()
        control.activateWindow()
        control.setFocus()
        qtbot.waitUntil(control.hasFocus)
        image = control.grab().toImage()
        found = [image.pixelColor(60, y).name().upper() for y in range(inset, inset + 2)]
        assert found == [ring, ring], type(control).__name__
