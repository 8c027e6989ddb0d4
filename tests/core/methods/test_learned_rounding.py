"""Learned rounding: gradients are those of the block, the loss never rises, and what comes out can be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_models import MODELS, prompt, write_model

from core.calibration import differentiable
from core.calibration.forward import BlockForward
from core.checkpoint import open_checkpoint
from core.contract import ElementType
from core.errors import Cancelled
from core.formats.base import EncodeOptions, Method
from core.formats.numbers import Codes, Integers, Numbers
from core.methods.block_method import BlockChoice, BlockProblem
from core.methods.learned import LearnedRounding, LearnedSettings
from core.methods.learning import LearnedMatrix
from core.methods.transform import BlockWeights
from core.progress import CancelToken
from kernels import cpu

LENGTH, SAMPLES = 24, 4
FAST = LearnedSettings(tokens=LENGTH, epochs=4)
THREE = Integers(3, 16)
KINDS = [
    Integers(4, 16),
    Integers(4, 16, symmetric=False),
    Integers(2, 16, symmetric=False, scale=ElementType.F16),
    Integers(3, 0),
    Integers(8, 0, scale=ElementType.F32),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("learned")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


def forward_of(folder: Path) -> BlockForward:
    ids = np.stack([np.roll(prompt(LENGTH), shift) for shift in range(SAMPLES)]).astype(np.int32)
    forward = BlockForward(open_checkpoint(folder), ids, CancelToken(), exact=True)
    torch.set_num_threads(1)  # more would only wait for each other on matrices this small
    forward.embed()
    return forward


def problem_of(forward: BlockForward, numbers: Numbers = THREE, layer: int = 0) -> BlockProblem:
    weights = forward.load(layer)
    chosen = {n: numbers for n, w in weights.matrices.items() if not numbers.misfit(w.shape[1]) and "inp" not in n}
    return BlockProblem(layer, forward.steps(layer), weights, chosen, {}, forward.hidden, forward.hidden)


def tensors(weights: BlockWeights) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    matrices, vectors = ({n: torch.from_numpy(v) for n, v in m.items()} for m in (weights.matrices, weights.vectors))
    return matrices, vectors


@pytest.mark.parametrize("pays", [True, False])
def test_products_of_either_type_have_the_gradients_of_float64(pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 to its rounding, in bfloat16 to its own; weights in bfloat16 have gradients in bfloat16."""
    monkeypatch.setattr(cpu, "bfloat16_pays", pays)
    made = torch.Generator().manual_seed(1)
    x, grad = torch.randn((30, 64), generator=made), torch.randn((30, 20), generator=made)
    weight = torch.randn((20, 64), generator=made).bfloat16().requires_grad_()
    given = x.clone().requires_grad_()
    y = differentiable._Product.apply(given, weight, differentiable.no_check)
    y.backward(grad)
    wide = weight.detach().double()
    assert weight.grad is not None
    assert (y.dtype, given.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32, torch.bfloat16)
    for found, exact in (
        (y, x.double() @ wide.T),
        (given.grad, grad.double() @ wide),
        (weight.grad, grad.double().T @ x.double()),
    ):
        error = float((found.detach().double() - exact).norm() / exact.norm())
        narrow = pays or found is weight.grad
        assert error < (4e-3 if narrow else 1e-6)
        assert error > (1e-4 if narrow else 0)


def test_a_large_block_gives_the_same(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its matrices are converted for each product, and a small one's once."""
    problem = problem_of(forward_of(tiny("llama2")))
    small = LearnedRounding(FAST).solve(problem, CancelToken())
    monkeypatch.setattr(differentiable, "_SMALL", 0)
    large = LearnedRounding(FAST).solve(problem, CancelToken())
    assert all(np.array_equal(small.codes[n].codes, large.codes[n].codes) for n in problem.numbers)
    assert torch.equal(small.hidden, large.hidden)


def check(choice: BlockChoice, numbers: Mapping[str, Numbers]) -> None:
    assert set(choice.codes) == set(numbers)
    assert choice.after <= choice.before
    for name, codes in choice.codes.items():
        kind = numbers[name]
        assert isinstance(kind, Integers)
        assert codes.codes.dtype == np.uint8
        assert codes.codes.max() < 1 << kind.bits
        assert (codes.zeros is None) == kind.symmetric
        narrow = {ElementType.BF16: torch.bfloat16, ElementType.F16: torch.float16, ElementType.F32: torch.float32}
        scales = torch.from_numpy(codes.scales)
        assert torch.equal(scales.to(narrow[kind.scale]).float(), scales)
        assert np.isfinite(kind.values(codes)).all()


@pytest.mark.parametrize("name", MODELS)
def test_the_differentiable_block_is_the_block(name: str, tiny: Callable[[str], Path]) -> None:
    forward = forward_of(tiny(name))
    for layer in range(forward.layers):
        weights = forward.load(layer)
        y = forward.steps(layer)(forward.hidden.clone(), *tensors(weights))
        forward.run(layer, weights)
        torch.testing.assert_close(y, forward.hidden, rtol=0, atol=1e-4 * float(y.std()))


@pytest.mark.parametrize("family", ["llama-biases", "qwen3moe", "gemma3"])
def test_gradients_are_those_of_finite_differences(family: str, tiny: Callable[[str], Path]) -> None:
    """Of every weight, along a direction that is half random."""
    forward = forward_of(tiny(family))
    run, (matrices, vectors) = forward.steps(0), tensors(forward.load(0))
    rng = np.random.default_rng(0)
    wanted = torch.from_numpy(rng.normal(size=forward.hidden.shape).astype(np.float32))
    for known in (matrices, vectors):
        for of in known.values():
            of.requires_grad_()
    (run(forward.hidden, matrices, vectors) * wanted).sum().backward()
    for known in (matrices, vectors):
        for name, of in known.items():
            if of.grad is None or ("moe" in family and "attn" in name) or "inp" in name or "ffn_norm" in name:
                continue  # no token met it, or it moves a token to another expert, which is no smooth function
            step = torch.from_numpy(rng.normal(size=of.shape).astype(np.float32))
            step *= 1e-3 * float(of.detach().norm() + 1) / float(step.norm())
            step += 1e-3 * float(of.detach().norm() + 1) * of.grad / (of.grad.norm() + 1e-20)

            def along(shift: torch.Tensor, name: str = name, of: torch.Tensor = of) -> float:
                moved = [k | {name: of + shift} if name in k else k for k in (matrices, vectors)]
                with torch.no_grad():
                    return float((run(forward.hidden, *moved) * wanted).sum(dtype=torch.float64))

            assert along(step) - along(-step) == pytest.approx(2 * float((of.grad * step).sum()), rel=0.02), name


@pytest.mark.parametrize("numbers", KINDS, ids=lambda k: k.label)
def test_a_block_is_learned_in_every_kind_of_integers(numbers: Integers, tiny: Callable[[str], Path]) -> None:
    problem = problem_of(forward_of(tiny("llama2")), numbers)
    choice = LearnedRounding(FAST).solve(problem, CancelToken())
    check(choice, problem.numbers)
    if numbers.bits < 8:
        assert choice.after < 0.9 * choice.before


@pytest.mark.parametrize("name", ["qwen3moe", "gemma3", "phi3"])
def test_every_family_is_learned(name: str, tiny: Callable[[str], Path]) -> None:
    problem = problem_of(forward_of(tiny(name)))
    choice = LearnedRounding(FAST).solve(problem, CancelToken())
    check(choice, problem.numbers)
    assert choice.after < choice.before


def test_the_same_again_is_the_same(tiny: Callable[[str], Path]) -> None:
    first, second = (
        LearnedRounding(FAST).solve(problem_of(forward_of(tiny("llama2"))), CancelToken()) for _ in range(2)
    )
    for name, codes in first.codes.items():
        np.testing.assert_array_equal(codes.codes, second.codes[name].codes)
        np.testing.assert_array_equal(codes.scales, second.codes[name].scales)
    for name, values in first.vectors.items():
        np.testing.assert_array_equal(values, second.vectors[name])


def test_rates_that_ruin_a_block_leave_it_as_it_began(tiny: Callable[[str], Path]) -> None:
    problem = problem_of(forward_of(tiny("llama2")))
    wild = LearnedRounding(replace(FAST, code_rate=5.0, scale_rate=3.0, gain_rate=3.0))
    choice = wild.solve(problem, CancelToken())
    assert choice.after == choice.before
    assert choice.vectors == {}
    for name, codes in choice.codes.items():
        options = EncodeOptions(method=Method.SEARCH)
        began = problem.numbers[name].quantize(problem.weights.matrices[name], options)
        np.testing.assert_array_equal(codes.codes, began.codes)


def test_nothing_comes_in_one_sample_and_dead_weights(tiny: Callable[[str], Path]) -> None:
    forward = forward_of(tiny("llama2"))
    problem = problem_of(forward)
    silent = replace(problem, hidden=torch.zeros_like(problem.hidden), full=torch.zeros_like(problem.full))
    check(LearnedRounding(FAST).solve(silent, CancelToken()), problem.numbers)
    one = replace(problem, hidden=problem.hidden[:LENGTH], full=problem.full[:LENGTH])
    check(LearnedRounding(replace(FAST, tokens=4096)).solve(one, CancelToken()), problem.numbers)
    dead = problem.weights.copy()
    dead.matrices = {n: np.zeros_like(m) if "up" in n else m for n, m in dead.matrices.items()}
    check(LearnedRounding(FAST).solve(replace(problem, weights=dead), CancelToken()), problem.numbers)
    with pytest.raises(ValueError, match="samples"):
        LearnedRounding(FAST).solve(replace(problem, full=problem.full[1:]), CancelToken())


def test_nothing_that_comes_in_is_written_into(tiny: Callable[[str], Path]) -> None:
    problem = problem_of(forward_of(tiny("llama2")))
    before = {n: m.copy() for n, m in (problem.weights.matrices | problem.weights.vectors).items()}
    hidden = problem.hidden.clone()
    LearnedRounding(FAST).solve(problem, CancelToken())
    assert torch.equal(problem.hidden, hidden)
    for name, values in (problem.weights.matrices | problem.weights.vectors).items():
        np.testing.assert_array_equal(values, before[name])


def test_a_cancelled_block_ends(tiny: Callable[[str], Path]) -> None:
    class Late(CancelToken):
        """Cancelled at its hundredth look, in the midst of an update."""

        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks == 100:
                self.cancel()
            super().check()

    token = Late()
    with pytest.raises(Cancelled):
        LearnedRounding(FAST).solve(problem_of(forward_of(tiny("llama2"))), token)
    assert token.looks == 100


def test_a_latent_crosses_when_it_is_pushed() -> None:
    weight = np.array([[0.0, 1.4, -1.4, 7.0]], np.float32)
    codes = Codes(np.array([[8, 9, 7, 15]], np.uint8), np.ones((1, 1), np.float32))
    matrix = LearnedMatrix(weight, codes, Integers(4, 4), True)
    for _ in range(3):
        matrix.weight.grad = torch.tensor([[0.0, -1.0, 1.0, -1.0]], dtype=torch.bfloat16)
        matrix.update(0.05, 0.0)
    np.testing.assert_array_equal(matrix.codes().codes, [[8, 10, 6, 15]])
    assert "no rounding" in LearnedRounding().why_not(_Other())
    assert LearnedRounding().why_not(Integers(4, 64)) == ""


class _Other(Numbers):
    label = "codebook"

    def contract(self, name: str, packing: str):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        raise NotImplementedError

    def values(self, codes: Codes) -> np.ndarray:
        raise NotImplementedError
