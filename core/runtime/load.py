"""A checkpoint into a model that runs: its configuration, its weights packed, an engine around them.

Folders of other architectures than our own run through transformers (`core.runtime.transformers_model`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from core.checkpoint.base import Checkpoint, Container
from core.errors import UserError
from core.hardware.cpu import memory
from core.kv.layout import cache_layout, is_coded
from core.kv.scheme import CacheScheme
from core.memory import workspace_bytes
from core.models.config import DecoderConfig, read_config
from core.models.gguf_config import read_gguf_config
from core.models.shape import ModelShape
from core.progress import CancelToken
from core.runtime.arithmetic import Arithmetic, contract_text
from core.runtime.decoder import FAMILIES, check_decoder, decoder_program
from core.runtime.device import (
    CPU,
    Place,
    check_place,
    check_room,
    device_bytes,
    device_matrices,
    not_usable,
    open_device,
    out_of_memory,
)
from core.runtime.reading import PROCESSOR, Conversion, Matrices
from core.runtime.release import release_memory
from core.runtime.weights import ReadProgress, WeightPlan, plan_weights, read_weights
from core.threads import worker_count
from core.units import format_bytes, format_count
from kernels.gpu.runtime.failures import OutOfMemory, SwitchedOff, forget
from kernels.program import CacheLayout, Program

if TYPE_CHECKING:
    from core.runtime.tokenizer import Text
    from core.runtime.transformers_engine import TransformersEngine
    from core.runtime.transformers_model import Prepared
    from kernels.engine import Engine
    from kernels.gpu.runtime.device import Device

DEFAULT_CAPACITY = 4096  # tokens, or the model's context where that is less
DEFAULT = Arithmetic()
WIDEST_HEAD = 256  # that the GPU's attention takes
LOOK_SECONDS = 0.05  # between two looks at the cancel token


@dataclass
class LoadedModel:
    """A model in memory. `engine` runs it; `unload` gives the memory back, and the model is of no use after that.

    weight_bytes: what the packed weights take. conversions: matrices that are not kept in their file's format. place:
    where it runs; fell_back: why not where it was asked for, '' where it does. predicted_bytes: of a GPU's memory, as
    they were known before anything was read.
    """

    checkpoint: Checkpoint
    config: DecoderConfig
    capacity: int
    sequences: int
    weight_bytes: int
    conversions: tuple[Conversion, ...]
    arithmetic: Arithmetic
    cache_dtype: str
    _loaded: list[tuple[Program, Engine | TransformersEngine]] = field(repr=False)
    _text: Future[Text] = field(repr=False)
    place: Place = CPU
    fell_back: str = ""
    predicted_bytes: int = 0

    @property
    def contract(self) -> str:
        """What the figures of a run hold for, in words."""
        return f"activations {contract_text(self.arithmetic, self.place)}, cache {self.cache_dtype}"

    @property
    def engine(self) -> Engine | TransformersEngine:
        return self._here()[1]

    @property
    def program(self) -> Program:
        return self._here()[0]

    @property
    def text(self) -> Text:
        """The model's tokenizer. Raises UserError when the checkpoint has none."""
        return self._text.result()

    def unload(self) -> None:
        """End the engine's threads and forget the weights. Twice is as good as once."""
        while self._loaded:
            engine = self._loaded.pop()[1]
            engine.close()
            give_back: Callable[[], None] | None = getattr(engine, "give_back", None)
            del engine  # and with it the weights
            if give_back is not None:
                give_back()
        release_memory()

    def _here(self) -> tuple[Program, Engine | TransformersEngine]:
        if not self._loaded:
            raise RuntimeError("the model has been unloaded")
        return self._loaded[0]


def decoder_config(checkpoint: Checkpoint) -> DecoderConfig:
    """The decoder that a checkpoint describes; `architecture` is '' when it runs through transformers.

    Raises UserError when it describes none, or one that can not be run.
    """
    from core.runtime.transformers_model import refuse_gguf, transformers_config

    if checkpoint.container is Container.GGUF:
        if checkpoint.architecture and checkpoint.architecture not in FAMILIES:
            raise refuse_gguf(checkpoint.architecture)
        config: DecoderConfig | None = read_gguf_config(checkpoint)
    else:
        known = checkpoint.architecture in FAMILIES
        config = read_config(checkpoint.config) if known or not checkpoint.config else None
        if checkpoint.config and (config is None or config.architecture not in FAMILIES):
            return transformers_config(checkpoint)
    if config is None:
        raise UserError("There is no config.json that says how the model is built.", "Add the model's config.json.")
    check_decoder(config)
    return config


def load(
    checkpoint: Checkpoint,
    capacity: int | None = None,
    sequences: int = 1,
    arithmetic: Arithmetic = DEFAULT,
    threads: int | None = None,
    cache_dtype: str = "F16",
    progress: Callable[[ReadProgress], None] | None = None,
    token: CancelToken | None = None,
    place: Place = CPU,
    fallback: bool = False,
) -> LoadedModel:
    """What `loading` returns, its progress told to a function."""
    steps = loading(checkpoint, capacity, sequences, arithmetic, threads, cache_dtype, token, place, fallback)
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            return stop.value
        if progress is not None:
            progress(step)


def loading(
    checkpoint: Checkpoint,
    capacity: int | None = None,
    sequences: int = 1,
    arithmetic: Arithmetic = DEFAULT,
    threads: int | None = None,
    cache_dtype: str = "F16",
    token: CancelToken | None = None,
    place: Place = CPU,
    fallback: bool = False,
) -> Generator[ReadProgress, None, LoadedModel]:
    """Load a model; yields as reading goes on, returns the model.

    capacity: positions that each of `sequences` can have; None: the model's context, at most DEFAULT_CAPACITY.
    cache_dtype: a scheme of `core.kv` as text ('q8_0/q4_0,window=128'). threads: of the engine and of reading; None:
    physical cores. place: where it is to run; fallback: on the processor where it can not run there,
    which the model then tells.
    Raises UserError for a file that contradicts itself, a capacity past the model's context, a model that does not
    fit in the memory that is free, and a place that can not be used; Cancelled soon after the token is set. Through
    transformers, the cache is in F32.
    """
    if sequences < 1:
        raise ValueError(f"a cache of {sequences} sequences")
    scheme = CacheScheme.parse(cache_dtype)
    token = token or CancelToken()
    threads = threads or worker_count()
    rest = checkpoint, capacity, sequences, arithmetic, threads, scheme, token
    try:
        return (yield from _loading(*rest, place))
    except UserError as error:
        if not (fallback and place.gpu):
            raise
        reason = error.message
    model = yield from _loading(*rest, CPU)
    model.fell_back = reason
    return model


def _loading(
    checkpoint: Checkpoint,
    capacity: int | None,
    sequences: int,
    arithmetic: Arithmetic,
    threads: int,
    scheme: CacheScheme,
    token: CancelToken,
    place: Place,
) -> Generator[ReadProgress, None, LoadedModel]:
    from core.runtime.transformers_model import CACHE_TYPE, in_background, prepare

    check_place(place)
    nothing, foreign = ReadProgress(0, 0), None
    config = yield from in_background(partial(decoder_config, checkpoint), token, nothing)  # may start transformers
    capacity = _capacity(config, capacity)
    if config.architecture not in FAMILIES and place.gpu:
        raise UserError(
            f"Models of the kind '{config.model_type}' run through transformers, which the GPU's kernels have no part "
            "in.",
            "Choose the processor (cpu).",
        )
    if config.architecture not in FAMILIES:
        foreign = yield from in_background(partial(prepare, checkpoint), token, nothing)
    if foreign is not None and is_coded(scheme):
        raise UserError(
            "This model runs through transformers, whose cache is not quantized here.", "Leave the cache in 16 bits."
        )
    scheme = scheme if foreign is None else CacheScheme(CACHE_TYPE)
    plan = plan_weights(checkpoint, config) if foreign is None else foreign.plan
    layout = cache_layout(_layers(config), capacity, sequences, scheme)
    device: Device | None = None
    matrices = PROCESSOR
    if place.gpu:
        if not 16 <= config.head_dim <= WIDEST_HEAD:
            raise not_usable(place, f"heads of {config.head_dim} values are none of 16 to {WIDEST_HEAD}")
        device = open_device(place)
        check_room(place, plan, layout, _work(config, layout), device.free_bytes())
        matrices = device_matrices(device, arithmetic.activations)
    else:
        _check_memory(config, plan, layout)
    token.check()
    text = _opening_text(checkpoint)
    parts = config, plan, foreign, capacity, sequences, arithmetic, threads, scheme, token, place, device, matrices
    try:
        weight_bytes, conversions, program, engine = yield from _engine(*parts)
    except MemoryError as error:
        raise UserError(
            f"The memory of this computer did not suffice for {format_bytes(plan.nbytes)} of weights.",
            "Close other programs, or choose a smaller file.",
        ) from error
    except OutOfMemory as error:
        forget(error)
        if device is not None:
            device.empty()
        raise out_of_memory(place, error.wanted, error.free) from None
    except SwitchedOff as error:
        raise not_usable(place, str(error)) from error
    while not (token.cancelled or text.done()):
        wait((text,), LOOK_SECONDS)
    if token.cancelled:
        engine.close()
        token.check()
    return LoadedModel(
        checkpoint,
        config,
        capacity,
        sequences,
        weight_bytes,
        conversions,
        arithmetic,
        scheme.text,
        [(program, engine)],
        text,
        place,
        predicted_bytes=device_bytes(plan, layout, _work(config, layout)) if place.gpu else 0,
    )


def _engine(
    config: DecoderConfig,
    plan: WeightPlan,
    foreign: Prepared | None,
    capacity: int,
    sequences: int,
    arithmetic: Arithmetic,
    threads: int,
    scheme: CacheScheme,
    token: CancelToken,
    place: Place,
    device: Device | None,
    matrices: Matrices,
) -> Generator[ReadProgress, None, tuple[int, tuple[Conversion, ...], Program, Engine | TransformersEngine]]:
    """Bytes of the weights, what could not stay as it was, the program and what runs it."""
    from core.runtime.transformers_model import in_background
    from kernels.engine import Engine

    weights, conversions = yield from read_weights(plan, token, threads, matrices)
    weight_bytes = sum(m.nbytes for m in weights.matrices.values())
    weight_bytes += sum(v.nbytes for v in weights.vectors.values())
    if foreign is not None:
        start = partial(foreign.start, config, weights, capacity, sequences, arithmetic, threads)
        program, engine = yield from in_background(start, token, ReadProgress(plan.nbytes, plan.nbytes))
        return weight_bytes, conversions, program, engine
    program = decoder_program(
        config, weights, capacity, sequences, arithmetic.activations, scheme.text, arithmetic.outliers
    )
    if device is None:
        return weight_bytes, conversions, program, Engine(program, threads)
    from core.runtime.gpu_engine import PlacedEngine

    return weight_bytes, conversions, program, PlacedEngine(program, device, place, conversions)


def _opening_text(checkpoint: Checkpoint) -> Future[Text]:
    """The tokenizer, read beside the weights: once a model is loaded, it needs none of its files any more."""
    found: Future[Text] = Future()

    def work() -> None:
        from core.runtime.tokenizer import open_text

        try:
            found.set_result(open_text(checkpoint))
        except BaseException as error:  # noqa: BLE001 - raised where the text is asked for
            found.set_exception(error)

    threading.Thread(target=work, name="bitsmith-tokenizer").start()
    return found


def _layers(config: DecoderConfig) -> tuple[tuple[int, int], ...]:
    return ((config.kv_heads, config.head_dim),) * config.layers


def _capacity(config: DecoderConfig, wanted: int | None) -> int:
    longest = config.context
    if config.rope.kind == "dynamic":
        longest = max(longest, int(longest * config.rope.factor))
    if wanted is None:
        return min(longest, DEFAULT_CAPACITY)
    if wanted < 1:
        raise UserError(f"A context of {wanted} tokens holds no text.", "Choose at least 1.")
    if wanted > longest:
        raise UserError(
            f"A context of {format_count(wanted)} tokens is more than the {format_count(longest)} that the model "
            "was made for.",
            f"Choose at most {format_count(longest)}.",
        )
    return wanted


def _work(config: DecoderConfig, cache: CacheLayout) -> int:
    shape = ModelShape(
        architecture=config.architecture,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.expert_intermediate or config.intermediate,
        vocab=config.vocab,
        context=config.context,
        experts_used=config.experts_used,
    )
    return workspace_bytes(shape, cache.capacity, cache.sequences)


def _check_memory(config: DecoderConfig, plan: WeightPlan, cache: CacheLayout) -> None:
    free = memory()[1]
    need = plan.memory_bytes + cache.nbytes + _work(config, cache)
    if need > free:
        raise UserError(
            f"The model needs {format_bytes(need)} of memory ({format_bytes(plan.memory_bytes)} of it for the weights "
            f"and {format_bytes(cache.nbytes)} for a context of {format_count(cache.capacity)} tokens); "
            f"{format_bytes(free)} are free.",
            "Close other programs, choose a shorter context, or a smaller file.",
        )
