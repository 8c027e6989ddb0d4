"""The settings' dialog: every change holds at once, is kept, and reaches the pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLineEdit, QSpinBox, QWidget

from app.dialogs.settings import SettingsDialog
from app.settings import Settings
from core import preferences
from core.preferences import Preferences, Sizes

pytestmark = pytest.mark.gui


@pytest.fixture
def dialog(window) -> SettingsDialog:  # type: ignore[no-untyped-def]
    window.actions_by_key["settings"].trigger()
    found = window.findChild(SettingsDialog)
    assert found is not None
    return found


def pick(box: QComboBox, value: object) -> None:
    box.setCurrentIndex(box.findData(value))
    box.activated.emit(box.currentIndex())


def test_changes_hold_at_once_and_are_kept(dialog: SettingsDialog, window, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert dialog.isVisible()
    assert not dialog.isModal()
    for key in ("models", "results", "scratch"):
        dialog.folders[key].field.setText(str(tmp_path / key))
        dialog.folders[key].field.editingFinished.emit()
    dialog.threads.setValue(2)
    pick(dialog.memory, 4 * 10**9)
    pick(dialog.sizes, "binary")
    dialog.endpoint.setText("127.0.0.1:9/")
    dialog.endpoint.editingFinished.emit()
    dialog.offline.click()
    folders = [str(tmp_path / key) for key in ("models", "results", "scratch")]
    wanted = Preferences(*folders, 2, 4 * 10**9, Sizes.BINARY.value, "https://127.0.0.1:9", True)
    assert preferences.current() == wanted
    assert window.services.settings.models_folder == tmp_path / "models"
    assert Settings(tmp_path / "settings.ini").shared == wanted
    dialog.refresh()
    assert dialog.threads.value() == 2


def test_colours_follow_and_the_menu_with_them(dialog: SettingsDialog, window) -> None:  # type: ignore[no-untyped-def]
    pick(dialog.colours, "dark")
    assert window.services.themes.mode == window.services.settings.theme == "dark"
    assert window.actions_by_key["theme_dark"].isChecked()


def test_what_can_not_be_is_said(dialog: SettingsDialog, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    dialog.endpoint.setText("not an address at all")
    dialog.endpoint.editingFinished.emit()
    assert "no address" in dialog.told.text()
    assert preferences.current().endpoint == ""
    dialog.folders["results"].field.setText("~/somewhere")
    dialog.folders["results"].field.editingFinished.emit()
    assert Path(preferences.current().results).is_absolute()
    assert "~" not in preferences.current().results
    dialog.folders["results"].field.setText("")
    dialog.folders["results"].field.editingFinished.emit()
    assert preferences.current().results == ""


def test_the_recipe_s_result_goes_there(loaded, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = loaded.page("recipe")
    loaded.show_page("recipe")
    dialog = loaded.show_settings()
    dialog.folders["results"].field.setText(str(tmp_path / "results"))
    dialog.folders["results"].field.editingFinished.emit()
    assert page.where.path.parent == tmp_path / "results"


def test_every_control_has_a_name_and_a_hint(dialog: SettingsDialog) -> None:
    for kind in (QAbstractButton, QComboBox, QLineEdit, QSpinBox):
        for widget in dialog.findChildren(kind):
            if widget.isVisible() and not widget.objectName().startswith("qt_"):
                assert widget.accessibleName() or getattr(widget, "text", str)(), widget
                assert widget.toolTip(), widget.accessibleName()
    inside = dialog.rect()
    for widget in dialog.findChildren(QWidget):
        if widget.isVisible() and widget.parent() is dialog:
            assert inside.contains(widget.geometry())
    assert dialog.height() <= 700


def test_older_settings_are_taken_over(qapp, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "bitsmith.ini"
    path.write_text("[folders]\nmodels=/old/models\n[hub]\nendpoint=https://mirror.example\noffline=true\n")
    assert Settings(path).shared == Preferences(models="/old/models", endpoint="https://mirror.example", offline=True)
    assert (tmp_path / preferences.NAME).is_file()


def test_a_damaged_file_is_said(qapp, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / preferences.NAME).write_text("{")
    settings = Settings(tmp_path / "bitsmith.ini")
    assert settings.problem is not None
    assert "damaged" in settings.problem[0]
    assert settings.shared == Preferences()
