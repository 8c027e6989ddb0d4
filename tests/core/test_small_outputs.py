"""Reports, recipes and importance matrices never take the place of a part of a model."""

import json
from pathlib import Path

import pytest
from job_help import convert, digest
from tiny_models import write_llama

from core.cli import main


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    write_llama(folder / "model", hidden=64, ffn=64)
    convert(folder / "model", "F16", folder / "model.gguf")
    return folder


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("command", ["imatrix", "budget", "eval", "inspect"])
def test_a_part_of_a_model_is_never_replaced(models, capsys, command, kind):
    source = models / ("model" if kind == "folder" else "model.gguf")
    part = source / "config.json" if kind == "folder" else source
    words = {
        "imatrix": ["imatrix", source, "-o", part],
        "budget": ["budget", source, "--size", "100kB", "-o", part],
        "eval": ["eval", source, source, "--report", part],
        "inspect": ["inspect", source, "--json", "-o", part],
    }[command]
    before = digest(source)
    assert main([*map(str, words), "--overwrite"]) == 1
    err = capsys.readouterr().err
    assert "belongs to the model" in err or "not written as" in err
    assert digest(source) == before


def test_marks_and_separators_in_small_files(models, tmp_path, capsys):
    """A mark in front, as Windows' editors write it, and letters that end lines elsewhere."""
    tasks, limits, text = tmp_path / "tasks.jsonl", tmp_path / "limits.json", tmp_path / "text.txt"
    line = '{"prompt": "one\u2028two\u0085three", "choices": [" a", " b"], "answer": 1}\r\n'
    tasks.write_bytes(b"\xef\xbb\xbf" + line.encode() * 2)
    limits.write_bytes(b'\xef\xbb\xbf{"kl_mean": 0}')
    text.write_bytes(b"\xef\xbb\xbf" + b"A text that is long enough. " * 20)
    words = ["eval", models / "model", models / "model.gguf", "--windows", 2, "--length", 16, "--layers", 0]
    words += ["--new-tokens", 0, "--tasks", tasks, "--thresholds", limits, "--text", text]
    code = main(list(map(str, words)))
    found = capsys.readouterr()
    assert code in (0, 1)
    assert found.err == ""
    assert "limits" in found.out


def test_a_file_beside_itself_has_no_divergence(models, capsys):
    source = str(models / "model.gguf")
    words = ["eval", source, source, "--windows", "2", "--length", "16", "--layers", "0", "--new-tokens", "0"]
    for more in ([], ["--no-cache"], []):
        assert main([*words, "--json", *more]) == 0
        quality = json.loads(capsys.readouterr().out)["quality"]
        assert quality["kl_mean"]["value"] == quality["kl_max"]["value"] == quality["flips"]["value"] == 0
        assert quality["perplexity_ratio"]["value"] == 1


def test_lengths_beyond_the_context_are_named(models, capsys):
    source = str(models / "model.gguf")
    words = ["eval", source, source, "--windows", "1", "--length", "16", "--layers", "0", "--new-tokens", "0"]
    main([*words, "--needle", "128", "4096"])
    out = capsys.readouterr().out
    assert "not hidden in texts of 4" in out
