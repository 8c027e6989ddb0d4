"""What a tensor's error will be in the plan's format, and what smaller scale groups would gain, from a sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from core.checkpoint.base import Checkpoint
from core.contract import NumericContract, PerBlock, PerGroup, SuperBlock
from core.errors import UserError
from core.formats import EncodeOptions, Method
from core.metrics.error import nrmse, snr_db
from core.models.read_mapped import read_mapped
from core.plan import Plan, TensorPlan
from core.preview import round_trip, sample_ranges
from core.progress import CancelToken
from core.tensor_info import TensorInfo
from kernels import ops

SMALLEST_SAMPLE, LARGEST_SAMPLE = 32_768, 200_000  # values of a tensor
SAMPLE_SHARE = 16  # one value of so many, between those
FINER_GROUP = 32


@dataclass(frozen=True)
class PredictedError:
    """Error of a tensor in the plan's format, from an evenly spread, deterministic sample of its rows.

    snr_db: 10·log10(Σx² / Σ(x−x̂)²), inf when exact. nrmse: √(Σ(x−x̂)² / Σx²), 0 … . sampled: values looked at: all up
    to 32,768, then a sixteenth, at least 32,768 and about 200,000 at most, in up to 16 runs of whole rows.
    finer_gain_db: by how many dB the SNR of symmetric integers of the format's width rises on the same values, rounded
    to nearest, when their scales go from the format's groups to groups of 32 (of half the size, where they have 32 or
    fewer). None where the format has no scales or groups do not divide the rows. problem: why there are no figures
    ('' when there are): the values are refused by the format.
    """

    format: str
    snr_db: float
    nrmse: float
    sampled: int
    finer_gain_db: float | None
    problem: str = ""


def planned(plan: Plan) -> Mapping[str, list[TensorPlan]]:
    """By name of a source tensor, what becomes of it: planned tensors cut down to its own rows."""
    found: dict[str, list[TensorPlan]] = defaultdict(list)
    for tensor in plan.tensors:
        for piece in tensor.source.pieces:
            own = tensor
            if len(tensor.source.pieces) > 1:
                shape = (piece.stop - piece.start, tensor.columns)
                own = replace(tensor, shape=shape, source=replace(tensor.source, shape=shape, pieces=(piece,)))
            found[piece.tensor.name].append(own)
    return found


def sample_size(tensor: TensorInfo) -> int:
    """Values that are looked at, about."""
    return min(LARGEST_SAMPLE, max(SMALLEST_SAMPLE, tensor.values // SAMPLE_SHARE))


def key_of(tensors: list[TensorPlan], method: Method) -> str:
    """Names all that a predicted error depends on but the source."""
    return " + ".join(
        f"{t.source.pieces[0].tensor.name}:{t.source.pieces[0].start}-{t.source.pieces[0].stop} {t.format_name} "
        f"{t.action.value} {method.value if t.format else ''} {t.source.permute_heads} {t.source.add}"
        for t in tensors
    )


def predict(
    checkpoint: Checkpoint,
    tensors: list[TensorPlan],
    method: Method,
    size: int,
    token: CancelToken,
    amax: float | None = None,
) -> PredictedError:
    """The error of what one source tensor becomes. amax: its largest |x|, else that of the sample.

    Raises UserError when the source can not be read, Cancelled.
    """
    signal, noise, coarse, fine = 0.0, 0.0, [0.0, 0.0], [0.0, 0.0]
    sampled, problem = 0, ""
    share = size // len(tensors)
    for tensor in tensors:
        token.check()
        ranges = sample_ranges(tensor, share)  # all equally wide
        rows = np.concatenate([read_mapped(checkpoint, tensor.source, *r) for r in ranges])
        sampled += rows.size
        if tensor.format is None or not rows.size:
            continue
        token.check()
        largest = float(ops.scan(rows).amax) if amax is None else amax
        try:
            sums = ops.error_stats(rows, round_trip(tensor, rows, EncodeOptions(method=method, amax=largest)))
        except UserError as error:
            problem = error.message
            break
        signal, noise = signal + sums.source_squares, noise + sums.error_squares
        if groups := finer_groups(tensor.format.contract, tensor.columns):
            token.check()
            _add_rounded(coarse, rows, groups[0], groups[1])
            _add_rounded(fine, rows, groups[0], groups[2])
    snr, ratio = (0.0, 0.0) if problem else (snr_db(signal, noise), nrmse(signal, noise))
    gain = None
    if coarse[1] > 0 and fine[1] > 0 and not problem:
        gain = snr_db(*fine) - snr_db(*coarse)
    return PredictedError(" + ".join(dict.fromkeys(t.format_name for t in tensors)), snr, ratio, sampled, gain, problem)


def finer_groups(contract: NumericContract, columns: int) -> tuple[int, int, int] | None:
    """(bits, group, smaller group) that `PredictedError.finer_gain_db` compares; None where there is no such thing."""
    granularity = contract.granularity
    if contract.scale is None or isinstance(granularity, PerBlock):
        return None
    group = columns
    if isinstance(granularity, PerGroup):
        group = granularity.size
    elif isinstance(granularity, SuperBlock):
        group = granularity.sub
    finer = FINER_GROUP if group > FINER_GROUP else group // 2
    if finer < 2 or columns % group or columns % finer:
        return None
    return min(8, max(2, round(contract.bits))), group, finer


def _add_rounded(sums: list[float], rows: np.ndarray, bits: int, group: int) -> None:
    if rows.shape[1] % group:  # a piece of a long row: its scale is its own
        group = rows.shape[1]
    codes, scales, zeros = ops.encode_groups(rows, bits, group, True, "F32", search=False)
    found = ops.error_stats(rows, ops.decode_groups(codes, scales, zeros, bits, group))
    sums[0] += found.source_squares
    sums[1] += found.error_squares
