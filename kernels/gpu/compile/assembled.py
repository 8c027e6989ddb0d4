"""Compiles the products for cards that need not be there, and reads what the assembler made of them.

`python -m kernels.gpu.compile` prints the table of docs/gpu.md from it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu.configurations import LIBRARY, VECTOR, Configuration, configuration
from kernels.gpu.launcher import Launch
from kernels.gpu.products import matmul
from kernels.gpu.products.weight_only import constants
from kernels.gpu.weights.forms import Form

# Shared memory that one program may have, in bytes: CUDA C++ programming guide (compute capabilities), CDNA3 and RDNA
# instruction set documents (LDS of a work-group).
SHARED_MEMORY = {
    "sm_75": 65536,
    "sm_80": 166912,
    "sm_86": 101376,
    "sm_89": 101376,
    "sm_90": 232448,
    "sm_100": 232448,
    "sm_120": 101376,
    "gfx942": 65536,
    "gfx950": 163840,
    "gfx1100": 65536,
    "gfx1201": 65536,
}
CARDS = tuple(card for card in SHARED_MEMORY if card != "gfx950")  # it differs from gfx942 in scaled products only
_WAVE64 = ("gfx9",)
_TENSOR = re.compile(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma|v_wmma|v_swmmac)")
_WIDE = re.compile(r"ld\.global[.\w:]*\.v4\.b32|cp\.async\.cg\.shared\.global|(?:global|buffer)_load_(?:dwordx4|b128)")
_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class Compiled:
    """registers, spilled: a thread's, in registers and bytes (AMD: registers). shared: bytes a program.

    tensor: the tensor-core instruction, or ''. wide: 16-byte loads; needed: what the words of one tile take.
    """

    card: str
    kernel: str
    form: str
    registers: int
    spilled: int
    shared: int
    tensor: str
    wide: int
    needed: int

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED_MEMORY[self.card]


def target(card: str) -> GPUTarget:
    if card.startswith("sm_"):
        return GPUTarget("cuda", int(card[3:]), 32)
    return GPUTarget("hip", card, _lanes(card))


def compile_product(card: str, form: Form, tokens: int, rows: int = 4096, columns: int = 4096) -> Compiled:
    """The kernel that so many tokens run on this card, with its tuned configuration, for float16 activations."""
    tiles = form.tiles(columns)
    how = configuration(card, tokens, rows, form.words, tiles, rows * columns * (form.bits + form.high) // 8)
    kernel: Any = {VECTOR: matmul.vector_product, LIBRARY: matmul.dequantize}.get(how.regime, matmul.tile_product)
    source = _source(kernel, form, how, tokens, rows, columns)
    needed = max(how.rows * form.words * 4 // (16 * how.warps * _lanes(card)), 1)
    return _compiled(card, source, {"num_warps": how.warps}, f"{kernel.fn.__name__} {tokens}", form.label, needed)


def compile_launch(card: str, launch: Launch, label: str) -> Compiled:
    """What a launcher would start on this card, just as it would."""
    names = launch.kernel.arg_names
    arguments = dict(zip(names, launch.arguments, strict=False))
    fixed: dict[str, Any] = dict(launch.constants)
    signature: dict[str, str] = {}
    attributes = {}
    for at, name in enumerate(names):
        value = arguments.get(name)
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{_TYPES[value.dtype]}"
            if value.storage_offset() * value.element_size() % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif name in fixed or value == 1:  # Triton compiles a kernel for each argument that is 1
            signature[name] = "constexpr"
            fixed.setdefault(name, 1)
        else:
            assert isinstance(value, int)
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, fixed, attributes)
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": launch.fusion}
    return _compiled(card, source, options, launch.kernel.fn.__name__, label, needed(card, launch))


def needed(card: str, launch: Launch) -> int:
    """16-byte loads that a thread needs for the rows that a program reads at once; 0 where these are less than that.

    Of products the weights' codes, of attention the keys, of all else the values; 0 of kernels that read by columns.
    """
    arguments = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False))
    c, name = launch.constants, launch.kernel.fn.__name__

    def size(what: str) -> int:
        return int(arguments[what].element_size())

    found = {
        "scaled_vector_product": lambda: c["ROWS"] * c["BLOCK"],
        "scaled_tile_product": lambda: c["ROWS"] * c["BLOCK"],
        "attend_prompt": lambda: c["POSITIONS"] * arguments["key_codes"].shape[3] * size("key_codes"),
        "attend_token": lambda: c["POSITIONS"] * arguments["key_codes"].shape[3] * size("key_codes"),
        "token_step": lambda: c["ROWS"] * c["BLOCK"] * size("x"),
        "encode_groups": lambda: c["ROWS"] * c["GROUP"] * size("x"),
        "encode_float8": lambda: c["ROWS"] * c["BLOCK"] * size("x"),
        "encode_e2m1": lambda: c["ROWS"] * c["GROUP"] * size("x"),
        "encode_q8_0": lambda: c["ROWS"] * 32 * size("x"),
        "encode_q4_0": lambda: c["ROWS"] * 32 * size("x"),
    }.get(name, lambda: 0)()
    return int(found) // (16 * launch.warps * _lanes(card))


def _compiled(card: str, source: ASTSource, options: dict[str, Any], kernel: str, label: str, needed: int) -> Compiled:
    compiled: Any = triton.compile(source, target=target(card), options=options)
    text = compiled.asm["ptx"] if "ptx" in compiled.asm else compiled.asm["amdgcn"]
    registers, spilled = _nvidia(text) if "ptx" in compiled.asm else _amd(text)
    found = _TENSOR.search(text)
    return Compiled(
        card,
        kernel,
        label,
        registers,
        spilled,
        int(compiled.metadata.shared),
        found.group(1) if found else "",
        len(_WIDE.findall(text)),
        needed,
    )


def _lanes(card: str) -> int:
    return 64 if card.startswith(_WAVE64) else 32


def _source(kernel: Any, form: Form, how: Configuration, tokens: int, rows: int, columns: int) -> ASTSource:
    fixed = {
        **constants(form),
        "ORDERED": False,
        "EVEN": columns % form.tile == 0,
        "BATCH": how.batch,
        "ROWS": how.rows,
        "SPLIT": how.split,
        "STAGES": how.stages,
        "UNROLLED": how.unrolled,
    }
    types = {
        "x": "*fp16",
        "low": "*i32",
        "high": "*i8" if form.high * form.slots == 8 else "*i16",
        "scales": _scale_type(form),
        "third": _third_type(form),
        "table": "*fp32",
        "order": "*i32",
        "out": "*fp16" if how.regime == LIBRARY else "*fp32",
        "TENSOR": "fp32",
    }
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in names}
    values = {"M": tokens, "N": rows, "K": columns, "TILES": form.tiles(columns), "STRIDE": rows}
    divisible = [name for name in names if signature[name][0] == "*" or values.get(name, 1) % 16 == 0]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    used = {name: value for name, value in fixed.items() if name in names}
    return ASTSource(kernel, signature, used, attributes)


def _scale_type(form: Form) -> str:
    return {"plain": "*fp16", "zeros": "*fp16", "minimums": "*fp16", "byte_pairs": "*i16"}.get(form.scales, "*u8")


def _third_type(form: Form) -> str:
    kinds = {"minimums": "*fp16", "zeros": "*u8", "byte_pairs": "*i32", "nibble_pairs": "*i32"}
    return kinds.get(form.scales, "*i16")


def _nvidia(ptx: str) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills, by ptxas's own word."""
    chip = re.search(r"^\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    assert chip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx, encoding="utf-8")
        command = ["-v", f"--gpu-name={chip.group(1)}", str(file), "-o", str(Path(folder, "out"))]
        told = subprocess.run([_ptxas(), *command], capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", told)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    assert registers
    assert spilled
    return int(registers.group(1)), int(spilled.group(1)) + int(spilled.group(2))


def _ptxas() -> str:
    """Triton's own assembler. Where it brings two, 'blackwell' is the newer, which knows all cards."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    newer = folder / "ptxas-blackwell"
    return str(newer if newer.is_file() else folder / "ptxas")


def _amd(text: str) -> tuple[int, int]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        assert found
        return int(found.group(1))

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")
