"""The support matrix: complete, with a reason and a source in every cell, and honest about the model at hand."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest

from core.errors import UserError
from core.formats import FORMATS
from core.hardware.matrix import (
    State,
    cell,
    cell_for_model,
    family,
    hardware_classes,
    misfit_columns,
    readers,
    row_for,
    runtimes,
)
from core.targets import TARGETS
from resources import read_json

DOCUMENT = read_json("support_matrix.json")
CLASSES = tuple(DOCUMENT["classes"])


def test_every_row_answers_for_every_class_once() -> None:
    cells = 0
    for row in DOCUMENT["rows"]:
        listed = [name for entry in row["cells"] for name in entry["classes"]]
        assert sorted(listed) == sorted(CLASSES), row["format"]
        cells += len(listed)
        for entry in row["cells"]:
            State(entry["state"])
            assert entry["source"] in DOCUMENT["sources"]
            assert len(entry["reason"].split()) >= 2, entry
    assert (len(DOCUMENT["rows"]), cells) == (78, 1170)
    assert set(DOCUMENT["states"]) == {state.value for state in State}


def test_no_family_is_answered_twice_by_one_runtime() -> None:
    for kind in {family(t.name) for t in TARGETS}:
        for runtime in runtimes():
            found = [r["format"] for r in DOCUMENT["rows"] if r["runtime"] == runtime and covers(r, kind)]
            assert len(found) <= 1, (kind, runtime, found)


def covers(row: dict[str, Any], kind: str) -> bool:
    return any(fnmatchcase(kind, pattern) for pattern in row["covers"])


def test_every_family_is_answered_for_by_the_runtimes_of_most_people() -> None:
    """A family that is named otherwise than in the document would be 'unknown' everywhere, and nobody would see."""
    for kind in {family(t.name) for t in TARGETS}:
        assert row_for(kind, "vLLM") or kind in ("TQ", "MXFP4", "NVFP4", "w8a16-asym", "hf-bf16"), kind
        assert row_for(kind, "llama.cpp"), kind


def test_runtimes_that_read_a_family() -> None:
    assert readers("K") == ("llama.cpp", "vLLM", "Transformers", "SGLang")
    assert readers("w4a16") == ("vLLM", "SGLang")
    assert readers("w4a16", unpacked=True) == ("vLLM", "Transformers", "SGLang")
    assert readers("TQ") == ("llama.cpp",)


def test_a_cell_says_where_and_when_it_was_read() -> None:
    found = cell("w4a16-g128", "vLLM", "nvidia_sm89")
    assert found.source
    assert found.checked == DOCUMENT["generated"]


@pytest.mark.parametrize("name", sorted({t.name for t in TARGETS} | {f.name for f in FORMATS}))
def test_every_format_of_ours_has_a_reason_everywhere(name: str) -> None:
    for runtime in runtimes():
        for hardware_class in hardware_classes():
            found = cell(name, runtime, hardware_class)
            assert found.reason.endswith((".", ")")), found
            assert found.source or found.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("name", "runtime", "hardware_class", "state"),
    [
        ("Q4_K_M", "llama.cpp", "x86_avx2", State.NATIVE),
        ("TQ1_0", "llama.cpp", "nvidia_sm89", State.STORED),  # loads, the processor computes
        ("MXFP4", "llama.cpp", "nvidia_sm89", State.EMULATED),
        ("MXFP4", "llama.cpp", "nvidia_sm120", State.NATIVE),
        ("NVFP4", "llama.cpp", "apple_m", State.STORED),
        ("w4a16-g128", "vLLM", "nvidia_sm89", State.NATIVE),
        ("w4a16-g128", "llama.cpp", "nvidia_sm89", State.IMPOSSIBLE),
        ("w8a16-g64", "vLLM", "x86_avx2", State.IMPOSSIBLE),
        ("w4a16-channel-asym", "Transformers", "nvidia_sm90", State.STORED),  # decompressed at load
        ("Q8_0", "MLX", "apple_m", State.IMPOSSIBLE),
        ("TQ2_0", "Transformers", "x86_avx2", State.STORED),
        ("NVFP4", "Transformers", "nvidia_sm89", State.IMPOSSIBLE),
        ("hf-bf16", "Transformers", "nvidia_sm75", State.NATIVE),
        ("w4a16-g32", "ExLlamaV2", "nvidia_sm86", State.IMPOSSIBLE),
        ("w8a16-g32-asym", "vLLM", "nvidia_sm90", State.UNKNOWN),
        ("Q4_K_M", "llama.cpp", "riscv", State.UNKNOWN),
    ],
)
def test_known_answers(name: str, runtime: str, hardware_class: str, state: State) -> None:
    assert cell(name, runtime, hardware_class).state is state


def test_classes_without_rows_of_their_own_are_judged_with_a_reason() -> None:
    cdna4 = cell("Q4_K_M", "llama.cpp", "amd_cdna4")
    assert cdna4.state is State.NATIVE
    assert "CDNA 3" in cdna4.reason
    assert cell("Q4_K_M", "llama.cpp", "amd_rdna2").state is State.NATIVE
    assert cell("w4a16-g128", "vLLM", "amd_rdna2").state is State.UNKNOWN
    assert cell("Q4_0", "llama.cpp", "arm_neon").state is State.NATIVE


def test_families() -> None:
    assert family("Q4_K_M") == family("q3_k_l") == "K"
    assert family("MXFP4_MOE") == "MXFP4"
    assert family("w4a16-g64") == "w4a16"
    assert family("w8a16-channel-asym") == "w8a16-asym"
    with pytest.raises(UserError):
        family("Q9_Z")
    with pytest.raises(UserError, match="runtime"):
        cell("Q4_0", "no such program", "apple_m")


def test_a_cell_judges_the_model_that_is_loaded() -> None:
    some = cell_for_model("Q4_K_M", "llama.cpp", "x86_avx2", {576, 1536})
    assert some.misfits == (576,)
    assert "576 is no multiple of 256" in some.reason
    every = cell_for_model("Q4_K_M", "llama.cpp", "x86_avx2", {640})
    assert "All weights" in every.reason
    none = cell_for_model("Q4_K_M", "llama.cpp", "x86_avx2", {1024, 4096})
    assert none == cell("Q4_K_M", "llama.cpp", "x86_avx2")
    scheme = cell_for_model("w4a16-g128", "vLLM", "nvidia_sm89", {576, 1536})
    assert "16 bits" in scheme.reason
    assert "no multiple of 128" in scheme.reason


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("Q8_0", {576, 100}, (100,)),
        ("IQ4_XS", {576}, (576,)),
        ("IQ4_NL", {576}, ()),
        ("NVFP4", {576, 96}, (96,)),
        ("w4a16-g64", {576}, ()),
        ("F16", {7}, ()),
        ("Q4_K", (), ()),
    ],
)
def test_misfits(name: str, columns: set[int], expected: tuple[int, ...]) -> None:
    assert misfit_columns(name, columns) == expected
