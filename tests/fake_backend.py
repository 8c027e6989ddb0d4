"""An engine for the Test page's tests: exact numbers, steps of chosen length, no weights."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cache_example import cache_example
from verdict_example import LAYERS, NEEDLE, TEXTS, example

from app.jobs.testing import (
    AnswerEntry,
    DeviceMemory,
    Devices,
    KernelUse,
    LoadStep,
    Measured,
    Piece,
    Question,
    Setup,
    Shape,
    SweepEntry,
    SweepOrder,
)
from app.jobs.testing_cache import CacheEntry, CacheFound, CacheOrder, CacheStep, cache_result
from app.jobs.testing_quality import QualityEntry, QualityOrder, QualityStep, quality_result
from core.errors import UserError
from core.progress import CancelToken
from core.runtime.logits import LogitDifference
from core.runtime.results import Number, StoredResult
from core.runtime.sweep import BATCHES, Sweep, SweepPoint
from core.verdict.evaluation import Evaluation

NO_GPU = Devices((), "no NVIDIA or AMD GPU is at hand", "Choose the processor (cpu).")
GPUS = Devices((("gpu:0", "NVIDIA GeForce RTX 4090"), ("gpu:1", "NVIDIA RTX A2000 12GB")))
WORDS = (" Paris", ".", " It", " is", " also", " the", " largest", " city", " of", " the", " country", ",", " and")
OTHER = {5: " a", 6: " large", 9: " this"}


class FakeModel:
    def __init__(self, backend: FakeBackend, side: int, setup: Setup) -> None:
        self.backend, self.side, self.setup = backend, side, setup
        self.nbytes = (280_000_000, 110_000_000)[side]
        self.summary = ("BF16 · 30 layers", "Q4_K, Q6_K · 30 layers")[side]
        self.cache = setup.cache or "F16"
        self.closed = False

    @property
    def device_memory(self) -> DeviceMemory | None:
        if self.setup.device == "cpu":
            return None
        return DeviceMemory(7_900_000_000, 24_000_000_000, self.nbytes + 900_000_000)

    def close(self) -> None:
        self.closed = True


class FakeBackend:
    """pause: seconds that each step takes. broken: sides that can not be loaded. slow: the quantized side is slower."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.broken: set[int] = set()
        self.slow = False
        self.models: list[FakeModel] = []
        self.asked: list[tuple[int, Question]] = []
        self.records: list[StoredResult] = []
        self.swept: list[SweepOrder] = []
        self.found = NO_GPU

    def devices(self) -> Devices:
        return self.found

    def compare_logits(self, models: tuple[Any, Any], question: Question, answer: Sequence[Piece]) -> LogitDifference:
        assert not any(model.closed for model in models)
        return LogitDifference(5 + len(answer), 0.0031, 0.0004, 1.0)

    def refuses(self, cache: str, device: str) -> str:
        runs = ("F16", "Q8_0", "Q4_0", "Q8_0/Q4_0") if device == "cpu" else ("F16",)
        return "" if cache in runs else f"The engine keeps no cache in {cache}. Choose one of {', '.join(runs)}."

    def load(self, side: int, setup: Setup, token: CancelToken) -> Iterator[LoadStep]:
        for step in range(5):
            token.check()
            time.sleep(self.pause)
            yield LoadStep(side, step / 5)
        if side in self.broken:
            raise UserError("blk.3.attn_q.weight has 12 bytes too few.", "Download the file again.")
        model = FakeModel(self, side, setup)
        self.models.append(model)
        return model

    def generate(self, side: int, model: Any, question: Question, token: CancelToken) -> Iterator[Piece]:
        assert not model.closed
        self.asked.append((side, question))
        for number in range(question.tokens):
            token.check()
            time.sleep(self.pause)
            word = WORDS[number % len(WORDS)]
            if side == 1:
                word = OTHER.get(number, word)
            yield Piece(side, hash(word) % 50000, word, 0.02 if number == 5 else 1.6)
        found = measured(side, question.tokens, self.slow)
        planned = {"F16": 47_185_920, "Q8_0": 25_067_520, "Q4_0": 13_271_040, "Q8_0/Q4_0": 19_169_280}[model.cache]
        cache = {"cache": model.cache, "cache_planned": planned, "cache_allocated": planned + 2_180_000}
        return replace(found, device=model.setup.device, device_memory=model.device_memory, **cache)

    def shapes(self, paths: tuple[Path | None, Path | None], models: tuple[Any, Any]) -> tuple[Shape, ...]:
        if not any(paths):
            return ()
        square = Shape("4096 × 4096, Q4_K", "Q4_K", 4096, 4096)
        return square, Shape("576 × 1 536, Q4_K", "Q4_K", 576, 1536), Shape("whole decode step")

    def sweep(self, order: SweepOrder, token: CancelToken) -> Iterator[SweepPoint]:
        self.swept.append(order)
        points = []
        for batch in BATCHES:
            for side in (0, 1):
                token.check()
                time.sleep(self.pause)
                size = (33.5e6, 9.4e6)[side]
                flops = 2.0 * 4096 * 4096 * batch
                seconds = max(size / 20e9, flops / (400e9, 240e9)[side])
                points.append(SweepPoint(side, batch, seconds, size, flops))
                yield points[-1]
        traffic = (("16 bits", 33.5e6), ("quantized, fused", 9.4e6), ("quantized, copied to 16 bits first", 76.4e6))
        return Sweep(order.shape.label, ("BF16", "Q4_K"), tuple(points), traffic, 20e9, 400e9)

    def evaluate(self, order: QualityOrder, token: CancelToken) -> Generator[QualityStep, None, Evaluation]:
        found = replace(example(), layers=LAYERS, needle=NEEDLE, texts=TEXTS)
        for number in range(10):
            token.check()
            time.sleep(self.pause)
            yield QualityStep("measuring the artifact", number / 10, found.quality if number > 2 else None)
        if 1 in self.broken:
            raise UserError(
                "The two models cut the text into different tokens, so their predictions can not be compared.",
                "Compare an artifact with the source that it was made from.",
            )
        return found

    def compare_caches(self, order: CacheOrder, token: CancelToken) -> Generator[CacheStep, None, CacheFound]:
        for number in range(10):
            token.check()
            time.sleep(self.pause)
            yield CacheStep(number / 10, "16 caches read the text beside one in 16 bits")
        if 1 in self.broken:
            raise UserError("Caches are compared on the processor's engine.", "Load the model there (cpu).")
        return cache_example(order)

    def why_slower(self, source: Measured, quantized: Measured) -> str:
        return "A token takes 1.51 times as long as with the source, because it does." if self.slow else ""

    def store(self, entry: AnswerEntry | SweepEntry | QualityEntry | CacheEntry) -> None:
        number = len(self.records)
        if isinstance(entry, AnswerEntry):
            m = next(m for m in entry.measured if m is not None)
            title, kind = f"Generate {m.tokens} tokens", "generate"
            numbers = (
                Number("Generation", "tokens/s", m.decode_rate),
                Number("Time to first token", "s", m.first_token),
            )
        elif isinstance(entry, (QualityEntry, CacheEntry)):
            kept = quality_result(entry) if isinstance(entry, QualityEntry) else cache_result(entry)
            title, kind, numbers = kept.title, kept.kind, kept.numbers
        else:
            title, kind, numbers = f"Sweep {entry.sweep.title}", "sweep", entry.sweep.numbers
        record = StoredResult(
            str(number), f"2026-11-29T12:{number:02d}:00", kind, title, "Test processor, 2 cores", "Bitsmith 0.1.0",
            "int8 per 32 values", numbers,
        )  # fmt: skip
        self.records.insert(0, record)

    def history(self) -> list[StoredResult]:
        return list(self.records)

    def remove(self, stored: StoredResult) -> None:
        self.records.remove(stored)


def measured(side: int, tokens: int, slow: bool) -> Measured:
    per_token = (0.0125, 0.0189 if slow else 0.0061)[side]
    kernels = (
        KernelUse(
            "matrix–vector", "576 × 1536", ("gemv bf16", "gemv 4-bit")[side], "AVX-512 VNNI", "fastest here", side
        ),
        KernelUse("attention", "9 heads × 64", "online softmax", "AVX-512", "only one", side),
    )
    return Measured(
        5, tokens, 0.031, per_token, per_token * 1.2, 410.0, 1 / per_token, (410_000_000, 240_000_000)[side],
        (269_060_552, 101_000_000)[side], (269_060_552, 101_000_000)[side], (0.91, 0.42 if slow else 0.74)[side],
        None, "This processor's energy counter may be read by the administrator only.", "length", kernels,
    )  # fmt: skip
