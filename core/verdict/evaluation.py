"""Everything that a verdict is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.runtime.speed import SpeedResult, speed_data
from core.serving import Command
from core.verdict.choices import TaskResult
from core.verdict.facts import Facts
from core.verdict.layers import LayerErrors
from core.verdict.needle import NeedleResult
from core.verdict.quality import Quality
from core.verdict.settings import EvalSettings
from core.verdict.texts import TextPair


@dataclass(frozen=True)
class Evaluation:
    """text: what the windows are of. arithmetic: in words. speed: (source, artifact). when: ISO 8601, UTC.

    reused: the source's logits came from the cache. kept: they are there now. warnings: sentences.
    """

    settings: EvalSettings
    text: str
    arithmetic: str
    quality: Quality
    layers: LayerErrors
    tasks: TaskResult | None
    needle: NeedleResult | None
    texts: tuple[TextPair, ...]
    speed: tuple[SpeedResult, SpeedResult] | None
    source: Facts
    artifact: Facts
    serving: tuple[Command, ...]
    rollback: tuple[str, ...]
    machine: str
    versions: str
    when: str
    seconds: float
    reused: bool
    kept: bool
    warnings: tuple[str, ...] = ()

    @property
    def decode_ratio(self) -> float | None:
        """Decoding rate, artifact ÷ source."""
        if self.speed is None:
            return None
        return self.speed[1].decode_tokens_per_s / self.speed[0].decode_tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """Of JSON's own types, but for numbers that are not finite."""
        return {
            "source": self.source.to_dict(),
            "artifact": self.artifact.to_dict(),
            "size_ratio": self.artifact.bytes / max(self.source.bytes, 1),
            "method": self.settings.method or None,
            "calibration": self.settings.calibration or None,
            "text": {**self.settings.text.to_dict(), "title": self.text},
            "arithmetic": self.arithmetic,
            "quality": self.quality.to_dict(),
            "layers": {
                "tokens": self.layers.tokens,
                "note": self.layers.note or None,
                "errors": [vars(layer) for layer in self.layers.layers],
            },
            "tasks": self.tasks.to_dict() if self.tasks else None,
            "needle": self.needle.to_dict() if self.needle else None,
            "texts": [pair.to_dict() for pair in self.texts],
            "speed": None
            if self.speed is None
            else {
                "source": speed_data(self.speed[0]),
                "artifact": speed_data(self.speed[1]),
                "decode_ratio": self.decode_ratio,
            },
            "serving": [{"runtime": c.runtime, "text": c.text, "note": c.note} for c in self.serving],
            "rollback": list(self.rollback),
            "machine": self.machine,
            "versions": self.versions,
            "when": self.when,
            "seconds": self.seconds,
            "source_logits": {"reused": self.reused, "kept": self.kept},
            "warnings": list(self.warnings),
        }
