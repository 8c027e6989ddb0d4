"""The history of measurements."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from core.errors import UserError
from core.runtime.results import (
    Number,
    ResultStore,
    StoredResult,
    compare,
    data_folder,
    markdown,
    new_result,
    number_text,
    write_whole,
)


def made(title: str = "a.gguf", rate: float | None = 100.0, **details: object) -> StoredResult:
    numbers = [Number("Generation", "tokens/s", rate), Number("Time to first token", "s", 0.25)]
    return new_result("bench", title, "int8 per 32 values", numbers, details)


def test_kept_and_read_again(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "sub" / "results.jsonl")
    assert store.all() == ()
    first, second = made("eins 🙂"), made("zwei", None, list=[1, 2.5, None])
    store.add(first)
    store.add(second)
    assert store.all() == (second, first)
    assert store.find(first.id[:12]) == first
    assert len(store.path.read_text(encoding="utf-8").splitlines()) == 2


def test_no_name_of_computer_or_user() -> None:
    result = made()
    assert socket.gethostname() not in result.machine
    assert str(Path.home()) not in json.dumps([result.machine, result.versions])
    assert "cores" in result.machine
    assert "numpy" in result.versions


def test_lines_that_can_not_be_read_are_passed_over(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.jsonl")
    store.add(made("one"))
    with store.path.open("ab") as file:
        file.write(b'{"version": 9, "id": 4}\n[]\n\xff\xfe\n{"id": "cut o')  # without an end of line
    store.add(made("two"))
    assert [result.title for result in store.all()] == ["two", "one"]
    store.remove(store.all()[0].id)
    assert [result.title for result in store.all()] == ["one"]
    assert b"cut o" in store.path.read_bytes()


def test_not_a_number_is_not_known(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.jsonl")
    store.add(made("x", float("nan"), other=float("inf")))
    assert store.all()[0].numbers[0].value is None
    assert "NaN" not in store.path.read_text(encoding="utf-8")


def test_remove_and_find(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.jsonl")
    results = [made(str(i)) for i in range(3)]
    for result in results:
        store.add(result)
    store.remove(results[1].id)
    store.remove("never was")
    assert [result.title for result in store.all()] == ["2", "0"]
    with pytest.raises(UserError, match="0 stored results"):
        store.find("zz")
    with pytest.raises(UserError, match="2 stored results"):
        store.find("")


def test_two_at_once(tmp_path: Path) -> None:
    stores = [ResultStore(tmp_path / "results.jsonl") for _ in range(2)]
    threads = [threading.Thread(target=lambda s=s: [s.add(made("x" * 3000)) for _ in range(20)]) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].all()) == 40


def test_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="can not be kept"):
        ResultStore(tmp_path / "file" / "results.jsonl").add(made())


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "bitsmith"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert ResultStore().path == tmp_path / "local" / "bitsmith" / "results.jsonl"


def test_comparison_and_markdown() -> None:
    a, b = made("a|b", 100.0), made("b", 150.0)
    rows = compare(a, b)
    assert [(r.name, r.ratio) for r in rows] == [("Generation", 1.5), ("Time to first token", 1.0)]
    assert compare(made(rate=None), b)[0].ratio is None
    text = markdown([a, b])
    assert "| Generation | 100.0 tokens/s | 150.0 tokens/s | 1.50 × |" in text
    assert "**A**: a|b" in text
    assert a.machine in text
    assert "| Time to first token | 250.00 ms |" in markdown([a])
    assert markdown([]) == "\n"


def test_numbers_as_people_read_them() -> None:
    assert number_text(None, "s") == "not measured"
    assert number_text(0.5, "") == "0.50 ×"
    assert number_text(0.01234, "J") == "0.0123 J"
    assert number_text(2e9, "B/s") == "2.00 GB/s"
    assert number_text(12.0, "tokens") == "12"
    assert number_text(0.0887, "share") == "8.9 %"


def test_a_file_is_written_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "points.csv"
    path.write_text("old", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, b"new")
    assert path.read_text(encoding="utf-8") == "old"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


HEAD = (
    b'{"id": "b", "when": "w", "kind": "k", "title": "t", "machine": "m", "versions": "v", "contract": "c", "numbers": '
)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"[" * 200_000, None),
        (b'{"id": ' * 100_000, None),
        (b"\0" * 1000, None),
        (b"\xff\xfe{}", None),
        (HEAD + b'[{"name": "a", "unit": "s", "value": ' + b"1" * 400 + b"}]}", None),
        (HEAD + b'[{"name": "a", "unit": "s", "value": 1e999}]}', "unknown"),
        (HEAD + b'[{"name": "a", "unit": "s", "value": NaN}]}', "unknown"),
        (HEAD.replace(b'"t"', b'"\\ud800"') + b"[]}", "\\ud800"),
    ],
)
def test_whatever_stands_in_the_file(line: bytes, value: str | None, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.jsonl")
    store.path.write_bytes(line + b"\n")
    store.add(made())
    kept = made("another")
    store.add(kept)
    found = store.all()
    assert len(found) == 2 + (value is not None)
    if value is not None:
        assert markdown(found[-1:]).encode()
        assert [n.value for n in found[-1].numbers] in ([], [None])
        assert value in ("unknown", found[-1].title)
    store.remove(kept.id)
    assert store.path.read_bytes().startswith(line + b"\n")  # what can not be read stays as it is
    assert len(store.all()) == 1 + (value is not None)


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.jsonl")
    store.add(made("mod\udcffel.gguf", path="\udcff"))
    (found,) = store.all()
    assert found.title == "mod\\udcffel.gguf"
    assert markdown([found]).encode()
