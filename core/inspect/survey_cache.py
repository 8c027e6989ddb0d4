"""What a survey found, kept in the user's cache folder: statistics by source, predicted errors by source and format.

Anything that can not be read is passed over and made again; files appear whole or not at all. What is kept of a tensor
is a line, or a row, of its own: one call that takes in all of ten thousand would keep the interpreter from the window.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from core.inspect.cache import cache_folder, keep, used
from core.inspect.outliers import OutlierChannel
from core.inspect.statistics import MAGNITUDE_BINS, ValueStatistics

DEFINITIONS = 1  # rises when a statistic or the sample of a predicted error is defined anew
_NUMBERS = ("min", "max", "amax", "mean", "std", "kurtosis", "p999", "outlier_ratio")
_COUNTS = ("values", "finite", "nonfinite", "zeros")

Known = tuple[ValueStatistics, tuple[OutlierChannel, ...]]


class SurveyCache:
    """Of one source, named by its fingerprint. folder: where the files are, the user's cache folder when None."""

    def __init__(self, fingerprint: str, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()
        name = hashlib.sha256(f"{DEFINITIONS} {fingerprint}".encode()).hexdigest()[:32]
        self._facts, self._errors = self._folder / f"{name}-facts.npz", self._folder / f"{name}-errors.json"

    def load_statistics(self) -> dict[str, Known]:
        """By tensor name; {} when there is nothing that can be read."""
        try:
            with np.load(self._facts, allow_pickle=False) as stored:
                heads = [json.loads(line) for line in stored["heads"].tobytes().splitlines()]
                numbers, counts, histograms = stored["numbers"], stored["counts"], stored["histograms"]
            known = {}
            for i, head in enumerate(heads):
                if histograms.shape[1:] != (MAGNITUDE_BINS + 2,):
                    return {}
                values = dict(zip(_NUMBERS, numbers[i].tolist(), strict=True))
                values |= dict(zip(_COUNTS, counts[i].tolist(), strict=True))
                known[str(head["name"])] = (
                    ValueStatistics(
                        name=head["name"],
                        shape=tuple(head["shape"]),
                        histogram=histograms[i].astype(np.int64),
                        **values,
                    ),
                    tuple(OutlierChannel(**c) for c in head["worst"]),
                )
        except Exception:  # noqa: BLE001 - whatever is wrong with the file, it is made again
            return {}
        used(self._facts)
        return known

    def save_statistics(self, known: Mapping[str, Known]) -> None:
        """Replace what is stored; a folder that can not be written to is no error."""
        facts = [s for s, _ in known.values()]
        heads = [{"name": s.name, "shape": s.shape, "worst": [asdict(c) for c in w]} for s, w in known.values()]
        histograms = np.empty((len(facts), MAGNITUDE_BINS + 2), np.int64)
        for row, s in zip(histograms, facts, strict=True):
            row[:] = s.histogram
        arrays: dict[str, Any] = {
            "heads": np.frombuffer(_lines(heads), np.uint8),
            "numbers": np.array([[getattr(s, n) for n in _NUMBERS] for s in facts], np.float64),
            "counts": np.array([[getattr(s, n) for n in _COUNTS] for s in facts], np.int64),
            "histograms": histograms,
        }
        keep(self._facts, lambda file: np.savez_compressed(file, **arrays))

    def load_errors(self) -> dict[str, list[Any]]:
        """By key of a tensor in a format; {} when there is nothing that can be read."""
        try:
            found = [json.loads(line) for line in self._errors.read_bytes().splitlines()]
            good = {str(k): v for k, v in found if isinstance(v, list)}
        except Exception:  # noqa: BLE001 - as above
            return {}
        used(self._errors)
        return good

    def save_errors(self, errors: Mapping[str, list[Any]], most: int = 50_000) -> None:
        """Replace what is stored by the last `most` of these."""
        kept = list(errors.items())[-most:]
        keep(self._errors, lambda file: file.write(_lines(kept)))


def _lines(values: Iterable[Any]) -> bytes:
    return "\n".join([json.dumps(value) for value in values]).encode()
