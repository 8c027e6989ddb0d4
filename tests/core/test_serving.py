"""Serving commands: one for each runtime that reads the result, exact, and safe for paths with spaces."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from core.catalog import readers
from core.hardware.matrix import family
from core.hardware.matrix import readers as family_readers
from core.serving import Command, serving_target
from core.targets import TARGETS, find_target

PLACE = Path("/models/my own/it's here")


def commands(name: str, output: Path = PLACE) -> dict[str, Command]:
    return {c.runtime: c for c in serving_target(find_target(name), output)}


@pytest.mark.parametrize("name", [t.name for t in TARGETS])
def test_only_runtimes_that_read_it_and_words_that_a_shell_takes(name: str) -> None:
    made = commands(name)
    able = set(readers(find_target(name)))
    assert set(made) <= able | {"Transformers"}
    assert "Transformers" not in made or "Transformers" in {*able, *family_readers(family(name), unpacked=True)}
    for runtime, command in made.items():
        if runtime in ("Transformers", "hqq"):
            ast.parse(command.text)
            place = PLACE if find_target(name).is_folder else PLACE.parent
            assert repr(str(place)) in command.text
        else:
            assert str(PLACE) in shlex.split(command.text)
        assert not command.note or command.note.endswith(".")


def test_gguf() -> None:
    made = commands("Q4_K_M", Path("out dir/m.gguf"))
    assert next(iter(made)) == "llama.cpp"
    assert made["llama.cpp"].text == "llama-server -m 'out dir/m.gguf'"
    assert made["vLLM"].text == "vllm serve 'out dir/m.gguf' --tokenizer ORIGINAL"
    assert "vllm-gguf-plugin" in made["vLLM"].note
    assert "gguf_file='m.gguf'" in made["Transformers"].text
    assert "MLX" not in made
    ternary = commands("TQ1_0")
    assert set(ternary) == {"llama.cpp", "Transformers"}
    assert "unpacked" in ternary["Transformers"].note


def test_compressed_tensors() -> None:
    made = commands("w4a16-g128", Path("out"))
    assert next(iter(made)) == "vLLM"
    assert made["vLLM"] == Command("vLLM", "vllm serve out")
    assert "CompressedTensorsConfig" not in made["Transformers"].text
    assert "no memory is saved" in made["Transformers"].note
    asymmetric = commands("w4a16-g128-asym", Path("out"))
    assert "quantization_config=CompressedTensorsConfig(dequantize=True)" in asymmetric["Transformers"].text
    assert "Humming" in commands("w3a16-g128")["vLLM"].note
