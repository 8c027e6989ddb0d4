"""Where a model is to run: what is asked for, what is in the way, and what would not fit."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import UserError
from core.runtime import device
from core.runtime.arithmetic import ARITHMETICS, contract_text
from core.runtime.device import CPU, Place, check_place, check_room, parse_place, problem
from core.runtime.load import decoder_config, load
from core.runtime.weights import plan_weights
from kernels import gpu
from kernels.gpu import GpuState
from kernels.gpu.runtime.failures import OutOfMemory, forget, out_of_memory
from kernels.gpu.runtime.flow import meets_products, read_by_attention, readers
from kernels.program import ActMul, Add, Attention, CacheLayout, Embed, Linear, Norm, Program, Rope


@pytest.mark.parametrize(
    ("text", "place"),
    [("cpu", CPU), ("gpu", Place(True)), ("GPU:0", Place(True)), (" gpu:3 ", Place(True, 3)), ("CPU", CPU)],
)
def test_names(text: str, place: Place) -> None:
    assert parse_place(text) == place
    assert parse_place(place.name) == place


@pytest.mark.parametrize("text", ["", "cuda", "gpu:", "gpu:-1", "gpu:x", "cpu:0", "gpu:12345", "gpu 1"])
def test_what_is_no_device(text: str) -> None:
    with pytest.raises(UserError, match="is no device") as error:
        parse_place(text)
    assert "gpu:1" in error.value.hint


def state(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    monkeypatch.setattr(gpu, "state", lambda: GpuState(**values))


def test_a_gpu_that_can_not_be_used_is_refused_with_the_states_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    state(monkeypatch, kind="no Triton", reason="Triton is not installed", remedy="Run: pip install triton")
    with pytest.raises(UserError, match=r"^The GPU can not be used: Triton is not installed\.") as error:
        check_place(Place(True))
    assert error.value.hint == "Run: pip install triton"
    check_place(Place(True), fallback=True)
    check_place(CPU)
    assert device.gpu_places() == ()
    state(monkeypatch, kind="no GPU", reason="no NVIDIA or AMD GPU is at hand")
    assert problem(Place(True)) == ("no NVIDIA or AMD GPU is at hand", "Choose the processor (cpu).")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    state(monkeypatch, kind="ready", card="sm_90", name="A card")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _i: "A card")
    assert problem(Place(True)) == ("", "")
    assert problem(Place(True, 2)) == ("there is one GPU, numbered from 0", "Choose gpu:0.")
    with pytest.raises(UserError, match="GPU 2 can not be used"):
        check_place(Place(True, 2))
    assert device.gpu_places() == ((Place(True), "A card"),)


def test_a_model_falls_back_only_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state(monkeypatch, kind="no GPU", reason="no NVIDIA or AMD GPU is at hand")
    folder = write_llama(tmp_path / "model")
    with pytest.raises(UserError, match="no NVIDIA or AMD GPU"):
        load(open_checkpoint(folder), place=Place(True))
    model = load(open_checkpoint(folder), place=Place(True), fallback=True)
    assert model.place == CPU
    assert model.fell_back == "The GPU can not be used: no NVIDIA or AMD GPU is at hand."
    assert "int8 per 32 values" in model.contract
    model.unload()


def test_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state(monkeypatch, kind="no GPU", reason="no NVIDIA or AMD GPU is at hand")
    folder = str(write_llama(tmp_path / "model"))
    asked = ["generate", folder, "--prompt", "a", "--max-tokens", "2", "--ignore-end"]
    assert main([*asked, "--device", "gpu"]) == 1
    assert "The GPU can not be used: no NVIDIA or AMD GPU is at hand." in capfd.readouterr().err
    assert main([*asked, "--device", "tpu"]) == 1
    assert "'tpu' is no device" in capfd.readouterr().err
    assert main([*asked, "--device", "gpu", "--fallback", "cpu"]) == 0
    assert "It runs on the processor." in capfd.readouterr().err
    for command in (["bench", folder], ["eval", folder, folder]):
        assert main([*command, "--device", "gpu:1"]) == 1
        assert "GPU 1 can not be used" in capfd.readouterr().err


def test_contracts_say_what_a_gpu_multiplies_with() -> None:
    assert contract_text(ARITHMETICS["fast"], CPU) == "int8 per 32 values"
    assert contract_text(ARITHMETICS["fast"], Place(True)) == "16-bit floats on the GPU"
    for name in ("exact", "token", "llm.int8"):
        assert contract_text(ARITHMETICS[name], Place(True)) == ARITHMETICS[name].text


def test_room_is_checked_with_numbers(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    convert(folder, "Q8_0", tmp_path / "model.gguf")
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        plan = plan_weights(checkpoint, decoder_config(checkpoint))
    cache = CacheLayout(((2, 16),) * 3, 100)
    need = device.device_bytes(plan, cache, 1000)
    assert need == device.weight_bytes(plan) + cache.nbytes + 1000 + device.largest_copy(plan) + device.OVERHEAD
    check_room(Place(True), plan, cache, 1000, need)
    with pytest.raises(UserError, match="for a context of 100 tokens") as error:
        check_room(Place(True), plan, cache, 1000, need - 1)
    assert "smaller file" in error.value.hint


def test_weights_that_no_decoder_reads_count_with_16_bits() -> None:
    from kernels.gpu.weights.layout import packed_row

    assert packed_row("Q4_0", 4096) == 4096 // 32 * 18
    assert packed_row("Q4_0", 64) == packed_row("Q4_0", 128)  # a whole tile
    assert 1.0 < packed_row("Q4_K", 4096) / (4096 // 256 * 144) < 1.04
    assert packed_row("TQ1_0", 4096) == packed_row("IQ2_S", 4096) == 0.0


def test_torchs_error_has_its_number() -> None:
    found = out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has …"), 7)
    assert (found.wanted, found.free) == (3 << 29, 7)
    assert out_of_memory(RuntimeError("no number"), 7).wanted == 0


def test_an_error_holds_nothing_of_what_failed() -> None:
    class Big:
        pass

    kept: list[weakref.ref[Big]] = []

    def fails() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        raise OutOfMemory(1, 2)

    with pytest.raises(OutOfMemory) as caught:
        fails()
    forget(caught.value)
    assert kept[0]() is None


def test_who_reads_a_buffer_decides_its_type() -> None:
    weight = None  # never looked at
    steps = (
        Embed(weight, 0),  # type: ignore[arg-type]
        Norm(0, 1, np.ones(4), 1e-5),
        Linear(1, (weight, weight, weight), (2, 3, 4)),  # type: ignore[arg-type]
        Norm(2, 2, np.ones(4), 1e-5),
        Rope(2, 1, np.ones(2)),
        Rope(3, 1, np.ones(2)),
        Attention(2, 3, 4, 5, 0, 1, 1, 4, 1.0),
        Linear(5, (weight,), (0,), accumulate=True),  # type: ignore[arg-type]
        ActMul(0, 0, 6),
        Add(6, 0),
        Norm(0, 1, np.ones(4), 1e-5),
        Linear(1, (weight,), (7,), logits=True),  # type: ignore[arg-type]
    )
    program = Program(steps, (4,) * 8, 7, CacheLayout(((1, 4),), 8))
    assert [type(s) for s in readers(program, 0, 0)] == [Norm, Linear]
    assert meets_products(program, 1, 1)
    assert not meets_products(program, 3, 2)
    assert read_by_attention(program, 4, 2)
    assert read_by_attention(program, 5, 3)
    assert not read_by_attention(program, 3, 2)
    assert meets_products(program, 6, 5)
    assert not meets_products(program, 8, 6)
    assert meets_products(program, 10, 1)
