"""Every format of `gpu_cases` as a matrix on a device, packed piece by piece, under Triton's interpreter.

rows: whether rows that are read are what the reference decodes. error: of a product, as `gpu_cases` has it.
"""

from __future__ import annotations

from typing import Any

import gpu_cases
import numpy as np
import torch
from interpreted import exact_dot, tell

from kernels import dispatch, matrix
from kernels.gpu.runtime.device import Interpreted
from kernels.gpu.runtime.matrices import DeviceMatrices
from kernels.gpu.runtime.operands import Input
from kernels.matrix import Activations, Matrix
from kernels.reference import matrix as reference

IDS = np.array([0, 36, 17, 17, 3])


class Both:
    """Makes each matrix for the reference, and keeps the device's."""

    def __init__(self, made: DeviceMatrices) -> None:
        self._made = made
        self.last: Matrix | None = None

    def __getattr__(self, name: str) -> Any:
        def make(*arguments: Any) -> Matrix:
            self.last = getattr(self._made, name)(*arguments)
            return getattr(matrix, name)(*arguments)

        return make


def relative(found: np.ndarray, x: np.ndarray, made: Matrix, activations: str = "EXACT") -> float:
    weights = made.stored.take(np.arange(made.rows)).astype(np.float64)
    expected = reference.product(x, made.stored, made.rows, activations, made.order)
    size = np.abs(x).astype(np.float64) @ np.abs(weights).T
    return float((np.abs(found - expected) / np.where(size > 0, size, 1)).max())


def main() -> None:
    exact_dot()
    matrix._PIECE = 1  # pieces of sixteen rows
    both = Both(DeviceMatrices(Interpreted()))
    gpu_cases.matrix = both  # type: ignore[assignment]
    rng = np.random.default_rng(3)
    with dispatch.only("reference"):
        for number, case in enumerate(gpu_cases.cases()):
            own, made = both.last, case.matrix
            assert own is not None
            ids = IDS % made.rows
            x = rng.standard_normal((3, made.columns)).astype(np.float16).astype(np.float32)
            given = torch.from_numpy(x)
            found = own.stored.product(Input(given.half()) if number % 3 == 0 else Input(given, exact=True)).numpy()
            tell(
                case=case.name, same=own.format == made.format and own.nbytes == case.packed.nbytes,
                rows=bool((own.stored.take(ids) == made.stored.take(ids)).all()),
                far=float(np.abs(own.stored.take(ids) - made.stored.take(ids)).max()),
                kind=own.stored.kind == made.stored.kind, error=relative(found, x, made),
            )  # fmt: skip
        tokens()
        floats()
    refusals()


def tokens() -> None:
    """int8 with a scale a row is multiplied as codes with int8 activations; anything else is so in effect."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((5, 201)).astype(np.float32)
    x[:, 7] *= 20
    for group, outliers in ((0, 0.0), (0, 6.0), (64, 0.0), (64, 6.0)):
        both = gpu_cases.matrix = Both(DeviceMatrices(Interpreted(), Activations.TOKEN))  # type: ignore[assignment]
        case = gpu_cases.groups(8, group, "", "F32", 37, 201)
        assert both.last is not None
        given = Input(torch.from_numpy(x).half().float(), token=True, outliers=outliers)
        found = both.last.stored.product(given).numpy()
        tell(
            token=[group, outliers], error=token_error(found, x.astype(np.float16).astype(np.float32), case, outliers),
            kind=type(both.last.stored).__name__, same=bool(
                np.allclose(both.last.stored.take(IDS), case.matrix.stored.take(IDS), rtol=1e-6)
            ),
        )  # fmt: skip


def token_error(found: np.ndarray, x: np.ndarray, case: gpu_cases.Case, outliers: float) -> float:
    apart = (np.abs(x) >= outliers).any(axis=0) & (outliers > 0)
    kept = reference.round_activations(np.where(apart, np.float32(0), x), "integer", "TOKEN")
    w = case.matrix.stored.take(np.arange(37)).astype(np.float64)
    expected = np.where(apart, x, kept) @ w.T
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def floats() -> None:
    rng = np.random.default_rng(5)
    for kind in ("F32", "F16", "BF16"):
        data = gpu_cases.ops.from_float32(gpu_cases.weights(37, 131), kind).view(np.uint8).reshape(37, -1)
        own = DeviceMatrices(Interpreted()).from_elements(kind, 37, 131, lambda a, b, data=data: data[a:b])
        want = matrix.from_elements(kind, 37, 131, lambda a, b, data=data: data[a:b])
        x = torch.from_numpy(rng.standard_normal((2, 131)).astype(np.float32)).bfloat16().float()
        found = own.stored.product(Input(x)).numpy()
        tell(
            float=kind, rows=bool((own.stored.take(IDS) == want.stored.take(IDS)).all()), nbytes=own.nbytes,
            error=relative(found, x.numpy(), want), kind=own.stored.kind,
        )  # fmt: skip


def refusals() -> None:
    made = DeviceMatrices(Interpreted(), allows=lambda form: "its test failed" if form.label == "Q8_0" else "")

    def never(_start: int, _stop: int) -> Any:
        raise AssertionError("read before it was refused")

    for name, work in {
        "no decoder": lambda: made.from_blocks("TQ1_0", 4, 256, never),
        "codebook": lambda: made.from_blocks("IQ2_S", 4, 256, never),
        "bits": lambda: made.from_groups(4, 64, 7, 64, never),
        "group": lambda: made.from_groups(4, 64, 4, 24, never),
        "switched off": lambda: made.from_blocks("Q8_0", 4, 64, never),
    }.items():
        try:
            work()
        except matrix.NoKernel as error:
            tell(refused=name, reason=str(error))


main()
