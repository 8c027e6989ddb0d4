"""Get a model in the window: search, paste, list, download, stop, go on; against a hub on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hub_server
import pytest
from hub_server import TOKEN, Hub, Repo, cut, silent, slow, status
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QComboBox, QLabel
from tiny_models import write_llama
from window_help import LONG, click, controls, visible

from app.jobs.runner import JobState
from core.hub import access as hub_access
from core.hub.access import Patience
from resources import glossary

pytestmark = pytest.mark.gui
QUICK = Patience(connect=3.0, read=3.0, tries=2, first=0.05)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Three repositories: one that can be converted, one of GGUFs, one gated."""
    files = {p.name: p.read_bytes() for p in write_llama(tmp_path / "source", layers=3).iterdir()}
    ggufs = {f"Chat-7B-{kind}.gguf": b"GGUF" + bytes(size) for kind, size in (("Q4_K_M", 4000), ("Q8_0", 8000))}
    repos = {
        "owner/tiny-llama": Repo(
            files | {"pytorch_model.bin": b"x" * 3000, "original/consolidated.00.pth": b"x" * 3000}
        ),
        "maker/Chat-7B-GGUF": Repo(ggufs | {"README.md": b"#"}, "llama3.1", 98_765),
        "maker/Chat-7B": Repo(files, "llama3.1", 43_210, gated="manual"),
    }
    running = hub_server.serve(Hub(repos))
    made = next(running)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
    monkeypatch.setenv("BITSMITH_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    plain = hub_access.find_access
    monkeypatch.setattr(hub_access, "find_access", lambda *a, **k: plain(*a, **({"patience": QUICK} | k)))
    monkeypatch.setattr("core.hub.token._this_run", {})
    yield made
    running.close()


def opened(window, qtbot):  # type: ignore[no-untyped-def]
    """The view, as a click on the start page shows it."""
    page = window.page("model")
    click(qtbot, page.start.get)
    assert page.get.isVisible()
    return page.get


def ask(qtbot, get, text: str, view: str) -> None:  # type: ignore[no-untyped-def]
    """Type, press Enter, and wait until that view is shown."""
    get.field.setText(text)
    qtbot.keyClick(get.field, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: get.current is getattr(get, view), timeout=LONG)


def start(qtbot, get, text: str = "owner/tiny-llama") -> None:  # type: ignore[no-untyped-def]
    ask(qtbot, get, text, "listing")
    click(qtbot, get.listing.download)


def wait_state(qtbot, get, state: JobState) -> None:  # type: ignore[no-untyped-def]
    qtbot.waitUntil(lambda: get.downloads.state is state, timeout=LONG)


def large(hub: Hub) -> str:
    """The checksum of the weights, which is in the address that they are fetched from."""
    content = hub.repos["owner/tiny-llama"].files["model.safetensors"]
    return hub_server.hashlib.sha256(content).hexdigest()


def test_paste_list_download_opened(window, qtbot, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    get = opened(window, qtbot)
    ask(qtbot, get, f" {hub.endpoint}/owner/tiny-llama/tree/main ", "listing")
    listing = get.listing
    assert listing.name.text() == "owner/tiny-llama"
    rows = {row.file.name: row for row in listing.files.model.rows()}
    assert rows["model.safetensors"].fetched
    assert not rows["pytorch_model.bin"].fetched
    assert "PyTorch" in rows["pytorch_model.bin"].reason
    assert "to fetch" in listing.room.text()
    assert "free" in listing.room.text()
    assert listing.folder.text() == str(tmp_path / "models" / "owner" / "tiny-llama")
    assert not (tmp_path / "models").exists()
    assert window.current_page.primary() is listing.download
    click(qtbot, listing.download)
    session = window.services.session
    qtbot.waitUntil(lambda: session.current.checkpoint is not None, timeout=LONG)
    assert session.current.checkpoint.path == tmp_path / "models" / "owner" / "tiny-llama"
    assert window.page("model").loaded.isVisible()
    assert get.downloads.state is JobState.DONE
    assert not hub.asked("pytorch_model.bin")


def test_by_keyboard_alone(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    with qtbot.waitActive(window):
        window.activateWindow()
    qtbot.keyClick(window, "g", Qt.KeyboardModifier.ControlModifier)
    get = window.page("model").get
    assert get.isVisible()
    assert get.field.hasFocus()
    qtbot.keyClicks(get.field, "tiny")
    qtbot.keyClick(get.field, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: get.current is get.results, timeout=LONG)
    qtbot.keyClick(get.field, Qt.Key.Key_Down)
    assert get.results.view.hasFocus()
    qtbot.keyClick(get.results.view, Qt.Key.Key_Down)
    qtbot.keyClick(get.results.view, Qt.Key.Key_Up)
    qtbot.keyClick(get.results.view, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: get.current is get.listing, timeout=LONG)
    qtbot.keyClick(window, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)


def test_results(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    get = opened(window, qtbot)
    ask(qtbot, get, "chat", "results")
    texts = [[c.text(row) for c in get.results.model.columns] for row in get.results.model.rows()]
    assert texts[0] == ["maker/Chat-7B-GGUF", "135.00 M", "270.00 MB", "llama3.1", "98\u202f765", "open"]
    assert texts[1][0] == "maker/Chat-7B"
    assert texts[1][5] == "gated"
    ask(qtbot, get, "nothing of this kind", "nothing")
    qtbot.keyClick(get, Qt.Key.Key_Escape)
    assert window.page("model").start.isVisible()


def test_one_of_several_ggufs(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    get = opened(window, qtbot)
    ask(qtbot, get, "hf.co/maker/Chat-7B-GGUF:Q4_K_M", "listing")
    choice = get.listing.choice
    assert isinstance(choice, QComboBox)
    assert choice.isVisible()
    assert choice.currentText().startswith("Q4_K_M")
    before = get.listing.room.text()
    choice.setCurrentIndex(1 - choice.currentIndex())
    assert choice.currentText().startswith("Q8_0")
    assert get.listing.room.text() != before


def test_gated_says_what_to_do_and_takes_a_token(window, qtbot, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    pages: list[str] = []
    monkeypatch.setattr("app.pages.model.listing.browse", lambda address: pages.append(address) or True)
    get = opened(window, qtbot)
    ask(qtbot, get, "maker/Chat-7B", "listing")
    gated = get.listing.gated
    assert gated.isVisible()
    assert "gated" in gated.message.text()
    assert not get.listing.download.isEnabled()
    assert "token" in get.listing.download.toolTip()
    click(qtbot, gated.page)
    assert pages == [f"{hub.endpoint}/maker/Chat-7B"]
    assert len(controls(get)) <= 12
    gated.token.field.setText(TOKEN)
    click(qtbot, gated.token.keep)
    qtbot.waitUntil(lambda: get.current is get.listing and not gated.isVisible(), timeout=LONG)
    assert get.listing.download.isEnabled()
    assert gated.token.field.text() == ""
    window.services.settings.sync()
    assert TOKEN not in Path(window.services.settings._store.fileName()).read_text()
    click(qtbot, get.listing.download)
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)


def test_pause_go_on_cancel_resume(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    hub.fail(large(hub), slow(0.1, 4096), times=2)
    get = opened(window, qtbot)
    start(qtbot, get)
    transfer, downloads = get.transfer, get.downloads
    qtbot.waitUntil(lambda: downloads.progress is not None and downloads.progress.bytes_done > 20_000, timeout=LONG)
    assert transfer.verdict.text == "running"
    assert "MB" in transfer.text.text() or "kB" in transfer.text.text()
    click(qtbot, transfer.buttons["pause"])
    wait_state(qtbot, get, JobState.PAUSED)
    qtbot.waitUntil(lambda: downloads.progress.phase == "paused", timeout=LONG)
    assert transfer.verdict.text == "paused"
    assert not transfer.buttons["pause"].isVisible()
    click(qtbot, transfer.buttons["resume"])
    wait_state(qtbot, get, JobState.RUNNING)
    click(qtbot, transfer.buttons["cancel"])
    wait_state(qtbot, get, JobState.CANCELLED)
    assert transfer.bar.value() < 1000
    assert downloads.progress.bytes_done > 20_000
    assert "resumed" in transfer.text.text()
    hub.faults.clear()
    click(qtbot, transfer.buttons["resume"])
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)
    assert any(s.headers.get("range") for s in hub.asked(large(hub)))


def test_failed_says_why_and_tries_again(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    hub.fail(large(hub), status(503), times=9)
    get = opened(window, qtbot)
    start(qtbot, get)
    wait_state(qtbot, get, JobState.FAILED)
    error = get.transfer.error
    assert error.isVisible()
    assert error.message.text().endswith(".")
    assert error.hint.text().endswith(".")
    assert get.transfer.verdict.text == "failed"
    assert window.services.session.current.checkpoint is None
    hub.faults.clear()
    assert get.transfer.buttons["resume"].text() == "Try again"
    click(qtbot, get.transfer.buttons["resume"])
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)


def test_a_download_of_an_earlier_start_goes_on(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    hub.fail(large(hub), cut(5000))
    hub.fail(large(hub), status(503), times=9)
    page = window.page("model")
    get = opened(window, qtbot)
    start(qtbot, get)
    wait_state(qtbot, get, JobState.FAILED)
    get.downloads.forget()  # as after another start
    hub.faults.clear()
    click(qtbot, get.back)
    qtbot.waitUntil(lambda: page.start.local.count() > 0, timeout=LONG)
    item = page.start.local.item(0)
    assert item.text().startswith("owner/tiny-llama · Safetensors · ")
    assert item.text().endswith("downloaded, go on")
    page.start.local.itemActivated.emit(item)
    qtbot.waitUntil(lambda: get.current is get.listing, timeout=LONG)
    assert get.listing.download.text() == "Go on"
    click(qtbot, get.listing.download)
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)
    assert [s.headers.get("range") for s in hub.asked(large(hub))][-1] == "bytes=5000-"


def test_discarded(window, qtbot, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    hub.fail(large(hub), slow(0.3), times=9)
    get = opened(window, qtbot)
    start(qtbot, get)
    qtbot.waitUntil(lambda: list(tmp_path.glob("models/*/*/*.incomplete")) != [], timeout=LONG)
    ask(qtbot, get, "chat", "results")
    qtbot.waitUntil(lambda: get.running.text().startswith("owner/tiny-llama: running"), timeout=LONG)
    click(qtbot, get.running)
    click(qtbot, get.transfer.buttons["cancel"])
    wait_state(qtbot, get, JobState.CANCELLED)
    click(qtbot, get.transfer.buttons["discard"])
    qtbot.waitUntil(lambda: not list(tmp_path.glob("models/*/*/*.incomplete")), timeout=LONG)
    assert get.current is get.hint


@pytest.mark.parametrize("text", ["owner/none", "https://huggingface.co/datasets/a/b", "owner/tiny-llama@nope"])
def test_what_comes_to_nothing_is_said_in_place(window, qtbot, hub: Hub, text: str) -> None:  # type: ignore[no-untyped-def]
    get = opened(window, qtbot)
    get.field.setText(text)
    click(qtbot, get.find)
    qtbot.waitUntil(get.error.isVisible, timeout=LONG)
    assert get.current is get.hint
    assert get.error.message.text().endswith(".")
    assert get.error.hint.text()
    ask(qtbot, get, "tiny", "results")
    assert not get.error.isVisible()


def test_a_silent_hub_can_be_left(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    hub.fail("/api/models", silent, times=9)
    get = opened(window, qtbot)
    ask(qtbot, get, "tiny", "waiting")
    click(qtbot, get.stop)
    assert get.current is get.hint
    assert not get.error.isVisible()


def test_offline_and_mirror_are_settings(window, qtbot, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("HF_ENDPOINT")
    get, settings = opened(window, qtbot), window.services.settings
    click(qtbot, get.more)
    assert get.settings.isVisible()
    get.settings.endpoint.setText("not an address at all")
    get.settings.endpoint.editingFinished.emit()
    assert "no address" in get.settings.state.text()
    get.settings.endpoint.setText(f"{hub.endpoint}/")
    get.settings.endpoint.editingFinished.emit()
    assert settings.endpoint == hub.endpoint
    get.settings.offline.setChecked(True)
    assert settings.offline
    get.field.setText("tiny")
    click(qtbot, get.find)
    qtbot.waitUntil(get.error.isVisible, timeout=LONG)
    assert "offline" in get.error.message.text()
    seen = len(hub.seen)
    get.settings.offline.setChecked(False)  # asks again by itself
    qtbot.waitUntil(lambda: get.current is get.results, timeout=LONG)
    assert len(hub.seen) > seen


def test_a_pasted_path_is_opened(window, qtbot, hub: Hub, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    get = opened(window, qtbot)
    get.field.setText(str(tmp_path / "source"))
    click(qtbot, get.find)
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)
    assert not hub.seen


def test_too_little_room_is_said_beside_the_button(window, qtbot, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("core.disk.free_bytes", lambda _folder: 5_000_000)
    get = opened(window, qtbot)
    ask(qtbot, get, "owner/tiny-llama", "listing")
    assert not get.listing.download.isEnabled()
    assert "lacks" in get.listing.room.text()


def test_few_controls_and_every_one_explained(window, qtbot, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    get = opened(window, qtbot)
    known = {word.casefold() for word in glossary()}
    for text, view in (
        ("", "hint"),
        ("chat", "results"),
        ("maker/Chat-7B-GGUF", "listing"),
        ("maker/Chat-7B", "listing"),
    ):
        if text:
            ask(qtbot, get, text, view)
        found = controls(get)
        assert len(found) <= 12, (view, [type(w).__name__ for w in found])
        for widget in found:
            assert widget.toolTip() or view in ("results", "listing"), widget
            assert widget.accessibleName() or widget.text(), widget
        for widget in visible(get):
            if isinstance(widget, QLabel) and widget.text().casefold() in known:
                assert widget.toolTip() or widget.parentWidget().toolTip(), widget.text()
    button = get.listing.download
    assert window.rect().contains(QRect(button.mapTo(window, QPoint(0, 0)), button.size()))
    click(qtbot, get.more)
    assert window.rect().contains(QRect(button.mapTo(window, QPoint(0, 0)), button.size()))
