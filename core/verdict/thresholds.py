"""Limits that are set before a file is measured, and the verdict that follows from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.metrics.windows import Figure
from core.units import format_bytes, format_count, format_number, format_percent, format_tokens_per_second

if TYPE_CHECKING:
    from core.verdict.evaluation import Evaluation

MAX_FILE = 1 << 20
NEAR = 2.0  # standard errors: nearer to its limit a figure could fall on the other side with another text


@dataclass(frozen=True)
class Thresholds:
    """Limits; None: not judged. A limit on something that was not measured is not met.

    Upper limits: kl_mean, kl_p99 in nats; flips, a share; perplexity_ratio; delta_rms, a share; layer_error, the
    largest of the layers' mean relative errors; size_ratio, artifact ÷ source; size_bytes; accuracy_drop, a share, on
    the task file; needles_lost, a count. Lower limits: decode_ratio, artifact's ÷ source's rate; decode_rate, tokens/s.
    """

    name: str = "custom"
    kl_mean: float | None = None
    kl_p99: float | None = None
    flips: float | None = None
    perplexity_ratio: float | None = None
    delta_rms: float | None = None
    layer_error: float | None = None
    size_ratio: float | None = None
    size_bytes: float | None = None
    accuracy_drop: float | None = None
    needles_lost: float | None = None
    decode_ratio: float | None = None
    decode_rate: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Those that are set, of JSON's own types; `from_dict` gives the same back."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @staticmethod
    def from_dict(data: object) -> Thresholds:
        """Raises UserError for an unknown name or a value that is no number from 0 on."""
        names = [f.name for f in fields(Thresholds)]
        if not isinstance(data, Mapping):
            raise UserError("The thresholds are not a JSON object.", f"Its fields are {', '.join(names)}.")
        if unknown := sorted(str(k) for k in set(data) - set(names)):
            raise UserError(f"There is no threshold '{unknown[0]}'.", f"Known ones: {', '.join(names)}.")
        for name, value in data.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if name == "name" and isinstance(value, str):
                continue
            if name == "name" or not number or not 0 <= value < math.inf:
                raise UserError(f"The threshold '{name}' is {value!r}.", "Write a number from 0 on.")
        return Thresholds(**data)


# Where the presets come from: llama.cpp's published table for Llama 3 8B against F16 (tools/perplexity/README.md):
#   Q8_0  KL 0.0014, ratio 1.000, flips  2.3 %    Q6_K 0.0055, 1.003, 4.0 %    Q5_K_M 0.011, 1.009
#   Q4_K_M   0.031,       1.028,        8.1 %     Q4_0 0.072, 1.075            Q3_K_M 0.102, 1.105    Q2_K 0.445, 28.9 %
# p99 of KL is about ten times the mean in our measurements (docs/quality.md).
PRESETS: dict[str, Thresholds] = {
    "strict": Thresholds("strict", kl_mean=0.01, kl_p99=0.1, flips=0.05, perplexity_ratio=1.01),
    "balanced": Thresholds("balanced", kl_mean=0.05, kl_p99=0.5, flips=0.10, perplexity_ratio=1.04),
    "loose": Thresholds("loose", kl_mean=0.15, kl_p99=1.5, flips=0.20, perplexity_ratio=1.12),
}
REASONS: dict[str, str] = {
    "strict": "as a good 6-bit file of an 8 B model: hardly told from the source, also in long answers and code",
    "balanced": "as a good 4-bit file of an 8 B model (Q4_K_M): what most people run without noticing",
    "loose": "as a 3-bit file of an 8 B model: wording changes visibly, facts mostly stay",
}


def find_thresholds(name: str) -> Thresholds:
    """A preset by its name, or a JSON file. Raises UserError."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix.lower() != ".json":
        raise UserError(f"There are no thresholds '{name}'.", f"Choose {', '.join(PRESETS)}, or a .json file.")
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as e:
        raise UserError(f"{path.name} can not be read ({e.strerror or e}).", "Check the name of the file.") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path.name} is no JSON.", 'Write {"kl_mean": 0.05, "flips": 0.1}, for example.') from e
    if isinstance(data, dict) and "name" not in data:
        data["name"] = path.stem
    return Thresholds.from_dict(data)


@dataclass(frozen=True)
class Line:
    """One limit and what was found. figure: None when it was not measured. reason: one sentence."""

    key: str
    title: str
    limit: float
    at_most: bool
    figure: Figure | None
    passed: bool
    reason: str

    @property
    def near(self) -> bool:
        """Within two standard errors of the limit."""
        found = self.figure
        return bool(found is not None and found.error and abs(found.value - self.limit) < NEAR * found.error)

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "limit": self.limit,
            "sense": "at most" if self.at_most else "at least",
            "value": self.figure.value if self.figure else None,
            "error": self.figure.error if self.figure else None,
            "passed": self.passed,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Verdict:
    """passed: every line passed."""

    thresholds: Thresholds
    lines: tuple[Line, ...]

    @property
    def passed(self) -> bool:
        return all(line.passed for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "thresholds": self.thresholds.to_dict(),
            "lines": [line.to_dict() for line in self.lines],
        }


@dataclass(frozen=True)
class _Limit:
    title: str
    find: Callable[[Evaluation], Figure | None]
    show: Callable[[float], str]
    at_most: bool = True
    missing: str = ""


def _nats(value: float) -> str:
    return f"{format_number(value)} nats"


def _share(value: float) -> str:
    return format_percent(value, 2)


def _times(value: float) -> str:
    return f"{format_number(value)} ×"


def _plain(value: float | None) -> Figure | None:
    return None if value is None else Figure(float(value))


_SPEED = "add --speed"
_LIMITS: dict[str, _Limit] = {
    "kl_mean": _Limit("Mean KL divergence", lambda e: e.quality.kl_mean, _nats),
    "kl_p99": _Limit("99th percentile of KL", lambda e: e.quality.kl_p99, _nats),
    "flips": _Limit("Flip rate", lambda e: e.quality.flips, _share),
    "perplexity_ratio": _Limit("Perplexity ratio", lambda e: e.quality.perplexity_ratio, _times),
    "delta_rms": _Limit("RMS Δp", lambda e: e.quality.delta_rms, _share),
    "layer_error": _Limit(
        "Largest layer error",
        lambda e: _plain(max((layer.mean for layer in e.layers.layers), default=None)),
        _share,
        missing="compare layers of a model that this program runs itself",
    ),
    "size_ratio": _Limit("Size", lambda e: Figure(e.artifact.bytes / max(e.source.bytes, 1)), _times),
    "size_bytes": _Limit("Size", lambda e: Figure(e.artifact.bytes), format_bytes),
    "accuracy_drop": _Limit(
        "Fall of accuracy",
        lambda e: None if e.tasks is None else Figure(-e.tasks.change.value, e.tasks.change.error),
        _share,
        missing="add --tasks FILE",
    ),
    "needles_lost": _Limit(
        "Numbers lost in long texts",
        lambda e: None if e.needle is None else Figure(e.needle.lost),
        lambda n: format_count(round(n)),
        missing="add --needle",
    ),
    "decode_ratio": _Limit("Decoding speed", lambda e: _plain(e.decode_ratio), _times, False, _SPEED),
    "decode_rate": _Limit(
        "Decoding speed",
        lambda e: _plain(e.speed[1].decode_tokens_per_s if e.speed else None),
        format_tokens_per_second,
        False,
        _SPEED,
    ),
}


def in_words(key: str, value: float) -> str:
    """A figure of the limit with this key, or the limit itself, in its unit."""
    return _LIMITS[key].show(value)


def judge(evaluation: Evaluation, thresholds: Thresholds) -> Verdict:
    """A line for each limit that is set."""
    lines = []
    for key, limit in _LIMITS.items():
        bound = getattr(thresholds, key)
        if bound is not None:
            lines.append(_judged(key, limit, bound, limit.find(evaluation)))
    return Verdict(thresholds, tuple(lines))


def _judged(key: str, limit: _Limit, bound: float, figure: Figure | None) -> Line:
    sense = "at most" if limit.at_most else "at least"
    if figure is None:
        reason = f"Not measured; {sense} {limit.show(bound)} is asked for ({limit.missing})."
        return Line(key, limit.title, bound, limit.at_most, None, False, reason)
    passed = figure.value <= bound if limit.at_most else figure.value >= bound
    error = f" ± {limit.show(figure.error)}" if figure.error is not None else ""
    word = "is within" if passed else "is above" if limit.at_most else "is below"
    reason = f"{limit.show(figure.value)}{error} {word} the limit of {sense} {limit.show(bound)}."
    if figure.error and abs(figure.value - bound) < NEAR * figure.error:
        reason += " It is within two standard errors of it: more windows would tell."
    return Line(key, limit.title, bound, limit.at_most, figure, bool(passed), reason)
