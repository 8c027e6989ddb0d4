"""What stands out in a model under a plan, in words, worst first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING

from core.checkpoint.base import Checkpoint
from core.inspect.outliers import THRESHOLD, OutlierChannel, outlier_channels
from core.plan import Action, Plan, TensorPlan
from core.progress import CancelToken
from core.units import format_count, format_decimals

if TYPE_CHECKING:
    from core.inspect.survey import SurveyRow

LONE = 8.0  # a row's largest |x| over its RMS, where normal values have 4 to 5
LOUD = 6.0  # amax over p999 that is a finding though no channel stands out; normal values have about 1.5
BELOW_MEDIAN = 3.0  # dB of SNR under the model's median: twice the squared error
GAIN = 1.5  # dB that finer scales gain: about a quarter of a bit
NEARLY_EXACT = 45.0  # dB of SNR from which a tensor loses so little (0.6 % of its RMS) that nothing has to be done
MOST_LOOKED_AT = 24  # tensors whose channels are looked at, worst first
MOST_CHANNELS = 2  # that are named of one tensor and axis


class FindingKind(Enum):
    """refused: the format can not store the values, and a conversion stops there. outlier: channels (or values) far
    above the others. error: a tensor whose predicted SNR is far below the others'. group gain: a tensor that finer
    scales would help."""

    REFUSED = "values that the format refuses"
    OUTLIER = "outlier channel"
    ERROR = "large error"
    GROUP_GAIN = "smaller groups gain"


@dataclass(frozen=True)
class Finding:
    """tensor: as the plan calls it; index: its number there. axis, channel: of an outlier ('output'/'input', number in
    the source's own order).

    ratio: channel maximum over the median of channel maxima, or amax over p999 where no channel is named (outlier); dB
    below the model's median SNR (error); dB that smaller groups gain (group gain); values that are not finite
    (refused). weight: for ranking, in dB, higher is worse; inf for refused. text: one sentence. because: one clause for
    a rule's reason ('channel 1 247 is 38 × the median'). minor: as planned the tensor keeps at least NEARLY_EXACT, so
    that it hardly matters; `text` says so, and it comes after all others.
    """

    kind: FindingKind
    tensor: str
    index: int
    text: str
    because: str
    ratio: float
    weight: float
    axis: str = ""
    channel: int | None = None
    minor: bool = False


def findings(
    rows: Iterable[SurveyRow],
    plan: Plan,
    checkpoint: Checkpoint | None = None,
    token: CancelToken | None = None,
) -> tuple[Finding, ...]:
    """Worst first, of the tensors that the plan quantizes. A pure function of the survey without a checkpoint.

    checkpoint: names more than one channel of those tensors that stand out most, which reads them. Raises Cancelled
    then.
    """
    rows = list(rows)
    indices = {s.name: i for i, t in enumerate(plan.tensors) for s in t.source.sources if t.action is Action.QUANTIZE}
    known = [(r, indices[r.name]) for r in rows if r.name in indices]
    sound = [(r, i) for r, i in known if not _problem(r, plan.tensors[i].format_name)]
    found = [*_refused(known, plan), *_errors(sound, plan), *_gains(sound, plan)]
    suspects = [(r, i, [c for c in r.worst if c.ratio >= THRESHOLD and _harms(c)]) for r, i in known]
    suspects.sort(key=lambda s: (-max((c.ratio for c in s[2]), default=0.0), -_loudness(s[0])))
    for number, (row, index, channels) in enumerate(suspects):
        if channels and checkpoint is not None and number < MOST_LOOKED_AT:
            channels = list(_channels(checkpoint, row.name, token or CancelToken()))
        found += [channel_finding(plan, index, c) for c in channels]
        if not channels and _loudness(row) >= LOUD:
            found.append(_loud(plan, index, _loudness(row)))
    kept = {
        i: r.predicted.snr_db for r, i in sound if r.predicted and r.predicted.format == plan.tensors[i].format_name
    }
    found = [_weighed(f, kept.get(f.index)) for f in found]
    return tuple(sorted(found, key=lambda f: (f.minor, -f.weight, f.index, f.axis, f.channel or 0)))


def _weighed(finding: Finding, snr_db: float | None) -> Finding:
    """With what the tensor keeps as planned, where that is nearly everything."""
    if snr_db is None or not snr_db >= NEARLY_EXACT:
        return finding
    kept = "it is stored exactly" if math.isinf(snr_db) else f"it keeps {format_decimals(snr_db, 1)} dB"
    return replace(finding, minor=True, text=f"{finding.text} As planned {kept}, so this hardly matters.")


def channel_finding(plan: Plan, index: int, channel: OutlierChannel) -> Finding:
    """One outlier channel of a planned tensor."""
    t = plan.tensors[index]
    spoils = "the group of its largest value" if channel.axis == "output" else "the groups it lies in"
    times = _times(channel.ratio)
    return Finding(
        kind=FindingKind.OUTLIER,
        tensor=t.name,
        index=index,
        text=f"{_called(t)}: {channel.axis} channel {format_count(channel.index)} reaches {times} the median "
        f"channel; in "
        f"{t.format_name} that coarsens {spoils}.",
        because=f"channel {format_count(channel.index)} is {times} the median",
        ratio=channel.ratio,
        weight=_outlier_weight(channel.ratio),
        axis=channel.axis,
        channel=channel.index,
    )


def _channels(checkpoint: Checkpoint, name: str, token: CancelToken) -> Sequence[OutlierChannel]:
    from core.inspect.statistics import tensor_statistics

    found = [c for c in outlier_channels(tensor_statistics(checkpoint, checkpoint.tensor(name), token)) if _harms(c)]
    return [c for axis in ("output", "input") for c in [c for c in found if c.axis == axis][:MOST_CHANNELS]]


def _harms(c: OutlierChannel) -> bool:
    """A row that is large as a whole has larger scales and nothing else; one with a lone large value loses the rest."""
    return c.axis == "input" or (c.rms > 0 and c.max / c.rms >= LONE)


def _loudness(row: SurveyRow) -> float:
    """amax over p999; 0 when nothing is known."""
    ratio = row.statistics.outlier_ratio if row.statistics is not None else 0.0
    return ratio if math.isfinite(ratio) else 1e6


def _outlier_weight(ratio: float) -> float:
    """In dB over a channel of twice the median."""
    return 20 * math.log10(max(ratio, 1e-6) / 2)


def _loud(plan: Plan, index: int, ratio: float) -> Finding:
    t = plan.tensors[index]
    times = _times(ratio)
    return Finding(
        kind=FindingKind.OUTLIER,
        tensor=t.name,
        index=index,
        text=f"{_called(t)}: the largest value is {times} what 99.9 % of the values stay below; in "
        f"{t.format_name} that coarsens its group.",
        because=f"its largest value is {times} the 99.9th percentile",
        ratio=ratio,
        weight=_outlier_weight(ratio),
    )


_Known = Sequence[tuple["SurveyRow", int]]


def _problem(row: SurveyRow, format_name: str) -> str:
    """Why the format can not store the tensor's values, one clause; '' when it can, as far as is known."""
    lost = row.statistics.nonfinite if row.statistics is not None else 0
    if lost:
        values = "value that is" if lost == 1 else "values that are"
        return f"it holds {format_count(lost)} {values} NaN or infinite, which {format_name} can not store"
    return row.predicted.problem.rstrip(".") if row.predicted is not None else ""


def _refused(known: _Known, plan: Plan) -> list[Finding]:
    found = []
    for r, i in known:
        t = plan.tensors[i]
        if problem := _problem(r, t.format_name):
            found.append(
                Finding(
                    kind=FindingKind.REFUSED,
                    tensor=t.name,
                    index=i,
                    text=f"{_called(t)} stops the conversion: {problem}.",
                    because=problem,
                    ratio=float(r.statistics.nonfinite) if r.statistics is not None else 0.0,
                    weight=math.inf,
                )
            )
    return found


def _errors(known: _Known, plan: Plan) -> list[Finding]:
    """Tensors whose predicted SNR is far below the median of those that are quantized."""
    snr = [(r.predicted.snr_db, i) for r, i in known if r.predicted and math.isfinite(r.predicted.snr_db)]
    if len(snr) < 3:
        return []
    middle = median(value for value, _ in snr)
    return [
        Finding(
            kind=FindingKind.ERROR,
            tensor=plan.tensors[i].name,
            index=i,
            text=f"{_called(plan.tensors[i])} keeps {format_decimals(value, 1)} dB in {plan.tensors[i].format_name}, "
            f"{middle - value:.1f} dB less than the model's median tensor.",
            because=f"its SNR would be {middle - value:.1f} dB below the median",
            ratio=middle - value,
            weight=middle - value,
        )
        for value, i in snr
        if middle - value >= BELOW_MEDIAN
    ]


def _gains(known: _Known, plan: Plan) -> list[Finding]:
    out = []
    for r, i in known:
        gain = r.predicted.finer_gain_db if r.predicted else None
        if gain is None or not math.isfinite(gain) or gain < GAIN:
            continue
        t = plan.tensors[i]
        out.append(
            Finding(
                kind=FindingKind.GROUP_GAIN,
                tensor=t.name,
                index=i,
                text=f"{_called(t)} would gain {gain:.1f} dB from finer scales than {t.format_name} has.",
                because=f"finer scales gain {gain:.1f} dB",
                ratio=gain,
                weight=gain,
            )
        )
    return out


def _times(ratio: float) -> str:
    return f"{format_count(round(ratio))} ×" if ratio >= 10 else f"{ratio:.1f} ×"


def _called(t: TensorPlan) -> str:
    """Its name in the open model, and where that is another one, in the output."""
    planned, sources = _short(t.name), t.source.sources
    own = _short(sources[0].name) if len(sources) == 1 else planned
    return own if own == planned else f"{own} ({planned})"


def _short(name: str) -> str:
    return name.removeprefix("model.").removesuffix(".weight")
