"""What takes the room in the program's folder, as a Markdown table: `python packaging/sizes.py [FOLDER]`."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import description as d

# What a part is called, and the beginnings of its files' names below the program's folder; the first that fits counts.
PARTS = {
    "torch: libtorch_cpu": ("_internal/torch/lib/libtorch_cpu",),
    "torch: the rest": ("_internal/torch/",),
    "sample model": ("_internal/resources/sample/",),
    "Qt and PySide6": ("_internal/PySide6/", "_internal/shiboken6/", "_internal/libxcb", "_internal/libxkb"),
    "numpy with OpenBLAS": ("_internal/numpy",),
    "Python modules, compressed": (d.NAME,),
    "Python": ("_internal/libpython", "_internal/python3", "_internal/base_library"),
    "our compiled kernels": ("_internal/kernels/",),
    "tokenizers, sentencepiece, hf_xet": ("_internal/tokenizers", "_internal/sentencepiece", "_internal/hf_xet"),
    "OpenSSL, cryptography": ("_internal/libcrypto", "_internal/libssl", "_internal/cryptography"),
    "licences": ("licences/",),
}


def main(folder: Path) -> None:
    """Sizes as they lie on the disk, and after gzip, in MB (10⁶ bytes)."""
    plain: dict[str, int] = {}
    packed: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        part = next((part for part, starts in PARTS.items() if name.startswith(starts)), "everything else")
        plain[part] = plain.get(part, 0) + path.stat().st_size
        packed[part] = packed.get(part, 0) + gzipped(path)
    rows = [(part, plain[part], packed[part]) for part in sorted(plain, key=lambda p: -packed[p])]
    rows.append(("together", sum(plain.values()), sum(packed.values())))
    lines = ["| part | on the disk, MB | after gzip, MB |", "| --- | --- | --- |"]
    lines += [f"| {part} | {size / 1e6:.1f} | {small / 1e6:.1f} |" for part, size, small in rows]
    sys.stdout.write("\n".join(lines) + "\n")


def gzipped(path: Path) -> int:
    """The size of a file after gzip."""
    packer, size = zlib.compressobj(6), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size += len(packer.compress(block))
    return size + len(packer.flush())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else d.ROOT / "build" / "installer" / "cpu" / "program" / d.NAME)
