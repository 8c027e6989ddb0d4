"""Outliers of keys and values: against what transformers caches, and a channel that is made loud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from job_help import drive
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import Cancelled
from core.inspect.cache_outliers import HeadMap, measure_cache
from core.inspect.layerwise import text_for
from core.progress import CancelToken
from kernels.reference.kv import hadamard

HEADS, DIM = 2, 64


def loud(tensors: dict[str, Any]) -> None:
    """Channel 5 of value head 1 is 50 times as large, in every layer; keys of a pair that positions turn, too."""
    for name, values in tensors.items():
        if name.endswith("v_proj.weight"):
            values[DIM + 5] *= 50
        if name.endswith("k_proj.weight"):
            values[[7, 7 + DIM // 2]] *= 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("loud") / "tiny", layers=3, change=loud)


def test_maps_are_those_of_what_transformers_caches(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    with open_checkpoint(folder) as checkpoint:
        seen, found = drive(measure_cache(checkpoint, limit=48))
        ids = text_for(checkpoint, None, 48)[1]
    assert [p.done for p in seen] == [1, 2, 3]
    assert found.tokens == len(ids) == 48
    assert found.cut
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        layers = model(torch.tensor([ids]), use_cache=True).past_key_values.layers
    keys = np.stack([layer.keys[0].numpy() for layer in layers])  # [layers, heads, tokens, dim]
    values = np.stack([layer.values[0].numpy() for layer in layers])
    for plain, turned, part, axis in ((*found.keys, keys, 2), (*found.values, values, 3)):
        for shown, want in ((plain, part), (turned, hadamard(part))):
            want = np.abs(want).max(axis=axis)
            np.testing.assert_allclose(shown.values, want.reshape(3 * HEADS, -1), rtol=2e-3, atol=1e-4)


def test_a_loud_channel_stands_out_until_it_is_turned(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        _, found = drive(measure_cache(checkpoint, limit=32))
    before, after = (each.loudest for each in found.keys)
    assert (before.head, before.place % (DIM // 2)) == (0, 7)
    assert before.ratio > 10
    assert after.ratio < before.ratio / 4
    assert found.values[0].values.shape == (3 * HEADS, 32)


def test_ratios_of_a_head_are_to_its_median() -> None:
    found = HeadMap(2, np.array([[1, 2, 3, 40], [0, 0, 0, 0]], np.float32))
    assert found.ratios.tolist() == [[0.4000000059604645, 0.800000011920929, 1.2000000476837158, 16], [0, 0, 0, 0]]
    assert (found.loudest.layer, found.loudest.head, found.loudest.place, found.loudest.ratio) == (0, 0, 3, 16)


def test_cancel(folder: Path) -> None:
    stopped = CancelToken()
    stopped.cancel()
    with open_checkpoint(folder) as checkpoint, pytest.raises(Cancelled):
        drive(measure_cache(checkpoint, limit=16, token=stopped))
