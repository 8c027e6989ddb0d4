"""From how many values on encoding on the GPU pays: the way there and back, beside all of the processor's threads."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernels import dispatch
from kernels import ops as _ops  # noqa: F401  (registers the processor's)
from kernels.gpu import operations
from kernels.gpu.backends import conversion

if TYPE_CHECKING:
    from kernels.gpu.bench.run import Bench

COLUMNS = 1024
_REPEATS = 5
Encoder = Callable[[np.ndarray], object]


def encoders(bench: Bench) -> None:
    """Blocks of more and more values, with two encoders. Where the GPU begins to win is kept for conversions."""
    own = bench.results["encoders"]
    for values in bench.sizes.values:
        own["left_out"] = f"blocks of {values} values and more"
        bench.clock.check()
        x = np.random.default_rng(values).standard_normal((values // COLUMNS, COLUMNS)).astype(np.float32)
        for name, there, here in _encoders(bench.clock.device):
            seconds, processor = _seconds(partial(there, x)), _seconds(partial(here, x))
            bench.put("encoders", name=name, values=values, seconds=seconds, processor_seconds=processor)
            bench.say(f"{name}, {values} values: {seconds * 1e6:.0f} µs, the processor {processor * 1e6:.0f} µs")
    del own["left_out"]
    own["from"] = found = crossover(own["rows"])
    where = f"from {found} values on" if found < conversion.NEVER else "nowhere"
    bench.say(f"encoding on the GPU is quicker {where}")
    card = bench.results.get("about", {}).get("chip", "")
    if card and not conversion.keep_least(card, found):
        bench.say("this could not be kept for conversions: the cache folder can not be written to")


def crossover(rows: list[dict[str, Any]]) -> int:
    """The fewest values from which on the GPU is quicker in all rows; `conversion.NEVER` where it is in none."""
    found = conversion.NEVER
    for values in sorted({row["values"] for row in rows}, reverse=True):
        if any(row["seconds"] > row["processor_seconds"] for row in rows if row["values"] == values):
            break
        found = values
    return found


def _encoders(device: str) -> tuple[tuple[str, Encoder, Encoder], ...]:
    """Name, on the GPU, on the processor."""
    threads = os.cpu_count() or 1

    def there(encode: Callable[[torch.Tensor], Any], x: np.ndarray) -> object:
        found = encode(torch.from_numpy(x).to(device))
        return [one.cpu().numpy() for one in (found if isinstance(found, tuple) else (found,))]

    return (
        (
            "int4 g128",
            partial(there, lambda x: operations.encode_groups(x, 4, 128, True)),
            lambda x: dispatch.find("encode_groups").function(x, 4, 128, True, "F16", False, None, threads),
        ),
        (
            "Q4_0",
            partial(there, lambda x: operations.encode_blocks("Q4_0", x)),
            lambda x: dispatch.find("encode_blocks", "Q4_0").function("Q4_0", x, None, False, 1.0, threads),
        ),
    )


def _seconds(call: Callable[[], object]) -> float:
    """The median of some calls, after one that compiles."""
    call()
    taken = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
