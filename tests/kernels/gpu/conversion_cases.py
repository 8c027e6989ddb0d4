"""Whole conversions with the GPU's encoders under Triton's interpreter, and with the processor's: one JSON line each.

`all` as an argument: of every kind of scheme; without it, of some.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from decoder_models import write_model
from interpreted import tell
from job_help import digest, drive

from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.formats import Method
from core.methods.choice import Calibrated, DataMethod
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from kernels import dispatch, gpu, ops, solve  # noqa: F401  (solve registers)
from kernels.gpu import operations, selftest, user_files
from kernels.gpu.backends import conversion

ROUND = (
    *("w4a16-g32", "Q8_0", "MXFP4", "fp8-block", "nvfp4a16"),
    *("w8a16-channel-asym", "Q4_0", "w3a16-g32-asym", "fp8-dynamic", "mxfp4a16", "NVFP4", "w8a8"),
)
SOME = 5
TEXT = CalibrationText(samples=1, length=24)


def from_few_values() -> None:
    """Blocks of a tiny model are smaller than what is worth its way."""
    for entries in dispatch._implementations.values():
        entries[:] = [replace(entry, least=1 if entry.least else 0) for entry in entries]


def converted(model: Path, recipe: Recipe, output: Path) -> tuple[str, dispatch.Tally, tuple[str, ...]]:
    with open_checkpoint(model) as checkpoint, dispatch.tally() as tally:
        result = drive(run(make_plan(checkpoint, recipe), checkpoint, output, CancelToken()))[1]
    return digest(output), tally, result.notes


def main() -> None:
    conversion.device = "cpu"
    gpu.state = lambda: gpu.GpuState("ready", card="cpu", name="Card 9")  # type: ignore[assignment]
    selftest.environment = lambda: ("interpreter",)  # type: ignore[assignment]
    selftest._is_lost = lambda: False  # type: ignore[assignment]
    from_few_values()
    recipes = [Recipe(target, method=Method.ROUND) for target in (ROUND if "all" in sys.argv else ROUND[:SOME])]
    recipes.append(Recipe("w4a16-g32-asym", calibrated=Calibrated(text=TEXT, method=DataMethod.GPTQ)))
    with tempfile.TemporaryDirectory() as folder:
        user_files.folder = lambda: Path(folder, "results")  # type: ignore[assignment]
        model = Path(folder, "llama2")
        write_model(model, "llama2")
        for recipe in recipes:
            name = "out.gguf" if recipe.target[0].isupper() else "out"
            with dispatch.only("cpu" if dispatch.backends()[0] != "reference" else "reference"):
                expected, plain, silent = converted(model, recipe, Path(folder, f"cpu {recipe.target}", name))
            found, tally, notes = converted(model, recipe, Path(folder, f"gpu {recipe.target}", name))
            tell(
                target=recipe.target, data=recipe.calibrated is not None and recipe.calibrated.method is not None,
                same=found == expected, on_gpu=tally.values["gpu:triton"], others=tally.values.total(),
                plain=plain.values["gpu:triton"], notes=notes, silent=silent,
            )  # fmt: skip
        troubles(model, Path(folder), expected_of=converted(model, recipes[0], Path(folder, "right", "out"))[0])


def troubles(model: Path, folder: Path, expected_of: str) -> None:
    """Memory that runs out for some blocks, a kernel that fails in use, and one whose self-test fails."""
    whole, calls = operations.encode_groups, [0]

    def short_of_memory(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(*arguments)

    def breaks(*_arguments: object) -> object:
        raise LookupError("CUDA error: misaligned address\nmore")  # Triton's errors are of no class of torch's

    recipe = Recipe("w4a16-g32", method=Method.ROUND)
    for trouble, function in (("memory", short_of_memory), ("breaks", breaks)):
        operations.encode_groups = function  # type: ignore[assignment]
        found, tally, notes = converted(model, recipe, folder / trouble / "out")
        tell(trouble=trouble, same=found == expected_of, notes=notes, on_gpu=tally.values["gpu:triton"])
    found, tally, notes = converted(model, recipe, folder / "known" / "out")
    tell(trouble="known", same=found == expected_of, notes=notes, on_gpu=tally.values["gpu:triton"])
    operations.encode_groups = whole
    selftest.forget()
    usable = conversion.selftest.usable
    conversion.selftest.usable = lambda *_: "3 of 40 bytes of codes are not the reference's"  # type: ignore[assignment]
    found, tally, notes = converted(model, recipe, folder / "self-test" / "out")
    tell(trouble="self-test", same=found == expected_of, notes=notes, on_gpu=tally.values["gpu:triton"])
    conversion.selftest.usable = usable
    x = np.full((4, 64), np.nan, np.float32)
    try:
        ops.encode_groups(x, 4, 32, True, search=False)
    except ValueError as error:
        tell(trouble="NaN", reason=str(error))


if __name__ == "__main__":
    sys.exit(main())
