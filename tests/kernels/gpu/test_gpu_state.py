"""Whatever is missing is a state with a sentence and a remedy, never an import error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels import dispatch, gpu
from kernels import matrix as _matrix  # noqa: F401  (registers)
from kernels.engine_report import KernelUse
from kernels.gpu import Facts, judge
from kernels.gpu.backends import products
from kernels.gpu.configurations import LIBRARY, TILE, VECTOR, cards, configuration, library_from, measured, regime
from kernels.gpu.runtime.report import kernel_use
from kernels.gpu.weights import layout
from kernels.layouts import BLOCK_KINDS, PLAIN_KINDS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"gpu": False}, "no GPU", "no NVIDIA or AMD GPU"),
        ({"torch": ""}, "no torch", "PyTorch is not installed"),
        ({"torch_gpu": ""}, "torch without GPU", "a build for CPUs alone"),
        ({"torch_gpu": "", "packed": True}, "torch without GPU", "Bitsmith for processors alone"),
        ({"torch_sees": False}, "GPU out of reach", "does not reach the GPU"),
        ({"card": "sm_120"}, "card unknown to torch", "no code for sm_120, only for sm_90"),
        ({"card": "gfx1100", "architectures": ("gfx942",)}, "card unknown to torch", "only for gfx942"),
        ({"triton": ""}, "no Triton", "Triton is not installed"),
        ({"triton": "3.2.1"}, "Triton too old", "3.2.1 is older than 3.3"),
        (
            {"triton": "3.3.1", "card": "sm_120", "architectures": ("sm_120",)},
            "Triton too old for the card",
            "Triton 3.3.1 does not compile all products for sm_120",
        ),
        ({"triton_error": "libtriton.so: no such file"}, "Triton broken", "can not be loaded (libtriton.so"),
        ({"card": "sm_61", "architectures": ("sm_61",)}, "card too old", "only for sm_75 and newer"),
        ({"off": True}, "off", "BITSMITH_GPU=0 asks for none"),
        ({"compiler": ""}, "no C compiler", "no C compiler is at hand"),
        ({"python_header": ""}, "no C compiler", "no Python.h is at hand"),
        ({"cache_folder": "/x", "cache_writable": False}, "cache not writable", "can not write its cache in /x"),
    ],
)
def test_each_thing_that_is_missing_is_named(change, kind, words) -> None:
    state = judge(replace(Facts(), **change))
    assert state.kind == kind
    assert words in state.reason
    assert not state.ready
    assert state.remedy.endswith((".", "triton", "triton-windows")) or kind in ("no GPU", "card too old")


@pytest.mark.parametrize(
    ("card", "built", "ready"),
    [
        ("sm_90", ("sm_80", "sm_90"), True),
        ("sm_89", ("sm_80", "sm_90"), True),  # the same generation
        ("sm_120", ("sm_90", "compute_90"), True),  # PTX
        ("sm_75", ("sm_80",), False),
        ("sm_121", ("sm_120",), True),
        ("sm_121", ("sm_121a",), True),
        ("gfx942", ("gfx90a", "gfx942:sramecc+:xnack-"), True),
    ],
)
def test_a_card_needs_code_in_torch(card, built, ready) -> None:
    assert judge(replace(Facts(), card=card, architectures=built)).ready == ready


@pytest.mark.parametrize("version", ["3.3.0", "3.9.0", "3.4.0+git1234", "4.0"])
def test_known_versions_of_triton_will_do(version) -> None:
    assert judge(replace(Facts(), triton=version)).ready


@pytest.mark.parametrize(
    ("card", "version", "ready"),
    [
        ("sm_120", "3.3.0", False), ("sm_120", "3.4.0", True), ("sm_121", "3.5.1", False), ("sm_121", "3.9.0", True),
        ("sm_103", "3.4.0", False), ("sm_103", "3.6.0+git12", True), ("sm_100", "3.3.0", True),
        ("sm_90", "3.3.0", True), ("sm_110", "3.6.0", False), ("sm_110", "3.7.0", True),
    ],
)  # fmt: skip
def test_new_cards_need_new_versions_of_triton(card, version, ready) -> None:
    found = judge(replace(Facts(), card=card, architectures=(card,), triton=version))
    assert found.ready == ready
    if not ready:
        assert card in found.reason
        assert f"Install Triton {'.'.join(map(str, gpu.CARD_TRITON[card]))} or newer" in found.remedy


def test_the_environment_switches_it_off(monkeypatch) -> None:
    monkeypatch.setenv("BITSMITH_GPU", "0")
    assert judge(gpu.gather()).kind == "off"


def test_a_triton_that_does_not_load_is_said(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise OSError('libtriton.so: cannot open')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    version, error = gpu._triton_facts()
    assert version
    assert error == "libtriton.so: cannot open"


def test_a_cache_folder_that_can_not_be_written_to_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert gpu._writable(tmp_path / "new" / "deep")
    assert not gpu._writable(tmp_path / "file" / "cache")


def test_this_machine_has_a_state() -> None:
    assert gpu.gather() == gpu.gather()
    assert gpu.state().ready or gpu.state().reason


def test_the_self_check_says_it(monkeypatch) -> None:
    from core.hardware.check import AMBER, GREEN, check_report

    expected = {
        judge(replace(Facts(), gpu=False)): GREEN,
        judge(replace(Facts(), triton="3.1")): AMBER,
        judge(replace(Facts(), name="Card 9")): GREEN,
    }
    for state, status in expected.items():
        monkeypatch.setattr(gpu, "state", lambda state=state: state)
        line = next(check for check in check_report() if check.name == "GPU kernels")
        assert line.state == status
        assert (state.reason or "Card 9") in line.sentence
        assert line.remedy == state.remedy


def test_without_triton_and_torch_everything_imports() -> None:
    code = (
        "import sys, json\nsys.modules.update(triton=None, torch=None)\n"
        "from kernels import dispatch, gpu, matrix\n"
        "from kernels.gpu import configurations\nfrom kernels.gpu.backends import products\n"
        "from kernels.gpu.weights import blocks, forms, layout\n"
        "lines = [line for line in dispatch.report() if line.op == 'gpu_product']\n"
        "print(json.dumps([gpu.state().kind, sorted({line.backend for line in lines}), lines[0].reason]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    kind, used, reason = json.loads(run.stdout)
    assert kind in ("no GPU", "no torch")
    assert used == ["reference"]
    assert reason.startswith("gpu:triton: ")


def test_the_report_names_every_format() -> None:
    lines = {line.variant: line for line in dispatch.report() if line.op == "gpu_product"}
    assert set(lines) == set(products.FORMATS) > set(BLOCK_KINDS) - set(PLAIN_KINDS)
    assert "no GPU decoder for TQ1_0" in lines["TQ1_0"].reason
    if not gpu.state().ready:
        assert {line.backend for line in lines.values()} == {"reference"}
        assert lines["Q4_K"].reason == f"gpu:triton: {gpu.state().reason}"


def test_the_kernel_report_says_which_regime_runs() -> None:
    packed = layout.pack_groups(np.zeros((64, 4096), np.uint8), np.ones((64, 32), np.float32), None, 4, 128)

    def use(tokens: int) -> KernelUse:
        how = configuration("sm_90", tokens, 64, packed.form.words, packed.form.tiles(4096), packed.nbytes)
        return kernel_use(packed, "sm_90", tokens, how)

    assert use(1).kernel == "int4 g128 × 16-bit floats, decoded in the product, vector units"
    assert use(1).shape == "64 × 4096"
    assert "tensor cores" in use(16).kernel
    assert "dequantized, then the library's" in use(512).kernel
    assert use(512).reason.startswith("512 tokens, and from 65 on")
    assert "not measured on sm_90" in use(16).reason


def test_regimes_change_with_the_batch_and_are_known_beforehand() -> None:
    assert [regime(tokens) for tokens in (1, 4, 5, library_from() - 1, library_from())] == [
        *(VECTOR, VECTOR, TILE, TILE, LIBRARY),
    ]
    for card in (*cards(), "sm_90", "a card of tomorrow"):
        assert not measured(card)
        for tokens in (1, 4, 16, 64, 512):
            how = configuration(card, tokens, 4096, 32, 16, 8 << 20)
            assert how.rows * how.split > 0
            parts = 8 * how.split * tokens * 4096 if how.split > 1 else 0
            assert parts <= 0.025 * (8 << 20)  # what is added up again is little beside the weights
            assert configuration(card, tokens, 1, 32, 1, 64).split == 1  # no more parts than tiles
