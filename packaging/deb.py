"""A Debian package from a folder: control file, sums, owner root, and times that are those of the release."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import description as d
import documents
import elf

# libstdc++'s newest symbol version → the GCC release that brought it (GCC's ABI history).
_GCC_OF = {(3, 4, 28): "9", (3, 4, 29): "11", (3, 4, 30): "12", (3, 4, 31): "13", (3, 4, 32): "13.2", (3, 4, 33): "14"}


def depends(program: Path) -> list[str]:
    """Debian packages that the program's folder needs, with the oldest glibc and libstdc++ that will do."""
    libraries, versions = elf.outside(program)
    unknown = sorted(libraries - d.GLIBC_LIBRARIES - set(d.DEBIAN_PACKAGES) - d.DRIVER_LIBRARIES)
    if unknown:
        raise SystemExit(f"No Debian package is named for {', '.join(unknown)}; see DEBIAN_PACKAGES in description.py.")
    packages = {d.DEBIAN_PACKAGES[name] for name in libraries if name in d.DEBIAN_PACKAGES} | {"libc6"}
    oldest = {
        "libc6": ".".join(map(str, elf.newest(versions, "GLIBC"))),
        "libstdc++6": _GCC_OF.get(elf.newest(versions, "GLIBCXX"), ""),
    }
    return [f"{p} (>= {oldest[p]})" if oldest.get(p) else p for p in sorted(packages)]


def lay_out(root: Path, program: Path, extras: Path, flavour: d.Flavour) -> None:
    """Put program, links and desktop files where Debian wants them, below `root`. Files are hard links if possible."""
    home = root / "usr" / "lib" / d.NAME
    shutil.copytree(program, home, symlinks=True, copy_function=_link)
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / d.NAME).symlink_to(f"../lib/{d.NAME}/{d.NAME}")
    shutil.copytree(extras / "share", root / "usr" / "share", symlinks=True)
    documentation = root / "usr" / "share" / "doc" / flavour.package
    documentation.mkdir(parents=True)
    (documentation / "copyright").write_text(
        documents.copyright_file((extras / "THIRD-PARTY.txt").read_text(encoding="utf-8")), encoding="utf-8"
    )
    changes = (d.ROOT / "CHANGELOG.md").read_bytes()
    (documentation / "changelog.gz").write_bytes(gzip.compress(changes, 9, mtime=0))
    (documentation / "third-party").symlink_to(f"../../../lib/{d.NAME}/licences")


def build(root: Path, program: Path, target: Path, flavour: d.Flavour, architecture: str, epoch: int) -> Path:
    """Write control data into `root`, as laid out, and pack it into `target`."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    kilobytes = sum(-(-p.stat().st_size // 1024) for p in files)
    control = root / "DEBIAN"
    control.mkdir()
    sums = "".join(f"{md5(p)}  {p.relative_to(root).as_posix()}\n" for p in files)
    (control / "md5sums").write_text(sums, encoding="utf-8")
    text = documents.control(flavour, depends(program), architecture, kilobytes)
    (control / "control").write_text(text, encoding="utf-8")
    normalise(root, epoch)
    target.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    # Level 6 takes more than twice the time for a tenth less.
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z2", "--build", str(root), str(target)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return target


def normalise(root: Path, epoch: int) -> None:
    """The same modes and times on every builder's machine: 755 for folders and programs, 644 for the rest."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o111
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def md5(path: Path) -> str:
    """What dpkg compares installed files with; no protection."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
