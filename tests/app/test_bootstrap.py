"""Starting: what is missing is one sentence, a path opens, and heavy libraries wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import system_check
from app.dialogs.open_model import ModelDialog, holds_model
from app.session import Session, SessionStore
from app.settings import RECENT_LIMIT, Settings
from core import cli

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="system libraries are Linux's concern")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=60, check=False
    )


@linux
def test_without_a_display_one_sentence_and_status_1() -> None:
    done = run("import sys; from app.bootstrap import main; sys.exit(main([]))")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no display" in done.stderr


@linux
def test_display_that_does_not_answer_is_named() -> None:
    done = run("import sys; from app.bootstrap import main; sys.exit(main([]))", DISPLAY=":4711")
    assert done.returncode == 1
    assert done.stderr == "The display :4711 does not answer, so no window can be opened.\n"


@linux
@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("debian", "sudo apt install libegl1"),
        ("fedora", "sudo dnf install libglvnd-egl"),
        ("", "Debian, Ubuntu: libegl1; Fedora: libglvnd-egl"),
    ],
)
def test_missing_library_names_its_package(monkeypatch: pytest.MonkeyPatch, family: str, words: str) -> None:
    monkeypatch.setattr(system_check, "missing_libraries", lambda names: [n for n in names if n == "libEGL.so.1"])
    monkeypatch.setattr(system_check, "_family", lambda: family)
    sentence = system_check.why_not({"QT_QPA_PLATFORM": "offscreen"})
    assert "libEGL.so.1" in sentence
    assert words in sentence
    assert sentence.count("\n") == 0


@linux
def test_loader_finds_what_is_there_and_only_that() -> None:
    names = {"libc.so.6": ("libc6", "glibc"), "libno-such-thing.so.9": ("a", "b")}
    assert system_check.missing_libraries(names) == ["libno-such-thing.so.9"]


@linux
def test_offscreen_needs_no_display() -> None:
    assert system_check.why_not({"QT_QPA_PLATFORM": "offscreen"}) == ""


def test_the_program_tells_commands_from_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    import app.__main__ as program

    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("app.bootstrap.main", lambda words: calls.append(("window", words)) or 0)
    monkeypatch.setattr("core.cli.main", lambda words: calls.append(("headless", words)) or 0)
    for words in ([], ["model.gguf"], ["my-models"], ["./info"], ["plan", "x.gguf"], ["--help"]):
        assert program.main(words) == 0
    assert [where for where, _ in calls] == ["window"] * 4 + ["headless"] * 2


@pytest.mark.parametrize("command", sorted(cli._parser().commands))
def test_every_command_is_known_to_the_program(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    import app.__main__ as program

    assert program.main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: bitsmith {command}")


def test_the_window_starts_without_loading_the_commands() -> None:
    done = run("import sys, app.__main__ as p, app.bootstrap; print('core.cli' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]


FIRST_PICTURE = """
import sys
from pathlib import Path
from PySide6.QtWidgets import QApplication
app = QApplication([])
from app.bootstrap import build_window
from app.settings import Settings
window = build_window(Settings(Path(sys.argv[1]) / "s.ini"))
window.show()
assert not window.grab().isNull()
heavy = ("torch", "pyqtgraph", "transformers", "tokenizers", "gguf", "numpy", "psutil", "core.plan")
print([name for name in heavy if name in sys.modules])
window.close()
"""


def test_first_picture_waits_for_no_heavy_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PICTURE, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_path_on_the_command_line_is_opened(tmp_path: Path) -> None:
    code = f"""
import sys
from PySide6.QtCore import QTimer
import app.main_window as m
opened = []
m.MainWindow.open_path = lambda self, path: (opened.append(path), QTimer.singleShot(50, self.close))
from app.bootstrap import main
status = main([{str(tmp_path / "model.gguf")!r}])
print(status, opened[0].name)
"""
    done = run(code, QT_QPA_PLATFORM="offscreen", XDG_CONFIG_HOME=str(tmp_path))
    assert done.stdout.strip() == "0 model.gguf", done.stderr


def test_session_is_replaced_and_tells_only_changes(qapp) -> None:  # type: ignore[no-untyped-def]
    store = SessionStore()
    seen: list[tuple[Session, Session]] = []
    store.changed.connect(lambda old, new: seen.append((old, new)))
    first = store.current
    store.update(context=first.context)
    store.update(target="Q4_K_M")
    assert seen == [(first, store.current)]
    assert first.target == ""
    with pytest.raises(AttributeError):
        first.target = "edited"  # type: ignore[misc]


def test_settings_survive_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "settings.ini"
    path.write_text("[General]\ntheme=purple\n[last]\ncontext=many\n[window]\ngeometry=what\n", encoding="utf-8")
    settings = Settings(path)
    assert settings.theme == "system"
    assert settings.number("last/context", 8192) == 8192
    assert settings.geometry is None
    assert settings.recent == ()


def test_recent_is_newest_first_without_doubles_and_bounded(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "settings.ini")
    paths = [tmp_path / f"model {n}.gguf" for n in range(RECENT_LIMIT + 3)]
    for path in paths:
        path.write_bytes(b"")
        settings.add_recent(path)
    settings.add_recent(paths[5])
    settings.sync()
    recent = Settings(tmp_path / "settings.ini").recent
    assert len(recent) == RECENT_LIMIT
    assert recent[:2] == (paths[5], paths[-1])


def test_chooser_takes_a_models_folder_and_goes_into_others(services, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"")
    assert holds_model(model)
    assert not holds_model(tmp_path)
    assert not holds_model(tmp_path / "nowhere")
    dialog = ModelDialog(None, str(tmp_path), folder=False)
    qtbot.addWidget(dialog)
    dialog.selectFile(str(model))
    dialog.accept()
    assert dialog.chosen == model
    chooser = ModelDialog(None, str(model), folder=False)
    qtbot.addWidget(chooser)
    chooser.selectFile(str(model / "model.safetensors"))
    chooser.accept()
    assert chooser.chosen == model / "model.safetensors"
