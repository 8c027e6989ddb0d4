"""Each step's definition against torch in float64, where a whole model does not show it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from kernels.matrix import Activations, Matrix, from_elements, from_groups
from kernels.program import (
    ActMul,
    Add,
    Attention,
    CacheLayout,
    Embed,
    Experts,
    Linear,
    Norm,
    Program,
    Rope,
    SoftCap,
    Split,
    Step,
)
from kernels.reference.program import ReferenceProgram

RNG = np.random.default_rng(11)
VOCAB, WIDTH = 10, 16


def matrix(values: np.ndarray) -> Matrix:
    values = np.ascontiguousarray(values, np.float32)
    return from_elements("F32", *values.shape, lambda a, b: values[a:b].view(np.uint8))


EMBEDDING = RNG.normal(0, 2, (VOCAB, WIDTH)).astype(np.float32)
IDS = np.array([3, 1, 4, 1, 5], np.int32)
X = torch.from_numpy(EMBEDDING[IDS]).double()


def run(steps: list[Step], widths: list[int], out: int, layers: tuple[tuple[int, int], ...] = (), **more) -> np.ndarray:
    """Buffer `out` after the steps; buffer 0 holds the embedding of IDS, all at the positions 0 … of one sequence."""
    program = Program(
        (Embed(matrix(EMBEDDING), 0), *steps), (WIDTH, *widths), out, CacheLayout(layers, 8, dtype="F32"), **more
    )
    places = np.arange(len(IDS))
    return ReferenceProgram(program).run(IDS, np.zeros(len(IDS)), places, places)


def close(got: np.ndarray, want: torch.Tensor) -> None:
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_act_mul(kind: str) -> None:
    torch_kind = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }[kind]
    got = run([Split(0, (1, 2), (5, 11)), ActMul(1, 1, 1, kind)], [5, 11], 1)
    close(got, torch_kind(X[:, :5]) * X[:, :5])


def test_split_add_soft_cap() -> None:
    got = run([Split(0, (1, 2), (8, 8)), Add(2, 1), SoftCap(1, 3.0)], [8, 8], 1)
    close(got, 3 * torch.tanh((X[:, :8] + X[:, 8:]) / 3))


@pytest.mark.parametrize("heads", [1, 4])
def test_norm(heads: int) -> None:
    gain = RNG.normal(1, 0.2, WIDTH // heads).astype(np.float32)
    want = functional.rms_norm(X.reshape(5, heads, -1), (WIDTH // heads,), torch.from_numpy(gain).double(), 1e-5)
    close(run([Norm(0, 0, gain, 1e-5, heads)], [], 0), want.reshape(5, -1))


def test_linear_adds_biases_and_accumulates() -> None:
    weight, bias = RNG.normal(0, 1, (WIDTH, WIDTH)), RNG.normal(0, 1, WIDTH).astype(np.float32)
    double = torch.from_numpy(weight.astype(np.float32)).double()
    step = Linear(0, (matrix(weight),), (1,), (bias,))
    close(run([step], [WIDTH], 1), functional.linear(X, double, torch.from_numpy(bias).double()))
    again = Linear(0, (matrix(weight),), (1,), accumulate=True)
    close(run([step, again], [WIDTH], 1), 2 * functional.linear(X, double) + torch.from_numpy(bias))


def test_only_wanted_rows_have_logits() -> None:
    weight = RNG.normal(0, 1, (7, WIDTH)).astype(np.float32)
    steps = (Embed(matrix(EMBEDDING), 0), Linear(0, (matrix(weight),), (1,), logits=True))
    program = ReferenceProgram(Program(steps, (WIDTH, 7), 1, CacheLayout((), 8)))
    got = program.run(IDS, np.zeros(5), np.arange(5), [4, 1])
    close(got, functional.linear(X[[4, 1]], torch.from_numpy(weight).double()))
    assert program.run(IDS, np.zeros(5), np.arange(5), []).shape == (0, 7)


@pytest.mark.parametrize("pairs", [False, True])
def test_rope_turns_the_first_values(pairs: bool) -> None:
    """As a product of complex numbers: the first six of each head's eight values."""
    frequencies = np.array([1.0, 0.3, 0.01], np.float32)
    got = run([Rope(0, 2, frequencies, 1.5, pairs)], [], 0)
    heads = X.reshape(5, 2, 8)
    parts = (heads[..., 0:6:2], heads[..., 1:6:2]) if pairs else (heads[..., :3], heads[..., 3:6])
    angle = torch.arange(5)[:, None, None] * torch.from_numpy(frequencies).double()
    turned = 1.5 * torch.complex(*parts) * torch.polar(torch.ones_like(angle), angle)
    want = heads.clone()
    if pairs:
        want[..., 0:6:2], want[..., 1:6:2] = turned.real, turned.imag
    else:
        want[..., :3], want[..., 3:6] = turned.real, turned.imag
    close(got, want.reshape(5, -1))


@pytest.mark.parametrize("window", [0, 1, 3])
def test_attention_over_the_own_past(window: int) -> None:
    """Four query heads share two key heads."""
    parts = (RNG.normal(0, 1, (n, WIDTH)).astype(np.float32) for n in (16, 8, 8))
    q, k, v = matrices = [matrix(p) for p in parts]
    steps = [Linear(0, tuple(matrices), (1, 2, 3)), Attention(1, 2, 3, 4, 0, 4, 2, 4, 0.37, window)]
    got = run(steps, [16, 8, 8, 16], 4, ((2, 4),))
    q, k, v = (functional.linear(X, torch.from_numpy(m.stored.take(np.arange(m.rows))).double()) for m in matrices)
    q, k, v = (t.reshape(5, -1, 4).transpose(0, 1) for t in (q, k, v))
    distance = torch.arange(5)[:, None] - torch.arange(5)
    mask = (distance >= 0) & ((distance < window) if window else True)
    want = functional.scaled_dot_product_attention(q, k, v, mask, scale=0.37, enable_gqa=True)
    close(got, want.transpose(0, 1).reshape(5, -1))


@pytest.mark.parametrize("normalized", [True, False])
def test_experts(normalized: bool) -> None:
    gates, ups, downs = (RNG.normal(0, 0.5, (3, *s)).astype(np.float32) for s in ((6, 16), (6, 16), (16, 6)))
    router = RNG.normal(0, 1, (3, WIDTH)).astype(np.float32)
    step = Experts(0, 1, 0, *(tuple(map(matrix, m)) for m in (gates, ups, downs)), used=2, normalized=normalized)
    # x is read before out is written, though they are one buffer.
    got = run([Linear(0, (matrix(router),), (1,)), step], [3], 0)
    shares = functional.linear(X, torch.from_numpy(router).double()).softmax(-1)
    best, chosen = shares.topk(2)
    best = best / best.sum(-1, keepdim=True) if normalized else best
    want = X.clone()
    for row in range(5):
        for weight, e in zip(best[row], chosen[row], strict=True):
            gate, up, down = (torch.from_numpy(m[e]).double() for m in (gates, ups, downs))
            want[row] += weight * functional.linear(
                functional.silu(functional.linear(X[row], gate)) * functional.linear(X[row], up), down
            )
    close(got, want)


def test_activations_are_rounded_for_integers_only() -> None:
    codes = RNG.integers(0, 256, (8, WIDTH)).astype(np.uint8)
    scales = np.full((8, 1), 0.5, np.float32)
    integers = from_groups(8, WIDTH, 8, WIDTH, lambda a, b: (codes[a:b], scales[a:b], None), "F32")
    weight = torch.from_numpy((codes.astype(np.float64) - 128) / 2)
    amax = X.abs().amax(1, keepdim=True)
    rounded = (X.numpy() * (127 / amax.numpy())).round() * amax.numpy() / 127
    for activations, left in ((Activations.EXACT, X), (Activations.TOKEN, torch.from_numpy(rounded))):
        got = run([Linear(0, (integers,), (1,))], [8], 1, activations=activations)
        np.testing.assert_allclose(got, functional.linear(left, weight).numpy(), rtol=1e-5, atol=1e-3)


def test_outliers_keep_their_values() -> None:
    """LLM.int8(): columns with a value of 3 or more in size are multiplied as they are, the others in 8 bits."""
    codes = RNG.integers(0, 256, (8, WIDTH)).astype(np.uint8)
    ones = np.ones((8, 1), np.float32)
    integers = from_groups(8, WIDTH, 8, WIDTH, lambda a, b: (codes[a:b], ones[a:b], None), "F32")
    x = X.numpy()
    apart = (np.abs(x) >= 3).any(axis=0)
    assert 0 < apart.sum() < WIDTH
    inner = np.where(apart, 0, x)
    step = np.abs(inner).max(axis=1, keepdims=True) / 127
    left = np.where(apart, x, np.rint(inner / step) * step)
    got = run([Linear(0, (integers,), (1,), outliers=3.0)], [8], 1, activations=Activations.TOKEN)
    np.testing.assert_allclose(got, left @ (codes.astype(np.float64).T - 128), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("dtype", "digits"), [("F32", 24), ("F16", 11), ("BF16", 8)])
def test_the_cache_keeps_its_type(dtype: str, digits: int) -> None:
    """With one position to look at, attention gives back the value as the cache has kept it."""
    layout = CacheLayout(((1, WIDTH),), 4, dtype=dtype)
    steps = (Embed(matrix(EMBEDDING), 0), Attention(0, 0, 0, 1, 0, 1, 1, WIDTH, 1.0))
    got = ReferenceProgram(Program(steps, (WIDTH, WIDTH), 1, layout)).run([2], [0], [0], [0])[0]
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    assert np.array_equal(got, torch.from_numpy(EMBEDDING[2]).to(kind).float().numpy())
    assert layout.nbytes == 2 * WIDTH * 4 * (4 if digits == 24 else 2)
