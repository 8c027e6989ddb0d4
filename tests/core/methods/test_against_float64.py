"""What methods see and choose beside plain float64: experts' own tokens, and a layer of a real model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from decoder_models import prompt, write_model
from real_models import smollm2_folder, smollm2_gguf  # noqa: F401 - fixtures

from core.calibration.forward import BlockForward, Product
from core.calibration.settings import CalibrationText
from core.calibration.text import samples
from core.checkpoint import open_checkpoint
from core.contract import ElementType
from core.formats import EncodeOptions, Method
from core.formats.numbers import Codes, Integers
from core.methods.awq import Awq
from core.methods.folding import Fold, folds
from core.methods.gptq import Gptq
from core.methods.gram import gram, input_statistics
from core.methods.grid import quantized, search_options
from core.methods.problem import Problem
from core.methods.transform import SAMPLE_ROWS, BlockWeights, InputStatistics
from core.progress import CancelToken

TOKEN = CancelToken()
LAYER, DAMPING = 2, 0.01
NUMBERS = Integers(4, 64, False, ElementType.BF16)


@dataclass
class Seen:
    """Of each product its Gram matrix, its inputs, and what transforms are told of them."""

    grams: dict[str, tuple[np.ndarray, int]] = field(default_factory=dict)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    statistics: dict[str, InputStatistics] = field(default_factory=dict)

    def product(self, product: Product, weights: BlockWeights) -> None:
        pieces = list(product.pieces())
        found = gram(iter(pieces), product.columns, TOKEN)
        told = input_statistics(iter(pieces), product.columns, product.rows, SAMPLE_ROWS)
        rows = np.concatenate([np.zeros((0, product.columns), np.float32), *pieces])
        for name in product.names:
            self.grams[name], self.inputs[name], self.statistics[name] = found, rows.copy(), told


def test_experts_see_their_own_tokens(tmp_path: Path) -> None:
    """Transformers' hidden states before each mixture, and the rest in float64."""
    import torch
    import transformers

    write_model(tmp_path / "moe", "qwen3moe")
    ids = prompt(120).astype(np.int32).reshape(2, 60)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moe", dtype=torch.float32).eval()
    before: list[np.ndarray] = []
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(
            lambda _m, a: before.append(a[0].detach().double().numpy().reshape(120, -1))
        )
    with torch.no_grad():
        model(torch.from_numpy(ids.astype(np.int64)))
    with open_checkpoint(tmp_path / "moe") as checkpoint:
        forward = BlockForward(checkpoint, ids, TOKEN, exact=True)
        forward.embed()
        for layer in range(forward.layers):
            weights, seen = forward.load(layer), Seen()
            forward.run(layer, weights.copy(), seen)
            at, x = f"blk.{layer}.", before[layer]
            logits = x @ weights.matrices[f"{at}ffn_gate_inp.weight"].astype(np.float64).T
            chosen = np.argsort(-logits, axis=1, kind="stable")[:, : forward.config.experts_used]
            for expert in range(forward.config.experts):
                own = x[(chosen == expert).any(axis=1)]
                gate, up = (
                    own @ weights.matrices[f"{at}ffn_{p}.{expert}.weight"].astype(np.float64).T for p in ("gate", "up")
                )
                inner = gate / (1 + np.exp(-gate)) * up
                for part, rows in (("gate", own), ("up", own), ("down", inner)):
                    found, tokens = seen.grams[f"{at}ffn_{part}.{expert}.weight"]
                    assert tokens == len(own)
                    wanted = rows.T @ rows / max(1, len(rows))
                    np.testing.assert_allclose(found, wanted, atol=1e-2 * max(float(np.abs(wanted).max()), 1e-9))


@pytest.fixture(scope="module")
def real(smollm2_folder: Path) -> tuple[Seen, BlockWeights, Fold]:  # noqa: F811
    """A block of SmolLM2 with 2,048 tokens: its inputs, its weights, and the fold of query, key and value."""
    with open_checkpoint(smollm2_folder) as checkpoint:
        text = samples(checkpoint, CalibrationText(samples=8, length=256))
        forward = BlockForward(checkpoint, text.ids, TOKEN)
        forward.embed()
        for layer in range(LAYER):
            forward.run(layer, forward.load(layer), forget=True)
        weights, seen = forward.load(LAYER), Seen()
        forward.run(LAYER, weights.copy(), seen)
        return seen, weights, folds(forward.config, LAYER, weights)[0]


def textbook(weight: np.ndarray, h: np.ndarray, order: np.ndarray, chosen: Codes) -> np.ndarray:
    """GPTQ's values in float64, column by column, under given scales and zeros."""
    w = weight[:, order].astype(np.float64)
    h = h[np.ix_(order, order)] + DAMPING * np.mean(np.diag(h)) * np.eye(len(h))
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    scales, zeros = (np.repeat(a.astype(np.float64), NUMBERS.group, axis=1) for a in (chosen.scales, chosen.zeros))
    out = np.empty_like(w)
    for k, column in enumerate(order):
        code = np.clip(np.rint(w[:, k] / scales[:, column] + zeros[:, column]), 0, 15)
        out[:, column] = (code - zeros[:, column]) * scales[:, column]
        w[:, k + 1 :] -= ((w[:, k] - out[:, column]) / upper[k, k])[:, None] * upper[k, k + 1 :]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attn_q", "attn_output", "ffn_up", "ffn_down"])
def test_gptq_of_a_real_layer(part: str, real: tuple[Seen, BlockWeights, Fold]) -> None:
    """Its output error, over all tokens in float64: as the textbook's, and less with scales and sweeps of its own."""
    seen, weights, _ = real
    name = f"blk.{LAYER}.{part}.weight"
    x, weight = seen.inputs[name].astype(np.float64), weights.matrices[name]
    found, tokens = seen.grams[name]
    h = x.T @ x / len(x)

    def lost(values: np.ndarray) -> float:
        change = weight.astype(np.float64) - values
        return float(np.einsum("nk,nk->", change @ h, change) / np.einsum("nk,nk->", weight @ h, weight))

    problem = Problem(name, weight, found, None, tokens, NUMBERS)
    plain = quantized(NUMBERS, weight, search_options(NUMBERS, weight, None, 0.0, 1), TOKEN)
    order = np.argsort(-np.diag(found), kind="stable")
    wanted = lost(textbook(weight, h, order, plain))
    same = lost(NUMBERS.values(Gptq(DAMPING, weighted=False, sweeps=0).solve(problem, TOKEN)))
    best = lost(NUMBERS.values(Gptq(DAMPING).solve(problem, TOKEN)))
    assert wanted < 0.8 * lost(NUMBERS.values(plain))
    assert same == pytest.approx(wanted, rel=0.02)
    assert best < 0.98 * wanted


@pytest.mark.slow
def test_awq_of_a_real_layer(real: tuple[Seen, BlockWeights, Fold]) -> None:
    """Its scale is among the best that a float64 search of all exponents finds, over all rows and tokens."""
    seen, weights, fold = real
    numbers = dict.fromkeys(fold.consumers, NUMBERS)
    scale = Awq(Method.ROUND).scale(fold, weights, seen.statistics, numbers, TOKEN)
    assert scale is not None
    x = seen.inputs[fold.consumers[0]].astype(np.float64)
    h = x.T @ x / len(x)
    whole = np.concatenate([weights.matrices[n] for n in fold.consumers])
    sizes = np.abs(whole.astype(np.float64)).reshape(len(whole), -1, NUMBERS.group)
    shares = (sizes / sizes.max(axis=2, keepdims=True)).mean(axis=0).reshape(-1)

    def lost(by: np.ndarray) -> float:
        given = (whole * by).astype(np.float32)
        values = NUMBERS.values(NUMBERS.quantize(given, EncodeOptions(Method.ROUND))) / by
        change = whole.astype(np.float64) - values
        return float(np.einsum("nk,nk->", change @ h, change))

    tried = {}
    for a in np.arange(0, 1.01, 0.125):
        for b in np.arange(-1, 0.01, 0.125):
            by = np.abs(x).mean(axis=0) ** a * shares**b
            tried[a, b] = lost(by / np.sqrt(by.max() * by.min()))
    assert lost(scale.astype(np.float64)) < 1.05 * min(tried.values())
    assert lost(scale.astype(np.float64)) < 0.9 * tried[0.0, 0.0]
    logs = np.stack([np.log(np.abs(x).mean(axis=0)), np.log(shares), np.ones(len(shares))], axis=1)
    rest = np.linalg.lstsq(logs, np.log(scale.astype(np.float64)), rcond=None)[1]
    assert float(rest[0]) < 1e-2 * len(shares), "a power of each, and nothing else"
