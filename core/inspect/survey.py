"""The whole model in one streaming pass: what the map of the model is coloured by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from core.checkpoint.base import Checkpoint
from core.inspect.statistics import ValueStatistics
from core.plan import Plan
from core.progress import CancelToken
from core.tensor_info import Role


class Measure(Enum):
    """What the map shows; `SurveyRow.measure` gives the number."""

    RANGE = "range"  # amax, weight units
    OUTLIER_RATIO = "outlier ratio"  # amax / p999
    KURTOSIS = "kurtosis"  # 3 for a normal distribution
    PREDICTED_SNR = "predicted SNR"  # dB, in the plan's format; larger is better
    PREDICTED_ERROR = "predicted error"  # nRMSE, ‖W−Ŵ‖/‖W‖, 0 … 1
    FINER_GAIN = "gain by finer scales"  # dB of SNR


@dataclass(frozen=True)
class PredictedError:
    """Error of a tensor in the plan's format, from an evenly spread, deterministic sample of its rows.

    snr_db: inf when exact. nrmse: ‖W−Ŵ‖/‖W‖. sampled: values looked at. finer_gain_db: see `survey`; None where the
    format has no scales. problem: why there are no figures ('' when there are): values that the format refuses.
    """

    format: str
    snr_db: float
    nrmse: float
    sampled: int
    finer_gain_db: float | None
    problem: str = ""


@dataclass(frozen=True)
class SurveyRow:
    """One tensor of the source. statistics None: its type can not be decoded. predicted None: no plan, or not in it.

    bytes_done of bytes_total: stored bytes surveyed so far, of the pass. cached: nothing was read for it.
    """

    name: str
    role: Role
    layer: int | None
    expert: int | None
    shape: tuple[int, ...]
    dtype: str
    statistics: ValueStatistics | None
    predicted: PredictedError | None
    bytes_done: int
    bytes_total: int
    cached: bool = False

    def measure(self, which: Measure) -> float | None:
        """The number to colour by; None where there is none."""
        raise NotImplementedError


def survey(
    checkpoint: Checkpoint, plan: Plan | None, token: CancelToken, cache: Path | None = None
) -> Iterator[SurveyRow]:
    """Every tensor once, each as soon as it is known: in file order, tensors over 128 MiB after all others.

    cache: folder of the results kept, the user's cache folder when None. Raises UserError when the source can not be
    read, Cancelled between row blocks.
    """
    raise NotImplementedError
