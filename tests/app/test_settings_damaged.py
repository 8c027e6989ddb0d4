"""A settings file that can not be read costs what is in it at most, never the start, and is moved aside."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QSettings

from app.bootstrap import build_window
from app.settings import DAMAGED, LARGEST, Settings

pytestmark = pytest.mark.gui
GOOD = b"[General]\ntheme=dark\n\n[last]\ntarget=Q4_K_M\n"


@pytest.mark.parametrize(
    ("damaged", "theme"),
    [
        (b"\0" * 300, "system"),  # what a power cut leaves on some file systems
        (bytes(range(256)) * 4, "system"),
        (b"hello world\n", "system"),
        (GOOD.decode().encode("utf-16"), "system"),
        (b'{"theme": "dark"}', "system"),
        (GOOD + b"\0" * 100, "dark"),
        (b"<<<<<<< a\n" + GOOD + b">>>>>>>\n", "dark"),
        (b"[General\ntheme=dark\n", "dark"),
    ],
)
def test_a_damaged_file_is_moved_aside_and_what_can_be_read_stays(qapp, tmp_path: Path, damaged, theme) -> None:
    path = tmp_path / "bitsmith.ini"
    path.write_bytes(damaged)
    settings = Settings(path)
    assert settings.problem is not None
    assert "damaged" in settings.problem[0]
    assert (tmp_path / ("bitsmith.ini" + DAMAGED)).read_bytes() == damaged
    assert settings.theme == theme
    settings.set_text("last/target", "Q8_0")
    settings.sync()
    again = Settings(path)
    assert again.problem is None
    assert (again.theme, again.text("last/target")) == (theme, "Q8_0")
    fresh = QSettings(str(path), QSettings.Format.IniFormat)
    assert {"theme", "last/target"} >= set(fresh.allKeys())


@pytest.mark.parametrize(
    "content", [b"", GOOD, b"\xef\xbb\xbf" + GOOD, GOOD[:-6], b"[General]\nrecent=/home/J\xf6rg/x\n"]
)
def test_a_file_that_can_be_read_stays_where_it_is(qapp, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bitsmith.ini"
    path.write_bytes(content)
    settings = Settings(path)
    assert settings.problem is None
    assert settings.recent == ()
    assert [file.name for file in tmp_path.iterdir() if file.name != "bitsmith.ini"] == []


def test_a_folder_in_its_place_is_said_and_stops_nothing(qapp, tmp_path: Path) -> None:
    path = tmp_path / "bitsmith.ini"
    path.mkdir()
    settings = Settings(path)
    assert settings.problem is not None
    settings.theme = "dark"
    settings.sync()
    assert settings.theme in ("dark", "system")


def test_values_of_the_wrong_kind_are_as_if_they_were_not_there(qapp, tmp_path: Path) -> None:
    path = tmp_path / "bitsmith.ini"
    long = "x" * 5000
    path.write_text(
        "[General]\ntheme=@Invalid()\nrecent=@Invalid(), " + long + ", a\\0b, 7\n"
        "[last]\ncontext=99999999999999999999\nbatch=-99999999999999\ntarget=@Invalid()\nfolder=/a, b\n"
        "[hub]\nendpoint=@Invalid()\n[window]\ngeometry=@ByteArray(nonsense)\n",
        encoding="utf-8",
    )
    settings = Settings(path)
    assert settings.theme == "system"
    assert settings.recent == ()
    assert settings.number("last/context", 1) == LARGEST
    assert settings.number("last/batch", 1) == -LARGEST
    assert settings.text("last/target", "Q8_0") == "Q8_0"
    assert settings.text("last/folder") == "/a, b"
    assert settings.endpoint == ""
    assert settings.models_folder.is_absolute()


def test_a_recent_model_in_a_folder_without_rights_is_left_out(qapp, tmp_path: Path, monkeypatch) -> None:
    settings = Settings(tmp_path / "bitsmith.ini")
    settings.add_recent(tmp_path)

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    assert settings.recent == ()


def test_the_window_says_it_in_one_line(qapp, qtbot, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "bitsmith.ini"
    path.write_bytes(b"\0" * 64)
    window = build_window(Settings(path))
    qtbot.addWidget(window)
    assert not window.banner.isHidden()
    assert window.banner.message.text() == "The settings file was damaged."
    assert "bitsmith.ini" + DAMAGED in window.banner.hint.text()
    assert window.services.jobs.shutdown(5.0)


def test_the_window_opens_with_numbers_that_no_field_holds(qapp, qtbot, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "bitsmith.ini"
    path.write_text("[last]\ncontext=99999999999999999999\nbatch=99999999999999999999\n", encoding="utf-8")
    window = build_window(Settings(path))
    qtbot.addWidget(window)
    assert window.banner.isHidden()
    assert window.services.jobs.shutdown(5.0)
