"""The bundled engine as the Test page's backend. Its modules are imported with the first use, on a worker."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.jobs.testing import (
    SIDES,
    AnswerEntry,
    DeviceMemory,
    Devices,
    KernelUse,
    LoadStep,
    Measured,
    Piece,
    Question,
    Setup,
    Shape,
    SweepEntry,
    SweepOrder,
)
from app.jobs.testing_cache import CacheEntry, CacheFound, CacheOrder, CacheStep, cache_result, cache_steps
from app.jobs.testing_quality import QualityEntry, QualityOrder, QualityStep, evaluation_steps, quality_result
from core import units
from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime.arithmetic import ARITHMETICS, contract_text
from core.runtime.device import parse_place
from core.runtime.results import Number, ResultStore, StoredResult, new_result
from core.runtime.sweep import BATCHES, Sweep, SweepPoint, sweep_data

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.kv.scheme import CacheScheme
    from core.runtime.load import LoadedModel
    from core.runtime.logits import LogitDifference
    from core.verdict.evaluation import Evaluation

SQUARE_FORMAT = "Q4_K"  # of the layer that is measured while no quantized file says another
CACHE_SHARE = 4  # a decode sweep's caches take at most this part of the free memory each


class CoreModel:
    """A loaded file and the checkpoint it was read from."""

    def __init__(self, loaded: LoadedModel, setup: Setup) -> None:
        self.loaded, self.setup = loaded, setup
        where = " · not on the GPU" if loaded.fell_back else ""
        self.summary = f"{_formats(loaded)} · {loaded.config.layers} layers{where}"
        self.nbytes = loaded.weight_bytes + loaded.program.cache.nbytes

    @property
    def device_memory(self) -> DeviceMemory | None:
        from core.runtime.device import memory_of

        known = memory_of(self.loaded.place)
        return None if known is None else DeviceMemory(*known, self.loaded.predicted_bytes)

    def close(self) -> None:
        self.loaded.unload()
        self.loaded.checkpoint.close()


class CoreBackend:
    """Runs core.runtime, and keeps results in `store`."""

    def __init__(self, store: ResultStore | None = None) -> None:
        self._store = store or ResultStore()

    # ---- load and generate -----------------------------------------------------------------------------------------

    def devices(self) -> Devices:
        """The GPUs that the kernels can use, and if there is none, what is in the way."""
        from core.runtime.device import Place, gpu_places, problem

        reason, remedy = problem(Place(True))
        return Devices(tuple((place.name, name) for place, name in gpu_places()), reason, remedy if reason else "")

    def refuses(self, cache: str, device: str) -> str:
        from core.kv.scheme import CacheScheme

        try:
            return why_not(CacheScheme.parse(cache), device)
        except UserError as error:
            return f"{error.message} {error.hint}".strip()

    def load(self, side: int, setup: Setup, token: CancelToken) -> Iterator[LoadStep]:
        """Returns a CoreModel, warmed up, its tokenizer read."""
        yield LoadStep(side, -1.0)
        checkpoint, loaded = yield from _load(side, setup, token)
        try:
            _ = loaded.text  # a missing tokenizer is told now, not with the first prompt
            model = CoreModel(loaded, setup)
            _warm_up(model)
        except BaseException:
            loaded.unload()
            checkpoint.close()
            raise
        return model

    def generate(self, side: int, model: CoreModel, question: Question, token: CancelToken) -> Iterator[Piece]:
        """Returns Measured."""
        from core.runtime.generate import Finish, generate
        from core.runtime.usage import EnergyMeter

        loaded = model.loaded
        meter = EnergyMeter()
        meter.start()
        steps = generate(loaded, _request(question), token)
        while True:
            try:
                event = next(steps)
            except StopIteration as end:
                result = end.value
                break
            yield Piece(side, event.token, event.text, event.margin, loaded.text.token_text(event.token))
        energy = meter.stop()
        if result.finish is Finish.CANCELLED:
            raise Cancelled
        return _measured(side, model, result, energy)

    def compare_logits(
        self, models: tuple[CoreModel, CoreModel], question: Question, answer: Sequence[Piece]
    ) -> LogitDifference:
        from core.runtime.generate import prompt_ids
        from core.runtime.logits import compare_logits

        ids = [*prompt_ids(models[0].loaded, _request(question)), *(piece.id for piece in answer)]
        return compare_logits(models[0].loaded, models[1].loaded, ids)

    def why_slower(self, source: Measured, quantized: Measured) -> str:
        from core.runtime.speed import why_slower

        return why_slower(_AsResult(quantized), _AsResult(source)).replace("the baseline", "the source")

    # ---- sweep -----------------------------------------------------------------------------------------------------

    def shapes(self, paths: tuple[Path | None, Path | None], models: tuple[Any, Any]) -> Sequence[Shape]:
        """The common square, the quantized file's own layers, and the whole step when there are two files."""
        if not any(paths):
            return ()
        sizes = _layers_of(models[1], paths[1]) or _layers_of(models[0], paths[0])
        own = [(kind, rows, columns) for kind, rows, columns in sizes if _can_sample(kind)]
        square = (own[0][0] if own else SQUARE_FORMAT, 4096, 4096)
        shapes = [_layer(*size) for size in dict.fromkeys((square, *own))]
        return (*shapes, *([Shape("whole decode step, both files")] if all(paths) else ()))

    def sweep(self, order: SweepOrder, token: CancelToken) -> Iterator[SweepPoint]:
        """Returns a Sweep."""
        sweep = yield from (_decode_sweep(order, token) if order.shape.decode else _layer_sweep(order, token))
        return sweep

    def evaluate(self, order: QualityOrder, token: CancelToken) -> Generator[QualityStep, None, Evaluation]:
        """Returns an Evaluation."""
        return (yield from evaluation_steps(order, token))

    def compare_caches(self, order: CacheOrder, token: CancelToken) -> Generator[CacheStep, None, CacheFound]:
        """Returns a CacheFound."""
        return (yield from cache_steps(order, token))

    # ---- history ---------------------------------------------------------------------------------------------------

    def store(self, entry: AnswerEntry | SweepEntry | QualityEntry | CacheEntry) -> None:
        match entry:
            case AnswerEntry():
                self._store.add(_answer_result(entry))
            case SweepEntry():
                self._store.add(_sweep_result(entry))
            case CacheEntry():
                self._store.add(cache_result(entry))
            case QualityEntry():
                self._store.add(quality_result(entry))

    def history(self) -> Sequence[StoredResult]:
        return self._store.all()

    def remove(self, stored: StoredResult) -> None:
        self._store.remove(stored.id)


def _load(
    side: int, setup: Setup, token: CancelToken, sequences: int = 1, capacity: int | None = None
) -> Generator[LoadStep, None, tuple[Checkpoint, LoadedModel]]:
    from core.checkpoint import open_checkpoint
    from core.runtime.device import parse_place
    from core.runtime.load import decoder_config, loading
    from core.runtime.transformers_model import in_background

    checkpoint = open_checkpoint(setup.path)
    try:
        nothing = LoadStep(side, -1.0)
        config = yield from in_background(partial(decoder_config, checkpoint), token, nothing)  # may start transformers
        context = capacity or min(setup.context, config.context)
        steps = loading(
            checkpoint, context, sequences, ARITHMETICS[setup.arithmetic], cache_dtype=setup.cache, token=token,
            place=parse_place(setup.device), fallback=setup.fallback,
        )  # fmt: skip
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return checkpoint, end.value
            yield LoadStep(side, step.bytes_done / max(step.bytes_total, 1), step.tensor)
    except BaseException:
        checkpoint.close()
        raise


def why_not(scheme: CacheScheme, _device: str) -> str:
    """Why the engine of a device keeps no cache in this scheme, in a sentence; '' where it does: both keep all."""
    try:
        scheme.check()
    except UserError as error:
        return f"{error.message} {error.hint}".strip()
    return ""


def _warm_up(model: CoreModel) -> None:
    """One step, and the bandwidth of this computer, so that the first answer's times are those of every answer."""
    import numpy as np

    from core.runtime.sweep import bandwidth_of

    zero = np.zeros(1, np.int32)
    model.loaded.engine.run(zero, zero, zero, zero)
    bandwidth_of(model.loaded)


def _request(question: Question) -> Any:
    from core.runtime.generate import GenerateRequest
    from core.runtime.sampling import Sampling
    from core.runtime.tokenizer import Message

    s = question.sampling
    return GenerateRequest(
        prompt="" if question.chat else question.prompt,
        messages=(Message("user", question.prompt),) if question.chat else (),
        max_tokens=question.tokens,
        stop=question.stop,
        sampling=Sampling(s.temperature, s.top_k, s.top_p, s.min_p, s.repetition, s.seed),
        details=True,
    )


def _measured(side: int, model: CoreModel, result: Any, energy: Any) -> Measured:
    from core.runtime.speed import GPU_ENERGY
    from core.runtime.sweep import bandwidth_of
    from core.runtime.usage import Energy

    engine = model.loaded.engine
    if model.loaded.place.gpu:
        energy = Energy(None, GPU_ENERGY)
    uses = tuple(KernelUse(u.op, _shape_text(u.shape), u.kernel, u.isa, u.reason, side) for u in engine.report())
    p50, p95 = result.itl_p50, result.itl_p95
    bandwidth = bandwidth_of(model.loaded)
    bound = 1000 * engine.bytes_per_token / (p50 * bandwidth) if p50 and bandwidth else None
    return Measured(
        prompt_tokens=result.prompt_tokens,
        tokens=len(result.tokens),
        first_token=result.ttft_ms / 1000,
        token_p50=None if p50 is None else p50 / 1000,
        token_p95=None if p95 is None else p95 / 1000,
        prompt_rate=result.prompt_tokens_per_s,
        decode_rate=result.decode_tokens_per_s,
        peak_memory=result.peak_memory,
        weight_bytes=model.loaded.weight_bytes,
        bytes_per_token=engine.bytes_per_token,
        bound_fraction=bound,
        energy=energy.joules / len(result.tokens) if energy.joules and result.tokens else None,
        energy_reason=energy.reason,
        end=result.finish.value,
        kernels=uses,
        device=model.loaded.place.name,
        device_memory=model.device_memory,
        cache=model.loaded.cache_dtype,
        cache_planned=_planned_cache(model.loaded),
        cache_allocated=getattr(engine, "nbytes", None),
    )


def _planned_cache(loaded: LoadedModel) -> int | None:
    """Bytes that the memory bar would say; of sliding layers it counts the window alone, the engine holds all."""
    from core import memory
    from core.kv.scheme import CacheScheme
    from core.models import model_shape

    shape = model_shape(loaded.checkpoint)
    if shape is None:
        return None
    return memory.kv_bytes(shape, loaded.capacity, loaded.sequences, CacheScheme.parse(loaded.cache_dtype))


class _AsResult:
    """A measured answer as `core.runtime.speed.why_slower` reads it."""

    def __init__(self, measured: Measured) -> None:
        self.itl_p50_ms = 1000 * (measured.token_p50 or 0.0)
        self.kernels = measured.kernels
        self.bytes_per_token = measured.bytes_per_token
        self.bound_fraction = measured.bound_fraction
        self.device = measured.device


def _shape_text(shape: str | tuple[int, ...]) -> str:
    if isinstance(shape, str):
        return re.sub(r"\d{4,}", lambda found: units.format_count(int(found[0])), shape)
    return " × ".join(map(units.format_count, shape))


def _formats(loaded: LoadedModel) -> str:
    from core.runtime.layers import layer_shapes

    kinds = list(dict.fromkeys(matrix.format for matrix in layer_shapes(loaded.program)))
    return ", ".join(kinds[:2]) + (" …" if len(kinds) > 2 else "")


# ---- sweep -----------------------------------------------------------------------------------------------------------


def _layer(kind: str, rows: int, columns: int) -> Shape:
    return Shape(f"{units.format_count(rows)} × {units.format_count(columns)}, {kind}", kind, rows, columns)


def _layers_of(model: Any, path: Path | None) -> list[tuple[str, int, int]]:
    """(format, rows, columns) of a file's layers, those first that take the most; from its header if not loaded."""
    from core.checkpoint import open_checkpoint
    from core.runtime.layers import layer_shapes
    from core.tensor_info import Role

    if model is not None and model.loaded.weight_bytes:
        try:
            return [(m.format, m.rows, m.columns) for m in layer_shapes(model.loaded.program)]
        except RuntimeError:  # unloaded meanwhile
            return []
    if path is None:
        return []
    taken: dict[tuple[str, int, int], int] = {}
    with open_checkpoint(path) as checkpoint:
        headless = all(tensor.role is not Role.HEAD for tensor in checkpoint.tensors)  # the embedding is the head, too
        for tensor in checkpoint.tensors:
            if len(tensor.shape) == 2 and (headless or tensor.role is not Role.EMBED):
                key = (tensor.dtype, tensor.shape[0], tensor.shape[1])
                taken[key] = taken.get(key, 0) + tensor.nbytes
    return sorted(taken, key=lambda key: -taken[key])


def _can_sample(kind: str) -> bool:
    """Whether random weights can be made in this format, and comparing it with 16 bits says something."""
    from kernels.layouts import BLOCK_KINDS, PLAIN_KINDS

    first = kind.partition(" ")[0]
    grouped = first.startswith("int") and first[3:].isdigit()
    return (kind in BLOCK_KINDS and kind not in PLAIN_KINDS) or grouped


def _layer_sweep(order: SweepOrder, token: CancelToken) -> Generator[SweepPoint, None, Sweep]:
    from core.runtime.device import parse_place
    from core.runtime.layers import sample_matrix
    from core.runtime.sweep import device_layer_sweep, layer_sweep
    from core.threads import worker_count

    shape = order.shape
    place = parse_place(order.device)
    if place.gpu:
        own = (shape.format, shape.rows, shape.columns)
        try:
            return (yield from device_layer_sweep(place, own, ARITHMETICS[order.arithmetic].activations, cancel=token))
        except ValueError as error:
            raise UserError(f"This layer is not measured on the GPU: {error}.", "Choose another one.") from error
    plain = sample_matrix("BF16", shape.rows, shape.columns)
    token.check()
    packed = sample_matrix(shape.format, shape.rows, shape.columns)
    steps = layer_sweep(plain, packed, ARITHMETICS[order.arithmetic].activations, worker_count(), cancel=token)
    return (yield from steps)


def _decode_sweep(order: SweepOrder, token: CancelToken) -> Generator[SweepPoint, None, Sweep]:
    from core.hardware.cpu import memory
    from core.runtime.device import memory_of, parse_place
    from core.runtime.sweep import decode_sweep

    first, second = order.paths
    if first is None or second is None:
        raise UserError("A whole decode step is measured with two files.", "Choose the other file, too.")
    opened: list[tuple[Checkpoint, LoadedModel]] = []
    place = parse_place(order.device)
    known = memory_of(place)
    room = memory()[1] if known is None else known[1] - known[0]
    sequences = _sequences(order, room // CACHE_SHARE)
    try:
        for side, path in enumerate((first, second)):
            setup = Setup(path, order.arithmetic, order.context + 1, order.device)
            for _step in (steps := _Returned(_load(side, setup, token, sequences, order.context + 1))):
                pass
            opened.append(steps.value)
        models = opened[0][1], opened[1][1]
        sweep = yield from decode_sweep(models, order.context, cancel=token)
    finally:
        for checkpoint, loaded in opened:
            loaded.unload()
            checkpoint.close()
    return sweep


class _Returned:
    """A generator that can be walked by `for`; what it returned is `value` afterwards."""

    def __init__(self, steps: Generator[Any, None, Any]) -> None:
        self._steps = steps
        self.value: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.value = yield from self._steps


def _sequences(order: SweepOrder, room: int) -> int:
    """As many as the largest batch, or as have room."""
    from core.checkpoint import open_checkpoint
    from core.runtime.load import decoder_config

    most = max(BATCHES)
    for path in order.paths:
        assert path is not None
        with open_checkpoint(path) as checkpoint:
            config = decoder_config(checkpoint)
        one = 4 * config.layers * config.kv_heads * config.head_dim * (order.context + 1)  # keys and values, 16 bits
        most = min(most, max(room // one, 1))
    return most


# ---- history ---------------------------------------------------------------------------------------------------------


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _answer_result(entry: AnswerEntry) -> StoredResult:
    numbers: list[Number] = []
    details: dict[str, Any] = {
        "prompt": entry.question.prompt,
        "chat": entry.question.chat,
        "texts": list(entry.texts),
        "same_tokens": entry.same_tokens,
        "margin": entry.margin,
        "files": [setup.path.name if setup else None for setup in entry.setups],
        "devices": [measured.device if measured else None for measured in entry.measured],
    }
    for side, measured in zip(SIDES, entry.measured, strict=True):
        if measured is not None:
            numbers += [
                Number(f"{side}: time to first token", "s", measured.first_token),
                Number(f"{side}: time per token, median", "s", measured.token_p50),
                Number(f"{side}: time per token, 95th percentile", "s", measured.token_p95),
                Number(f"{side}: prompt", "tokens/s", measured.prompt_rate),
                Number(f"{side}: generation", "tokens/s", measured.decode_rate),
                Number(f"{side}: peak memory", "B", float(measured.peak_memory)),
                Number(f"{side}: weights", "B", float(measured.weight_bytes)),
                Number(f"{side}: KV cache, planned", "B", _number(measured.cache_planned)),
                Number(f"{side}: KV cache and buffers", "B", _number(measured.cache_allocated)),
                Number(f"{side}: bytes read per token", "B", float(measured.bytes_per_token)),
                Number(f"{side}: share of the bandwidth bound", "share", measured.bound_fraction),
                Number(f"{side}: energy per token", "J", measured.energy),
            ]
    if entry.same_tokens is not None:
        numbers.append(Number("Equal tokens at the start", "tokens", float(entry.same_tokens)))
    if entry.logits is not None:
        numbers += [
            Number("Logits: largest difference over the largest", "share", entry.logits.largest),
            Number("Logits: mean difference over the mean", "share", entry.logits.mean),
        ]
    setups = [setup for setup in entry.setups if setup is not None]
    names = " and ".join(setup.path.name for setup in setups)
    pairs = zip(entry.setups, entry.measured, strict=True)
    held = [contract_text(ARITHMETICS[s.arithmetic], parse_place(m.device)) for s, m in pairs if s and m]
    caches = " and ".join(dict.fromkeys(m.cache for m in entry.measured if m is not None))
    contract = f"{' and '.join(dict.fromkeys(held))}, cache {caches}"
    return new_result("generate", f"Generate: {names}", contract, numbers, details)


def _sweep_result(entry: SweepEntry) -> StoredResult:
    sweep, paths = entry.sweep, entry.order.paths
    contract = contract_text(ARITHMETICS[entry.order.arithmetic], parse_place(entry.order.device))
    names = [path.name for path in paths if path] if entry.order.shape.decode else sweep.names
    return new_result(
        "sweep", f"Sweep: {sweep.title}, {' and '.join(names)}", contract, sweep.numbers, sweep_data(sweep),
    )  # fmt: skip
