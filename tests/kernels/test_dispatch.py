"""Which implementation runs, and that it can be forced, named and left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels import cpu, dispatch, ops
from kernels.layouts import BY_ID, LAYOUTS, PLAIN_KINDS, SOURCE_KINDS, WRITTEN_KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_layouts_are_those_of_gguf_and_of_the_compiled_kernels() -> None:
    import gguf

    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        layout = LAYOUTS[kind.name]
        if kind.name != "Q8_1":  # never in a file; gguf-py still has its size from before its scales were halves
            assert (layout.id, layout.block, layout.bytes) == (kind.value, block, size)
        assert BY_ID[kind.value] is layout
    assert set(WRITTEN_KINDS) | set(SOURCE_KINDS) <= set(LAYOUTS)
    if cpu.extension is not None:
        for name, block, size in cpu.extension.layouts():
            assert (LAYOUTS[name].block, LAYOUTS[name].bytes) == (block, size)


def test_the_report_names_every_operation_and_block_type() -> None:
    lines = {(line.op, line.variant): line for line in dispatch.report()}
    assert {variant for op, variant in lines if op == "encode_blocks"} == set(WRITTEN_KINDS) - set(PLAIN_KINDS)
    best = dispatch.backends()[0]
    assert lines["encode_blocks", "Q8_0"].backend == best
    assert lines["scan", ""].backend == best
    assert lines["decode_blocks", "IQ1_S"].backend == "reference"
    if best != "reference":
        assert "no compiled decoder for IQ1_S" in lines["decode_blocks", "IQ1_S"].reason


def test_the_engine_does_not_change_what_conversions_run_on() -> None:
    import kernels.engine  # noqa: F401  (registers its own instruction sets)

    assert dispatch.backends()[:-1] == tuple(f"cpu:{isa}" for isa in cpu.instruction_sets)
    runs = [f"cpu:{isa}" for isa in cpu.engine_sets]
    assert [name for name in dispatch.backends("program")[:-1] if name[4:] not in cpu.engine_refused] == runs
    assert dispatch.backends("no such thing") == ()


def test_a_backend_can_be_forced() -> None:
    with dispatch.only("reference"):
        assert dispatch.find("scan").backend == "reference"
        if cpu.instruction_sets:
            with dispatch.only("cpu"):
                assert dispatch.find("scan").backend == f"cpu:{cpu.instruction_sets[0]}"
        assert dispatch.find("scan").backend == "reference"
        assert all(line.backend == "reference" for line in dispatch.report())
    with dispatch.only("cpu:none"), pytest.raises(RuntimeError, match="only cpu:none was asked for"):
        ops.scan(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("isa", ["baseline", "reference", "nonsense"])
def test_the_environment_forces_an_instruction_set(isa) -> None:
    code = "from kernels import cpu, dispatch, ops\n"
    code += "print(cpu.instruction_sets, cpu.missing, dispatch.find('scan').backend)"
    environment = {**os.environ, "BITSMITH_ISA": isa, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if isa == "baseline" and cpu.extension is not None:
        assert run.stdout.split() == ["('baseline',)", "cpu:baseline"]
    else:
        assert run.stdout.split()[-1] == "reference"
        assert cpu.extension is None or "BITSMITH_ISA" in run.stdout
