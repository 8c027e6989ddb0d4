"""How soon a job on a block of an 8 B model's shape ends when it is cancelled: every method, importance, budget, eval.

    python tests/benchmarks/cancelling.py FOLDER [--jobs gptq AWQ …] [--vocab 32768] [--presses 3]

Writes one such block to FOLDER (0.7 GB), runs each job once and prints the most that it worked between two looks at
its token, in processor seconds of all threads, beside what all cores do in 0.3 s. Then runs it again for each press,
cancels it from another thread at some share of its work, and prints the work from there to its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from calibration import write_blocks

from core.budget.sensitivity import sensitivities
from core.budget.wish import Wish
from core.calibration.loading import torch_ready
from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.errors import Cancelled
from core.methods.choice import Calibrated, DataMethod, Transform
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.verdict.evaluate import evaluating
from core.verdict.settings import EvalSettings, EvalText

TEXT = CalibrationText(samples=2, length=256)
NONE = DataMethod.NONE
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "importance": ("Q4_K_M", {"method": DataMethod.IMPORTANCE}),
    "clipping": ("w4a16-g64-asym", {"method": DataMethod.CLIPPING}),
    "gptq": ("w4a16-g64", {"method": DataMethod.GPTQ}),
    "gptq-aim": ("w4a16-g64", {"method": DataMethod.GPTQ, "aim": True}),
    "learned": ("w4a16-g64-asym", {"method": DataMethod.LEARNED}),
    "AWQ": ("w4a16-g64-asym", {"method": NONE, "transforms": (Transform.AWQ,)}),
    "SmoothQuant": ("w8a8", {"method": NONE, "transforms": (Transform.SMOOTHQUANT,)}),
    "rotation": ("Q4_0", {"method": NONE, "transforms": (Transform.ROTATION,)}),
}
OTHERS = ("budget", "eval")
Job = Callable[[CancelToken], Generator[Any, None, Any]]


def job_of(name: str, folder: Path) -> Job:
    """Starts the job anew, without anything that was kept of an earlier one."""

    def start(token: CancelToken) -> Generator[Any, None, Any]:
        shutil.rmtree(folder / "out", ignore_errors=True)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        (folder / "out").mkdir()
        with open_checkpoint(folder / "model") as source:
            if name == "budget":
                importance = Calibrated(DataMethod.IMPORTANCE, text=TEXT)
                wish = Wish(calibrated=importance, probe=CalibrationText(samples=2, length=64))
                yield from sensitivities(source, wish, token)
            elif name == "eval":
                settings = EvalSettings(EvalText(windows=2, length=256), prompts=("The",), new_tokens=4)
                with open_checkpoint(artifact(folder)) as other:
                    yield from evaluating(source, other, settings, token)
            else:
                target, fields = RUNS[name]
                plan = make_plan(source, Recipe(target, calibrated=Calibrated(text=TEXT, **fields)))
                output = folder / "out" / (f"{name}.gguf" if target.startswith("Q") else name)
                yield from run(plan, source, output, token)

    return start


def artifact(folder: Path) -> Path:
    """What eval compares the model with."""
    path = folder / "Q4_0.gguf"
    if not path.exists():
        with open_checkpoint(folder / "model") as source:
            finish(run(make_plan(source, Recipe("Q4_0")), source, path, CancelToken()))
    return path


def finish(job: Generator[Any, None, Any]) -> None:
    for _ in job:
        pass


def pressed(start: Job, after: float) -> float:
    """Processor seconds from cancelling, after so many of them, to the end; 0 where it ended before."""
    from cancel_help import Watch

    token, done = CancelToken(), threading.Event()
    watch, begun = Watch(token.cancel), time.process_time()

    def wait() -> None:
        while time.process_time() - begun < after and not done.wait(0.002):
            pass
        if not done.is_set():
            watch.press()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        finish(start(token))
    except Cancelled:
        return watch.work
    finally:
        done.set()
        thread.join()
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", nargs="+", default=[*RUNS, *OTHERS], choices=[*RUNS, *OTHERS])
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--presses", type=int, default=3)
    a = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from cancel_help import Looks, most_work

    os.environ["XDG_CACHE_HOME"] = str(a.folder / "cache")
    write_blocks(a.folder / "model", layers=1, vocab=a.vocab)
    artifact(a.folder)
    torch_ready(CancelToken())  # an import is waited for, and not worked between looks
    print(f"allowed: {most_work():.2f} processor seconds", flush=True)
    for name in a.jobs:
        start, looks, begun = job_of(name, a.folder), Looks(), time.process_time()
        finish(start(looks))
        total = time.process_time() - begun
        shares = [(i + 0.5) / a.presses for i in range(a.presses)]
        ends = ", ".join(f"{pressed(start, share * total):.2f}" for share in shares)
        print(f"{name:<12} {total:6.0f} s, longest {looks.longest:.2f}, {looks.where}; cancelled: {ends}", flush=True)


if __name__ == "__main__":
    main()
