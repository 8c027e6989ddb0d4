"""Reads what the assembler has made of a kernel: registers, spills, matrix instructions and wide loads.

Of NVIDIA's, by the two programs that Triton brings beside its assembler, from the binary that would be loaded; of
AMD's, from the assembly that the binary was made of.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton

# What a matrix instruction multiplies, by how its name begins (NVIDIA) or by what is in it (AMD).
_NVIDIA = {
    **dict.fromkeys(("HMMA", "HGMMA", "UTCHMMA"), "half"),
    **dict.fromkeys(("IMMA", "IGMMA", "UTCIMMA"), "int8"),
    **dict.fromkeys(("QMMA", "QGMMA", "UTCQMMA"), "float8"),
    **dict.fromkeys(("OMMA", "UTCOMMA"), "float4"),
}
_AMD = (
    ("f8", "float8"),
    ("fp8", "float8"),
    ("bf8", "float8"),
    ("i8", "int8"),
    ("iu8", "int8"),
    ("bf16", "half"),
    ("f16", "half"),
)
_MATRIX = re.compile(r"\b((?:UTC)?[HIQO]G?MMA)[.\w]*")
_AMD_MATRIX = re.compile(r"\bv_(mfma|wmma|swmmac)_\w+?_\d+x\d+x\d+_?(\w+)")
# .128: 16 bytes; .ENL2.256: two registers of 16 each, sm_100 on.
_WIDE = re.compile(r"\bLDG(?:STS)?\.[.\w]*\b(?:128|256)\b")
_AMD_WIDE = re.compile(r"\b(?:global|buffer|flat)_load_(?:dwordx4|b128)")
_LOCAL = re.compile(r"\b(?:STL|LDL)\b")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)")


@dataclass(frozen=True)
class Machine:
    """registers: of a thread; spilled: bytes of memory that it has for what does not fit into them. lanes: scalar
    registers of AMD's that lie in lanes of a vector register, which no memory has a part in.

    matrix: the name of its matrix instruction, or ''; multiplies: 'half', 'int8', 'float8', 'float4', or ''. wide:
    loads of 16 bytes from memory.
    """

    registers: int
    spilled: int
    matrix: str
    multiplies: str
    wide: int
    lanes: int = 0


def of_nvidia(binary: bytes) -> Machine:
    """Of a cubin. Raises RuntimeError where Triton brings no disassembler, or it does not know the binary."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(binary)
        usage, code = _told("cuobjdump", "-res-usage", file), _told("nvdisasm", "-c", file)
    found = _USAGE.search(usage)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {usage[:200]}")
    registers, stack, local = map(int, found.groups())
    spilled = stack + local if _LOCAL.search(code) else 0  # else what a call's frame has, which nothing is put into
    matrix = {name.group(1) for name in _MATRIX.finditer(code)}
    name = min(matrix, key=lambda name: _NVIDIA[name] == "half", default="")  # the one of fewer bits
    return Machine(registers, spilled, name, _NVIDIA.get(name, ""), len(_WIDE.findall(code)))


def of_amd(text: str) -> Machine:
    """Of assembly."""

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        if found is None:
            raise RuntimeError(f"the assembly says nothing of {name}")
        return int(found.group(1))

    spilled = number("private_segment_fixed_size") or number("vgpr_spill_count")
    lanes = 0 if spilled else number("sgpr_spill_count")
    found = {
        (f"{one.group(1)} {one.group(2).split('_')[0]}", next(kind for part, kind in _AMD if part in one.group(2)))
        for one in _AMD_MATRIX.finditer(text)
    }
    name, multiplies = min(found, key=lambda one: one[1] == "half", default=("", ""))
    return Machine(number("vgpr_count"), spilled, name, multiplies, len(_AMD_WIDE.findall(text)), lanes)


def assembler() -> str:
    """Triton's version and its assemblers' for NVIDIA, for people."""
    names = ("ptxas", "ptxas-blackwell")
    found = [_version(name) for name in names if (_tools() / name).is_file()]
    return f"Triton {triton.__version__}, ptxas {' and '.join(dict.fromkeys(found))}"


def _version(name: str) -> str:
    found = re.search(r"release [\d.]+, V([\d.]+)", _told(name, "--version"))
    return found.group(1) if found else "of no known version"


def _tools() -> Path:
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def _told(name: str, *arguments: str | Path) -> str:
    program = _tools() / name
    if not program.is_file():
        raise RuntimeError(f"this Triton brings no {name}")
    run = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{name}: {(run.stderr or run.stdout).strip()[:300]}")
    return run.stdout
