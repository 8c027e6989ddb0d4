"""GPTQModel loads our GPTQ and AWQ folders, and computes with the numbers that we decode from them.

It asks for a newer torch than the other tools, so that it is installed by hand; docs/interop.md has the commands and
what they gave.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint

pytestmark = pytest.mark.interop
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # fewer, which two cores give, are fewer than its loader asks for
THERE = importlib.util.find_spec("gptqmodel") is not None
TARGETS = (
    "gptq-4bit-g128", "gptq-2bit-g32", "gptq-3bit-g64", "gptq-8bit-channel", "gptq-4bit-g128-asym-v2",
    "gptq-3bit-g32-asym-v2", "awq-g64", "awq-g32",
)  # fmt: skip


@pytest.fixture(autouse=True)
def out_of_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps logs in the folder where it runs."""
    monkeypatch.chdir(tmp_path)


def source_model(folder: Path) -> Path:
    """Its loader asks for a padding token inside the vocabulary."""
    write_llama(folder, tied=False)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 1}), encoding="utf-8")
    return folder


def test_gptqmodel_is_installed() -> None:
    if not THERE:
        pytest.skip("gptqmodel is not installed here: GPTQ and AWQ folders are loaded by hand, see docs/interop.md")


@pytest.mark.skipif(not THERE, reason="gptqmodel is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_logits_and_text_agree_with_our_decode(target: str, tmp_path: Path) -> None:
    from gptqmodel import BACKEND, GPTQModel
    from transformers import AutoModelForCausalLM

    source = source_model(tmp_path / "source")
    convert(source, target, tmp_path / "made")
    backend = BACKEND.AWQ_TORCH if target.startswith("awq") else BACKEND.GPTQ_TORCH
    theirs = GPTQModel.load(str(tmp_path / "made"), device="cpu", backend=backend, dtype=torch.float16).model
    assert sum(hasattr(m, "qweight") for m in theirs.modules()) == 14
    ours = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16).eval()
    parameters = dict(ours.named_parameters())
    with open_checkpoint(tmp_path / "made") as made:
        for t in made.tensors:
            if t.packed:
                parameters[t.name].data = torch.from_numpy(np.array(made.read_rows(t))).half()
    ids = torch.tensor([[0, 40, 41, 42, 90, 7]])
    with torch.inference_mode():
        want, got = ours(ids).logits.float(), theirs(ids).logits.float()
        texts = [
            model.generate(input_ids=ids, max_new_tokens=32, do_sample=False, pad_token_id=0, eos_token_id=None)
            for model in (ours, theirs)
        ]
    assert float((want - got).norm() / want.norm()) < 1e-2
    assert torch.equal(*texts)


@pytest.mark.skipif(not THERE, reason="gptqmodel is not installed")
@pytest.mark.parametrize(
    ("bits", "symmetric", "order"), [(4, True, False), (4, False, False), (4, True, True), (3, False, False)]
)
def test_what_it_writes_opens_here(bits: int, symmetric: bool, order: bool, tmp_path: Path) -> None:
    """Its own dequantization, in float32 but for the 11 bits of a product that it rounds to float16."""
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

    source = source_model(tmp_path / "source")
    config = QuantizeConfig(bits=bits, group_size=64, sym=symmetric, desc_act=order, device="cpu")
    model = GPTQModel.load(str(source), config)
    random = torch.Generator().manual_seed(3)
    texts = [torch.randint(0, 256, (1, 128), generator=random) for _ in range(4)]
    model.quantize([{"input_ids": t, "attention_mask": torch.ones_like(t)} for t in texts], batch_size=1)
    model.save(str(tmp_path / "made"))
    read = GPTQModel.load(str(tmp_path / "made"), device="cpu", backend=BACKEND.GPTQ_TORCH, dtype=torch.float16).model
    layers = {f"{n}.weight": m for n, m in read.named_modules() if hasattr(m, "qweight")}
    with open_checkpoint(tmp_path / "made") as made:
        packed = {t.name: t for t in made.tensors if t.packed}
        assert packed.keys() == layers.keys()
        for name, t in packed.items():
            want = layers[name].dequantize_weight().T.float().numpy()
            assert np.allclose(made.read_rows(t), want, rtol=2**-10, atol=2**-24)
