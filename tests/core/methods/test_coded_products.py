"""Chosen codes as matrices of the engine: taken where inputs in int8 hardly differ, then multiplied with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_models import MODELS, prompt, write_model

from core.calibration.forward import BlockForward, Product
from core.checkpoint import open_checkpoint
from core.contract import ElementType
from core.errors import Cancelled
from core.formats.affine import Affine, RealZeros
from core.formats.base import EncodeOptions
from core.formats.codebook import Codebook
from core.formats.float4 import MXFP4
from core.formats.numbers import Codes, Integers, Numbers
from core.methods import choosing
from core.methods.coded import Sample, coded_matrix
from core.methods.gptq import Gptq
from core.methods.steps import Steps
from core.methods.transform import BlockWeights
from core.progress import CancelToken
from kernels import matrix
from kernels.matrix import Matrix

WIDE = [
    Integers(4, 64),
    Integers(3, 32, False, ElementType.F16),
    Integers(2, 32, False),
    Affine(4, 64),
    RealZeros(4, 32),
]
REFUSED: list[Numbers] = [
    Integers(8, 0),  # its own error is as small as that of int8 inputs
    Integers(4, 24),  # no groups of the engine
    Codebook("NF4", 64),  # its levels are no integers
    MXFP4,
]


def chosen(numbers: Numbers, columns: int = 192) -> tuple[Codes, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, weight, their values and tokens."""
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((48, columns)).astype(np.float32)
    codes = numbers.quantize(weight, EncodeOptions())
    return codes, weight, numbers.values(codes), rng.standard_normal((64, columns)).astype(np.float32)


@pytest.mark.parametrize("numbers", WIDE, ids=lambda n: n.label)
def test_products_are_those_of_the_values(numbers: Numbers) -> None:
    codes, weight, values, x = chosen(numbers)
    found = coded_matrix(numbers, codes, weight, values, x, CancelToken())
    assert found is not None
    np.testing.assert_allclose(matrix.read_rows(found, np.arange(48)), values, rtol=1e-6, atol=1e-6)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    noise = np.linalg.norm(matrix.product(x, found) - exact) / np.linalg.norm(exact)
    assert 1e-4 < noise < 0.01


@pytest.mark.parametrize("numbers", REFUSED, ids=lambda n: n.label)
def test_what_stays_in_bfloat16(numbers: Numbers) -> None:
    codes, weight, values, x = chosen(numbers)
    assert coded_matrix(numbers, codes, weight, values, x, CancelToken()) is None


def test_an_outlier_that_hides_the_values_beside_it() -> None:
    """A column of 3,000 leaves its 31 neighbours no digit; where it meets no weight, nothing makes up for that."""
    numbers = Integers(4, 64)
    codes, weight, values, x = chosen(numbers)
    assert coded_matrix(numbers, codes, weight, values, x, CancelToken()) is not None
    x[:, ::32] = 3000
    weight[:, ::32] = 0
    codes = numbers.quantize(weight, EncodeOptions())
    assert coded_matrix(numbers, codes, weight, numbers.values(codes), x, CancelToken()) is None


def test_no_tokens_and_a_cancelled_run() -> None:
    codes, weight, values, x = chosen(WIDE[0])
    assert coded_matrix(WIDE[0], codes, weight, values, None, CancelToken()) is None
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        coded_matrix(WIDE[0], codes, weight, values, x, token)


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (64,), (10, 100, 3), (300, 700), (5000,)], ids=str)
def test_a_sample_is_evenly_of_all_pieces(sizes: tuple[int, ...]) -> None:
    rows = sum(sizes)
    x = np.arange(rows, dtype=np.float32).reshape(-1, 1)
    pieces = np.split(x, np.cumsum(sizes)[:-1]) if sizes else []
    sample = Sample(rows)
    passed = list(sample.of(pieces))
    assert [len(p) for p in passed] == list(sizes)
    found = sample.rows()
    if not rows:
        assert found is None
        return
    assert found is not None
    step = max(1, -(-rows // 64))
    np.testing.assert_array_equal(found[:, 0], np.arange(0, rows, step))


def test_a_block_multiplies_with_what_was_packed(tmp_path: Path) -> None:
    """A matrix beside the values counts while they are the same, and goes with them."""
    name = next(n for n in MODELS if n.startswith("llama"))
    write_model(tmp_path / name, name)
    doubled = {}

    class Packs:
        def product(self, product: Product, weights: BlockWeights) -> None:
            for n in product.names:
                values = weights.matrices[n]
                weights.packed[n] = (values, doubled[n])
                if "ffn_down" in n:  # replaced afterwards: what was packed is old
                    weights.matrices[n] = np.zeros_like(values)

    with open_checkpoint(tmp_path / name) as checkpoint:
        forward = BlockForward(checkpoint, prompt(16)[None].astype(np.int32), CancelToken())
        forward.embed()
        weights = forward.load(0)
        forward.run(0, weights, advance=False)
        assert not weights.packed
        for n, values in weights.matrices.items():
            raw = (2 * values).astype(np.float32).view(np.uint8)
            doubled[n] = matrix.from_elements("F32", *values.shape, lambda a, b, raw=raw: raw[a:b])
        expected = BlockForward(checkpoint, forward.ids, CancelToken(), exact=True)
        expected.embed()
        twice = {n: np.zeros_like(v) if "ffn_down" in n else 2 * v for n, v in weights.matrices.items()}
        expected.run(0, replace(weights, matrices=twice, packed={}))
        forward.run(0, weights, Packs())
        assert not weights.packed
        np.testing.assert_allclose(forward.hidden, expected.hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_a_calibration_goes_on_with_coded_products(
    exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every solved weight is tried, on what comes into it; none where products are exact."""
    name = next(n for n in MODELS if n.startswith("llama"))
    write_model(tmp_path / name, name)
    tried: list[np.ndarray] = []

    def noted(*given: Any) -> Matrix | None:
        tried.append(given[4])
        return coded_matrix(*given)

    monkeypatch.setattr(choosing, "coded_matrix", noted)
    packed: dict[str, str] = {}
    inputs: list[np.ndarray] = []

    class Watched(choosing.Choosing):
        def product(self, product: Product, weights: BlockWeights) -> None:
            inputs.extend(np.concatenate(list(product.pieces())) for name in product.names if name in self.numbers)
            super().product(product, weights)
            packed.update({n: m.format for n, (values, m) in weights.packed.items() if values is weights.matrices[n]})

    with open_checkpoint(tmp_path / name) as checkpoint:
        forward = BlockForward(checkpoint, prompt(40)[None].astype(np.int32), CancelToken(), exact=exact)
        forward.embed()
        weights = forward.load(0)
        numbers = {n: Integers(4, 16) for n in weights.matrices}
        watched = Watched({}, numbers, Steps(solver=Gptq()), forward, CancelToken())
        forward.run(0, weights, watched)
    assert set(watched.solved) == set(numbers)
    if exact:
        assert not tried
        assert not packed
        return
    assert set(packed) == set(numbers)
    assert set(packed.values()) == {"int4 g16"}
    for x, given in zip(tried, inputs, strict=True):
        np.testing.assert_array_equal(x, given)
