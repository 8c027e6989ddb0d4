"""What runtimes are told of a cache, and what they are not asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_llama

from core.budget.device import budget_of
from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import UserError
from core.kv.flags import cache_flags
from core.kv.planning import offered
from core.kv.scheme import CacheScheme
from core.serving import Command, with_cache


def flags(runtime: str, text: str, head_dim: int = 128) -> str:
    return cache_flags(runtime, CacheScheme.parse(text), head_dim)


@pytest.mark.parametrize(
    ("runtime", "text", "want"),
    [
        ("llama.cpp", "q8_0/q4_0", "-ctk q8_0 -ctv q4_0 -fa on"),
        ("llama.cpp", "q8_0/f16", "-ctk q8_0 -ctv f16"),
        ("llama.cpp", "iq4_nl,rotate", "-ctk iq4_nl -ctv iq4_nl -fa on"),
        ("vLLM", "fp8", "--kv-cache-dtype fp8"),
        ("vLLM", "fp8-head", "--kv-cache-dtype fp8"),
        ("vLLM", "fp8-e5m2", "--kv-cache-dtype fp8_e5m2"),
        ("vLLM", "int8", "--kv-cache-dtype int8_per_token_head"),
        ("vLLM", "bf16", "--kv-cache-dtype bfloat16"),
        ("SGLang", "fp8", "--kv-cache-dtype fp8_e4m3"),
        ("MLX", "u8-g64", "--kv-bits 8 --kv-group-size 64 --quantized-kv-start 0"),
        ("MLX", "f16", ""),
        ("TensorRT-LLM", "fp8", ""),
        ("Transformers", "f16", ""),
    ],
)
def test_options(runtime: str, text: str, want: str) -> None:
    assert flags(runtime, text) == want


@pytest.mark.parametrize(
    ("runtime", "text", "head_dim", "says"),
    [
        ("llama.cpp", "fp8", 128, "llama.cpp keeps no cache in FP8"),
        ("llama.cpp", "q8_0", 80, "blocks of 32, which do not divide this model's heads of 80"),
        ("llama.cpp", "q8_0,rotate", 96, "multiple of 64, not of 96"),
        ("llama.cpp", "q8_0,window=128", 128, "no switch for what 'Q8_0,window=128' adds"),
        ("llama.cpp", "q8_0,rotate-keys", 128, "no switch"),
        ("vLLM", "fp8/f16", 128, "one format"),
        ("vLLM", "q8_0", 128, "vLLM keeps no cache in Q8_0"),
        ("vLLM", "int8,first=2", 128, "no switch"),
        ("SGLang", "int8", 128, "SGLang keeps no cache"),
        ("MLX", "u8-g64", 96, "groups of 64, which do not divide"),
        ("MLX", "u8-g64/u4-g64", 128, "MLX keeps no cache in U8-g64/U4-g64"),
        ("TensorRT-LLM", "int8", 128, "TensorRT-LLM keeps no cache"),
        ("hqq", "fp8", 128, "hqq keeps no cache"),
    ],
)
def test_refused_in_one_sentence(runtime: str, text: str, head_dim: int, says: str) -> None:
    with pytest.raises(UserError) as error:
        flags(runtime, text, head_dim)
    assert says in error.value.message
    assert error.value.message.count(". ") == 0
    assert error.value.hint


def test_a_head_size_that_is_not_known_refuses_nothing() -> None:
    assert flags("llama.cpp", "q4_0", 0) == "-ctk q4_0 -ctv q4_0 -fa on"


def test_commands_get_options_or_a_note() -> None:
    scheme = CacheScheme.parse("q8_0")
    assert with_cache(Command("llama.cpp", "llama-server -m a"), scheme) == Command(
        "llama.cpp", "llama-server -m a -ctk q8_0 -ctv q8_0 -fa on"
    )
    assert with_cache(Command("vLLM", "vllm serve a", "Note."), scheme) == Command(
        "vLLM", "vllm serve a", "Note. vLLM keeps no cache in Q8_0."
    )


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_llama(tmp_path / "model", layers=2))
    assert main(["cache", folder, "--context", "1000", "--memory", "1GB", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    rows = {row["scheme"]: row for row in data["formats"]}
    assert list(rows) == [scheme.text for scheme in offered()]
    assert rows["F16"]["bytes"] == 1000 * rows["F16"]["bytes_per_token"]
    assert rows["Q8_0"]["bytes"] < rows["F16"]["bytes"] < rows["F32"]["bytes"]
    assert rows["Q4_0"]["tokens_that_fit"] > rows["Q8_0"]["tokens_that_fit"] > rows["F16"]["tokens_that_fit"]
    assert main(["cache", folder, "--type", "q8_0", "--sequences", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cache")
    assert "vLLM: vLLM keeps no cache in Q8_0. It takes" in out
    for words, says in (
        (["--context", "0"], "0 tokens can not be planned for"),
        (["--type", "q9"], "no cache format 'q9'"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--memory", "much"], "is not a size"),
    ):
        assert main(["cache", folder, *words]) == 1
        assert says in capsys.readouterr().err


def test_a_smaller_cache_leaves_more_for_weights(tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "model", layers=2)) as checkpoint:
        sizes = [budget_of(checkpoint, 10**9, 8192, 1, CacheScheme(name)) for name in ("F16", "Q8_0", "Q4_0")]
        assert sizes[0] == budget_of(checkpoint, 10**9, 8192)
    assert sizes == sorted(set(sizes))
