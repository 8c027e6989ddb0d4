"""Whole models and single matrices on the GPU's executor under Triton's interpreter, against the processor's engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.triton

# Of the largest logit: 16-bit activations against float32; int8 codes that rounding moves by one; float32 alone.
ROUNDED, CODES, EXACT = 0.01, 0.05, 1e-5


@pytest.fixture(scope="module")
def results(
    interpreted: Callable[..., list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("models")
    return interpreted("runtime_cases", str(folder))


@pytest.fixture(scope="module")
def matrices(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("operand_cases")


def case(results: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [r for r in results if r["case"] == name]
    return found


def uses(result: dict[str, Any], op: str) -> list[list[str]]:
    return [use for use in result["report"] if use[0] == op]


def test_matrices_that_come_in_pieces_are_the_references(matrices) -> None:
    formats = [m for m in matrices if "case" in m]
    assert len(formats) == 40
    assert all(m["same"] and m["kind"] for m in formats)
    assert [m["case"] for m in formats if not m["rows"]] == ["NVFP4"]  # whose scale of the tensor is multiplied last
    assert max(m["far"] for m in formats) < 1e-6
    assert max(m["error"] for m in formats) < 1e-6
    floats = [m for m in matrices if "float" in m]
    assert [m["kind"] for m in floats] == ["float", "float", "BF16"]
    assert all(m["rows"] and m["error"] < 1e-6 for m in floats)


def test_int8_activations_meet_codes_or_are_emulated(matrices) -> None:
    found = [m for m in matrices if "token" in m]
    assert [m["kind"] for m in found] == ["ScaledOperand", "ScaledOperand", "PackedOperand", "PackedOperand"]
    assert all(m["same"] and m["error"] < 1e-6 for m in found)


def test_what_no_decoder_reads_is_refused_before_it_is_read(matrices) -> None:
    refused = {m["refused"]: m["reason"] for m in matrices if "refused" in m}
    assert "TQ1_0" in refused["no decoder"]
    assert "IQ2_S" in refused["codebook"]
    assert "7 bits" in refused["bits"]
    assert "groups of 24" in refused["group"]
    assert refused["switched off"] == "its test failed"


@pytest.mark.parametrize(
    "name",
    [
        "llama2 Q4_0",
        "mistral-window ",
        "qwen3moe Q8_0",
        "gemma2 Q8_0",
        "phi3-partial F16",
    ],
)
def test_families_prompt_and_steps(name: str, results) -> None:
    found = case(results, name)
    assert found["finite"]
    assert found["error"] < ROUNDED
    assert found["contract"] == "activations 16-bit floats on the GPU, cache F16"
    assert abs(found["predicted"] - found["weights"]) < 0.1 * found["weights"]
    (step,) = uses(found, "decode step")
    assert found["replayed"] == found["steps"]  # once when captured, and those after it
    assert step[2] == "one captured graph"
    assert ("1 to 4 sequences" in step[4]) == ("moe" in name)


def test_a_mixture_is_captured_for_few_sequences(results) -> None:
    found = case(results, "mixture")
    assert found["captured"] == 2  # three sequences in a bucket of four, and two
    assert found["replayed"] == 3
    (step,) = uses(found, "decode step")
    assert step[2] == "one captured graph"
    assert step[4].endswith("of more, which experts a token meets is read by the host")
    assert max(case(results, "mixture's steps")["errors"]) < ROUNDED


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3moe F16", "as the library multiplies floats"),
        ("qwen3moe, switched off", "as the kernel is switched off: wrong sums"),
        ("qwen3moe, token", "as their activations are not 16-bit floats"),
    ],
)
def test_experts_that_the_host_reads_are_said_with_the_reason(name: str, why: str, results) -> None:
    found = case(results, name)
    assert found["error"] < (CODES if "token" in name else ROUNDED)
    assert found["replayed"] == 0
    (step,) = uses(found, "decode step")
    assert step[2] == "kernel by kernel"
    assert step[4] == f"which experts a token meets is read by the host, {why}"


def test_formats_are_multiplied_as_they_are(results) -> None:
    linear = uses(case(results, "llama2 Q4_0"), "linear")
    assert {use[2].split()[0] for use in linear} == {"Q4_0", "Q8_0"}
    assert all("decoded inside" in use[2] for use in linear)


def test_sequences_of_several_lengths_share_a_batch(results) -> None:
    found = case(results, "batches")
    assert len(found["errors"]) == 7
    assert max(found["errors"]) < ROUNDED
    assert found["empty"] == [0, 288]


def test_the_cache_in_codes_is_the_processors(results) -> None:
    """Of the largest logit; the processor rounds queries to 16 bits over Q8_0 and Q4_0."""
    found = [r for r in results if r["case"] == "cache"]
    assert len(found) == 5
    assert not [r for r in found if r["error"] > 1e-4]
    assert not [r for r in found if abs(r["taken"] - r["planned"]) > 0.02 * r["planned"]]
    words = {r["scheme"]: [use[2] for use in uses(r, "attention")] for r in found}
    assert words["q8_0/q4_0"] == ["online softmax over a Q8_0/Q4_0 cache, codes read in registers, float32 sums"]
    assert (
        "the last 4 and the first 2 tokens in float16; keys and values rotated"
        in words["int4,rotate,window=4,sinks=2"][0]
    )
    assert "keys take their rotary step when they are read" in words["kivi2,before-rope"][0]
    assert words["lm3,rotate,first=1"] == ["online softmax over a F16 cache, float32 sums"]
    assert {r["scheme"]: bool(r["gap"]) for r in found if r["gap"]} == {
        "int4,rotate,window=4,sinks=2": True, "kivi2,before-rope": True
    }  # fmt: skip
    assert all(r["replayed"] >= 5 for r in found)
    for scheme in ("q8_0/q4_0", "int4,rotate,window=4,sinks=2"):
        # Where activations in 16 bits lie on the other side of a boundary, a code moves by one.
        assert case(results, f"16 bits over {scheme}")["error"] < 4 * ROUNDED


def test_a_step_is_captured_again_when_the_batch_changes(results) -> None:
    found = case(results, "graphs")
    assert found["captured"] == 2  # three sequences in a bucket of four, and one
    assert found["replayed"] == 4  # each when captured; the second step of three, and their last one


@pytest.mark.parametrize("name", ["llama2", "qwen3moe"])
def test_inputs_of_rotated_weights_are_rotated(name: str, results) -> None:
    for arithmetic, most in (("exact", EXACT), ("fast", ROUNDED)):
        found = case(results, f"{name} rotated, {arithmetic}")
        assert found["finite"]
        assert found["error"] < most
        (rotation,) = uses(found, "rotation")
        runs = {"llama2": ("96 values", "Hadamard 32"), "qwen3moe": ("64 values", "Hadamard 64")}[name]
        assert rotation[1:3] == [runs[0], f"{runs[1]}, the library's float32 products"]


def test_activation_contracts(results) -> None:
    assert case(results, "exact")["error"] < EXACT
    assert all("decoded to float32" in use[2] for use in uses(case(results, "exact"), "linear"))
    assert case(results, "token, emulated")["error"] < CODES
    assert any("emulated" in use[2] for use in uses(case(results, "token, emulated"), "linear"))
    for name in ("token", "llm.int8"):
        found = case(results, name)
        assert found["error"] < CODES
        assert any("int8 per row × int8 per token" in use[2] for use in uses(found, "linear"))
        assert found["contract"].startswith("activations int8 per token")
    assert any("columns from 6" in use[2] for use in uses(case(results, "llm.int8"), "linear"))


def test_long_prompts_go_to_the_library(results) -> None:
    assert case(results, "library")["error"] < ROUNDED


def test_a_kernel_that_is_switched_off_is_named_and_stood_in_for(results) -> None:
    decoded = case(results, "decoded")
    assert decoded["error"] < ROUNDED
    (line,) = uses(decoded, "fallback")
    assert line[2:] == ["Q4_0 decoded to F16 when loaded", "cpu", "its test failed"]
    off = case(results, "switched off")
    assert off["error"] < ROUNDED
    assert all("switched off: wrong sums" in use[4] for use in uses(off, "linear"))
    nothing = case(results, "nothing left")
    assert "is switched off: wrong sums" in nothing["message"]
    assert nothing["hint"] == "Choose the processor (cpu)."


def test_what_can_not_be_captured_runs_kernel_by_kernel_and_says_so(results) -> None:
    eager = case(results, "eager")
    assert eager["error"] < ROUNDED
    (step,) = uses(eager, "decode step")
    assert step[2] == "kernel by kernel"
    assert "could not be captured (operation not permitted when stream is capturing)" in step[4]


def test_out_of_memory(results) -> None:
    """Predicted, met while loading (nothing stays), met in a run (the model stays), and the processor when asked."""
    large = case(results, "too large")
    assert large["message"].startswith("The GPU has 600.00 MB")
    assert "for the weights" in large["message"]
    assert "cpu" in large["hint"]
    loading = case(results, "full while loading")
    assert loading["alive"] == 0
    assert loading["message"].startswith("The memory of the GPU did not suffice for 2.15 GB (2.00 GiB): 1.00 GB")
    back = case(results, "fell back")
    assert back["place"] == "cpu"
    assert "did not suffice" in back["why"]
    assert "Choose" not in back["why"]
    assert back["contract"] == "activations int8 per 32 values, cache F16"
    run = case(results, "full in a run")
    assert "cache of" in run["message"]
    assert run["after"]
    gone = case(results, "unloaded")
    assert not gone["weights"]
    assert not gone["cache"]
    assert gone["emptied"] == 2  # after the run that failed, and in the end


def test_the_interface_of_a_model(results) -> None:
    found = case(results, "interface")
    assert found["cancelled"]
    assert found["device"] == "gpu:0"
    assert found["peak"] == 1  # the stand-in's
    assert found["bandwidth"] == 1e9  # the stand-in's
    assert found["roofs"] == [1e9, 1e9]
    assert found["sweep"] == 4
    assert found["layer"] == [1, 1, 2, 2]
    assert found["names"] == ["BF16", "Q4_0"]
    profile = case(results, "profile")
    assert profile["timed"] == profile["steps"]


def test_the_same_text_comes(results) -> None:
    texts = case(results, "texts")
    assert texts["cpu"] == texts["gpu:0"]
    assert [len(tokens) for tokens in texts["cpu"]] == [3, 3]
