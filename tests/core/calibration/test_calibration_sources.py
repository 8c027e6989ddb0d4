"""Files that calibration text is read from: kinds, encodings, damage."""

from __future__ import annotations

import codecs
import gzip
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from core.calibration.files import JsonLines, PlainFile, open_stored
from core.calibration.records import Record, record_of
from core.calibration.settings import CalibrationText
from core.calibration.sources import open_sources
from core.errors import UserError
from core.progress import CancelToken

TOKEN = CancelToken()


def read_all(path: Path, seed: int = 0) -> tuple[list[Record], list[str]]:
    (source,) = open_sources(CalibrationText(path=str(path)), TOKEN)
    found = list(source.records(np.random.default_rng(seed), TOKEN))
    return found, source.finish()


def texts(path: Path) -> list[str]:
    return [record.plain for record in read_all(path)[0]]


@pytest.mark.parametrize("size", [1100, 4096, 5000])
def test_pieces_follow_each_other_without_a_gap(tmp_path: Path, size: int) -> None:
    path = tmp_path / "t.txt"
    rng = np.random.default_rng(1)
    words = ["ein", "Wörter🙂", "x" * 1500, "\n", "\n\n", "日本語", "a b c"]
    text = " ".join(words[i] for i in rng.integers(0, len(words), 4000))
    path.write_text(text, encoding="utf-8")
    pieces = PlainFile("t", open_stored(path, TOKEN), size)
    found = [record.text for i in range(pieces.count) for record in pieces.read(i)]
    assert "".join(found) == text
    assert not pieces.notes


def test_pieces_of_text_without_spaces_are_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    text = "日本語🙂" * 5000
    path.write_text(text, encoding="utf-8")
    pieces = PlainFile("t", open_stored(path, TOKEN), 4096)
    assert "".join(record.text for i in range(pieces.count) for record in pieces.read(i)) == text


@pytest.mark.parametrize(
    "encoded",
    [
        "Zwölf Boxkämpfer.\n".encode(),
        codecs.BOM_UTF8 + "Zwölf Boxkämpfer.\n".encode(),
        "Zwölf Boxkämpfer.\n".encode("utf-16"),
        codecs.BOM_UTF16_BE + "Zwölf Boxkämpfer.\n".encode("utf-16-be"),
        "Zwölf Boxkämpfer.\n".encode("utf-32"),
        "Zwölf Boxkämpfer.\r\n".encode(),
        gzip.compress("Zwölf Boxkämpfer.\n".encode(), mtime=0),
        gzip.compress(codecs.BOM_UTF8 + "Zwölf Boxkämpfer.\n".encode(), mtime=0),
    ],
)
def test_encodings(tmp_path: Path, encoded: bytes) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(encoded)
    assert texts(path) == ["Zwölf Boxkämpfer.\n"]


def test_what_is_not_utf8_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("Ein Fuß".encode("cp1252"))
    found, notes = read_all(path)
    assert found[0].text == "Ein Fuß"
    assert len(notes) == 1
    assert notes[0].startswith("t.txt is not UTF-8 at byte 6; such passages were read as Windows-1252.")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"abc\0def", "not a text file"),
        (b"%PDF-1.7 ...", "is a PDF"),
        (b"PK\x03\x04....", "zip archive"),
        (b"GGUF\x03\0\0\0", "is a model"),
        (gzip.compress(b"x" * 100_000, mtime=0)[:60], "damaged gzip"),
        (gzip.compress(b"\0\1\2", mtime=0), "not a text file"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_all(path)


def test_a_missing_path_and_a_folder_without_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        read_all(tmp_path / "nothing.txt")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match="no text files"):
        read_all(tmp_path)


ROWS = [
    ({"text": "one"}, "one"),
    ({"content": "two"}, "two"),
    ("three", "three"),
    ({"prompt": "Q", "completion": "A"}, "User: Q\n\nAssistant: A\n\n"),
    ({"prompt": "Q", "response": "A"}, "User: Q\n\nAssistant: A\n\n"),
    ({"instruction": "Q", "input": "x", "output": "A"}, "User: Q\n\nx\n\nAssistant: A\n\n"),
    ({"instruction": "Q", "input": "", "output": "A"}, "User: Q\n\nAssistant: A\n\n"),
    ({"question": "Q", "answer": "A"}, "User: Q\n\nAssistant: A\n\n"),
    ({"messages": [{"role": "user", "content": "Q"}]}, "User: Q\n\n"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image"}]}]}, "User: Q\n\n"),
    (
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
        "User: Q\n\nAssistant: A\n\n",
    ),
    (
        {"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}]},
        "User: Q\n\nAssistant: A\n\n",
    ),
    ({"text": ""}, None),
    ({"label": 3}, None),
    ({"messages": [{"role": "tool", "content": "x"}]}, None),
    (7, None),
]


@pytest.mark.parametrize(("row", "expected"), ROWS)
def test_fields_of_records(row: object, expected: str | None) -> None:
    record = record_of(row, "s")
    assert (record and record.plain) == expected


@pytest.mark.parametrize("name", ["r.jsonl", "r.ndjson", "r.jsonl.gz", "r.json"])
def test_json_lines_give_each_record_once(tmp_path: Path, name: str) -> None:
    rows = [{"text": f"record {n} " + "x" * (n * 37 % 3000)} for n in range(300)]
    data = "\n".join(map(json.dumps, rows)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = texts(tmp_path / name)
    assert sorted(found) == sorted(row["text"] for row in rows)
    assert found != [row["text"] for row in rows]  # in an order of the seed


def test_lines_at_the_ends_of_pieces(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"text":"aa"}\n{"text":"bb"}\n\n{"text":"cc"}')
    for size in range(1, 45):
        pieces = JsonLines("r", open_stored(path, TOKEN), size)
        found = [record.text for i in range(pieces.count) for record in pieces.read(i)]
        assert found == ["aa", "bb", "cc"]


def test_lines_that_are_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.calibration import files

    monkeypatch.setattr(files, "LONGEST_LINE", 100)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"text":"aa"}\n{"text":"' + b"x" * 300 + b'"}\n{"text":"cc"}\n')
    for size in (7, 20, 40):
        pieces = JsonLines("r", open_stored(path, TOKEN), size)
        assert [record.text for i in range(pieces.count) for record in pieces.read(i)] == ["aa", "cc"]
        pieces.finish(whole=True)
        assert pieces.notes == ["Lines of r that are not JSON and were left out: 1."]


def test_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"text": "good"}\n{"text": \n[1, 2\n{"label": 1}\n')
    found, notes = read_all(path)
    assert [r.text for r in found] == ["good"]
    assert notes == [
        "Lines of r.jsonl that are not JSON and were left out: 2.",
        "Lines of r.jsonl without text that were left out: 1.",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [('{"label": 1, "tags": []}\n', "no field that holds text; it has label, tags"), ("no json\n", "no line of JSON")],
)
def test_json_lines_without_text(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(UserError, match=said):
        read_all(tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    "value", [[{"text": "a"}, {"text": "b"}], {"data": [{"text": "a"}, {"text": "b"}]}, ["a", "b"]]
)
def test_json_lists(tmp_path: Path, value: object) -> None:
    (tmp_path / "r.json").write_text(json.dumps(value))
    assert sorted(texts(tmp_path / "r.json")) == ["a", "b"]


def test_a_json_file_without_text_says_its_fields(tmp_path: Path) -> None:
    for content in ('[{"label": 1}]', '{"architectures": ["LlamaForCausalLM"], "data": [{"label": 1}]}'):
        (tmp_path / "r.json").write_text(content)
        with pytest.raises(UserError, match="it has label"):
            read_all(tmp_path / "r.json")


def test_a_folder_is_all_its_files_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "in" / "b.md").write_text("beta")
    (tmp_path / "in" / "c.jsonl").write_text('{"text": "gamma"}\n')
    (tmp_path / "bad.txt").write_bytes(b"\0\0")
    (tmp_path / "labels.jsonl").write_text('{"label": 1}\n')
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    found, notes = read_all(tmp_path)
    assert sorted((r.source, r.text) for r in found) == [
        ("a.txt", "alpha"),
        ("in/b.md", "beta"),
        ("in/c.jsonl", "gamma"),
    ]
    assert notes == [
        "Left out: bad.txt is not a text file.",
        "Left out: labels.jsonl has no field that holds text; it has label.",
    ]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "r.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(UserError, match="pip install pyarrow"):
        read_all(tmp_path / "r.parquet")


class _Table:
    """What is used of pyarrow's tables and files, over rows in memory."""

    groups: Sequence[Sequence[dict[str, object]]] = ()

    def __init__(self, rows: Sequence[dict[str, object]] | Path) -> None:
        self.rows = rows

    @property
    def metadata(self) -> types.SimpleNamespace:
        groups = self.groups
        return types.SimpleNamespace(
            num_row_groups=len(groups), row_group=lambda i: types.SimpleNamespace(num_rows=len(groups[i]))
        )

    @property
    def schema_arrow(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(names=list(self.groups[0][0]))

    def read_row_group(self, group: int, columns: list[str]) -> _Table:
        return _Table([{name: row[name] for name in columns} for row in self.groups[group]])

    def take(self, places: list[int]) -> _Table:
        return _Table([self.rows[i] for i in places])  # type: ignore[index]

    def to_pylist(self) -> Sequence[dict[str, object]]:
        return self.rows  # type: ignore[return-value]


def test_parquet_gives_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library's calls stood in for; the library itself is no part of the tests' packages."""
    groups = [[{"id": 0, "text": f"{g} {n}"} for n in range(size)] for g, size in enumerate((70, 1, 33))]
    monkeypatch.setattr(_Table, "groups", groups)
    module, package = types.ModuleType("pyarrow.parquet"), types.ModuleType("pyarrow")
    module.ParquetFile = _Table  # type: ignore[attr-defined]
    package.parquet = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)
    (tmp_path / "r.parquet").write_bytes(b"PAR1....PAR1")
    assert sorted(texts(tmp_path / "r.parquet")) == sorted(str(row["text"]) for rows in groups for row in rows)
    monkeypatch.setattr(_Table, "groups", [[{"label": 1}]])
    with pytest.raises(UserError, match="it has label"):
        read_all(tmp_path / "r.parquet")


TEXT_OF = "A sentence of some length, again and again. "


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", json.dumps({"text": [TEXT_OF, TEXT_OF]})),
        ("a.jsonl", json.dumps([TEXT_OF, TEXT_OF])),
        ("a.jsonl", json.dumps({"messages": json.dumps([{"role": "user", "content": TEXT_OF}])})),
        ("a.jsonl", json.dumps({"conversations": [[{"from": "human", "value": TEXT_OF}]]})),
        ("a.json", json.dumps({"text": [TEXT_OF, TEXT_OF]})),
        ("a.json", json.dumps({"train": [TEXT_OF, TEXT_OF]})),
        ("a.json", json.dumps({"one": {"text": TEXT_OF}, "two": {"text": TEXT_OF}})),
    ],
)
def test_texts_in_lists_and_in_json_of_json(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    [source] = open_sources(CalibrationText(str(tmp_path / name)), CancelToken())
    found = [r.plain for r in source.records(np.random.default_rng(0), CancelToken())]
    assert found
    assert all(TEXT_OF.strip() in text for text in found)
    assert source.finish() == []


def test_lines_of_json_that_are_not_utf8_are_read_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"text": "größer"}\n'.encode("cp1252") * 2)
    [source] = open_sources(CalibrationText(str(tmp_path / "a.jsonl")), CancelToken())
    assert [r.text for r in source.records(np.random.default_rng(0), CancelToken())] == ["größer"] * 2
    [note] = source.finish()
    assert "Windows-1252" in note


@pytest.mark.parametrize("value", [None, 5, [1, 2], "  ", {"a": 1}])
def test_a_field_without_text_is_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": value}) + "\n", encoding="utf-8")
    [source] = open_sources(CalibrationText(str(tmp_path / "a.jsonl")), CancelToken())
    list(source.records(np.random.default_rng(0), CancelToken()))
    with pytest.raises(UserError, match="has a field 'text', but no text in it"):
        source.finish()


def test_no_samples_are_not_the_usual_number() -> None:
    import argparse

    from core.cli_calibration import add_text_options, text_of

    parser = argparse.ArgumentParser()
    add_text_options(parser)
    for option in ("--samples", "--length"):
        with pytest.raises(UserError, match="is 0"):
            text_of(parser.parse_args([option, "0"]))
    assert text_of(parser.parse_args(["--seed", "0"])) == CalibrationText()
