"""Tiny models on the GPU's executor under Triton's interpreter, through the interface of a loaded model.

A program of its own, as TRITON_INTERPRET decides what a kernel is before it is imported: `runtime_cases.py FOLDER`
with one layer or two of some families, `… all` with all layers of all of them, with tests/ on PYTHONPATH. One line of
JSON a case. error: how far logits are from the processor's, over the largest logit.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from decoder_models import CAPACITY, MODELS, difference, prompt, write_model
from interpreted import exact_dot, tell
from job_help import convert

from core.checkpoint import open_checkpoint
from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime import device, load
from core.runtime.arithmetic import ARITHMETICS
from core.runtime.device import CPU, Place
from core.runtime.generate import GenerateRequest, generate_batch, warm_up
from core.runtime.load import LoadedModel
from core.runtime.speed import BenchSettings, measure, speed_data
from core.runtime.sweep import decode_sweep, device_layer_sweep
from kernels.gpu.runtime import executor, operands
from kernels.gpu.runtime.device import Graph, Interpreted
from kernels.gpu.runtime.matrices import DeviceMatrices
from kernels.matrix import Activations

GPU = Place(True)
STEPS = {"llama2": 4, "gemma2": 4}  # after a prompt; of all others, two
TWO = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
ONE = {"num_hidden_layers": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name → type of the GGUF ('': the folder's float32), fewer layers
    "llama2": ("Q4_0", ONE),
    "llama3": ("Q8_0", ONE),
    "smollm": ("Q4_1", ONE),
    "mistral-window": ("", ONE),
    "mixtral": ("Q8_0", ONE),
    "qwen2": ("Q5_0", ONE),
    "qwen3": ("IQ4_NL", ONE),
    "qwen3moe": ("Q8_0", ONE),
    "gemma2": ("Q8_0", TWO),
    "gemma3": ("Q5_1", TWO),
    "phi3": ("Q8_0", ONE),
    "phi3-partial": ("F16", ONE),
}
CACHES = ("q8_0/q4_0", "int4,rotate,window=4,sinks=2", "kivi2,before-rope", "fp8", "lm3,rotate,first=1")
QUICK = ("llama2", "mistral-window", "qwen3moe", "gemma2", "phi3-partial")


class Counting(Interpreted):
    """Counts what is captured and replayed. refuses: as a driver may."""

    refuses = False

    def __init__(self) -> None:
        super().__init__()
        self.captured = self.replayed = self.emptied = 0

    def empty(self) -> None:
        self.emptied += 1

    def capture(self, work: Callable[[], None]) -> Graph:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.captured += 1
        device = self

        class Counted:
            def replay(self) -> None:
                device.replayed += 1
                work()

        return Counted()


devices: list[Counting] = []


def standing_in(kind: type[Counting] = Counting) -> None:
    """The interpreter is the first GPU."""

    def opened(_place: Place) -> Counting:
        devices.append(kind())
        return devices[-1]

    for module in (load, device):
        module.check_place = lambda _place, _fallback=False: None  # type: ignore[assignment]
        module.open_device = opened  # type: ignore[assignment]
    sys.modules["core.runtime.sweep"].open_device = opened  # type: ignore[attr-defined]


def opened(path: Path, place: Place = GPU, arithmetic: str = "fast", **more: Any) -> LoadedModel:
    return load.load(open_checkpoint(path), arithmetic=ARITHMETICS[arithmetic], threads=1, place=place, **more)


def ran(model: LoadedModel, ids: np.ndarray, steps: int = 2) -> np.ndarray:
    """Logits of a prompt, and of some tokens after it one by one."""
    first = len(ids) - steps
    places = np.arange(first, dtype=np.int32)
    zero, run = np.zeros(1, np.int32), model.engine.run
    found = run(ids[:first], np.zeros(first, np.int32), places, places)
    one_by_one = [run(ids[at : at + 1], zero, np.array([at], np.int32), zero) for at in range(first, len(ids))]
    return np.concatenate([found, *one_by_one])


def uses(model: LoadedModel) -> list[list[str]]:
    return [[use.op, use.shape, use.kernel, use.isa, use.reason] for use in model.engine.report()]


def compare(
    name: str, path: Path, length: int, arithmetic: str = "fast", against: str = "exact", **more: Any
) -> None:  # fmt: skip
    steps = STEPS.get(name.split()[0], 2)
    ids = prompt(length)
    exact = opened(path, CPU, against, capacity=length, **more)
    want = ran(exact, ids, steps)
    exact.unload()
    model = opened(path, GPU, arithmetic, capacity=length, **more)
    found = ran(model, ids, steps)
    tell(
        case=name, steps=steps, error=difference(found, want), finite=bool(np.isfinite(found).all()),
        report=uses(model),
        contract=model.contract, weights=model.weight_bytes, replayed=devices[-1].replayed,
        predicted=device.weight_bytes(load.plan_weights(model.checkpoint, model.config)),
    )  # fmt: skip
    model.unload()


def families(folder: Path, everything: bool) -> None:
    for name, (kind, fewer) in FAMILIES.items():
        if not (everything or name in QUICK):
            continue
        model_class, config_class, fields = MODELS[name]
        if not everything:
            MODELS[name] = (model_class, config_class, fields | fewer)
        write_model(folder / name, name)
        path = folder / name
        if kind:
            path = folder / f"{name}.gguf"
            convert(folder / name, kind, path)
        compare(f"{name} {kind}", path, min(30 if everything else 20, CAPACITY.get(name, 30)))


def batches(path: Path) -> None:
    """Prompts of several lengths in one batch, then steps of all of them, of one, and of all again."""
    ids, lengths = prompt(24), (5, 9, 3)
    tokens = np.concatenate([ids[:n] for n in lengths])
    slots = np.repeat([2, 0, 1], lengths).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    wanted = (np.cumsum(lengths) - 1).astype(np.int32)[::-1].copy()
    three = np.array([2, 0, 1], np.int32)
    found: dict[bool, list[np.ndarray]] = {}
    for gpu in (False, True):
        model = opened(path, GPU if gpu else CPU, "fast" if gpu else "exact", capacity=24, sequences=3)
        run = model.engine.run
        own = found[gpu] = [run(tokens, slots, positions, wanted)]
        own += [run(ids[i : i + 3], three, np.array(lengths, np.int32) + i, np.arange(3)) for i in range(2)]
        own.append(run(ids[:1], three[:1], np.array([7], np.int32), np.arange(1)))
        own.append(run(ids[5:8], three, np.array([8, 11, 5], np.int32), np.arange(3)))
        own.append(run(ids[5:8], three, np.array([9, 12, 6], np.int32), np.array([2], np.int32)))
        gap = np.array([0, 1, 3], np.int32)  # of one sequence, with a position left as it was
        own.append(run(ids[8:11], np.zeros(3, np.int32), gap, np.arange(3)))
        own.append(run(ids[:0], three[:0], three[:0], three[:0]))
        if gpu:
            tell(case="graphs", captured=devices[-1].captured, replayed=devices[-1].replayed, report=uses(model))
        model.unload()
    errors = [difference(a, b) for a, b in zip(found[True][:-1], found[False][:-1], strict=True)]
    tell(case="batches", errors=errors, empty=list(found[True][-1].shape))


def arithmetics(folder: Path) -> None:
    convert(folder / "llama2", "w8a8", folder / "w8a8")
    compare("exact", folder / "llama2.gguf", 12, "exact")
    compare("token, emulated", folder / "llama2.gguf", 12, "token", "token")
    compare("token", folder / "w8a8", 12, "token", "token")
    compare("llm.int8", folder / "w8a8", 12, "llm.int8", "llm.int8")


def long_prompt(path: Path) -> None:
    """So many tokens that the library multiplies, and more than a context that is a whole bucket."""
    ids = prompt(executor.CONTEXTS[0] // 8)
    compare("library", path, len(ids))


def caches(path: Path) -> None:
    """The cache in codes, beside the processor's with the same cache; then back in the text, and another sequence."""
    ids = prompt(20)
    for scheme in CACHES:
        found = {}
        for place in (CPU, GPU):
            model = opened(path, place, "exact", capacity=24, sequences=2, cache_dtype=scheme)
            own = [ran(model, ids, 3)]
            run, zero = model.engine.run, np.zeros(1, np.int32)
            again = (9, 10, 4)  # what comes after it is forgotten
            own += [run(ids[at : at + 1], zero, np.array([at], np.int32), zero) for at in again]
            other = np.ones(6, np.int32)
            own.append(run(ids[:6], other, np.arange(6, dtype=np.int32), np.array([5], np.int32)))
            both = np.array([1, 0], np.int32)
            own.append(run(ids[:2], both, np.array([6, 5], np.int32), np.arange(2)))
            found[place.name] = np.concatenate(own)
            if place.gpu:
                planned, taken, report = model.program.cache.nbytes, model.engine.cache_bytes, uses(model)
                gap = ""
                try:
                    run(ids[:1], zero, np.array([20], np.int32), zero)
                except ValueError as error:
                    gap = str(error)
                model.engine.cancel()
            model.unload()
        tell(
            case="cache", scheme=scheme, error=difference(found["gpu:0"], found["cpu"]), planned=planned, taken=taken,
            report=report, gap=gap, replayed=devices[-1].replayed,
        )  # fmt: skip
    for scheme in CACHES[:2]:
        compare(f"16 bits over {scheme}", path, 20, "fast", "exact", cache_dtype=scheme)


def fallbacks(path: Path) -> None:
    def some(own: Any, activations: Activations) -> DeviceMatrices:
        return DeviceMatrices(own, activations, lambda form: "its test failed" if form.label == "Q4_0" else "")

    before, load.device_matrices = load.device_matrices, some  # type: ignore[assignment]
    compare("decoded", path, 12)
    load.device_matrices = before
    real, operands.usable_product = operands.usable_product, lambda w, n, d: "wrong sums" if n < 65 else None
    compare("switched off", path, 12)
    operands.usable_product = lambda w, n, d: "wrong sums"
    tell(case="nothing left", **refused(lambda: ran(opened(path, capacity=12), prompt(12))))
    operands.usable_product = real

    class Refusing(Counting):
        refuses = True

    standing_in(Refusing)
    compare("eager", path, 12)
    standing_in()


def refused(work: Callable[[], object]) -> dict[str, str]:
    try:
        work()
    except UserError as error:
        return {"message": error.message, "hint": error.hint}
    return {"message": "", "hint": ""}


def memory(path: Path) -> None:
    class Small(Counting):
        def free_bytes(self) -> int:
            return 600 * 10**6

    class Filling(Counting):
        """Its memory ends while weights come."""

        left = 20
        kept: ClassVar[list[weakref.ref[torch.Tensor]]] = []

        def send(self, values: torch.Tensor) -> torch.Tensor:
            Filling.left -= 1
            if Filling.left < 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            sent = super().send(values)
            self.kept.append(weakref.ref(sent))
            return sent

        def free_bytes(self) -> int:
            return 10**9

    standing_in(Small)
    tell(case="too large", **refused(lambda: opened(path, capacity=12)))
    standing_in(Filling)
    caught: list[BaseException] = []
    try:
        opened(path, capacity=12)
    except UserError as error:
        caught.append(error)  # as long as somebody looks at it, nothing of the model may stay
    gc.collect()
    tell(case="full while loading", message=str(caught[0]), alive=sum(r() is not None for r in Filling.kept))
    Filling.left = 20
    model = opened(path, capacity=12, fallback=True)
    tell(case="fell back", place=model.place.name, why=model.fell_back, contract=model.contract)
    model.unload()
    standing_in()
    model = opened(path, capacity=12)
    real, executor._activated = executor._activated, full
    first = refused(lambda: ran(model, prompt(12)))
    executor._activated = real
    tell(case="full in a run", **first, after=bool(np.isfinite(ran(model, prompt(12))).all()))
    low = weakref.ref(model.program.steps[0].weight.stored.weights.low)  # type: ignore[union-attr]
    cache = weakref.ref(model.engine._executor._cache[0].keys.codes)  # type: ignore[union-attr]
    model.unload()
    model.unload()
    gc.collect()
    tell(case="unloaded", weights=low() is not None, cache=cache() is not None, emptied=devices[-1].emptied)


def full(*_arguments: Any) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def interface(folder: Path) -> None:
    """What command line and window do with a model."""
    path = folder / "llama2.gguf"
    texts = {}
    for place in (CPU, GPU):
        model = opened(path, place, "exact" if place == CPU else "fast", capacity=24, sequences=2)
        warm_up(model)
        asked = [GenerateRequest(tokens=tuple(prompt(n).tolist()), max_tokens=3, ignore_end=True) for n in (7, 4)]
        steps = generate_batch(model, asked)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                texts[place.name] = [list(result.tokens) for result in end.value]
                break
        if place.gpu:
            token = CancelToken()
            token.cancel()
            cancelled = False
            with suppress(Cancelled):
                (result,) = finished(generate_batch(model, asked[:1], token))
                cancelled = result.finish.value == "cancelled"
            speeds = finished(measure((model,), BenchSettings(4, 2, runs=1)))
            data = speed_data(speeds[0])
            sweep = finished(decode_sweep((model, model), 3, (1, 2)))
            layer = finished(device_layer_sweep(GPU, ("Q4_0", 32, 64), Activations.FAST, (1, 2)))
            tell(
                case="interface", cancelled=cancelled, device=data["device"], peak=data["device_bytes"],
                bandwidth=data["bandwidth_bytes_per_s"],
                sweep=len(sweep.points), roofs=[sweep.bandwidth, sweep.peak], layer=[p.batch for p in layer.points],
                names=list(layer.names), traffic=[way for way, _ in layer.traffic],
            )  # fmt: skip
            model.engine.profile(True)
            zero = np.zeros(1, np.int32)
            model.engine.run(zero, zero, zero, zero)
            tell(case="profile", timed=sum(t.seconds > 0 for t in model.engine.times()), steps=len(model.program.steps))
        model.unload()
    tell(case="texts", **texts)


def finished(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def main(folder: Path, everything: bool) -> None:
    exact_dot()
    standing_in()
    families(folder, everything)
    path = folder / "llama2.gguf"
    batches(path)
    caches(path)
    arithmetics(folder)
    long_prompt(path)
    fallbacks(path)
    memory(path)
    interface(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "all" in sys.argv[2:])
