"""Program of test_real_disks: conversions to disks that fill up, can not be written to, or go away.

disk_trials.py SOURCE FOLDER, in a mount namespace of its own, where FOLDER becomes a small disk of its own (tmpfs).
Prints what was said; ends with an assertion where something else happened.
"""

import subprocess
import sys
from pathlib import Path

import job_help

from core import run as module
from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe

TARGETS = ("Q8_0", "w4a16-g64")
ROOM = 64 << 20  # bytes of the disk; the reserve that is left free is 16 MB


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def fresh(disk: Path) -> None:
    mount("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(disk))


class Job:
    """A conversion to `output`, to which something happens after a share of its steps."""

    def __init__(self, source: Path, target: str, output: Path) -> None:
        self.source, self.target, self.output = source, target, output

    def run(self, at: int = -1, what=None, resume: bool = False) -> str:  # type: ignore[no-untyped-def]
        """What the run said, '' when it came to its end."""
        module.SYNC_SECONDS = 0.0
        with open_checkpoint(self.source) as checkpoint:
            plan = make_plan(checkpoint, Recipe(self.target))
            try:
                job = module.run(plan, checkpoint, self.output, CancelToken(), resume=resume, threads=1)
                for step, _progress in enumerate(job):
                    if step == at:
                        what()
            except UserError as error:
                problem = error
            else:
                return ""
        assert problem.message.count(". ") == 0, problem.message
        assert problem.hint.endswith("."), problem.hint
        return str(problem)

    def steps(self) -> int:
        with open_checkpoint(self.source) as checkpoint:
            plan = make_plan(checkpoint, Recipe(self.target))
            seen, _ = job_help.drive(module.run(plan, checkpoint, self.output, CancelToken(), threads=1))
        return len([p for p in seen if p.phase == "writing"])


def main() -> None:
    source, disk = Path(sys.argv[1]), Path(sys.argv[2])
    for target in TARGETS:
        fresh(disk)
        whole = Job(source, target, disk / "whole")
        steps = whole.steps()
        right = job_help.digest(whole.output)
        job = Job(source, target, disk / "out")
        for share in (0.0, 0.3, 0.6, 0.9, 0.99):
            fills_up(job, int(share * (steps - 1)), right)
        is_read_only(job, right)
        goes_away(job, disk, right)


def fills_up(job: Job, at: int, right: str) -> None:
    """Another program takes all of the room that is left."""
    filler = job.output.with_name("filler")

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass

    said = job.run(at, fill)
    if not said:  # all that it needed was written before
        assert at > 0
        filler.unlink()
        assert job_help.digest(job.output) == right
        remove(job)
        return
    assert said.endswith("is full. Free some space, then resume the run."), (at, said)
    assert not job.output.exists()
    print(f"full after step {at}: {said}")
    again = job.run(resume=True)
    assert "free" in again or "full" in again, again  # nothing has changed, which is said before any work
    filler.unlink()
    assert job.run(resume=True) == ""
    assert job_help.digest(job.output) == right
    remove(job)


def is_read_only(job: Job, right: str) -> None:
    """From the start, and when an unfinished run is to go on."""
    disk = job.output.parent
    mount("-o", "remount,ro", str(disk))
    said = job.run()
    assert "is read-only" in said, said
    print(f"read-only: {said}")
    mount("-o", "remount,rw", str(disk))
    job_help.interrupt(job.source, job.target, job.output, 4)
    mount("-o", "remount,ro", str(disk))
    assert "is read-only" in job.run(resume=True)
    mount("-o", "remount,rw", str(disk))
    assert job.run(resume=True) == ""
    assert job_help.digest(job.output) == right
    remove(job)


def goes_away(job: Job, disk: Path, right: str) -> None:
    """Pulled out: the folder is there and empty. What was on a tmpfs is lost with it, so the run starts anew."""
    said = job.run(3, lambda: subprocess.run(["umount", "-l", str(disk)], check=True))
    assert "disappeared" in said, said
    print(f"gone: {said}")
    assert not any(disk.iterdir()), "something was written beside the disk"
    fresh(disk)
    assert job.run(resume=True) == ""
    assert job_help.digest(job.output) == right
    subprocess.run(["umount", str(disk)], check=True)


def remove(job: Job) -> None:
    if job.output.is_dir():
        for path in job.output.iterdir():
            path.unlink()
        job.output.rmdir()
    else:
        job.output.unlink()


if __name__ == "__main__":
    main()
