"""A GPU as the executor uses it: memory, copies, a stream of its own, captured graphs, time. Another one stands for it
under Triton's interpreter.

Only imported where `kernels.gpu.state` is ready, or under the interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch

from kernels.gpu.launcher import card_at
from kernels.gpu.runtime.failures import out_of_memory

_COPIED = 256 << 20  # bytes of the array that bandwidth is measured with: no cache holds it
_PASSES = 9
_SQUARE = 4096
_FILLED = 512 << 20  # bytes; caches of cards have up to 256 MiB


class Graph(Protocol):
    """Launches that were captured."""

    def replay(self) -> None: ...


class Device:
    """One GPU of torch's, by number. All work goes to a stream of its own."""

    def __init__(self, index: int = 0) -> None:
        self.name = f"cuda:{index}"
        self.index = index
        self.card = card_at(index)
        # Turing multiplies no bfloat16.
        self.wide = torch.float16 if self.card.startswith("sm_7") else torch.bfloat16
        with torch.cuda.device(index):
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()
        self._filled: torch.Tensor | None = None
        self._float32_results = self._adds_in_float32()

    def free_bytes(self) -> int:
        """As the driver says; what torch keeps for later counts as free."""
        free, _ = torch.cuda.mem_get_info(self.index)
        kept = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        return int(free + kept)

    @contextmanager
    def work(self) -> Iterator[None]:
        """What is launched inside goes to the stream. Raises OutOfMemory instead of torch's error."""
        try:
            with torch.cuda.device(self.index), torch.cuda.stream(self._stream), torch.inference_mode():
                yield
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, self.free_bytes()) from error

    def send(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device, through memory that the system does not move, of which torch keeps some."""
        try:
            values = values.pin_memory()
        except RuntimeError:  # the system allows no more of it
            return values.to(self.name)
        return values.to(self.name, non_blocking=True)

    def send_into(self, kept: torch.Tensor, values: torch.Tensor) -> None:
        """Small values to where a captured graph looks for them."""
        kept.copy_(values.to(kept.dtype).pin_memory(), non_blocking=True)

    def peak_bytes(self) -> int:
        """The most that torch has had there at once since `forget_peak`."""
        return int(torch.cuda.max_memory_allocated(self.index))

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.index)

    def read(self, values: torch.Tensor) -> np.ndarray:
        """On the host, once everything before it is done."""
        return values.to("cpu").numpy()

    def wait(self) -> None:
        self._stream.synchronize()

    def capture(self, work: Callable[[], None]) -> Graph:
        """The launches of `work`, which run when the graph is replayed. Raises RuntimeError for what no graph takes."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph

    def multiply(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The library's x [M, K] · weights [N, K]ᵀ, both of one type → float32 [M, N]."""
        if x.dtype == torch.float32:
            return x @ weights.T
        if self._float32_results:
            return torch.mm(x, weights.T, out_dtype=torch.float32)
        return (x @ weights.T).float()

    def empty(self) -> None:
        """What torch keeps for later goes back to the driver."""
        torch.cuda.empty_cache()

    def seconds(self, work: Callable[[], object], between: Callable[[], object] | None = None) -> float:
        """Of one call, by the device's clock; `between` runs before it and is not counted."""
        with torch.cuda.device(self.index), torch.cuda.stream(self._stream), torch.inference_mode():
            if between is not None:
                between()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(self._stream)
            work()
            end.record(self._stream)
            end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def bandwidth(self) -> float:
        """Bytes/s that a copy moves, those read and those written. Raises OutOfMemory."""
        size = min(_COPIED, self.free_bytes() // 4)
        with self.work():
            source = torch.empty(size, dtype=torch.uint8, device=self.name)
            target = torch.empty_like(source)
            target.copy_(source)
        taken = [self.seconds(lambda: target.copy_(source)) for _ in range(_PASSES)]
        return 2 * size / median(taken)

    def peak(self) -> float:
        """float16 operations/s of the library's square product: the most that tensor cores are seen to do here."""
        with self.work():
            a, b = (torch.randn((_SQUARE, _SQUARE), dtype=torch.float16, device=self.name) for _ in range(2))
            self.multiply(a, b)
        return 2.0 * _SQUARE**3 / min(self.seconds(lambda: self.multiply(a, b)) for _ in range(_PASSES))

    def filler(self) -> Callable[[], object]:
        """Writes more than the caches hold, so that what comes after is read from memory."""
        if self._filled is None:
            with self.work():
                self._filled = torch.zeros(_FILLED, dtype=torch.uint8, device=self.name)
        return self._filled.zero_

    def _adds_in_float32(self) -> bool:
        """Whether the library's product of halves can leave its sums as they are."""
        one = torch.ones((16, 16), dtype=torch.float16, device=self.name)
        try:
            torch.mm(one, one, out_dtype=torch.float32)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, self.free_bytes()) from error
        except (RuntimeError, TypeError):
            return False
        return True


class _Again:
    """Stands for a captured graph where there is none: it does the same again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


class Interpreted(Device):
    """The processor, where kernels run under Triton's interpreter: for tests alone."""

    def __init__(self, free: int = 1 << 40) -> None:
        self.name, self.index, self.card = "cpu", -1, "cpu"
        self.wide: Any = torch.bfloat16
        self.free = free

    def free_bytes(self) -> int:
        return self.free

    @contextmanager
    def work(self) -> Iterator[None]:
        try:
            with torch.inference_mode():
                yield
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, self.free_bytes()) from error

    def send(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    def send_into(self, kept: torch.Tensor, values: torch.Tensor) -> None:
        kept.copy_(values)

    def peak_bytes(self) -> int:
        return 1

    def forget_peak(self) -> None:
        pass

    def read(self, values: torch.Tensor) -> np.ndarray:
        return values.numpy().copy()

    def wait(self) -> None:
        pass

    def capture(self, work: Callable[[], None]) -> Graph:
        return _Again(work)

    def multiply(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return x.float() @ weights.float().T

    def empty(self) -> None:
        pass

    def seconds(self, work: Callable[[], object], between: Callable[[], object] | None = None) -> float:
        if between is not None:
            between()
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def bandwidth(self) -> float:
        return 1e9

    def peak(self) -> float:
        return 1e9

    def filler(self) -> Callable[[], object]:
        return lambda: None
