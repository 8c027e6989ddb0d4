"""Every transform leaves the logits of every family alone, in float32 and when its weights are stored in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from block_models import TOKEN, ChangedModel, apart
from decoder_models import CAPACITY, MODELS, write_model

from core.formats.numbers import Integers
from core.methods.awq import Awq
from core.methods.folding import folds
from core.methods.rotation import Rotation
from core.methods.smoothquant import SmoothQuant

EXACT, STORED = 1e-5, 1e-2


def fold_anything(model: ChangedModel) -> None:
    """Scales between 1/7 and 7 in every place that there is."""
    rng = np.random.default_rng(1)
    for i, block in enumerate(model.blocks):
        for fold in folds(model.config, i, block):
            width = len((block.vectors if fold.is_gain else block.matrices)[fold.producer])
            fold.apply(block, np.exp(rng.uniform(-2, 2, width)).astype(np.float32), TOKEN)


CHANGES: dict[str, Callable[[ChangedModel], None]] = {
    "folds": fold_anything,
    "awq": lambda model: model.transform(Awq(), Integers(4, 16, False)),
    "smoothquant": lambda model: model.transform(SmoothQuant(), Integers(8)),
    "rotation": lambda model: model.transform(Rotation()),
    "online rotation": lambda model: model.transform(Rotation(online=True)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """folder(name) → that model of MODELS, made once."""
    root = tmp_path_factory.mktemp("transforms")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


@pytest.mark.parametrize("name", MODELS)
def test_logits_stay(name: str, folder: Callable[[str], Path]) -> None:
    """Stored in bfloat16 too: as near to the float32 model as that stored without a change, times 1.5."""
    path, length = folder(name), min(40, CAPACITY.get(name, 40))
    model = ChangedModel(path, length)
    model.calm()
    want = model.logits()
    model.stored(less_one="gemma" in name)
    unchanged = apart(model.logits(), want)
    for label, change in CHANGES.items():
        model = ChangedModel(path, length)
        model.calm()
        before = [dict(block.matrices) for block in model.blocks]
        change(model)
        moved = sum(a[n] is not b.matrices[n] for a, b in zip(before, model.blocks, strict=True) for n in a)
        exact = apart(model.logits(), want)
        model.stored(less_one="gemma" in name)
        stored = apart(model.logits(), want)
        print(f"{name} {label}: {exact:.1e}, stored {stored:.1e}, unchanged and stored {unchanged:.1e}")
        assert moved > 0
        assert exact < EXACT
        assert stored < min(STORED, 1.5 * unchanged)


def test_a_mistake_would_show(folder: Callable[[str], Path]) -> None:
    """A router that was forgotten, or values whose heads are shared in another order."""
    for name, wrong in (("qwen3moe", "ffn_gate_inp"), ("llama3", "attn_output")):
        model = ChangedModel(folder(name))
        want = model.logits()
        before = [dict(block.matrices) for block in model.blocks]
        fold_anything(model)
        for kept, block in zip(before, model.blocks, strict=True):
            block.matrices |= {n: kept[n] for n in kept if wrong in n}
        assert apart(model.logits(), want) > 1e-2
