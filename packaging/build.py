"""Build the installers of this system: `python packaging/build.py [--flavour cpu|gpu] [--out dist]`.

Steps, each in a folder of its own below build/installer/FLAVOUR: a virtual environment with the locked versions and
nothing of the tests; the program's folder (PyInstaller); what goes beside it (sample, licences, bill of materials,
desktop files); then .deb and .tar.gz on Linux, the .dmg on macOS, the set-up program on Windows; SHA256SUMS last.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import description as d

HERE = Path(__file__).resolve().parent
WINDOWS, MACOS = sys.platform == "win32", sys.platform == "darwin"


def main(argv: list[str] | None = None) -> int:
    """Build; prints each file with its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=sorted(d.FLAVOURS), default="cpu")
    parser.add_argument("--out", type=Path, default=d.ROOT / "dist", help="folder for the installers")
    parser.add_argument("--work", type=Path, default=d.ROOT / "build" / "installer", help="folder for everything else")
    parser.add_argument("--keep-environment", action="store_true", help="use the virtual environment of the last build")
    parser.add_argument(
        "--program-only", action="store_true", help="stop at the program's folder and its list of hashes"
    )
    arguments = parser.parse_args(argv)
    flavour = d.FLAVOURS[arguments.flavour]
    work = arguments.work.resolve() / flavour.name
    check_system()
    python = environment(work, flavour, arguments.keep_environment)
    program = freeze(work, flavour, python)
    extras = beside(work, flavour, python, program)
    listed = hashes(program)
    (work / "FILES.sha256").write_text(listed, encoding="utf-8")
    if arguments.program_only:
        return 0
    made = pack(work, flavour, program, extras, arguments.out.resolve())
    finish(made, arguments.out.resolve(), flavour, extras, listed)
    return 0


def check_system() -> None:
    """End the build before its first step where a library is missing that the program takes along: PyInstaller would
    leave it out. Those that stay outside the program need not be here."""
    if not sys.platform.startswith("linux"):
        return
    sys.path.append(str(d.ROOT))
    from app import system_check

    window = {**system_check.CORE, **system_check.X11, **system_check.WAYLAND}
    taken = {name: packages for name, packages in window.items() if name not in d.DEBIAN_PACKAGES}
    sentence = system_check.what_to_install(system_check.missing_libraries(taken), taken)
    if sentence:
        raise SystemExit(sentence)


def environment(work: Path, flavour: d.Flavour, keep: bool) -> Path:
    """A virtual environment with the flavour's locked requirements, PyInstaller and this program. Its Python."""
    folder = work / "venv"
    python = folder / ("Scripts/python.exe" if WINDOWS else "bin/python")
    if not (keep and python.exists()):
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", folder])
        pip(python, "-c", d.ROOT / "constraints.txt", f"torch=={d.locked('torch')}")
        pip(python, "-c", d.ROOT / "constraints.txt", *d.requirements(flavour), *d.BUILD_TOOLS)
    asked = "import torch; print(torch.version.cuda or torch.version.hip or '')"
    library = run([python, "-c", asked], capture=True).strip()
    if flavour is d.CPU and library:
        raise SystemExit(
            f"pip took a torch with GPU libraries ({library}), which the CPU flavour leaves out. "
            "Name an index or a folder with torch's CPU build: PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS."
        )
    pip(python, "--no-build-isolation", "--no-deps", "--force-reinstall", d.ROOT)
    return python


def freeze(work: Path, flavour: d.Flavour, python: Path) -> Path:
    """Run PyInstaller; the program's folder (macOS: the .app), stripped of symbols."""
    run([python, HERE / "icons.py", d.ROOT / "build" / "installer" / "icons"], QT_QPA_PLATFORM="offscreen")
    out = work / "program"
    shutil.rmtree(out, ignore_errors=True)
    command = [python, "-m", "PyInstaller", "--noconfirm", "--clean", "--log-level", "WARN", "--distpath", out]
    # The same bytes from the same sources: no set in another order, no clock.
    fixed = {"BITSMITH_FLAVOUR": flavour.name, "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": str(epoch())}
    # Not from the tree's folder, whose packages would be found before the installed ones and have no compiled kernels.
    fixed["PYTHONSAFEPATH"] = "1"
    run([*command, "--workpath", work / "pyinstaller", HERE / "bitsmith.spec"], cwd=work, **fixed)
    shutil.rmtree(work / "pyinstaller", ignore_errors=True)
    program = out / "Bitsmith.app" if MACOS else out / d.NAME
    check_whole(program)
    if sys.platform.startswith("linux"):
        strip(program)
    return program


def check_whole(program: Path) -> None:
    """End the build when something is missing without which the program starts all the same, and is slow or silent."""
    for pattern in d.MUST_HAVE:
        if not any(program.rglob(pattern)):
            raise SystemExit(f"The program has no {pattern}; it was left out on the way.")


def strip(program: Path) -> None:
    """Remove symbol tables, which hold a sixth of all libraries. Names that other libraries look up stay."""
    for path in sorted(program.rglob("*")):
        if path.is_symlink() or ".so" not in path.name or any(path.match(p) for p in d.NOT_STRIPPED):
            continue
        path.chmod(path.stat().st_mode | 0o200)
        run(["strip", "--strip-unneeded", "--preserve-dates", path])


def beside(work: Path, flavour: d.Flavour, python: Path, program: Path) -> Path:
    """Everything that is no code: into the program's folder what it reads, into `extras` what installers place."""
    extras = work / "extras"
    shutil.rmtree(extras, ignore_errors=True)
    data = program / "Contents" / "Resources" if MACOS else program / "_internal"
    resources = data / "resources"
    (resources / "flavour.txt").write_text(flavour.name + "\n", encoding="utf-8")
    sample = run([sys.executable, "-m", "core.sample"], cwd=d.ROOT, capture=True).strip().splitlines()[-1]
    (resources / "sample").mkdir(exist_ok=True)
    shutil.copyfile(sample, resources / "sample" / Path(sample).name)
    licences = (data if MACOS else program) / "licences"
    licences.mkdir(exist_ok=True)
    run([python, HERE / "papers.py", flavour.name, extras, licences, data, str(epoch())])
    icons = d.ROOT / "build" / "installer" / "icons"
    theme = extras / "share" / "icons" / "hicolor"
    for size in d.ICON_SIZES:
        place = theme / f"{size}x{size}" / "apps" / f"{d.NAME}.png"
        place.parent.mkdir(parents=True)
        shutil.copyfile(icons / f"bitsmith-{size}.png", place)
    (theme / "scalable" / "apps").mkdir(parents=True)
    shutil.copyfile(d.ROOT / "resources" / "bitsmith.svg", theme / "scalable" / "apps" / f"{d.NAME}.svg")
    return extras


def pack(work: Path, flavour: d.Flavour, program: Path, extras: Path, out: Path) -> list[Path]:
    """The installers of this system."""
    out.mkdir(parents=True, exist_ok=True)
    if WINDOWS:
        defines = [f"/DVersion={d.VERSION}", f"/DProgram={program}", f"/DOut={out}", f"/DPackage={flavour.package}"]
        run([os.environ.get("ISCC", "ISCC.exe"), *defines, HERE / "windows" / "bitsmith.iss"])
        return sorted(out.glob(f"{flavour.package}-{d.VERSION}-*.exe"))
    if MACOS:
        target = out / f"{flavour.package}-{d.VERSION}-macos-{platform.machine()}.dmg"
        run(["bash", HERE / "macos" / "make_dmg.sh", program, target, d.VERSION])
        return [target]
    import archive
    import deb

    machine = platform.machine()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[machine]
    made = []
    root = work / "deb"
    shutil.rmtree(root, ignore_errors=True)
    deb.lay_out(root, program, extras, flavour)
    target = out / f"{flavour.package}_{d.VERSION}_{architecture}.deb"
    made.append(deb.build(root, program, target, flavour, architecture, epoch()))
    shutil.rmtree(root)
    root = work / f"{flavour.package}-{d.VERSION}-linux-{machine}"
    shutil.rmtree(root, ignore_errors=True)
    archive.lay_out(root, program, extras)
    made.append(archive.build(root, out / f"{root.name}.tar.gz", epoch()))
    shutil.rmtree(root)
    return made


def finish(made: list[Path], out: Path, flavour: d.Flavour, extras: Path, listed: str) -> None:
    """Bill of materials, list of hashes, SHA256SUMS, and the limit on the size."""
    bill = out / f"{flavour.package}-{d.VERSION}.cdx.json"
    shutil.copyfile(extras / "sbom.cdx.json", bill)
    files = out / f"{flavour.package}-{d.VERSION}.files.sha256"
    files.write_text(listed, encoding="utf-8")
    mine = [*made, bill, files]
    sums = out / "SHA256SUMS"
    others = sums.read_text(encoding="utf-8").splitlines() if sums.exists() else []
    names = {p.name for p in mine}
    known = {line.partition("  ")[2]: line for line in others}
    known = {name: line for name, line in known.items() if name not in names and (out / name).exists()}
    known |= {p.name: f"{sha256(p)}  {p.name}" for p in mine}
    sums.write_text("".join(f"{known[name]}\n" for name in sorted(known)), encoding="utf-8")
    key = os.environ.get("BITSMITH_GPG_KEY")
    if key:
        run(["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", sums])
    for path in mine:
        say(f"{path.stat().st_size / 1e6:9.1f} MB  {path}")
    for path in made:
        if flavour.limit_mb and path.suffix == ".deb" and path.stat().st_size > flavour.limit_mb * 10**6:
            raise SystemExit(f"{path.name} is over its limit of {flavour.limit_mb} MB.")


def hashes(folder: Path) -> str:
    """A line for each file: SHA-256 and its name; for a link, what it points to."""
    lines = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            lines.append(f"-> {path.readlink()}  {name}\n")
        elif path.is_file():
            lines.append(f"{sha256(path)}  {name}\n")
    return "".join(lines)


def epoch() -> int:
    """SOURCE_DATE_EPOCH, else the time of the last commit, else of the changelog."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(said)
    asked = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, cwd=d.ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout.strip():
        return int(done.stdout)
    return int((d.ROOT / "CHANGELOG.md").stat().st_mtime)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip(python: Path, *words: str | Path) -> None:
    run([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *words])


def run(command: list[str | Path], cwd: Path | None = None, capture: bool = False, **environment: str) -> str:
    """One step; ends the build when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PYTHONNOUSERSITE": "1", **environment},
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"This step failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout or ""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
