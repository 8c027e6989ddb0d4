"""The rate at which folder formats are written, beside a plain copy of the same bytes.

    python tests/benchmarks/write_rate.py SCRATCH [--to NAME …] [--rounds N] [--cold]

The source is a Llama of 1.1 B random weights (2.2 GB, made in SCRATCH once). A plain copy reads all bytes of the
source, writes as many bytes as the output has, in pieces of 8 MB, and syncs them: what no conversion can do without.
Ours is the whole command: start of the program, reading, encoding, writing, reading back, comparing, syncing, and the
check of the finished output. Both run in turn; a share is the median of copy / ours; "of job" leaves the start of the
program out, a third of a second that a larger model does not notice. Processor seconds are of all
threads, system time included. --cold: the system forgets the source before each run, so that the disk is read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from random_llama import write_random_llama_folder

PIECE = 8 << 20
DEFAULT = (
    *(
        "w8a16-g128",
        "w8a8",
        "fp8-dynamic",
        "fp8-block",
        "mxfp8",
        "gptq-8bit-g128",
        "bnb-int8",
        "hf-fp8",
        "modelopt-fp8",
    ),
    *("mlx-8bit-g64", "mlx-mxfp8", "hqq-8bit-g64", "Q8_0"),
    *("w4a16-g128", "w4a16-g128-asym", "gptq-4bit-g128", "gptq-4bit-g128-asym", "awq-g128", "mxfp4a16", "nvfp4a16"),
    *("modelopt-nvfp4", "bnb-nf4", "bnb-nf4-dq", "bnb-fp4", "mlx-4bit-g64", "mlx-mxfp4", "mlx-nvfp4", "hqq-4bit-g64"),
    *("MXFP4", "NVFP4", "Q4_0"),
)


def forget(folder: Path) -> None:
    for file in folder.iterdir():
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def seconds_of(run, *args) -> tuple[float, float, object]:
    """Wall and processor seconds, this process and its children, and the result."""

    def processor() -> float:
        own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime

    before, start = processor(), time.monotonic()
    result = run(*args)
    return time.monotonic() - start, processor() - before, result


def copy(source: Path, nbytes: int, target: Path) -> None:
    buffer = memoryview(bytearray(PIECE))
    for file in sorted(source.iterdir()):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    with target.open("wb", buffering=0) as stream:
        for at in range(0, nbytes, PIECE):
            stream.write(buffer[: min(PIECE, nbytes - at)])
        os.fsync(stream.fileno())


def ours(source: Path, name: str, method: str, output: Path, threads: int) -> dict:
    command = [sys.executable, "-m", "core.cli", "convert", source, "--to", name, "-o", output, "--json"]
    command += ["--method", method, "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--to", nargs="*", default=DEFAULT)
    parser.add_argument("--method", default="round-to-nearest")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    a = parser.parse_args()
    source, scratch = a.scratch / "random-1.1b", a.scratch / "write-rate"
    write_random_llama_folder(source)
    scratch.mkdir(exist_ok=True)
    print(
        f"{'target':<22}{'bytes':>11} {'ours s':>7} {'CPU s':>6} {'copy s':>7} {'CPU s':>6} "
        f"{'share':>6} {'of CPU':>7} {'of job':>7}"
    )
    for name in a.to:
        output = scratch / ("out.gguf" if name.isupper() else "out")
        rows, nbytes = [], 0
        for _ in range(a.rounds):
            if a.cold:
                forget(source)
            wall, cpu, data = seconds_of(ours, source, name, a.method, output, a.threads)
            nbytes, job = int(data["actual_bytes"]), float(data["seconds"])  # type: ignore[index]
            remove(output)
            if a.cold:
                forget(source)
            copy_wall, copy_cpu, _ = seconds_of(copy, source, nbytes, scratch / "copy")
            remove(scratch / "copy")
            rows.append((wall, cpu, copy_wall, copy_cpu, copy_wall / wall, copy_cpu / cpu, copy_wall / job))
        m = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(
            f"{name:<22}{nbytes:>11} {m[0]:>7.2f} {m[1]:>6.2f} {m[2]:>7.2f} {m[3]:>6.2f} "
            f"{m[4]:>6.2f} {m[5]:>7.2f} {m[6]:>7.2f}",
            flush=True,
        )
    scratch.rmdir()


if __name__ == "__main__":
    main()
