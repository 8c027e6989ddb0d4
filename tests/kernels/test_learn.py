"""Steps of learned rounding: compiled ones against the reference bit for bit, and the reference against float64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, learn, ops

SHAPES = [
    (1, 1, 1),
    (3, 50, 1),
    (5, 48, 3),
    (17, 128, 2),
    (33, 576, 9),
    (40, 7, 7),
    (2, 34, 2),
]  # rows, columns, groups
TOPS = (1, 15, 255)


def case(rows: int, columns: int, groups: int, top: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows * columns + top)
    first = rng.integers(0, top + 1, (rows, columns)).astype(np.uint8)
    latent = rng.uniform(-1.5, 1.5, (rows, columns)).astype(np.float16)
    latent = np.clip(latent, -0.49 - first.astype(np.float32), top + 0.49 - first.astype(np.float32)).astype(np.float16)
    grad = rng.standard_normal((rows, columns)).astype(np.float32)
    grad[rng.random(grad.shape) < 0.1] = 0
    return {
        "grad": ops.from_float32(grad, "BF16").view(np.uint16),
        "first": first,
        "latent": latent,
        "zeros": rng.integers(0, top + 1, (rows, groups)).astype(np.float32),
        "scales": (rng.standard_normal((rows, groups)) / 8).astype(np.float32),
    }


def both(given: dict[str, np.ndarray], top: int, rate: float, learns: bool, threads: int = 1) -> tuple[bytes, ...]:
    latent = given["latent"].copy() if learns else None
    slopes = learn.step(given["grad"], given["first"], latent, given["zeros"], rate, top, threads)
    out = np.zeros(given["first"].shape, np.uint16)
    learn.weight(given["first"], latent, given["zeros"], given["scales"], out, top, threads)
    return tuple(a.tobytes() for a in (slopes, given["first"] if latent is None else latent, out))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize("learns", [True, False])
def test_all_backends_give_the_same_bits(shape: tuple[int, int, int], top: int, learns: bool) -> None:
    given = case(*shape, top)
    for rate in (0.0, 0.0173):
        found = {}
        for backend in dispatch.backends("learn_step"):
            with dispatch.only(backend):
                found[backend] = both(given, top, rate, learns)
                assert both(given, top, rate, learns, threads=3) == found[backend]
        assert len(found) > 1
        assert len(set(found.values())) == 1


def test_what_a_step_is() -> None:
    """In float64: slopes, how a latent value moves and where it ends, and the weights that codes stand for."""
    top, rate = 15, 0.25
    given = case(33, 576, 9, top)
    latent = given["latent"].copy()
    slopes = learn.step(given["grad"], given["first"], latent, given["zeros"], rate, top)
    each = {name: np.repeat(given[name].astype(np.float64), 64, axis=1) for name in ("zeros", "scales")}
    grad = ops.to_float32(given["grad"].view(np.uint8), "BF16").astype(np.float64)
    before = given["first"] + given["latent"].astype(np.float64)
    exact = (grad * (np.clip(np.rint(before), 0, top) - each["zeros"])).reshape(33, 9, 64).sum(axis=2)
    np.testing.assert_allclose(slopes, exact, rtol=1e-5, atol=1e-4)
    wanted = np.clip(before - rate * np.sign(grad), -0.49, top + 0.49)
    np.testing.assert_allclose(given["first"] + latent.astype(np.float64), wanted, atol=2.0**-7)
    out = np.zeros(given["first"].shape, np.uint16)
    learn.weight(given["first"], latent, given["zeros"], given["scales"], out, top)
    codes = np.clip(np.rint(given["first"] + latent.astype(np.float32)), 0, top)
    values = ops.to_float32(out.view(np.uint8), "BF16")
    np.testing.assert_allclose(values, (codes - each["zeros"]) * each["scales"], rtol=2.0**-8)


def test_a_gradient_that_is_no_number_moves_nothing() -> None:
    given = case(2, 32, 1, 15)
    given["grad"][:] = 0x7FC0
    for backend in dispatch.backends("learn_step"):
        latent = given["latent"].copy()
        with dispatch.only(backend):
            learn.step(given["grad"], given["first"], latent, given["zeros"], 0.1, 15)
        np.testing.assert_array_equal(latent, given["latent"])


def test_wrong_shapes_are_refused() -> None:
    given = case(4, 32, 2, 15)
    good = (given["grad"], given["first"], given["latent"], given["zeros"])
    out = np.zeros((4, 32), np.uint16)
    for wrong, match in (
        ((good[0][:3], *good[1:]), "gradient"),
        ((*good[:2], good[2][:, :5], good[3]), "latent"),
        ((*good[:2], good[2].astype(np.float32), good[3]), "float16"),
        ((*good[:3], np.zeros((4, 3), np.float32)), "groups"),
        ((*good[:3], np.zeros((3, 2), np.float32)), "groups"),
        (tuple(a[:, :0] for a in good), "groups"),
        ((*(a[:, :0] for a in good[:3]), good[3]), "groups"),
    ):
        with pytest.raises(ValueError, match=match):
            learn.step(*wrong, 0.1, 15)
    with pytest.raises(ValueError, match="scales"):
        learn.weight(*good[1:], np.zeros((4, 1), np.float32), out, 15)
    with pytest.raises(ValueError, match="uint16"):
        learn.weight(*good[1:], given["scales"], out[:2], 15)
