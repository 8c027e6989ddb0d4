"""Where packed weights lie: nothing is touched early, and all of it goes back to the system."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from kernels import cpu
from kernels.engine import Engine
from kernels.matrix import Matrix, from_blocks, from_elements
from kernels.program import CacheLayout, Embed, Linear, Program

pytestmark = pytest.mark.skipif(
    not cpu.engine_sets or not sys.platform.startswith("linux"), reason="needs the compiled engine and Linux's /proc"
)

MB = 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def filled(rows: int, columns: int = 1024) -> Matrix:
    def read(start: int, stop: int) -> np.ndarray:
        return np.full((stop - start, columns // 32 * 34), 1, np.uint8)

    return from_blocks("Q8_0", rows, columns, read)


def test_a_matrix_takes_no_memory_before_it_is_filled() -> None:
    before = resident()
    stored = cpu.engine.blocks("Q8_0", 2**18, 1024, 1.0)
    assert stored.nbytes > 256 * MB
    assert resident() - before < 16 * MB
    del stored


def test_small_matrices_share_chunks_and_give_them_back() -> None:
    filled(64)
    before = resident()
    matrices = [filled(3008) for _ in range(40)]  # 3.1 MB each
    full = resident() - before
    assert full > 0.9 * sum(m.nbytes for m in matrices)
    assert full < sum(m.nbytes for m in matrices) + 24 * MB
    kept = matrices[20:]
    del matrices
    assert resident() - before < full - 50 * MB  # pages of the first half, though its chunks live on
    assert np.array_equal(kept[0].stored.take(np.zeros(1, np.int64)), kept[-1].stored.take(np.zeros(1, np.int64)))
    del kept
    assert resident() - before < 16 * MB


def test_neighbours_in_a_chunk_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(0)
    sources = [rng.standard_normal((rows, 96)).astype(np.float32) for rows in (1, 17, 33, 5, 64)]
    matrices = [
        from_elements("F32", len(x), 96, lambda a, b, x=x: x[a:b].view(np.uint8).reshape(b - a, -1)) for x in sources
    ]
    del matrices[1], sources[1]
    for x, matrix in zip(sources, matrices, strict=True):
        assert np.array_equal(matrix.stored.take(np.arange(len(x))), x)


def small_program() -> Program:
    weight = filled(32, 64)
    steps = (Embed(weight, 0), Linear(0, (weight,), (1,)))
    return Program(steps, (64, 32), 1, CacheLayout((), 4))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_engine_that_is_closed_lets_go_of_everything_at_once(backend: str) -> None:
    from kernels import dispatch

    gc.disable()
    try:
        with dispatch.only(backend):
            engine = Engine(small_program(), 1)
            engine.run(*(np.zeros(1, np.int32) for _ in range(4)))
            executor = weakref.ref(engine._executor)
            engine.close()
            assert executor() is None
    finally:
        gc.enable()


def test_nothing_is_said_of_models_that_live_until_the_end() -> None:
    code = (
        "import numpy as np, kernels.matrix as m\n"
        "kept = m.from_elements('F32', 16, 32, lambda a, b: np.zeros((b - a, 128), np.uint8))\n"
        "m.kept = kept; m.cycle = [kept]; m.cycle.append(m.cycle)\n"
        "import kernels.cpu._engine as e; e.kept = kept\n"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {"PYTHONPATH": str(root)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stderr == ""
