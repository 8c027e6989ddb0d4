"""Our engine computes with real models what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from decoder_models import difference, reference_logits
from interop.cases import PROMPTS, Converted

from core.checkpoint import open_checkpoint
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import load
from kernels.matrix import Activations

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def logits(path: Path, texts: tuple[str, ...], activations: Activations, cache: str) -> tuple[np.ndarray, np.ndarray]:
    """Of every position of the texts, which are one batch of sequences; and the tokens, one after the other."""
    with open_checkpoint(path) as checkpoint:
        model = load(checkpoint, 256, len(texts), Arithmetic(activations), cache_dtype=cache)
        tokens = [model.text.encode(text, parse_special=True) for text in texts]
        ids = np.concatenate(tokens).astype(np.int32)
        sequences = np.repeat(np.arange(len(texts)), [len(t) for t in tokens]).astype(np.int32)
        places = np.concatenate([np.arange(len(t)) for t in tokens]).astype(np.int32)
        found = model.engine.run(ids, sequences, places, np.arange(len(ids), dtype=np.int32))
        model.unload()
    return found, np.split(ids, np.cumsum([len(t) for t in tokens])[:-1])


@pytest.mark.parametrize(
    ("activations", "cache", "budget"),
    [(Activations.EXACT, "F32", 1e-4), (Activations.EXACT, "F16", 2e-3), (Activations.FAST, "F16", 2e-2)],
)
def test_smollm2_in_bf16(activations: Activations, cache: str, budget: float, smollm2_folder: Path) -> None:
    """Prompts of mixed lengths in one batch. FAST rounds activations to bfloat16 for these weights."""
    found, ids = logits(smollm2_folder, PROMPTS[1:5], activations, cache)
    want = np.concatenate([reference_logits(smollm2_folder, each) for each in ids])
    worst = difference(found, want)
    print(f"{activations.name}, cache {cache}: largest |Δ logit| is {worst:.1e} of the largest logit")
    assert worst < budget


@pytest.mark.parametrize("target", ["w4a16-g64", "w8a16-channel"])
def test_compressed_tensors(target: str, converted: Callable[[Path, str], Converted], smollm2_folder: Path) -> None:
    folder = converted(smollm2_folder, target).path
    found, ids = logits(folder, PROMPTS[2:4], Activations.EXACT, "F32")
    want = np.concatenate([reference_logits(folder, each) for each in ids])
    worst = difference(found, want)
    print(f"{target}: largest |Δ logit| is {worst:.1e} of the largest logit")
    assert worst < 1e-4  # asked for float32, compressed-tensors multiplies code and scale in it
