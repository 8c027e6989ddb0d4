"""The GPU's encoders as backends of `kernels.ops`, `kernels.families` and `kernels.solve`: the same bits, for blocks of
values that are large enough, where the kernel's self-test passes. What they do not take goes to the processor.

Out of memory: the block goes to the processor, and the tally says so. Imports torch only where the state is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, wraps
from threading import RLock
from typing import Any

import numpy as np

from kernels import dispatch, gpu
from kernels.gpu import selftest, user_files

# Values of a block that is worth the way to the GPU and back: a guess, until `python -m kernels.gpu.bench --sections
# encoders` has measured it on this computer.
LEAST = 1 << 18
NEVER = 1 << 40
_MEASURED = "encode-from.json"  # in the user's cache folder, by card
LONGEST_GROUP = 32768  # values that a program has in registers
BLOCKS = ("Q4_0", "Q8_0", "MXFP4", "NVFP4")
_PRIORITY = 100  # above all instruction sets
_FP4 = {"MXFP4": (32, "E8M0"), "NVFP4": (16, "E4M3")}
_lock = RLock()  # one block at a time: the device has one queue, and Triton compiles in one thread
device = "cuda"


def least() -> int:
    """Values from which on a block goes to the GPU: what was measured here, on the quickest card, or else the guess.

    Asks no card which one it is: that would import torch.
    """
    found = [values for values in user_files.read(_MEASURED).values() if type(values) is int and 0 < values <= NEVER]
    return min(found, default=LEAST)


def keep_least(card: str, values: int) -> bool:
    """For the programs that start from now on. False where the cache folder can not be written to."""
    return user_files.write(_MEASURED, {**user_files.read(_MEASURED), card: values})


def _send(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def _fetch(tensors: Any) -> Any:
    if isinstance(tensors, tuple):
        return tuple(_fetch(one) for one in tensors)
    return tensors.cpu().numpy()


def _on_gpu(kernel: str, shape_class: tuple[Hashable, ...], work: Callable[[], Any]) -> Any:
    """Does the work, or raises `dispatch.Declined`; ValueError is the caller's fault, as everywhere."""
    with _lock:
        if why := selftest.usable(kernel, *shape_class):
            raise dispatch.Declined(f"'{kernel}' is switched off, {why}")
        try:
            return work()
        except ValueError:
            raise
        except Exception as error:  # noqa: BLE001  (torch's, the driver's or one of Triton's, which share no class)
            text = str(error).lower()
            if "out of memory" in text or "alloc" in text:
                _empty()
                raise dispatch.Declined("its memory was full") from None
            first = next(iter(str(error).splitlines()), type(error).__name__)
            selftest.give_up(kernel, f"it failed in use: {first[:200]}", *shape_class)
            raise dispatch.Declined(f"'{kernel}' failed, {first[:200]}") from None


def _empty() -> None:
    """Gives back what torch holds in reserve."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _unsearched(search: bool) -> None:
    if search:
        raise dispatch.Declined("no GPU kernel searches for scales", said=False)


def encode_groups(
    x: np.ndarray, bits: int, group: int, symmetric: bool, scale_type: str, search: bool, *_rest: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from kernels.gpu import operations

    _unsearched(search)
    if group > LONGEST_GROUP:
        raise dispatch.Declined(f"groups of {group} values are longer than {LONGEST_GROUP}", said=False)

    def work() -> Any:
        return _fetch(operations.encode_groups(_send(x), bits, group, symmetric, scale_type))

    return _on_gpu("encode groups", (bits, symmetric, scale_type), work)


def encode_blocks(kind: str, x: np.ndarray, _importance: Any, search: bool, tensor_scale: float, threads: int) -> Any:
    from kernels.gpu import operations

    _unsearched(search)
    if kind not in _FP4:
        return _on_gpu("encode blocks", (kind,), lambda: _fetch(operations.encode_blocks(kind, _send(x))))
    found = _on_gpu("encode fp4", (kind,), lambda: _fetch(operations.encode_fp4(_send(x), *_FP4[kind], tensor_scale)))
    return dispatch.find("join_fp4_blocks").function(*found, kind, threads)


def encode_float8(x: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, _threads: int) -> np.ndarray:
    from kernels.gpu import operations

    def work() -> Any:
        return _fetch(operations.encode_float8(_send(x), dtype, _send(scales), a, b))

    return _on_gpu("encode float8", (dtype,), work)


def encode_e2m1(x: np.ndarray, scales: np.ndarray, _threads: int) -> np.ndarray:
    from kernels.gpu import operations

    if x.shape[1] != 32 * scales.shape[1]:
        raise dispatch.Declined("groups have other than 32 values", said=False)
    return _on_gpu("encode fp4", ("MXFP4",), lambda: _fetch(operations.encode_e2m1(_send(x), _send(scales))))


def feedback(w: np.ndarray, *rest: Any) -> np.ndarray:
    """GPTQ's columns; as `kernels.reference.solve.feedback`. `stop` is looked at before, and not again."""
    from kernels.gpu import operations

    *grid, _middles, even, stop, _threads = rest
    if stop[0]:
        return np.zeros(w.shape, np.uint8)
    return _on_gpu("feedback", (even,), lambda: _fetch(operations.feedback(_send(w), *map(_send, grid))))


def _usable(kernels: tuple[str, ...], kinds: tuple[str, ...], variant: str) -> str:
    if kinds and variant and variant not in kinds:
        return f"there is no GPU encoder for {variant}"
    return gpu.state().reason or next(filter(None, map(selftest.all_failing, kernels)), "")


def _finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Values that are not numbers are the processor's to refuse, in its own words."""

    @wraps(function)
    def run(*arguments: Any) -> Any:
        x = next(one for one in arguments if isinstance(one, np.ndarray))
        if x.ndim != 2 or not np.isfinite(x).all():
            raise dispatch.Declined("NaN or Inf can not be encoded", said=False)
        return function(*arguments)

    return run


def switched_off() -> tuple[tuple[str, str], ...]:
    """Kernels of this module that no call reaches on this card, and why."""
    if not gpu.state().ready:
        return ()
    kernels = ("encode groups", "encode blocks", "encode float8", "encode fp4", "feedback")
    return tuple((kernel, why) for kernel in kernels if (why := selftest.all_failing(kernel)))


def register(op: str, function: Callable[..., Any], kernels: tuple[str, ...], kinds: tuple[str, ...] = ()) -> None:
    """Adds the GPU to an operation of `dispatch`. kinds: variants that it has, all when there are none."""
    dispatch.register(op, "gpu:triton", _finite(function), partial(_usable, kernels, kinds), _PRIORITY, least=least())


register("encode_groups", encode_groups, ("encode groups",))
register("encode_blocks", encode_blocks, ("encode blocks", "encode fp4"), BLOCKS)
register("encode_float8", encode_float8, ("encode float8",))
register("encode_e2m1", encode_e2m1, ("encode fp4",))
