"""Downloads from a hub on the loopback interface: whole, interrupted, resumed, damaged, refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import hub_server
import pytest
from hub_server import (
    TOKEN,
    Fault,
    Handler,
    Hub,
    Repo,
    changed,
    cut,
    login_page,
    model_files,
    silent,
    slow,
    status,
    whole,
)
from stopwatch import Stopwatch

from core.errors import Cancelled, UserError
from core.hub import transfer
from core.hub.access import Access
from core.hub.disk import LOCK_NAME, FolderLock, disk_problem
from core.hub.download import RECORD, Order, bytes_there, discard, download, make_order, unfinished
from core.hub.files import HubFile, choices
from core.hub.listing import repository
from core.hub.problems import HubError, Kind
from core.hub.reference import Reference
from core.progress import CancelToken

ROOT = Path(__file__).resolve().parents[3]
FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def order(hub: Hub, access: Access, tmp_path: Path) -> Order:
    found = repository(Reference("owner/model"), access, CancelToken())
    hub.seen.clear()
    return make_order(found, choices(found.files)[0], tmp_path / "models")


def sha(hub: Hub, name: str = FIRST) -> str:
    return hub_server.hashlib.sha256(hub.repos["owner/model"].files[name]).hexdigest()


def run(order: Order, access: Access, token: CancelToken | None = None) -> list:  # type: ignore[type-arg]
    return list(download(order, access, token or CancelToken()))


def failing(order: Order, access: Access) -> HubError:
    with pytest.raises(HubError) as caught:
        run(order, access)
    error = caught.value
    assert error.message.endswith(".")
    assert error.hint.endswith(".")
    assert error.message.count(". ") == 0
    return error


def is_whole(order: Order, hub: Hub) -> bool:
    files = hub.repos["owner/model"].files
    there = {p.relative_to(order.folder).as_posix() for p in order.folder.rglob("*") if p.is_file()}
    wanted = {f.name for f in order.choice.files}
    return there == wanted | {RECORD} and all(order.path(f).read_bytes() == files[f.name] for f in order.choice.files)


def test_whole(order: Order, hub: Hub, access: Access) -> None:
    steps = run(order, access)
    assert is_whole(order, hub)
    assert steps[-1].bytes_done == steps[-1].bytes_total == order.choice.bytes
    assert steps[-1].files_done == steps[-1].files == len(order.choice.files)
    assert all(a.bytes_done <= b.bytes_done for a, b in pairwise(steps))
    assert order.result == order.folder == order.folder.parent.parent / "owner" / "model"
    hub.seen.clear()
    assert [s.phase for s in run(order, access)] == []
    assert hub.seen == []
    assert unfinished(order.folder.parent.parent) == ()


def test_one_gguf(hub: Hub, access: Access, tmp_path: Path) -> None:
    hub.repos["o/g"] = Repo({"README.md": b"#", "Q8_0/g-Q8_0.gguf": b"GGUF" * 999, "g-Q4_K_M.gguf": b"GGUF" * 99})
    found = repository(Reference("o/g"), access, CancelToken())
    order = make_order(found, choices(found.files)[0], tmp_path)
    run(order, access)
    assert order.result == tmp_path / "o" / "g" / "Q8_0" / "g-Q8_0.gguf"
    assert order.result.read_bytes() == b"GGUF" * 999
    assert not (tmp_path / "o" / "g" / "g-Q4_K_M.gguf").exists()


def test_odd_names(hub: Hub, access: Access, tmp_path: Path) -> None:
    hub.repos["o/odd"] = Repo({"a folder/model #1 50%+ü.gguf": b"GGUF" * 999, "README.md": b""})
    found = repository(Reference("o/odd"), access, CancelToken())
    order = make_order(found, choices(found.files)[0], tmp_path)
    run(order, access)
    assert order.result.read_bytes() == b"GGUF" * 999
    assert (order.folder / "README.md").read_bytes() == b""


def test_cut_connections_are_taken_up_where_they_were(order: Order, hub: Hub, access: Access) -> None:
    for after in (100_000, 50_000, 0, 20_000):
        hub.fail(sha(hub), cut(after))
    run(order, access)
    assert is_whole(order, hub)
    ranges = [s.headers.get("range", "") for s in hub.asked(sha(hub))]
    assert ranges == ["", "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=170000-"]
    # Signed addresses expire, so each try asks the hub for a new one.
    assert len(hub.asked(f"/resolve/{order.revision}/{FIRST}")) == 5


def test_a_server_that_always_cuts_is_given_up(order: Order, hub: Hub, access: Access) -> None:
    hub.fail("/cdn/", cut(0), times=99)
    error = failing(order, access)
    assert error.kind is Kind.UNREACHABLE
    assert len(hub.asked(sha(hub))) <= 3
    assert not order.path(HubFile(FIRST, 0)).exists()
    hub.faults.clear()
    run(order, access)
    assert is_whole(order, hub)


@pytest.mark.parametrize("size", [1, 200_000, 299_999, 300_000, 300_001])
def test_what_is_there_is_taken_up(order: Order, hub: Hub, access: Access, size: int) -> None:
    content = hub.repos["owner/model"].files[FIRST] + b"more"
    file = next(f for f in order.choice.files if f.name == FIRST)
    order.folder.mkdir(parents=True)
    order.partial(file).write_bytes(content[:size])
    assert bytes_there(order) == min(size, 300_000)
    run(order, access)
    assert is_whole(order, hub)
    asked = [s.headers.get("range", "") for s in hub.asked(sha(hub))]
    assert asked == ({300_000: [], 300_001: [""]}.get(size, [f"bytes={size}-"]))


def test_a_damaged_part_is_fetched_anew_once(order: Order, hub: Hub, access: Access) -> None:
    file = next(f for f in order.choice.files if f.name == FIRST)
    order.folder.mkdir(parents=True)
    order.partial(file).write_bytes(b"\0" * 200_000)
    run(order, access)
    assert is_whole(order, hub)
    assert [s.headers.get("range", "") for s in hub.asked(sha(hub))] == ["bytes=200000-", ""]


def test_a_wrong_checksum(order: Order, hub: Hub, access: Access) -> None:
    hub.fail(sha(hub), changed, times=9)
    error = failing(order, access)
    assert error.kind is Kind.DAMAGED
    assert FIRST in error.message
    assert not order.path(HubFile(FIRST, 0)).exists()
    hub.faults.clear()
    run(order, access)
    assert is_whole(order, hub)


def test_a_wrong_checksum_of_a_small_file(order: Order, hub: Hub, access: Access) -> None:
    hub.fail("/config.json", changed)
    assert "config.json" in failing(order, access).message


def test_a_file_of_another_size(order: Order, hub: Hub, access: Access) -> None:
    hub.fail(sha(hub), login_page)
    error = failing(order, access)
    assert error.kind is Kind.DAMAGED
    assert "as listed" in error.message


def test_servers_that_do_not_send_parts(order: Order, hub: Hub, access: Access) -> None:
    file = next(f for f in order.choice.files if f.name == FIRST)
    order.folder.mkdir(parents=True)
    order.partial(file).write_bytes(hub.repos["owner/model"].files[FIRST][:1000])
    hub.fail(sha(hub), whole)
    run(order, access)
    assert is_whole(order, hub)


def test_another_part_than_was_asked_for(order: Order, hub: Hub, access: Access) -> None:
    def lies(handler: Handler) -> bool:
        handler.answer(206, b"x" * 10, {"content-range": "bytes 0-9/300000"})
        return True

    file = next(f for f in order.choice.files if f.name == FIRST)
    order.folder.mkdir(parents=True)
    order.partial(file).write_bytes(hub.repos["owner/model"].files[FIRST][:1000])
    hub.fail(sha(hub), lies)
    run(order, access)
    assert is_whole(order, hub)


def test_answers_that_end_too_early_without_saying_so(order: Order, hub: Hub, access: Access) -> None:
    def short(handler: Handler) -> bool:
        handler.close_connection = True
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(handler.content_here()[:1000])
        return True

    hub.fail(sha(hub), short)
    run(order, access)
    assert is_whole(order, hub)
    (order.folder / FIRST).unlink()
    hub.fail(sha(hub), short, times=99)
    assert failing(order, access).kind is Kind.DAMAGED


def test_416_starts_anew(order: Order, hub: Hub, access: Access) -> None:
    file = next(f for f in order.choice.files if f.name == FIRST)
    order.folder.mkdir(parents=True)
    order.partial(file).write_bytes(hub.repos["owner/model"].files[FIRST][:1000])
    hub.fail(sha(hub), status(416))
    run(order, access)
    assert is_whole(order, hub)


def test_compressed_all_the_same(order: Order, hub: Hub, access: Access) -> None:
    import gzip

    def squeezed(handler: Handler) -> bool:
        handler.answer(200, gzip.compress(handler.content_here()), {"content-encoding": "gzip"})
        return True

    hub.fail("/tokenizer.json", squeezed)
    hub.fail("/config.json", squeezed)
    run(order, access)
    assert is_whole(order, hub)


def test_very_large_files_come_in_spans(
    order: Order, hub: Hub, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SPAN", 100_000)
    run(order, access)
    assert is_whole(order, hub)
    assert [s.headers["range"] for s in hub.asked(sha(hub))] == [
        "bytes=0-99999",
        "bytes=100000-199999",
        "bytes=200000-",
    ]


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(order: Order, hub: Hub, access: Access) -> None:
    hub.fail(sha(hub), status(429, {"retry-after": "1"}))
    hub.fail("/config.json", status(503))
    start = time.monotonic()
    steps = run(order, access)
    assert time.monotonic() - start >= 1.0
    assert any("asks to wait" in s.note for s in steps)
    assert is_whole(order, hub)


@pytest.mark.parametrize(
    ("code", "headers", "kind"),
    [
        (429, {"retry-after": "3600"}, Kind.BUSY),
        (500, {}, Kind.SERVER),
        (401, {}, Kind.MISSING),
        (401, {"x-error-code": "GatedRepo"}, Kind.GATED),
        (403, {"x-error-code": "GatedRepo"}, Kind.GATED),
        (403, {}, Kind.TOKEN),
        (404, {"x-error-code": "EntryNotFound"}, Kind.MISSING),
        (416, {}, Kind.SERVER),
    ],
)
def test_refusals(order: Order, hub: Hub, access: Access, code: int, headers: dict[str, str], kind: Kind) -> None:
    hub.fail(f"/{FIRST}", status(code, headers), times=99)
    assert failing(order, access).kind is kind
    assert not (order.folder / LOCK_NAME).exists()
    assert len(unfinished(order.folder.parent.parent)) == 1


def test_gated_with_a_token(order: Order, hub: Hub, access: Access, with_token: Access) -> None:
    hub.repos["owner/model"].gated = "manual"
    assert failing(order, access).kind is Kind.GATED
    run(order, with_token)
    assert is_whole(order, hub)
    record = (order.folder / RECORD).read_text()
    assert TOKEN not in record


def test_a_slow_server_is_left_at_once(order: Order, hub: Hub, access: Access) -> None:
    hub.fail("/cdn/", slow(0.4), times=9)
    token = CancelToken()
    steps = download(order, access, token)
    while next(steps).bytes_done < 20_000:
        pass
    token.cancel()
    with Stopwatch() as watch, pytest.raises(Cancelled):
        list(steps)
    assert watch.seconds < 0.3
    assert not order.path(HubFile(FIRST, 0)).exists()
    assert [p.name for p in order.folder.iterdir() if p.name == LOCK_NAME] == []
    sizes = {p.name: p.stat().st_size for p in order.folder.iterdir()}
    time.sleep(0.6)
    assert {p.name: p.stat().st_size for p in order.folder.iterdir()} == sizes, "written after the end"
    hub.faults.clear()
    hub.seen.clear()
    run(order, access)
    assert is_whole(order, hub)
    assert any(s.headers.get("range", "").startswith("bytes=") for s in hub.asked("/cdn/"))


def test_a_silent_server_is_left_at_once(order: Order, hub: Hub, access: Access) -> None:
    hub.fail("/resolve/", silent, times=9)
    token = CancelToken()
    steps = download(order, access, token)
    for _ in range(3):
        next(steps)
    token.cancel()
    with Stopwatch() as watch, pytest.raises(Cancelled):
        list(steps)
    assert watch.seconds < 0.3


def test_paused_holds_no_connection_and_goes_on(order: Order, hub: Hub, access: Access) -> None:
    hub.fail("/cdn/", slow(0.05), times=2)
    token = CancelToken()
    steps = download(order, access, token)
    while next(steps).bytes_done < 30_000:
        pass
    token.pause()
    paused = next(s for s in steps if s.phase == "paused")
    sizes = [order.partial(f).stat().st_size for f in order.choice.files if order.partial(f).exists()]
    threading.Timer(0.5, token.resume).start()
    after = next(steps)
    assert paused.bytes_done >= sum(sizes) > 0
    assert after.bytes_done >= paused.bytes_done
    list(steps)
    assert is_whole(order, hub)


def test_cancelled_while_paused(order: Order, hub: Hub, access: Access) -> None:
    token = CancelToken()
    token.pause()
    steps = download(order, access, token)
    threading.Timer(0.2, token.cancel).start()
    with pytest.raises(Cancelled):
        list(steps)


def test_a_full_disk(order: Order, hub: Hub, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = transfer.write_all

    def full(out, chunk: bytes) -> None:  # type: ignore[no-untyped-def]
        if out.tell() > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(out, chunk)

    monkeypatch.setattr(transfer, "write_all", full)
    error = failing(order, access)
    assert error.kind is Kind.DISK
    assert "full" in error.message
    monkeypatch.undo()
    left = unfinished(order.folder.parent.parent)[0]
    assert (left.repository, left.file, left.bytes_total) == ("owner/model", FIRST, order.choice.bytes)
    assert 100_000 < left.bytes_done < left.bytes_total
    run(order, access)
    assert is_whole(order, hub)


def test_too_little_room_is_said_before(
    order: Order, hub: Hub, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.hub.disk.free_bytes", lambda _folder: 1000)
    error = failing(order, access)
    assert "free" in error.message
    assert hub.seen == []


def test_a_folder_that_can_not_be_written(order: Order, access: Access) -> None:
    order.folder.parent.parent.mkdir()
    order.folder.parent.write_text("a file in the way")
    assert failing(order, access).kind is Kind.DISK


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.EIO]
)
def test_what_a_disk_refuses(number: int) -> None:
    error = disk_problem(OSError(number, os.strerror(number)), Path("/a/b/c.gguf"))
    assert error.message.endswith(".")
    assert error.hint.endswith(".")


def test_a_file_that_a_scanner_holds_is_waited_for(
    order: Order, hub: Hub, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, held = Path.replace, [3]

    def replace(self: Path, target: Path) -> Path:
        if self.name.endswith(".incomplete") and held[0]:
            held[0] -= 1
            raise PermissionError(errno.EACCES, "used by another process")
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    run(order, access)
    assert is_whole(order, hub)


def test_a_foreign_file_is_not_written_over(order: Order, hub: Hub, access: Access) -> None:
    order.folder.mkdir(parents=True)
    (order.folder / "config.json").write_text("mine")
    assert failing(order, access).kind is Kind.DISK
    assert (order.folder / "config.json").read_text() == "mine"


def test_a_newer_version_replaces_what_an_earlier_download_wrote(order: Order, hub: Hub, access: Access) -> None:
    run(order, access)
    hub.repos["owner/model"].files["config.json"] = b'{"model_type": "newer"}'
    found = repository(Reference("owner/model"), access, CancelToken())
    newer = make_order(found, choices(found.files)[0], order.folder.parent.parent)
    hub.seen.clear()
    run(newer, access)
    assert is_whole(newer, hub)
    assert [s.path.rpartition("/")[2] for s in hub.asked("/resolve/")] == ["config.json"]


def test_a_file_that_was_changed_since_is_fetched_again(order: Order, hub: Hub, access: Access) -> None:
    run(order, access)
    path = order.folder / FIRST
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    phases = {s.phase for s in run(order, access)}
    assert phases == {"checking", "downloading"}
    assert is_whole(order, hub)


def test_a_second_download_into_the_folder_is_refused(order: Order, hub: Hub, access: Access) -> None:
    order.folder.mkdir(parents=True)
    with FolderLock(order.folder):
        assert failing(order, access).kind is Kind.TAKEN
    run(order, access)
    assert is_whole(order, hub)


PROGRAM = """
import sys
from pathlib import Path
from core.hub.access import Access
from core.hub.download import download, make_order
from core.hub.files import choices
from core.hub.listing import repository
from core.hub.reference import Reference
from core.progress import CancelToken
access = Access(sys.argv[1])
found = repository(Reference("owner/model"), access, CancelToken())
for step in download(make_order(found, choices(found.files)[0], Path(sys.argv[2])), access, CancelToken()):
    print(step.bytes_done, flush=True)
"""


def test_killed_and_taken_up_and_refused_meanwhile(order: Order, hub: Hub, access: Access) -> None:
    """Another process downloads slowly; this one is refused; the other is killed; this one goes on."""
    hub.fail("/cdn/", slow(0.05), times=2)
    models = order.folder.parent.parent
    other = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, hub.endpoint, str(models)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert other.stdout is not None
        while int(other.stdout.readline() or 10**9) < 40_000:
            pass
        assert failing(order, access).kind is Kind.TAKEN
    finally:
        other.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        other.wait()
        other.stdout.close()  # type: ignore[union-attr]
    there = bytes_there(order)
    assert 40_000 <= there < order.choice.bytes
    hub.faults.clear()
    hub.seen.clear()
    steps = run(order, access)
    assert steps[0].bytes_done >= there
    assert is_whole(order, hub)
    assert any(s.headers.get("range") for s in hub.asked("/cdn/"))


@pytest.mark.skipif(os.name != "posix", reason="Windows does not let a folder in use be moved")
def test_a_disk_that_goes_leaves_no_folder_in_its_place(order: Order, hub: Hub, access: Access) -> None:
    hub.fail("/cdn/", slow(0.02), times=9)
    steps = download(order, access, CancelToken())
    next(step for step in steps if 0 < step.bytes_done < step.bytes_total)
    away = order.folder.with_name("away")
    order.folder.rename(away)
    with pytest.raises(HubError) as caught:
        list(steps)
    assert caught.value.kind is Kind.DISK
    assert "disappeared" in caught.value.message
    assert not order.folder.exists()
    hub.faults.clear()
    away.rename(order.folder)
    run(order, access)
    assert is_whole(order, hub)


def test_discarded(order: Order, hub: Hub, access: Access) -> None:
    hub.fail(sha(hub), cut(1000), times=99)
    hub.fail(sha(hub), status(500), times=99)
    with pytest.raises(UserError):
        run(order, access)
    discard(order.folder)
    assert unfinished(order.folder.parent.parent) == ()
    assert not list(order.folder.glob("*.incomplete"))
    assert (order.folder / "config.json").exists()


def test_records_that_are_damaged_are_no_downloads(tmp_path: Path) -> None:
    for number, text in enumerate(
        ("", "[]", "{", '{"version": 1, "done": false}', json.dumps({"version": 1, "done": False, "files": 3}))
    ):
        folder = tmp_path / "a" / str(number)
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(text)
    assert unfinished(tmp_path) == ()
    assert unfinished(tmp_path / "none") == ()


def test_a_hub_without_checksums_or_sizes(hub: Hub, access: Access, tmp_path: Path) -> None:
    contents = model_files()
    found = repository(Reference("owner/model"), access, CancelToken())
    plain = choices([HubFile(f.name, -1) for f in found.files])[0]
    hub.faults.append(Fault("/cdn/", cut(1000), times=1))
    run(Order("owner/model", "main", plain, tmp_path), access)
    assert {n: (tmp_path / n).read_bytes() for n in contents if (tmp_path / n).exists()}.items() <= contents.items()
    assert (tmp_path / FIRST).read_bytes() == contents[FIRST]
