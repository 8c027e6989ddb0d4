"""Runs the model with one unit changed at a time, all such copies side by side, block by block.

A copy begins at its unit's block as the unchanged stream with that unit quantized, and goes through the later blocks
with everybody else's: each block's weights are read and packed once, whatever the number of copies. In the end the
head tells how far each copy's distributions are from the unchanged ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from core.budget.units import Survey, Unit, slots_of
from core.calibration.forward import BlockForward, Product, packed
from core.checkpoint.base import Checkpoint
from core.formats import Format
from core.methods.looks import product_energy
from core.methods.progress import BlockProgress
from core.methods.rounded import rounded
from core.methods.transform import BlockWeights
from core.metrics.divergence import compact, compare
from core.progress import CancelToken
from core.threads import in_parallel
from kernels import matrix
from kernels.matrix import Activations

SAMPLE_ROWS = 128  # of a product's input, on which errors of outputs are measured
PROBE_BITS = 4.5  # of the format whose error a probe enlarges: neither lost in bfloat16 nor far from what is chosen
PROBE_ERROR = 0.02  # of a unit's outputs, that a probe aims for: KL is then above what rounding to bfloat16 makes
MOST_SCALE = 4.0  # by which an error is enlarged at most, so that KL stays a square of it
GROUP_ROWS = 4096  # tokens of copies that go through a block together
HEAD_ROWS = 64  # tokens whose logits are held at a time
_PIECE = 1 << 20  # values that are changed between two looks at the token


@dataclass(frozen=True)
class Probe:
    """A copy of the stream: unit number `unit` with the error of option number `option` times `scale`."""

    unit: int
    option: int
    scale: float


@dataclass
class Measured:
    """errors: of each unit, one for each of its options. kl: of each probe, nats a token."""

    errors: list[list[float]]
    kl: list[tuple[Probe, float]] = field(default_factory=list)


Chooser = Callable[[int, Unit, Sequence[float]], list[Probe]]


def one_probe(survey: Survey) -> Chooser:
    """For each unit one probe: the format of about `PROBE_BITS`, its error enlarged to about `PROBE_ERROR`."""

    def choose(number: int, unit: Unit, errors: Sequence[float]) -> list[Probe]:
        usable = [i for i, p in enumerate(unit.possible) if p.changes and 0 < errors[i] < math.inf]
        if not usable:
            return []
        bits = [survey.formats[unit.possible[i].format].contract.effective_bits for i in usable]
        option = min(zip((abs(b - PROBE_BITS) for b in bits), usable, strict=True))[1]
        return [Probe(number, option, min(max(math.sqrt(PROBE_ERROR / errors[option]), 1.0), MOST_SCALE))]

    return choose


def measure(
    checkpoint: Checkpoint,
    survey: Survey,
    ids: np.ndarray,
    importance: Mapping[str, np.ndarray],
    choose: Chooser,
    token: CancelToken,
) -> Generator[BlockProgress, None, Measured]:
    """Errors of every unit and format, and KL of the probes that `choose` makes of them.

    ids: int32 [S, L]. importance: by the checkpoint's tensor names, float32 [experts, K]. Raises UserError, Cancelled.
    """
    walk = _Walk(checkpoint, survey, ids, importance, choose, token)
    yield from walk.run()
    return walk.found


class _Inputs:
    """Some rows of what each weight of a block is multiplied with."""

    def __init__(self) -> None:
        self.rows: dict[str, np.ndarray] = {}

    def product(self, product: Product, weights: BlockWeights) -> None:
        step = max(1, -(-product.rows // SAMPLE_ROWS))
        kept, seen = [np.zeros((0, product.columns), np.float32)], 0
        for x in product.pieces():
            kept.append(x[-seen % step :: step].copy())
            seen += len(x)
        self.rows |= dict.fromkeys(product.names, np.concatenate(kept))


class _Walk:
    def __init__(
        self,
        checkpoint: Checkpoint,
        survey: Survey,
        ids: np.ndarray,
        importance: Mapping[str, np.ndarray],
        choose: Chooser,
        token: CancelToken,
    ) -> None:
        self._survey, self._importance, self._choose, self._token = survey, importance, choose, token
        self._forward = BlockForward(checkpoint, ids, token)
        slots = self._forward.slots
        self._slots = slots_of(survey.units, {name: slot.stored.name for name, slot in slots.items()})
        self.found = Measured([[0.0] * len(u.possible) for u in survey.units])
        self._copies: list[tuple[Probe, torch.Tensor]] = []

    def run(self) -> Generator[BlockProgress, None, None]:
        forward = self._forward
        outer = forward.load_outer()
        forward.embed()
        self._embedding(outer)
        for layer in range(forward.layers):
            yield from self._block(layer)
            yield BlockProgress(layer + 1, forward.layers + 1)
        yield from self._head(outer)
        yield BlockProgress(forward.layers + 1, forward.layers + 1)

    def _units_of(self, prefix: str) -> Iterator[tuple[int, Unit]]:
        for number, unit in enumerate(self._survey.units):
            if any(s.startswith(prefix) for s in self._slots[number]):
                yield number, unit

    # ------------------------------------------------------------------------------------------------ inside blocks

    def _block(self, layer: int) -> Generator[BlockProgress, None, None]:
        forward = self._forward
        weights, seen = forward.load(layer), _Inputs()
        before = forward.hidden.clone()
        forward.run(layer, weights, seen)
        base, made = forward.hidden, []
        for number, unit in self._units_of(f"blk.{layer}."):
            names = [s for s in self._slots[number] if s.startswith(f"blk.{layer}.")]
            probes, changed = self._decide(number, unit, {n: weights.matrices[n] for n in names}, seen.rows)
            for probe in probes:
                own = weights.copy()
                own.matrices.update(changed(probe))
                forward.hidden = before.clone()
                forward.run(layer, own)
                made.append((probe, forward.hidden))
            yield BlockProgress(layer, forward.layers + 1, unit.name)
        for group in self._groups():
            forward.hidden = torch.cat([self._copies[i][1] for i in group])
            forward.run(layer, weights)
            for i, hidden in zip(group, forward.hidden.split(len(base)), strict=True):
                self._copies[i] = self._copies[i][0], hidden.clone()
            yield BlockProgress(layer, forward.layers + 1)
        self._copies += made
        forward.hidden = base

    def _groups(self) -> list[list[int]]:
        size = max(1, GROUP_ROWS // max(1, self._forward.ids.size))
        return [list(range(i, min(i + size, len(self._copies)))) for i in range(0, len(self._copies), size)]

    def _decide(
        self, number: int, unit: Unit, weights: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]
    ) -> tuple[list[Probe], Callable[[Probe], dict[str, np.ndarray]]]:
        """Errors of all formats, the probes that they lead to, and what the weights are in one of these."""
        signal = {name: product_energy(inputs[name], w, self._token) for name, w in weights.items()}
        errors = self.found.errors[number]
        for option, possible in enumerate(unit.possible):
            if not possible.changes:
                continue
            form = self._survey.formats[possible.format]
            for name, w in weights.items():
                noise = product_energy(inputs[name], self._quantized(name, w, form) - w, self._token)
                errors[option] += noise / signal[name] if signal[name] > 0 else 0.0
        probes = self._choose(number, unit, errors)

        def changed(probe: Probe) -> dict[str, np.ndarray]:
            form = self._survey.formats[unit.possible[probe.option].format]
            return {name: self._enlarged(name, w, form, probe.scale) for name, w in weights.items()}

        return probes, changed

    def _enlarged(self, name: str, weight: np.ndarray, form: Format, scale: float) -> np.ndarray:
        found = self._quantized(name, weight, form)
        if scale == 1.0:
            return found
        step = max(1, _PIECE // weight.shape[1])
        for start in range(0, len(weight), step):
            self._token.check()
            own, new = weight[start : start + step], found[start : start + step]
            found[start : start + step] = own + np.float32(scale) * (new - own)
        return found

    def _quantized(self, name: str, weight: np.ndarray, form: Format) -> np.ndarray:
        """What a reader decodes, float32 [N, K]; the importance is that of the run that writes it."""
        slot = self._forward.slots[name]
        importance = None
        known = self._importance.get(slot.stored.name)
        reached = name.startswith("blk.") or name == "output.weight"
        if known is not None and form.weighs_columns and reached:
            expert = slot.start * len(known) // slot.stored.rows if len(known) > 1 else 0
            importance = known[expert]
        return rounded(weight, form, importance, self._token)

    # ------------------------------------------------------------------------------------------------ outside of them

    def _embedding(self, outer: BlockWeights) -> None:
        """Copies with another embedding begin before the first block. A head that is the embedding changes too, and is
        changed when the head's turn comes."""
        forward, name = self._forward, "token_embd.weight"
        number = next((i for i, slots in enumerate(self._slots) if name in slots), None)
        if number is None:
            return
        table = outer.matrices[name]
        rows = np.unique(forward.ids)
        step = max(1, -(-len(rows) // (4 * SAMPLE_ROWS)))
        some = table[rows[::step]]
        unit, errors = self._survey.units[number], self.found.errors[number]
        signal = float(np.square(some, dtype=np.float64).sum())
        for option, possible in enumerate(unit.possible):
            if possible.changes:
                form = self._survey.formats[possible.format]
                noise = float(np.square(self._quantized(name, some, form) - some, dtype=np.float64).sum())
                errors[option] = noise / signal if signal > 0 else 0.0
        base = forward.hidden
        for probe in self._choose(number, unit, errors):
            form = self._survey.formats[unit.possible[probe.option].format]
            changed = np.zeros(table.shape, np.float32)  # unlike zeros_like, it touches no page but those that are set
            changed[rows] = self._enlarged(name, table[rows], form, probe.scale)
            forward.embed(table=changed)
            self._copies.append((probe, forward.hidden))
        forward.hidden = base

    def _head(self, outer: BlockWeights) -> Generator[BlockProgress, None, None]:
        forward = self._forward
        tied = "output.weight" not in outer.matrices
        name = "token_embd.weight" if tied else "output.weight"
        head = outer.matrices[name]
        number = next((i for i, slots in enumerate(self._slots) if name in slots), None)
        if number is not None and not tied:
            rows = np.concatenate(list(forward.head_input()))
            rows = np.ascontiguousarray(rows[:: max(1, -(-len(rows) // SAMPLE_ROWS))])
            probes, _ = self._decide(number, self._survey.units[number], {name: head}, {name: rows})
            self._copies += [(probe, forward.hidden) for probe in probes]
        gain = outer.vectors["output_norm.weight"]
        own = {}
        for probe, _ in self._copies:
            if probe.unit == number:
                form = self._survey.formats[self._survey.units[number].possible[probe.option].format]
                own[probe] = packed(self._enlarged(name, head, form, probe.scale), self._token)
        usual = packed(head, self._token)
        base, inputs = forward.hidden, []
        for _, hidden in self._copies:
            forward.hidden = hidden
            inputs.append(np.concatenate(list(forward.head_input(gain))))
            self._token.check()
        forward.hidden = base
        reference = np.concatenate(list(forward.head_input(gain)))
        cap = forward.config.final_softcap or 0.0
        sums = np.zeros(len(self._copies))
        for start in range(0, len(reference), HEAD_ROWS):
            part = slice(start, min(start + HEAD_ROWS, len(reference)))
            right = np.zeros(part.stop - part.start, np.int64)  # the tokens that follow do not matter here
            source = compact(self._logits(reference[part], usual, cap), right, self._token)
            for i, (probe, _) in enumerate(self._copies):
                logits = self._logits(inputs[i][part], own.get(probe, usual), cap)
                sums[i] += compare(source, logits, right, self._token).kl.sum()
                if i % 16 == 15:
                    yield BlockProgress(forward.layers, forward.layers + 1)
        self.found.kl = [(probe, float(s) / len(reference)) for (probe, _), s in zip(self._copies, sums, strict=True)]

    def _logits(self, x: np.ndarray, head: matrix.Matrix, cap: float) -> np.ndarray:
        def some(part: slice) -> np.ndarray:
            return matrix.product(np.ascontiguousarray(x[part]), head, Activations.FAST)

        parts = [slice(i, i + 32) for i in range(0, len(x), 32)]
        logits = np.concatenate(list(in_parallel(some, parts, self._token)))
        return cap * np.tanh(logits / cap) if cap else logits
