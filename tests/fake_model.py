"""A loaded model without weights: which token follows is a function of the last one, so every text is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from tiny_models import byte_tokens

from core.kv.scales import FileScales
from core.models.tokenizer import TokenType
from core.runtime.arithmetic import Arithmetic
from core.runtime.device import CPU
from core.runtime.layers import sample_matrix
from core.runtime.tokenizer.json_vocabulary import from_merges
from core.runtime.tokenizer.text import Text, special_ids, token_names
from kernels.program import CacheLayout, Embed, Linear, Program

START, END = 256, 257
NAMES = [  # a byte is its own token
    *byte_tokens(),
    "<|im_start|>",
    "<|im_end|>",
    "ab",
    "bc",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class EngineStopped(Exception):
    """What the engine raises after cancel()."""


@dataclass(frozen=True)
class Use:
    op: str = "linear"
    shape: str = "64 × 64"
    kernel: str = "gemv"
    isa: str = "AVX2"
    reason: str = "the fastest here"


def fake_text(start: bool = True, template: str = TEMPLATE) -> Text:
    types = [TokenType.CONTROL if name.startswith("<|") else TokenType.NORMAL for name in NAMES]
    vocabulary = from_merges(NAMES, types, ["a b", "b c"], "smollm")
    found = {"bos": START, "eos": END} if start else {"eos": END}
    ids = special_ids(vocabulary, found, before=[START] if start else [])
    return Text(vocabulary, ids, template, token_names(vocabulary, ids))


class FakeEngine:
    """follow: last token → next one. Checks that positions come without gaps, as a cache needs them."""

    def __init__(self, follow: Callable[[int], int], capacity: int, sequences: int) -> None:
        self.follow = follow
        self.capacity, self.sequences = capacity, sequences
        self.kept: list[list[int]] = [[] for _ in range(sequences)]
        self.batches: list[int] = []
        self.pause = 0.0
        self.pause_per_token = 0.0
        self.bytes_per_token = 1000
        self.uses: Sequence[Use] = (Use(),)
        self._stop = threading.Event()

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        for array in (tokens, sequences, positions, wanted):
            assert array.dtype == np.int32
            assert array.ndim == 1
        if positions.size and positions.max() >= self.capacity:
            raise ValueError("past the capacity")
        self._stop.clear()
        self.batches.append(len(tokens))
        until = time.perf_counter() + self.pause + self.pause_per_token * len(tokens)
        while (left := until - time.perf_counter()) > 0:
            if self._stop.wait(min(left, 0.005)):
                raise EngineStopped
        for token, sequence, position in zip(tokens, sequences, positions, strict=True):
            kept = self.kept[sequence]
            assert position <= len(kept)
            del kept[position:]
            kept.append(int(token))
        logits = np.zeros((len(wanted), len(NAMES)), np.float32)
        for row, at in enumerate(wanted):
            logits[row, self.follow(int(tokens[at]))] = 5
        return logits

    def cancel(self) -> None:
        self._stop.set()

    def report(self) -> Sequence[Use]:
        return self.uses


def fake_program(rows: int = 64, columns: int = 32) -> Program:
    """Four layers and a head of matrices that are never multiplied: most of the bytes are BF16."""
    layers = [sample_matrix("Q8_0", rows, columns), sample_matrix("BF16", columns, rows)]
    steps = [Linear(0, (matrix,), (1,)) for matrix in (*layers, layers[1], layers[1])]
    embed = Embed(sample_matrix("BF16", len(NAMES), columns), 0)
    return Program(
        (embed, *steps, Linear(0, (layers[0],), (1,), logits=True)), (columns, rows), 1, CacheLayout(((1, 8),), 8)
    )


class FakeModel:
    longest = 4096  # tokens that it was made for

    def __init__(
        self,
        follow: Callable[[int], int] | bytes,
        capacity: int = 256,
        sequences: int = 1,
        start: bool = True,
        template: str = TEMPLATE,
    ) -> None:
        """follow: a function, or a text in which every byte is followed by the next one, the last by the end token."""
        if isinstance(follow, bytes):
            pairs = {**dict(pairwise(follow)), follow[-1]: END}
            after = follow[0]
            follow = lambda token: pairs.get(token, after)  # noqa: E731
        self.text = fake_text(start, template)
        self.engine = FakeEngine(follow, capacity, sequences)
        self.capacity, self.sequences = capacity, sequences
        self.weight_bytes = 2000
        self.config = SimpleNamespace(context=self.longest)
        self.arithmetic, self.cache_dtype, self.file_scales = Arithmetic(), "F16", FileScales()
        self.contract = "activations int8 per 32 values, cache F16"
        self.place, self.fell_back = CPU, ""
        self.unloaded = False

    @cached_property
    def program(self) -> Program:
        return fake_program()

    def unload(self) -> None:
        self.unloaded = True
