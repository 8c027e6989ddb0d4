"""Compiles what launchers start for cards that need not be there, and says what the assembler made of it.

`python -m kernels.gpu.compile` checks all of it, and prints the tables of docs/gpu.md from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu.compile import machine
from kernels.gpu.launcher import Launch

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
# What is one program for both of these has the same machine code: it was compiled for both, and 261 of 265 kernels were
# alike in all that is read of them; the others multiply 8-bit floats, which are other programs on sm_89.
_SAME_CODE = {"sm_89": "sm_86"}
_WAVE64 = ("gfx9",)
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
    """registers, spilled, matrix, multiplies, wide and lanes: as of `machine.Machine`. shared: bytes a program.

    needed: 16-byte loads that a thread needs; wanted: what its matrix instruction has to multiply, '' for none.
    """

    card: str
    kernel: str
    registers: int
    spilled: int
    shared: int
    matrix: str
    multiplies: str
    wide: int
    needed: int
    wanted: str
    lanes: int = 0

    def problems(self) -> list[str]:
        """What a tuned configuration must not have, in words."""
        found = []
        if self.spilled:
            found.append(f"{self.spilled} bytes spilled")
        if self.shared > SHARED_MEMORY[self.card]:
            found.append(f"{self.shared} bytes of shared memory, the card has {SHARED_MEMORY[self.card]}")
        if self.wide < self.needed:
            found.append(f"{self.wide} loads of 16 bytes, a thread needs {self.needed}")
        if self.multiplies != self.wanted:
            wanted = f"for {self.wanted}" if self.wanted else "at all"
            found.append(f"matrix instructions {wanted} are expected, not '{self.multiplies}'")
        return found


def target(card: str) -> GPUTarget:
    if card.startswith("sm_"):
        return GPUTarget("cuda", int(card[3:]), 32)
    return GPUTarget("hip", card, _lanes(card))


def compile_launch(card: str, launch: Launch) -> Compiled:
    """What a launcher would start on this card, just as it would.

    Triton keeps what it has compiled by a hash of sources, settings and its own version (TRITON_CACHE_DIR); what was
    read of the machine code is kept beside it.
    """
    source, options = _source(launch)
    compiled: Any = triton.compile(source, target=target(card), options=options)
    kept = cache_folder() / f"machine-{_reader()}" / f"{compiled.hash}.json"
    if kept.is_file():
        found = json.loads(kept.read_text(encoding="utf-8"))
    else:
        code = compiled.asm
        found = asdict(machine.of_nvidia(code["cubin"]) if "cubin" in code else machine.of_amd(code["amdgcn"]))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found), encoding="utf-8")
    return Compiled(
        card, launch.kernel.fn.__name__, shared=int(compiled.metadata.shared), needed=needed(card, launch),
        wanted=wanted(card, launch), **found,
    )  # fmt: skip


def program_key(card: str, launch: Launch) -> str:
    """The same for launches that are one program on this card, or have the same machine code as on another one."""
    source, options = _source(launch)
    return f"{_SAME_CODE.get(card, card)} {source.hash()} {sorted(options.items())}"


@cache
def _reader() -> str:
    """Changes with what reads machine code."""
    return hashlib.sha256(Path(machine.__file__).read_bytes()).hexdigest()[:12]


def cache_folder() -> Path:
    """Where Triton keeps what it has compiled."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def _source(launch: Launch) -> tuple[ASTSource, dict[str, Any]]:
    """A kernel with its arguments' types and constants, and the compiler's options."""
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
    options: dict[str, Any] = {"num_warps": launch.warps, "enable_fp_fusion": launch.fusion}
    if launch.stages is not None:
        options["num_stages"] = launch.stages
    if launch.registers:
        options["maxnreg"] = launch.registers
    return ASTSource(launch.kernel, signature, fixed, attributes), options


def needed(card: str, launch: Launch) -> int:
    """16-byte loads that a thread needs for the rows that a program reads at once; 0 where these are less than that.

    Of products the weights' codes, of attention the keys, of all else the values; 0 of kernels that read by columns.
    """
    arguments = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False))
    c, name = launch.constants, launch.kernel.fn.__name__

    def size(what: str) -> int:
        return int(arguments[what].element_size())

    found = {
        "vector_product": lambda: c["ROWS"] * c["WORDS"] * 4,
        "tile_product": lambda: c["ROWS"] * c["WORDS"] * 4,
        "expert_product": lambda: c["ROWS"] * c["WORDS"] * 4,
        "dequantize": lambda: c["ROWS"] * c["WORDS"] * 4,
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


def wanted(card: str, launch: Launch) -> str:
    """What a kernel's matrix instruction has to multiply there, as `machine.Machine.multiplies`; '' for none.

    Triton has no matrix instructions for sm_75.
    """
    c, name = launch.constants, launch.kernel.fn.__name__
    if card == "sm_75":
        return ""
    if name == "scaled_tile_product":
        narrow = "float4" if c["FORMAT"] == "e2m1" else "float8"
        return {"int8": "int8", "fp8": "float8", "scaled": narrow, "upcast": "half"}[c["HOW"]]
    return "half" if name in ("tile_product", "attend_prompt", "attend_token") else ""


def _lanes(card: str) -> int:
    return 64 if card.startswith(_WAVE64) else 32
