"""What a Linux library needs: read from its dynamic section, so that dependencies are counted, not guessed."""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

_DYNAMIC, _LOAD = 2, 1  # segment types
_NEEDED, _STRTAB, _SONAME, _VERNEED, _VERNEEDNUM = 1, 5, 14, 0x6FFFFFFE, 0x6FFFFFFF  # tags of the dynamic section


@dataclass(frozen=True)
class Needs:
    """libraries: as linked. versions: symbol versions, such as 'GLIBC_2.34', by library. soname: its own, or ''."""

    libraries: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    soname: str = ""


def read(path: Path) -> Needs | None:
    """Of a 64-bit little-endian ELF file (System V ABI, gABI 4.1 and its GNU version extension); None for any other."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size < 64:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            return None
        start, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
        segments = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
        loads = [(virtual, offset, length) for kind, _, offset, virtual, _, length in segments if kind == _LOAD]
        dynamic = next((s for s in segments if s[0] == _DYNAMIC), None)
        if dynamic is None:
            return Needs()

        def place(address: int) -> int:
            return next(address - v + offset for v, offset, length in loads if v <= address < v + length)

        entries = [struct.unpack_from("<QQ", data, dynamic[2] + i * 16) for i in range(dynamic[5] // 16)]
        single = dict(entries)
        if _STRTAB not in single:
            return Needs()
        strings = place(single[_STRTAB])

        def text(at: int) -> str:
            return data[strings + at : data.find(b"\0", strings + at)].decode()

        versions: dict[str, tuple[str, ...]] = {}
        at = place(single[_VERNEED]) if _VERNEED in single else 0
        for _ in range(single.get(_VERNEEDNUM, 0)):
            _, number, file_name, first, following = struct.unpack_from("<HHIII", data, at)
            names, entry = [], at + first
            for _ in range(number):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
                names.append(text(name))
                entry += step
            versions[text(file_name)] = tuple(names)
            at += following
        soname = text(single[_SONAME]) if _SONAME in single else ""
        return Needs(tuple(text(value) for tag, value in entries if tag == _NEEDED), versions, soname)


def newest(versions: set[str], prefix: str) -> tuple[int, ...]:
    """The highest of 'PREFIX_2.34'-like versions, as numbers; () when there is none."""
    found = (re.fullmatch(rf"{prefix}_(\d+(?:\.\d+)*)", v) for v in versions)
    return max((tuple(map(int, m[1].split("."))) for m in found if m), default=())


def outside(folder: Path) -> tuple[set[str], set[str]]:
    """Of all programs and libraries in a folder: the libraries that they need and that are not there, and versions."""
    inside, needed, versions = set(), set(), set()
    for path in folder.rglob("*"):
        if ".so" in path.name:
            inside.add(path.name)
        needs = read(path)
        if needs:
            inside.add(needs.soname)
            needed.update(needs.libraries)
            versions.update(v for names in needs.versions.values() for v in names)
    return needed - inside, versions


def orphans(paths: dict[str, Path], roots: set[str]) -> set[str]:
    """Of libraries (file name → path) those that neither a root nor anything that a root needs links to."""
    reached, waiting = set(), list(roots)
    while waiting:
        name = waiting.pop()
        if name in reached or name not in paths:
            continue
        reached.add(name)
        needs = read(paths[name])
        waiting.extend(needs.libraries if needs else ())
    return set(paths) - reached
