"""The library hqq loads our qmodel.pt and computes the logits of our decode; what it writes is read here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interop.cases import PROMPTS
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint

HERE = find_spec("hqq") is not None
pytestmark = pytest.mark.interop
needs_hqq = pytest.mark.skipif(not HERE, reason="hqq is not installed")


def test_hqq_is_installed_or_done_by_hand() -> None:
    if not HERE:
        pytest.skip("hqq is not installed here; docs/interop.md has the commands and what they gave")


@needs_hqq
@pytest.mark.parametrize("target", ["hqq-8bit-g64", "hqq-4bit-g64", "hqq-3bit-g128", "hqq-2bit-g32"])
def test_hqq_computes_with_our_decode(target: str, tmp_path: Path) -> None:
    import torch
    from hqq.models.hf.base import AutoHQQHFModel
    from transformers import AutoModelForCausalLM

    source = write_llama(tmp_path / "m", layers=2)
    convert(source, target, tmp_path / "out")
    model = AutoHQQHFModel.from_quantized(str(tmp_path / "out"), compute_dtype=torch.float32, device="cpu").eval()
    plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    held = plain.state_dict()
    with open_checkpoint(tmp_path / "out") as made:
        packed = [t for t in made.tensors if t.packed]
        assert len(packed) == 14
        for tensor in packed:
            held[tensor.name].copy_(torch.from_numpy(made.read_rows(tensor)))
    ids = torch.arange(2, 26)[None]
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)


@needs_hqq
@pytest.mark.parametrize("target", ["hqq-4bit-g64", pytest.param("hqq-8bit-g64", marks=pytest.mark.slow)])
def test_a_real_model_computes_with_our_decode(target: str, smollm2_folder: Path, tmp_path: Path) -> None:
    import torch
    from hqq.models.hf.base import AutoHQQHFModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    convert(smollm2_folder, target, tmp_path / "out")
    model = AutoHQQHFModel.from_quantized(str(tmp_path / "out"), compute_dtype=torch.float32, device="cpu").eval()
    plain = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    held = plain.state_dict()
    with open_checkpoint(tmp_path / "out") as made:
        packed = [t for t in made.tensors if t.packed]
        assert len(packed) == 210
        for tensor in packed:
            held[tensor.name].copy_(torch.from_numpy(made.read_rows(tensor)))
    ids = AutoTokenizer.from_pretrained(smollm2_folder)(PROMPTS[2], return_tensors="pt").input_ids
    with torch.inference_mode():
        text = plain.generate(ids, max_new_tokens=32, do_sample=False)
        want, got = plain(text).logits, model(input_ids=text).logits
    assert float((want - got).abs().max() / want.abs().max()) < 1e-5
    chosen = got[0, ids.shape[1] - 1 : -1].argmax(-1)  # hqq's own greedy text, had it written it token by token
    assert torch.equal(chosen, text[0, ids.shape[1] :])


@needs_hqq
@pytest.mark.parametrize(("bits", "axis"), [(8, 1), (4, 1), (4, 0), (3, 1), (2, 0), (1, 1)])
def test_what_hqq_writes_is_read(bits: int, axis: int, tmp_path: Path) -> None:
    import torch
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
    from hqq.models.hf.base import AutoHQQHFModel
    from transformers import AutoModelForCausalLM

    source = write_llama(tmp_path / "m", layers=1)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    AutoHQQHFModel.quantize_model(
        model, BaseQuantizeConfig(nbits=bits, group_size=64, axis=axis), compute_dtype=torch.float32, device="cpu"
    )
    AutoHQQHFModel.save_quantized(model, str(tmp_path / "out"))
    with open_checkpoint(tmp_path / "out") as made:
        count = 0
        for name, module in model.named_modules():
            if isinstance(module, HQQLinear):
                got = made.read_rows(made.tensor(f"{name}.weight"))
                assert np.array_equal(got, module.dequantize().numpy())
                count += 1
        assert count == 7
