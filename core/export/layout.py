"""Where every byte of an output goes, before one of them is written.

A layout is pure: the runner opens the files, writes each header, fills each part at its offset and copies the extras.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class PlacedPart:
    """The place of one stored array: part number `part` of tensor number `tensor` of the sequence given to the layout.

    file: index into Layout.files; offset: first byte in that file; nbytes: bytes of the array, padding left out.
    """

    tensor: int
    part: int
    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class OutputFile:
    """One file with tensors. name: relative to the output folder; '' when the output path is the file itself.

    header: its first bytes, up to the first tensor. size: the finished file. between: (offset, content) of what else
    stands in it between and behind tensors; bytes that neither this nor a part covers are zero.
    """

    name: str
    header: bytes
    size: int
    between: tuple[tuple[int, bytes], ...] = ()

    @property
    def fixed(self) -> tuple[tuple[int, bytes], ...]:
        """(offset, content) of all that is known before the run: the header and what stands between tensors."""
        return ((0, self.header), *self.between)


@dataclass(frozen=True)
class Layout:
    """A whole output. extras: (relative name, content or the file to copy) beside the files with tensors."""

    files: tuple[OutputFile, ...]
    parts: tuple[PlacedPart, ...]
    extras: tuple[tuple[str, bytes | Path], ...] = ()
    folder: bool = False

    @property
    def header_bytes(self) -> int:
        return sum(len(content) for f in self.files for _, content in f.fixed)

    @property
    def padding_bytes(self) -> int:
        """Zero bytes between and after tensors; the padding inside a header counts as header."""
        return sum(f.size for f in self.files) - self.header_bytes - sum(p.nbytes for p in self.parts)

    @cached_property
    def extra_bytes(self) -> int:
        """Looked up once: what was planned stays so, whatever becomes of the files."""
        return sum(len(c) if isinstance(c, bytes) else c.stat().st_size for _, c in self.extras)

    @property
    def total_bytes(self) -> int:
        """Exact bytes of everything that is written."""
        return sum(f.size for f in self.files) + self.extra_bytes

    def gaps(self, file: int) -> Iterator[tuple[int, int]]:
        """Padding of a file as (offset, bytes), in order: what lies behind the header and in nothing else."""
        end = len(self.files[file].header)
        taken = [(p.offset, p.nbytes) for p in self.parts if p.file == file]
        taken += [(offset, len(content)) for offset, content in self.files[file].between]
        for offset, nbytes in sorted(taken):
            if offset > end:
                yield end, offset - end
            end = offset + nbytes
        if self.files[file].size > end:
            yield end, self.files[file].size - end
