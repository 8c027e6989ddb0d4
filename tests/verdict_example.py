"""An evaluation with made-up figures, for verdicts and reports."""

from __future__ import annotations

from pathlib import Path

from core.metrics.windows import Figure
from core.serving import Command
from core.verdict.choices import TaskResult
from core.verdict.evaluation import Evaluation
from core.verdict.facts import ContractRow, Facts
from core.verdict.layers import LayerError, LayerErrors
from core.verdict.needle import NeedleResult, Place
from core.verdict.quality import Quality
from core.verdict.settings import EvalSettings
from core.verdict.texts import TextPair


def _facts(name: str, size: int, format_name: str) -> Facts:
    row = ContractRow("feed-forward up", format_name, 2, 1000, size, "one scale for 32 values, symmetric")
    return Facts(name, Path("models") / name, "GGUF", "llama", size, 1000, "ab12", (row,))


def example() -> Evaluation:
    """Mean KL 0.04 ± 0.001, half of the source's size; layers, tasks and speed were not measured."""
    kl = {name: Figure(0.03, 0.002) for name in ("kl_median", "kl_p90", "kl_p95", "kl_p99", "kl_p999")}
    quality = Quality(
        windows=4,
        tokens=511,
        kl_mean=Figure(0.04, 0.001),
        **kl,
        kl_max=Figure(1.5),
        agreement=Figure(0.93, 0.01),
        flips=Figure(0.07, 0.01),
        delta_mean=Figure(-0.002, 0.0001),
        delta_rms=Figure(0.05, 0.003),
        perplexity_source=Figure(8.0, 0.5),
        perplexity=Figure(8.2, 0.5),
        perplexity_ratio=Figure(1.025, 0.003),
    )
    return Evaluation(
        settings=EvalSettings(method="GPTQ", calibration="prose, 64 × 512"),
        text="bundled text",
        arithmetic="activations float32, cache F16",
        quality=quality,
        layers=LayerErrors((), 0, "Not asked for."),
        tasks=None,
        needle=None,
        texts=(),
        speed=None,
        source=_facts("big.gguf", 2000, "BF16"),
        artifact=_facts("small|<b>.gguf", 1000, "Q8_0"),
        serving=(Command("llama.cpp", "llama-server -m small.gguf"),),
        rollback=("Stop the server, and serve the source again.",),
        machine="A computer",
        versions="Bitsmith 1",
        when="2026-01-02T03:04:05+00:00",
        seconds=12.0,
        reused=False,
        kept=True,
    )


LAYERS = LayerErrors((LayerError(None, 0.001, 0.002), LayerError(0, 0.02, 0.1), LayerError(1, 0.03, 0.3)), 128)
TASKS = TaskResult(10, Figure(0.8, 0.1), Figure(0.7, 0.1), Figure(-0.1, 0.05), Figure(0.8, 0.1), Figure(0.8, 0.1), 2)
NEEDLE = NeedleResult((Place(256, 0.1, 3.5, 2.0), Place(256, 0.9, 1.0, -0.5)))
TEXTS = (TextPair("Say", " yes```", " yet", 1, 3), TextPair("One", " two", " two", None, 4))
