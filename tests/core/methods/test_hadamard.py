"""Hadamard matrices are what they are called, and rotations are orthogonal at any width."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import Cancelled
from core.methods.hadamard import hadamard, hadamard_order, random_hadamard
from core.progress import CancelToken

# Below 300, those of no order of Paley's with a prime or its square, times powers of two.
UNKNOWN = {92, 116, 156, 172, 184, 188, 232, 236, 260, 268, 292}


def test_every_known_order() -> None:
    for order in range(4, 300, 4):
        assert (hadamard_order(order) == 0) == (order in UNKNOWN), order
        if hadamard_order(order) in (1, order):
            h = hadamard(order).astype(np.float64)
            np.testing.assert_array_equal(np.abs(h), 1)
            np.testing.assert_array_equal(h @ h.T, order * np.eye(order))
    assert [hadamard_order(n) for n in (4096, 576, 1152, 3584, 5120, 96, 7, 6)] == [1, 36, 36, 28, 20, 12, 0, 0]
    with pytest.raises(ValueError, match="92"):
        hadamard(92)


@pytest.mark.parametrize("width", [1, 2, 7, 12, 64, 92, 144, 576, 896, 1536])
def test_rotations_are_orthogonal(width: int) -> None:
    turn = random_hadamard(width, 3)
    r = turn.matrix().astype(np.float64)
    assert np.abs(r @ r.T - np.eye(width)).max() < 1e-5
    kronecker = np.ones((1, 1))
    for factor in turn.factors:
        kronecker = np.kron(kronecker, factor)
    np.testing.assert_allclose(r, turn.signs[:, None] * kronecker, atol=1e-6)
    if hadamard_order(width):
        np.testing.assert_allclose(np.abs(r), width**-0.5, rtol=1e-5)
    x = np.random.default_rng(0).standard_normal((width, 3, 2)).astype(np.float32)
    np.testing.assert_allclose(turn.left(x), np.einsum("dc,dij->cij", r, x), atol=1e-5)
    np.testing.assert_allclose(turn.right(np.moveaxis(x, 0, 2)), np.einsum("dij,dc->ijc", x, r), atol=1e-5)


def test_the_seed_decides() -> None:
    assert np.array_equal(random_hadamard(92, 1).matrix(), random_hadamard(92, 1).matrix())
    assert not np.array_equal(random_hadamard(64, 1).matrix(), random_hadamard(64, 2).matrix())
    with pytest.raises(ValueError, match="width"):
        random_hadamard(0, 1)


def test_a_large_matrix_can_be_stopped() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        random_hadamard(64, 1).right(np.zeros((10, 64), np.float32), token)
    with pytest.raises(Cancelled):
        random_hadamard(64, 1).left(np.zeros((64, 10), np.float32), token)
