"""Models with planted outliers compute what they did before, but rounding fails on them; transforms repair it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from block_models import TOKEN, ChangedModel, apart
from decoder_models import MODELS, write_model

from core.calibration.forward import Product
from core.formats.base import EncodeOptions, Method
from core.formats.numbers import Integers
from core.methods.awq import Awq
from core.methods.folding import folds
from core.methods.rotation import Rotation
from core.methods.smoothquant import SmoothQuant
from core.methods.transform import BlockTransform, BlockWeights

INT4, INT8 = Integers(4, 32, False), Integers(8)


class TokenInt8:
    """Rounds every input to int8 with a scale a token, in place."""

    def product(self, product: Product, weights: BlockWeights) -> None:
        for piece in product.pieces():
            step = np.abs(piece).max(axis=1, keepdims=True) / 127
            piece[:] = np.rint(piece / np.where(step > 0, step, 1)) * step


def planted(folder: Path, size: float, everywhere: bool = True) -> ChangedModel:
    """Four channels of a norm's output are `size` times as large, and what reads them as much smaller; everywhere:
    of the values and of the feed-forward's inside too."""
    model = ChangedModel(folder)
    model.calm()
    rng = np.random.default_rng(5)
    for i, block in enumerate(model.blocks):
        for fold in folds(model.config, i, block):
            if not (everywhere or fold.is_gain):
                continue
            scale = np.ones(len((block.vectors if fold.is_gain else block.matrices)[fold.producer]), np.float32)
            scale[rng.choice(len(scale), 4, replace=False)] /= size
            fold.apply(block, scale, TOKEN)
    return model


def rounded(model: ChangedModel, numbers: Integers, method: Method, inputs: bool) -> np.ndarray:
    """Logits with quantized weights of the blocks, and inputs in int8 where asked for."""
    for block in model.blocks:
        for name, weight in block.matrices.items():
            block.matrices[name] = numbers.values(numbers.quantize(weight, EncodeOptions(method)))
    forward = model.forward()
    forward.embed(table=model.outer.matrices["token_embd.weight"])
    for i, block in enumerate(model.blocks):
        forward.run(i, block, TokenInt8() if inputs else None)
    return model.head(forward)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / "llama3"
    write_model(path, "llama3")
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With 1,024 channels inside of the feed-forward."""
    path, kept = tmp_path_factory.mktemp("wide") / "llama2", MODELS["llama2"]
    MODELS["llama2"] = (*kept[:2], {**kept[2], "intermediate_size": 1024})
    write_model(path, "llama2")
    MODELS["llama2"] = kept
    return path


@pytest.mark.parametrize(
    ("transform", "numbers", "size", "inputs"),
    [
        (SmoothQuant(), INT8, 300.0, True),
        (SmoothQuant(0.5), INT8, 300.0, True),
        (Awq(Method.ROUND), INT4, 30.0, False),
        (Awq(Method.ROUND), INT4, 1 / 30, False),
        (Rotation(), INT4, 1 / 30, False),
    ],
)
def test_repaired(transform: BlockTransform, numbers: Integers, size: float, inputs: bool, folder: Path) -> None:
    everywhere = not isinstance(transform, Rotation)  # nothing rotates between up and down
    model = planted(folder, 1.0)
    want = model.logits()
    assert apart(planted(folder, size, everywhere).logits(), want) < 1e-5
    fine = apart(rounded(model, numbers, Method.ROUND, inputs), want)
    broken = apart(rounded(planted(folder, size, everywhere), numbers, Method.ROUND, inputs), want)
    model = planted(folder, size, everywhere)
    model.transform(transform, numbers)
    repaired = apart(rounded(model, numbers, Method.ROUND, inputs), want)
    print(f"{transform}: {fine:.4f} without outliers, {broken:.4f} with, {repaired:.4f} repaired")
    assert broken > 3 * fine
    assert repaired < broken / 2
    assert repaired < 1.6 * fine


def test_rotation_online_repairs_what_comes_into_the_down_projection(wide: Path) -> None:
    """Eight of its 1,024 channels are 100 times as large, which W8A8 fails on, and offline rotation does not reach."""

    def made() -> ChangedModel:
        model = ChangedModel(wide)
        model.calm()
        rng = np.random.default_rng(5)
        for i, block in enumerate(model.blocks):
            fold = folds(model.config, i, block)[-1]
            assert "ffn_down" in fold.consumers[0]
            scale = np.ones(1024, np.float32)
            scale[rng.choice(1024, 8, replace=False)] /= 100
            fold.apply(block, scale, TOKEN)
        return model

    plain = ChangedModel(wide)
    plain.calm()
    want = plain.logits()
    assert apart(made().logits(), want) < 1e-5
    fine = apart(rounded(plain, INT8, Method.ROUND, inputs=True), want)
    broken = apart(rounded(made(), INT8, Method.ROUND, inputs=True), want)
    found = {}
    for transform in (Rotation(), Rotation(online=True)):
        model = made()
        model.transform(transform, INT8)
        assert apart(model.logits(), want) < 1e-5
        found[transform.online] = apart(rounded(model, INT8, Method.ROUND, inputs=True), want)
    print(f"{fine:.4f} without outliers, {broken:.4f} with, {found[False]:.4f} offline, {found[True]:.4f} online")
    assert broken > 10 * fine
    assert found[False] > broken / 2
    assert found[True] < broken / 4


@pytest.mark.parametrize(
    ("make", "numbers", "inputs"),
    [(Awq, INT4, False), (SmoothQuant, INT8, True)],
)
def test_never_much_worse_where_nothing_is_planted(
    make: Callable[[], BlockTransform], numbers: Integers, inputs: bool, folder: Path
) -> None:
    want = planted(folder, 1.0).logits()
    plain = apart(rounded(planted(folder, 1.0), numbers, Method.SEARCH, inputs), want)
    model = planted(folder, 1.0)
    model.transform(make(), numbers)
    assert apart(rounded(model, numbers, Method.SEARCH, inputs), want) < 1.1 * plain


def test_smoothquant_is_the_papers_formula() -> None:
    from core.methods.smoothquant import smoothing

    x, w = np.array([4, 1, 0, 9], np.float32), np.array([1, 4, 2, 0], np.float32)
    np.testing.assert_allclose(smoothing(x, w, 0.5), [2, 0.5, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(smoothing(x, w, 1.0), [4, 1, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(smoothing(x, w, 0.0), [1, 0.25, 1, 1], rtol=1e-6)


def test_weights_that_stay_decide_nothing(folder: Path) -> None:
    """Without numbers nothing is scaled, and the statistics come back as they were."""
    model = planted(folder, 30.0)
    found = model.statistics()[0]
    for transform in (Awq(), SmoothQuant()):
        block = model.blocks[0].copy()
        after = transform.block(model.config, 0, block, found, {}, TOKEN)
        assert all(block.matrices[n] is model.blocks[0].matrices[n] for n in block.matrices)
        assert all(after[n] is found[n] for n in found)


def test_the_statistics_of_a_changed_block_are_told(folder: Path) -> None:
    model = planted(folder, 30.0)
    found, block = model.statistics()[0], model.blocks[0]
    told = Awq().block(model.config, 0, block, found, dict.fromkeys(block.matrices, INT4), TOKEN)
    again = model.statistics()[0]
    assert any(told[n] is not found[n] for n in found)
    for name, have in told.items():
        np.testing.assert_allclose(have.max_abs, again[name].max_abs, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(have.mean_abs, again[name].mean_abs, rtol=1e-4, atol=1e-6)
        scale = np.abs(again[name].sample).max()
        np.testing.assert_allclose(have.sample, again[name].sample, atol=1e-4 * scale)


@pytest.mark.parametrize("transform", [Awq(), SmoothQuant(), SmoothQuant(0.5), Rotation()])
def test_costs_grow_with_the_model(transform: BlockTransform, folder: Path) -> None:
    from dataclasses import replace

    small = ChangedModel(folder).config
    large = replace(small, layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)
    assert 0 < transform.seconds_for(small, 1000) < 1
    assert 10 < transform.seconds_for(large, 32768) < 3600
    assert transform.seconds_for(replace(large, layers=64), 1) > 1.5 * transform.seconds_for(large, 1)
