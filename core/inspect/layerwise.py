"""Runs a decoder over one text without holding it: each weight is read from its file when its step comes.

The steps are those of `core.runtime.decoder`; between two of them only buffers [tokens, width] are kept.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.inspect.activation_cache import load_activations, store_activations
from core.inspect.activations import ActivationLayer, Activations, Place
from core.inspect.tap import Tap
from core.models.config import DecoderConfig
from core.progress import CancelToken
from core.runtime.decoder import FAMILIES, DecoderWeights, decoder_program
from core.runtime.load import decoder_config
from core.runtime.tokenizer import open_text
from core.runtime.weights import Slot, WeightPlan, plan_weights, read_weights, rotations_of
from core.units import format_count
from kernels.matrix import Activations as Arithmetic
from kernels.matrix import Matrix
from kernels.program import Attention, Experts, Linear, Program, Step
from kernels.reference.elementwise import soft_cap, softmax
from kernels.reference.program import ReferenceProgram
from kernels.rotation import Rotation
from resources import read_text

TOKENS = 512  # of the text; a few hundred show every outlier channel
LETTERS = 64  # of a text that are looked at for each token that is wanted; no tokenizer needs more
SCORES = 4 << 20  # of one key head that are there at a time, however many tokens the text has
_BLOCK = 4 << 20  # weights that are decoded at a time
_PLACES = {
    "attn_q": Place.ATTENTION,
    "attn_output": Place.ATTENTION_OUT,
    "ffn_gate": Place.FFN,
    "ffn_down": Place.FFN_DOWN,
    "ffn_gate_inp": Place.ROUTER,
}


@dataclass(frozen=True)
class ActivationProgress:
    """done of total layers are finished; found: the inputs measured since the last report; cached: nothing was run."""

    done: int
    total: int
    found: tuple[ActivationLayer, ...] = ()
    cached: bool = False


def bundled_text() -> str:
    """Prose, code, a table and other languages: more than `TOKENS` tokens of a usual tokenizer."""
    return read_text("inspect_text.txt")


def measure_activations(
    checkpoint: Checkpoint,
    text: str | None = None,
    limit: int = TOKENS,
    token: CancelToken | None = None,
    use_cache: bool = True,
    rotated: bool = False,
) -> Generator[ActivationProgress, None, Activations]:
    """Every linear layer's input over the first `limit` tokens of a text (None: the bundled one).

    rotated: as weights meet it that are stored for a rotated input; otherwise as it is before that, beside the weights
    that Inspect shows.

    In float32, weights decoded. Yields layer by layer; the result is kept on disk, by the checkpoint's fingerprint and
    the tokens. Raises UserError for a model that is none of `core.runtime.decoder.FAMILIES`, without a tokenizer, for
    an empty text, and where an input is not finite; Cancelled between two blocks of rows.
    """
    token = token or CancelToken()
    config, ids, cut = text_for(checkpoint, text, limit)
    total = config.layers + 1
    known = load_activations(checkpoint, ids) if use_cache else None
    if known is not None:
        yield ActivationProgress(total, total, known.layers, cached=True)
        return replace(known, cut=cut)
    weights = lazy_weights(plan_weights(checkpoint, config), token, rotated)
    program = decoder_program(config, weights, len(ids), 1, Arithmetic.EXACT, "F32")
    run = Layerwise(program, token)
    layers: list[ActivationLayer] = []
    for done in run.layers(ids):
        found = run.finished()
        layers += found
        yield ActivationProgress(done, total, found)
    result = Activations(tuple(layers), tuple(ids), cut, tuple(run.cache))
    if use_cache:
        store_activations(checkpoint, result)
    return result


def text_for(checkpoint: Checkpoint, text: str | None, limit: int) -> tuple[DecoderConfig, list[int], bool]:
    """The model, the text's first `limit` tokens (None: the bundled one), and whether it has more. Raises UserError as
    `measure_activations`."""
    config = _config(checkpoint)
    return config, *_tokens(checkpoint, config, bundled_text() if text is None else text, limit)


def check_can_measure(checkpoint: Checkpoint) -> None:
    """Raise UserError, without running anything, for a model that `measure_activations` does not know."""
    _config(checkpoint)


def _config(checkpoint: Checkpoint) -> DecoderConfig:
    if checkpoint.architecture in ("", *FAMILIES):  # others would start transformers
        config = decoder_config(checkpoint)
        if config.architecture in FAMILIES:
            return config
    raise UserError(
        f"Activations of models of the kind '{checkpoint.architecture or 'unknown'}' can not be measured yet.",
        f"Those that can are {', '.join(FAMILIES)}; weights can be inspected in any.",
    )


def _tokens(checkpoint: Checkpoint, config: DecoderConfig, text: str, limit: int) -> tuple[list[int], bool]:
    if limit < 1:
        raise UserError(f"Activations of {limit} tokens can not be measured.", "Choose at least 1.")
    if not text.strip():
        raise UserError("The text is empty.", "Give a text of a few hundred words, or use the bundled one.")
    limit = min(limit, config.context)
    ids = open_text(checkpoint).encode(text[: limit * LETTERS])
    if not ids:
        raise UserError(
            "The model's tokenizer finds no token in this text.",
            "Give a text in the model's language, and check that the tokenizer belongs to these weights.",
        )
    if not 0 <= min(ids) <= max(ids) < config.vocab:
        raise UserError(
            f"The tokenizer knows token {format_count(max(ids))}, but the model has only {format_count(config.vocab)}.",
            "Use the tokenizer that belongs to these weights.",
        )
    return ids[:limit], len(ids) > limit or len(text) > limit * LETTERS


class _FileRows:
    """A matrix whose weights stay in their file: `kernels.matrix.Stored`."""

    kind = "float"

    def __init__(self, slot: Slot, rotation: Rotation | None = None) -> None:
        self.slot, self._rotation = slot, rotation
        self.nbytes = slot.nbytes

    def take(self, rows: np.ndarray) -> np.ndarray:
        distinct, places = np.unique(rows, return_inverse=True)
        breaks = np.flatnonzero(np.diff(distinct) > 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(distinct, breaks) if len(run)]
        start, values = self.slot.start, self.slot.stored.values
        found = [values(start + first, start + last).reshape(last - first, -1) for first, last in runs]
        if self._rotation is not None:
            found = [self._rotation.apply(part) for part in found]
        if len(found) == 1 and len(distinct) == len(rows) and (places[:-1] < places[1:]).all():
            return found[0]
        return np.concatenate(found)[places] if found else np.zeros((0, self.slot.shape[1]), np.float32)


def lazy_weights(plan: WeightPlan, token: CancelToken, rotated: bool = False) -> DecoderWeights:
    """Vectors read, matrices left in their files. rotated: those that are stored so stay so, and their inputs are."""
    rotations = rotations_of(plan) if rotated else {}
    matrices = {
        s.name: Matrix(s.shape[0], s.shape[1], s.stored.format, _FileRows(s, rotations.get(s.name)))
        for s in plan.slots
        if not s.is_vector
    }
    steps = read_weights(replace(plan, slots=tuple(s for s in plan.slots if s.is_vector)), token)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return replace(stop.value[0], matrices=matrices, rotations=rotations)


def _slot(weight: Matrix) -> Slot:
    assert isinstance(weight.stored, _FileRows)
    return weight.stored.slot


class Layerwise(ReferenceProgram):
    """One sequence from its first token on; every product's input goes through a `Tap`. There are no logits."""

    def __init__(self, program: Program, token: CancelToken) -> None:
        self._head = next(step for step in program.steps if isinstance(step, Linear) and step.logits)
        end = program.steps.index(self._head)
        widths = [0 if i == program.logits else width for i, width in enumerate(program.widths)]
        no_cache = replace(program.cache, layers=())
        super().__init__(
            replace(
                program, steps=program.steps[:end], labels=program.labels[:end], widths=tuple(widths), cache=no_cache
            )
        )
        self._token = token
        self._taps: dict[str, Tap] = {}  # by the weight's name; weights that share an input share one
        self._order: list[Tap] = []
        self.cache: list[tuple[float, float]] = []  # of each layer so far: largest |key| and |value|

    def layers(self, ids: list[int]) -> Iterator[int]:
        """Run; yields how many layers are finished, the head being the last."""
        count = len(ids)
        self._tokens, self._positions = np.array(ids, np.int32), np.arange(count, dtype=np.int32)
        self._buffers = [np.zeros((count, width), np.float32) for width in self.program.widths]
        done = 0
        for step, label in zip(self.program.steps, self.program.labels, strict=True):
            layer = int(label.split(".")[1]) if label.startswith("blk.") else None
            if layer is not None and layer > done:
                yield (done := layer)
            self._token.check()
            self._prepare(step)
            with np.errstate(over="ignore", invalid="ignore"):  # a tap tells what is not finite, with its place
                self._step(step)
        yield done + 1
        self._prepare(self._head)
        weight = self._head.weights[0]
        tap = self._taps[_slot(weight).name]
        tap.measure(self._buffers[self._head.x])
        for _, rows in self._blocks(weight):
            tap.weigh(rows)
        yield done + 2

    def finished(self) -> tuple[ActivationLayer, ...]:
        """What was measured since the last call."""
        found = tuple(tap.result() for tap in self._order)
        self._order.clear()
        self._taps.clear()
        return found

    def _prepare(self, step: Step) -> None:
        """A tap for each input of the step's products."""
        if isinstance(step, Linear):
            self._add_tap(step.weights, Place.HEAD if step.logits else None)
        elif isinstance(step, Experts):
            for gate, up, down in zip(step.gates, step.ups, step.downs, strict=True):
                self._add_tap((gate, up))
                self._add_tap((down,))

    def _add_tap(self, weights: tuple[Matrix, ...], place: Place | None = None) -> None:
        slots = [_slot(weight) for weight in weights]
        words = slots[0].name.split(".")
        first = words[0] != "blk"
        layer, part = (None, words[0]) if first else (int(words[1]), words[2])
        expert = int(words[3]) if not first and words[3].isdecimal() else None
        others = [s.name.split(".")[0 if first else 2] for s in slots[1:]]
        name = "+".join([slots[0].name.removesuffix(".weight"), *others])
        if expert is not None:
            name = f"blk.{layer}.{'+'.join([part, *others])}.{expert}"
        tensors = tuple(dict.fromkeys(s.stored.name for s in slots))
        tap = Tap(name, layer, place or _PLACES[part], expert, tensors, weights[0].columns)
        self._order.append(tap)
        self._taps |= {s.name: tap for s in slots}

    def _product(self, x: np.ndarray, weight: Matrix, outliers: float = 0.0) -> np.ndarray:
        """x · weightᵀ in float32, tapped; its rows are read, multiplied and forgotten block by block."""
        tap = self._taps[_slot(weight).name]
        tap.measure(x)
        y = np.empty((len(x), weight.rows))
        for start, rows in self._blocks(weight):
            y[:, start : start + len(rows)] = x @ rows.T
            tap.weigh(rows)
        return y

    def _blocks(self, weight: Matrix) -> Iterator[tuple[int, np.ndarray]]:
        step = max(_BLOCK // weight.columns // 128, 1) * 128  # whole tiles of scales
        for start in range(0, weight.rows, step):
            self._token.check()
            yield start, weight.stored.take(np.arange(start, min(start + step, weight.rows)))

    def _step(self, step: Step) -> None:
        if isinstance(step, Attention):
            self._attend(step)
        else:
            super()._step(step)

    def _attend(self, step: Attention) -> None:
        """A block of tokens at once, without a cache: each sees itself and those before it."""
        count, width = len(self._tokens), step.head_dim
        share = step.heads // step.kv_heads
        q, k, v = (  # [key heads, rows, width]; query heads that share a key head stand one under the other
            np.ascontiguousarray(self._buffers[buffer].reshape(count, step.kv_heads, -1, width).transpose(1, 2, 0, 3))
            for buffer in (step.q, step.k, step.v)
        )
        self.cache.append((float(np.abs(k).max(initial=0.0)), float(np.abs(v).max(initial=0.0))))
        out = self._buffers[step.out].reshape(count, step.kv_heads, share, width)
        window = step.window or count
        each = max(1, SCORES // (share * count))
        for first in range(0, count, each):
            last, start = min(first + each, count), max(0, first - window + 1)
            back = self._positions[first:last, None] - self._positions[start:last]
            hidden = (back < 0) | (back >= window)
            for head in range(step.kv_heads):
                self._token.check()
                scores = step.scale * (q[head, :, first:last].reshape(-1, width) @ k[head, 0, start:last].T)
                if step.softcap:
                    scores = soft_cap(scores, step.softcap)
                scores = scores.reshape(share, *hidden.shape)
                scores[:, hidden] = -np.inf
                seen = softmax(scores).reshape(-1, last - start) @ v[head, 0, start:last]
                out[first:last, head] = seen.reshape(share, last - first, width).transpose(1, 0, 2)
