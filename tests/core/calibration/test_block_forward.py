"""Blocks over many samples at once compute what transformers computes, whatever is looked at or replaced between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from decoder_models import MODELS, difference, prompt, reference_logits, write_model

from core.calibration.forward import BlockForward, Product
from core.checkpoint import open_checkpoint
from core.errors import Cancelled
from core.methods.transform import BlockWeights
from core.progress import CancelToken

LENGTH = 40  # more than every window
SAMPLES = 3
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("blocks")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


def ids() -> np.ndarray:
    long = prompt(LENGTH)
    return np.stack([np.roll(long, shift) for shift in range(SAMPLES)]).astype(np.int32)


def logits_of(forward: BlockForward) -> np.ndarray:
    """[S, L, V] after the last block."""
    outer = forward.load_outer()
    head = outer.matrices.get("output.weight", outer.matrices["token_embd.weight"])
    y = np.concatenate([x @ head.T for x in forward.head_input()])
    if "output.bias" in outer.vectors:
        y = y + outer.vectors["output.bias"]
    cap = forward.config.final_softcap
    return (cap * np.tanh(y / cap) if cap else y).reshape(*forward.ids.shape, -1)


class Seen:
    """Keeps what every product is given."""

    def __init__(self) -> None:
        self.inputs: dict[str, np.ndarray] = {}

    def product(self, product: Product, weights: BlockWeights) -> None:
        pieces = list(product.pieces())
        x = np.concatenate(pieces) if pieces else np.zeros((0, product.columns), np.float32)
        assert x.shape == (product.rows, product.columns)
        self.inputs |= dict.fromkeys(product.names, x)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tiny: Callable[[str], Path]) -> None:
    with open_checkpoint(tiny(name)) as checkpoint:
        forward = BlockForward(checkpoint, ids(), CancelToken(), exact=True)
        forward.embed()
        for layer in range(forward.layers):
            forward.run(layer, forward.load(layer))
        found = logits_of(forward)
    for sample, tokens in zip(found, ids(), strict=True):
        assert difference(sample, reference_logits(tiny(name), tokens)) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe", "phi3"])
def test_what_is_only_looked_at_changes_nothing(name: str, tiny: Callable[[str], Path]) -> None:
    found = next(n for n in MODELS if n.startswith(name))
    with open_checkpoint(tiny(found)) as checkpoint:
        forward = BlockForward(checkpoint, ids(), CancelToken(), exact=True)
        forward.embed(follow_full=True)
        before = forward.hidden.clone()
        weights = forward.load(0)
        looked = Seen()
        forward.run(0, weights, looked, advance=False)
        assert (forward.hidden == before).all()
        again = Seen()
        forward.run(0, weights, again, originals=weights.copy())
        assert forward.full is not None
        assert (forward.hidden == forward.full).all()
        assert (forward.hidden != before).any()
    assert set(looked.inputs) == set(weights.matrices)
    for key, x in looked.inputs.items():
        np.testing.assert_array_equal(x, again.inputs[key])


def test_a_replaced_weight_is_what_is_multiplied(tiny: Callable[[str], Path]) -> None:
    """Zero for every projection back into the residual stream leaves the stream as it was."""

    class Nought:
        def product(self, product: Product, weights: BlockWeights) -> None:
            for n in product.names:
                if "attn_output" in n or "ffn_down" in n:
                    weights.matrices[n] = np.zeros_like(weights.matrices[n])

    name = next(n for n in MODELS if n.startswith("llama"))
    with open_checkpoint(tiny(name)) as checkpoint:
        forward = BlockForward(checkpoint, ids(), CancelToken())
        forward.embed(follow_full=True)
        before = forward.hidden.clone()
        weights = forward.load(0)
        forward.run(0, weights, Nought(), originals=weights.copy())
        assert (forward.hidden == before).all()
        assert forward.full is not None
        assert (forward.full != before).any()


def test_bfloat16_is_near_and_a_cancelled_run_ends(tiny: Callable[[str], Path]) -> None:
    name = next(n for n in MODELS if n.startswith("llama"))
    token = CancelToken()
    with open_checkpoint(tiny(name)) as checkpoint:
        near, exact = (BlockForward(checkpoint, ids(), token, exact=e) for e in (False, True))
        for forward in (near, exact):
            forward.embed()
            for layer in range(forward.layers):
                forward.run(layer, forward.load(layer))
        assert 0 < difference(logits_of(near), logits_of(exact)) < 3e-2
        token.cancel()
        with pytest.raises(Cancelled):
            near.run(0, BlockWeights({}, {}))
