"""The program for Linux systems without .deb: one archive with an installer and an uninstaller of its own."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from pathlib import Path

import deb
import description as d


def lay_out(root: Path, program: Path, extras: Path) -> None:
    """`root` becomes what the archive unpacks to: the program, files for the desktop, install.sh, uninstall.sh."""
    root.mkdir(parents=True)
    shutil.copytree(program, root / "program", symlinks=True, copy_function=deb._link)
    shutil.copytree(extras / "share", root / "share", symlinks=True)
    shutil.copy2(extras / "THIRD-PARTY.txt", root / "THIRD-PARTY.txt")
    for name in ("install.sh", "uninstall.sh"):
        text = (Path(__file__).parent / "linux" / name).read_text(encoding="utf-8").replace("@NAME@", d.NAME)
        (root / name).write_text(text, encoding="utf-8")
        (root / name).chmod(0o755)


def build(root: Path, target: Path, epoch: int) -> Path:
    """Pack `root` into `target` (.tar.gz): sorted, owned by root, with the release's time."""
    deb.normalise(root, epoch)
    target.parent.mkdir(parents=True, exist_ok=True)

    def same(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch
        return entry

    # gzip, since a minimal system may lack xz. The name and the time in its head are left out.
    with (
        target.open("wb") as out,
        gzip.GzipFile("", "wb", 6, out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.add(root, root.name, recursive=False, filter=same)
        for path in sorted(root.rglob("*")):
            tar.add(path, f"{root.name}/{path.relative_to(root).as_posix()}", recursive=False, filter=same)
    return target
