"""Tiny models block by block: statistics of their inputs, and their logits with changed weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from decoder_models import prompt

from core.calibration.forward import BlockForward, Product
from core.checkpoint import open_checkpoint
from core.formats.numbers import Numbers
from core.methods.transform import SAMPLE_ROWS, BlockTransform, BlockWeights, InputStatistics
from core.models.config import DecoderConfig
from core.progress import CancelToken

TOKEN = CancelToken()
Change = Callable[[BlockWeights], None]


def statistics_of(x: np.ndarray) -> InputStatistics:
    """Of inputs float32 [R, K]."""
    some = np.unique(np.linspace(0, len(x) - 1, SAMPLE_ROWS).astype(np.int64)) if len(x) else np.zeros(0, np.int64)
    mean, largest = (f(axis=0) if len(x) else np.zeros(x.shape[1], np.float32) for f in (np.abs(x).mean, np.abs(x).max))
    return InputStatistics(len(x), mean, largest, x[some])


class Collect:
    """A visitor that keeps the statistics of every input."""

    def __init__(self) -> None:
        self.found: dict[str, InputStatistics] = {}

    def product(self, product: Product, weights: BlockWeights) -> None:
        pieces = list(product.pieces())
        x = np.concatenate(pieces) if pieces else np.zeros((0, product.columns), np.float32)
        self.found |= dict.fromkeys(product.names, statistics_of(x))


class ChangedModel:
    """A folder's decoder in float32, its blocks and what is outside of them in memory."""

    def __init__(self, folder: Path, length: int = 40, samples: int = 2) -> None:
        self.ids = prompt(length * samples).reshape(samples, length)
        self.checkpoint = open_checkpoint(folder)
        forward = self.forward()
        self.config: DecoderConfig = forward.config
        self.blocks = [forward.load(i) for i in range(forward.layers)]
        self.outer = forward.load_outer()
        self.outer.matrices.setdefault("output.weight", self.outer.matrices["token_embd.weight"])

    def forward(self) -> BlockForward:
        return BlockForward(self.checkpoint, self.ids, TOKEN, exact=True)

    def statistics(self) -> list[dict[str, InputStatistics]]:
        """Of each block's inputs, by the names of the weights."""
        forward, found = self.forward(), []
        forward.embed(table=self.outer.matrices["token_embd.weight"])
        for i, block in enumerate(self.blocks):
            collect = Collect()
            forward.run(i, block, collect)
            found.append(collect.found)
        return found

    def logits(self) -> np.ndarray:
        """float32 [tokens, vocabulary], before a soft cap."""
        forward = self.forward()
        forward.embed(table=self.outer.matrices["token_embd.weight"])
        for i, block in enumerate(self.blocks):
            forward.run(i, block)
        return self.head(forward)

    def head(self, forward: BlockForward) -> np.ndarray:
        """Logits of what has gone through all blocks."""
        x = np.concatenate(list(forward.head_input(self.outer.vectors["output_norm.weight"])))
        return x @ self.outer.matrices["output.weight"].T

    def transform(self, transform: BlockTransform, numbers: Numbers | None = None) -> None:
        """As the pipeline does it, with statistics of the weights as they come; all matrices of blocks but routers are
        to be quantized."""
        found = self.statistics() if transform.needs_statistics else [{} for _ in self.blocks]
        transform.outer(self.config, self.outer, TOKEN)
        for i, block in enumerate(self.blocks):
            names = [n for n in block.matrices if "ffn_gate_inp" not in n]
            chosen = {} if numbers is None else dict.fromkeys(names, numbers)
            transform.block(self.config, i, block, found[i], chosen, TOKEN)

    def calm(self) -> None:
        """Undo most of what makes the tiny models' logits react to every bit: real models' do not."""
        for block in self.blocks:
            block.matrices = {name: values / np.float32(4) for name, values in block.matrices.items()}

    def stored(self, less_one: bool) -> None:
        """Round everything as a file of bfloat16 does; less_one: gains are stored so."""
        for part in (*self.blocks, self.outer):
            for name, values in part.matrices.items():
                part.matrices[name] = bfloat16(values)
            for name, values in part.vectors.items():
                less = np.float32(less_one and name.endswith("norm.weight"))
                part.vectors[name] = bfloat16(values - less) + less


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16, by torch."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()


def apart(got: np.ndarray, want: np.ndarray) -> float:
    """‖Δ logits‖ / ‖logits‖."""
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64)))
