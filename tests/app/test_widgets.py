"""The small parts: elided names, sizes, availability with a reason, verdicts, errors told in place."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QPushButton

from app.widgets.basics import EmptyState, PrimaryButton, button, quiet_button, set_available
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel, KeyValue, SizeLabel, explain, term
from app.widgets.verdict import STATES, Verdict
from core.errors import UserError

pytestmark = pytest.mark.usefixtures("services")


@pytest.mark.parametrize("length", [120, 200])
def test_long_names_are_elided_in_the_middle_and_copyable(qtbot, length: int) -> None:  # type: ignore[no-untyped-def]
    name = "model.layers.17." + "x" * (length - 23) + ".weight"
    assert len(name) == length
    label = ElidedLabel(name, mono=True)
    qtbot.addWidget(label)
    label.resize(200, 20)
    shown = label.shown_text()
    assert len(shown) < length
    assert shown.startswith("model.")
    assert shown.endswith("ight")
    assert "…" in shown
    assert label.toolTip() == label.accessibleName() == name
    next(a for a in label.actions() if a.text() == "Copy").trigger()
    assert QGuiApplication.clipboard().text() == name


def test_long_name_does_not_widen_its_row(qtbot) -> None:  # type: ignore[no-untyped-def]
    rows = KeyValue()
    qtbot.addWidget(rows)
    rows.set("Path", "/" + "x" * 300)
    assert rows.minimumSizeHint().width() < 400


def test_key_value_replaces_and_reorders(qtbot) -> None:  # type: ignore[no-untyped-def]
    rows = KeyValue()
    qtbot.addWidget(rows)
    rows.set_all({"Layers": "30", "Hidden": "576"})
    rows.set_all({"Layers": "32", "Hidden": "576"})
    assert rows.value("Layers") == "32"
    rows.set_all({"Hidden": "1"})
    assert rows.value("Hidden") == "1"
    with pytest.raises(KeyError):
        rows.value("Layers")


def test_sizes_come_from_the_one_formatter(qtbot) -> None:  # type: ignore[no-untyped-def]
    label = SizeLabel(98_359_296)
    qtbot.addWidget(label)
    assert label.text() == "98.36 MB (93.80 MiB)"
    label.set_bytes(None)
    assert label.text() == "–"


def test_unavailable_says_why_and_remembers_its_own_hint(qtbot) -> None:  # type: ignore[no-untyped-def]
    control = button("Convert", hint="Start the conversion")
    qtbot.addWidget(control)
    set_available(control, "Open a model first.")
    assert not control.isEnabled()
    assert control.toolTip() == "Open a model first."
    set_available(control, "Wait for the plan.")
    set_available(control)
    assert control.isEnabled()
    assert control.toolTip() == "Start the conversion"
    action = QAction("Run")
    set_available(action, "Nothing to run.")
    assert action.toolTip() == "Nothing to run."


def test_buttons_without_text_have_a_name(qtbot) -> None:  # type: ignore[no-untyped-def]
    control = quiet_button("", icon="copy", hint="Copy the path")
    qtbot.addWidget(control)
    assert control.accessibleName() == "Copy the path"


def test_click_reaches_its_function_without_arguments(qtbot) -> None:  # type: ignore[no-untyped-def]
    clicks: list[int] = []
    control = PrimaryButton("Go", lambda: clicks.append(1))
    qtbot.addWidget(control)
    control.click()
    assert clicks == [1]


def test_every_verdict_has_an_icon_and_a_word(qtbot) -> None:  # type: ignore[no-untyped-def]
    verdict = Verdict()
    qtbot.addWidget(verdict)
    for state in STATES:
        verdict.set(state)
        assert verdict.text == verdict.accessibleName() == state
        assert not verdict._icon.pixmap().isNull()
    verdict.set("ok", "fits")
    assert verdict.text == "fits"


def test_user_error_is_told_in_two_sentences(qtbot) -> None:  # type: ignore[no-untyped-def]
    banner = InlineError()
    qtbot.addWidget(banner)
    assert banner.isHidden()
    banner.show_error(UserError("The file is cut short.", "Download it again."))
    assert not banner.isHidden()
    assert banner.message.text() == "The file is cut short."
    assert banner.hint.text() == "Download it again."
    assert banner.accessibleDescription() == "The file is cut short. Download it again."


def test_unexpected_error_has_no_trace_as_headline(qtbot) -> None:  # type: ignore[no-untyped-def]
    banner = InlineError()
    qtbot.addWidget(banner)
    banner.show_error(ZeroDivisionError("division by zero"))
    assert "Traceback" not in banner.message.text() + banner.hint.text()
    details = banner.findChild(QPlainTextEdit)
    assert details is not None
    assert details.isHidden()
    next(b for b in banner.findChildren(QPushButton) if b.text() == "Details").click()
    assert not details.isHidden()
    assert "division by zero" in details.toPlainText()
    banner.copy()
    assert "ZeroDivisionError" in QGuiApplication.clipboard().text()


def test_terms_explain_themselves(qtbot) -> None:  # type: ignore[no-untyped-def]
    label = term("scale", "Scales")
    qtbot.addWidget(label)
    assert label.text() == "Scales"
    assert label.toolTip() == explain("SCALE")
    assert explain("no such term") == ""


def test_empty_state_tells_its_purpose_to_screen_readers(qtbot) -> None:  # type: ignore[no-untyped-def]
    state = EmptyState("No model is open", "Drop a model here.", PrimaryButton("Open a model"), icon="box")
    qtbot.addWidget(state)
    assert state.accessibleName() == "No model is open"
    assert state.accessibleDescription() == "Drop a model here."


def test_empty_state_shows_all_of_its_sentence(qtbot) -> None:  # type: ignore[no-untyped-def]
    state = EmptyState("Nothing here", "A sentence with a few words. " * 8, PrimaryButton("Open"), icon="box")
    qtbot.addWidget(state)
    state.resize(900, 500)
    state.show()
    text = max(state.findChildren(QLabel), key=lambda one: len(one.text()))
    assert text.height() >= text.heightForWidth(text.width())


def test_an_error_while_painting_leaves_no_painter_behind(qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Its traceback keeps the frame alive; a painter in there would outlive the picture, which Qt does not survive."""
    shown = ElidedLabel("a name")
    qtbot.addWidget(shown)
    monkeypatch.setattr(shown, "shown_text", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError) as kept:
        shown.grab()
    assert kept.traceback
    assert not shown.paintingActive()
