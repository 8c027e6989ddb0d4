"""How well predicted KL ranks weights and formats: some are also measured directly, each alone and at its true error.

    python tests/benchmarks/budget_proxy.py SOURCE [--every 9] [--windows 4] [--length 64] [--samples 32]

Prints the rank correlation of predicted and direct KL over all such pairs, their median ratio, and the median factor
between the two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.budget.measure import Probe, measure, one_probe
from core.budget.sensitivity import importance_by_source, table
from core.budget.units import Unit, survey
from core.budget.wish import Wish
from core.calibration.settings import CalibrationText
from core.calibration.text import samples
from core.checkpoint import open_checkpoint
from core.methods.choice import Calibrated, DataMethod
from core.progress import CancelToken


def finish(job: Generator[Any, None, Any]) -> Any:
    while True:
        try:
            next(job)
        except StopIteration as stop:
            return stop.value


def ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--every", type=int, default=9)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--samples", type=int, default=32)
    args = parser.parse_args()
    text = CalibrationText(samples=args.samples)
    wish = Wish(
        calibrated=Calibrated(DataMethod.IMPORTANCE, text=text),
        probe=CalibrationText(samples=args.windows, length=args.length),
    )
    token = CancelToken()
    with open_checkpoint(args.source) as checkpoint:
        found = survey(checkpoint, wish)
        importance = finish(importance_by_source(checkpoint, wish, token))
        ids = samples(checkpoint, wish.probe_text(), token).ids
        usual = one_probe(found)

        def choose(number: int, unit: Unit, errors: Sequence[float]) -> list[Probe]:
            probes = usual(number, unit, errors)
            if probes and (number % args.every == args.every // 2 or number == 0):
                others = [i for i, p in enumerate(unit.possible) if p.changes and i != probes[0].option]
                others.sort(key=lambda i: -errors[i])
                directly = [*others[:1], *others[len(others) * 2 // 3 :][:1], probes[0].option]
                probes += [p for i in dict.fromkeys(directly) if (p := Probe(number, i, 1.0)) not in probes]
            return probes

        begun = time.process_time()
        measured = finish(measure(checkpoint, found, ids, importance, choose, token))
        seconds = time.process_time() - begun
    first: dict[int, tuple[Probe, float]] = {}
    for probe, kl in measured.kl:
        first.setdefault(probe.unit, (probe, kl))
    direct = [(p, kl) for p, kl in measured.kl if (p, kl) != first[p.unit]]
    measured.kl = list(first.values())
    predictions = table(found, measured, wish, ids.size, seconds)
    pairs = [(predictions.units[p.unit].options[p.option].kl, kl) for p, kl in direct]
    print(f"{len(measured.kl)} probes and {len(direct)} direct, {ids.size} tokens, {seconds:.0f} CPU s")
    a, b = (np.array(x) for x in zip(*pairs, strict=True))
    print(f"rank correlation {np.corrcoef(ranks(a), ranks(b))[0, 1]:.3f}, median ratio {np.median(a / b):.3f}")
    print(f"half of the ratios within a factor {np.exp(np.median(np.abs(np.log(a / b)))):.2f}")


if __name__ == "__main__":
    main()
