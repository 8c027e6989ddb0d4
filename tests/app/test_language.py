"""Texts that stand still go through one place, so that a translation reaches them; the list of them is complete."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QLocale, QTranslator
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QMenu
from window_help import visible

from app import language
from app.actions import ACTIONS
from app.main_window import MainWindow

pytestmark = pytest.mark.gui


class Marked(QTranslator):
    """A language in which every text stands between marks."""

    def translate(self, context: str, text: str, *_rest: Any) -> str:
        return f"«{text}»" if context == language.CONTEXT else ""

    def isEmpty(self) -> bool:
        return False


@pytest.fixture
def marked(qapp: QApplication) -> Iterator[None]:
    translator = Marked()
    qapp.installTranslator(translator)
    yield
    qapp.removeTranslator(translator)


def listed() -> Any:
    path = Path(__file__).resolve().parents[2] / "packaging" / "texts.py"
    spec = importlib.util.spec_from_file_location("texts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_translation_reaches_menus_navigation_and_pages(marked: None, services, qtbot) -> None:  # type: ignore[no-untyped-def]
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.show()
    for spec in ACTIONS:
        assert window.actions_by_key[spec.key].text() == f"«{spec.text}»"
        assert window.actions_by_key[spec.key].toolTip() == f"«{spec.hint}»"
    assert all(menu.title().startswith("«") for menu in window.menuBar().findChildren(QMenu) if menu.title())
    english = []
    for widget in visible(window):
        text = widget.text() if isinstance(widget, (QLabel, QAbstractButton)) else ""
        if " " in text and "«" not in text:
            english.append(text)
    # What is made of numbers, and what says how far something is, stays as it is.
    assert english == [t for t in english if "Looking at" in t or "shown here" in t or "None found" in t], english


def test_what_the_window_says_is_in_the_list(window) -> None:  # type: ignore[no-untyped-def]
    known = set(listed().texts())
    assert len(known) > 550
    for spec in ACTIONS:
        assert {spec.text, spec.hint} <= known
    assert {"Make a language model fit your computer", "Try the sample model", "Read more"} <= known
    assert "Weights that make what a token is found by." in known, "the glossary"


def test_the_list_is_a_file_of_qt_linguist() -> None:
    texts = listed()
    root = ET.fromstring(texts.linguist("de", ["A & B", "C < D"]).split("\n", 2)[2])
    assert [m.findtext("source") for m in root.iter("message")] == ["A & B", "C < D"]
    assert root.findtext("context/name") == language.CONTEXT


def test_without_a_translation_english_stands(qapp: QApplication) -> None:
    assert language.install(QLocale("fy_NL")) is None
    assert language.say("Open a model…") == "Open a model…"
    assert language.say("") == ""
