"""transformers loads our bitsandbytes folders, and what it saves opens here with the values that it computes with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoder_models
import numpy as np
import pytest
import torch
from interop.cases import QUESTION, bitsmith

from core.checkpoint.opening import open_checkpoint
from core.formats import EncodeOptions, Method
from core.formats.bitsandbytes import FourBit
from core.formats.codebook import dynamic_map, nest

pytestmark = pytest.mark.interop
TARGETS = ("bnb-nf4", "bnb-nf4-dq", "bnb-fp4", "bnb-fp4-dq", "bnb-int8")


def test_bitsandbytes_is_installed() -> None:
    import accelerate
    import bitsandbytes

    print("bitsandbytes", bitsandbytes.__version__, "accelerate", accelerate.__version__)


def convert(source: Path, target: str, folder: Path, *more: object) -> Path:
    made = folder / target
    plan = bitsmith("plan", source, "--to", target, *more)
    run = bitsmith("convert", source, "--to", target, "-o", made, *more)
    assert plan["bytes_total"] == run["actual_bytes"]
    return made


def load(folder: Path) -> Any:
    """In float32, in which sums hardly depend on their order."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", dtype=torch.float32).eval()


def loaded(folder: Path) -> Any:
    """By transformers and bitsandbytes, without what its CPU kernels round beside the weights.

    LLM.int8() rounds activations. On CPUs with AVX512-BF16 bitsandbytes packs 4-bit weights anew, with their scales
    rounded to bfloat16, and refuses rows that blocks do not divide.
    """
    model = load(folder)
    for parameter in model.parameters():
        if parameter.dtype is torch.bfloat16:  # what is not quantized keeps the file's type
            parameter.data = parameter.data.float()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["quantization_config"]["load_in_8bit"]:
        return model.dequantize(dtype=torch.float32)
    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype, module.compute_type_is_set = torch.float32, True
            module.support_avx512bf16_for_cpu = False
    return model


def dense(source: Path, made: Path) -> tuple[Any, int]:
    """The source's model with our own decode of every packed weight, and how many there are."""
    model, checkpoint = load(source), open_checkpoint(made)
    packed = {t.name: t for t in checkpoint.tensors if t.packed}
    modules = dict(model.named_modules())
    for name, info in packed.items():
        modules[name.removesuffix(".weight")].weight.data = torch.from_numpy(checkpoint.read_rows(info))
    return model, len(packed)


def compare(source: Path, made: Path, ids: torch.Tensor, count: int) -> str:
    """Logits and 32 greedy tokens of the loader against those with our decode; returns the tokens."""
    ours, packed = dense(source, made)
    assert packed == count
    theirs = loaded(made)
    with torch.inference_mode():
        want, got = ours(ids).logits.float(), theirs(ids).logits.float()
        texts = [m.generate(ids, max_new_tokens=32, do_sample=False)[0, ids.shape[1] :] for m in (ours, theirs)]
    difference = float((want - got).abs().max() / want.abs().max())
    print(f"{made.name}: largest |Δ logit| is {difference:.2e} of the largest logit")
    assert difference < 1e-2
    assert torch.equal(*texts)
    return str(texts[1].tolist())


REAL = [pytest.param(t, marks=[] if t in ("bnb-nf4-dq", "bnb-int8") else pytest.mark.slow) for t in TARGETS]


@pytest.mark.parametrize("target", REAL)
def test_a_real_model_computes_with_our_numbers(target: str, smollm2_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = convert(smollm2_folder, target, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(made)
    ids = tokenizer(QUESTION, return_tensors="pt").input_ids
    tokens = compare(smollm2_folder, made, ids, 210)
    print(tokenizer.decode(json.loads(tokens)))


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Tiny models whose rows blocks divide: bitsandbytes 0.50's CPU kernel decodes others wrong, its own too."""
    monkeypatch.setitem(decoder_models.SIZES, "intermediate_size", 128)
    return decoder_models.write_model


@pytest.mark.parametrize(
    ("name", "target", "count"),
    [
        ("llama3", "bnb-fp4", 21),
        ("qwen3", "bnb-nf4", 21),
        ("gemma3", "bnb-nf4-dq", 0),
        ("phi3", "bnb-fp4-dq", 0),
        ("qwen3moe", "bnb-nf4", 0),
        ("qwen2", "bnb-int8", 21),
    ],
)
def test_other_architectures(
    name: str, target: str, count: int, write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    write(tmp_path / name, name)
    made = convert(tmp_path / name, target, tmp_path)
    found = sum(t.packed for t in open_checkpoint(made).tensors)
    assert found == (count or found) > 0
    compare(tmp_path / name, made, torch.arange(2, 12)[None], found)


def test_4_bit_formats_stand_beside_each_other(write: Callable[[Path, str], None], tmp_path: Path) -> None:
    write(tmp_path / "llama3", "llama3")
    rules = ("--rule", "down_proj=bnb-fp4-dq", "--rule", "v_proj=keep")
    made = convert(tmp_path / "llama3", "bnb-nf4", tmp_path, *rules)
    assert {t.dtype for t in open_checkpoint(made).tensors if t.packed} == {"NF4 g64", "FP4 g64 double"}
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert (config["bnb_4bit_quant_type"], config["bnb_4bit_use_double_quant"]) == ("nf4", False)
    assert "model.layers.1.self_attn.v_proj" in config["llm_int8_skip_modules"]
    compare(tmp_path / "llama3", made, torch.arange(2, 12)[None], 18)


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "fp4", "fp4-double", "bfloat16", "int8"])
def test_what_transformers_saves_opens_here(kind: str, write: Callable[[Path, str], None], tmp_path: Path) -> None:
    import bitsandbytes.functional as bnb
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    write(tmp_path / "llama3", "llama3")
    settings = {"load_in_8bit": True} if kind == "int8" else {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "fp4" if kind.startswith("fp4") else "nf4",
        "bnb_4bit_use_double_quant": kind.endswith("double"),
        "bnb_4bit_quant_storage": torch.bfloat16 if kind == "bfloat16" else torch.uint8,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "llama3", quantization_config=BitsAndBytesConfig(**settings), device_map="cpu", dtype=torch.float32
    )
    model.save_pretrained(tmp_path / "saved")
    checkpoint = open_checkpoint(tmp_path / "saved")
    assert checkpoint.packed_problem is None
    packed = [t for t in checkpoint.tensors if t.packed]
    assert len(packed) == 21
    for t in packed:
        module = model.get_submodule(t.name.removesuffix(".weight"))
        if kind == "int8":
            want = bnb.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
        else:
            want = bnb.dequantize_4bit(module.weight.data, module.weight.quant_state)
        assert torch.equal(torch.from_numpy(checkpoint.read_rows(t)), want.float())


@pytest.mark.parametrize("table", ["NF4", "FP4"])
@pytest.mark.parametrize("shape", [(64, 128), (64, 96), (40, 1000)])
def test_plain_rounding_gives_its_bytes(table: str, shape: tuple[int, int]) -> None:
    """Codes and scales of bitsandbytes; codes of scales as its PyTorch code has them: on CPUs its compiled code takes
    the next level but one in a few of a thousand."""
    import bitsandbytes.functional as bnb

    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    theirs, state = bnb.quantize_4bit(x, quant_type=table.lower())
    form = FourBit(table)
    codes, absmax, *_ = form.encode(x.numpy(), EncodeOptions(method=Method.ROUND))
    assert np.array_equal(codes, theirs.reshape(-1).numpy())
    assert np.array_equal(absmax.view(np.float32), state.absmax.numpy())
    _, state = bnb.quantize_4bit(x, quant_type=table.lower(), compress_statistics=True)
    offset = state.offset.item()
    small, largest = nest(absmax.view(np.float32), offset)
    off = np.abs(state.absmax.numpy().astype(int) - small)
    assert (off.max(), np.mean(off > 0) < 0.02) in ((0, True), (1, True))
    assert np.allclose(largest, state.state2.absmax.numpy(), rtol=1e-6)
    assert np.array_equal(dynamic_map(), state.state2.code.numpy())
    mean = FourBit(table, nested=True).fit(lambda: [x.numpy()], EncodeOptions()).fitted.offset
    assert mean == pytest.approx(offset, rel=1e-6)
