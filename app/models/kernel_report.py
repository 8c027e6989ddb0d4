"""Columns of the kernel report. Rows are `KernelUse`."""

from __future__ import annotations

from collections.abc import Iterable

from app.jobs.testing import SIDES, KernelUse, Measured
from app.models.table import Column


def kernel_columns() -> tuple[Column, ...]:
    """Which kernel ran each operation, on which instruction set, and why."""
    return (
        Column("Operation", lambda k: k.op, term="operation"),
        Column("Shape", lambda k: k.shape, term="shape", number=True),
        Column("Kernel", lambda k: k.kernel, term="kernel", mono=True),
        Column("Instructions", lambda k: k.isa, term="instruction set"),
        Column("Reason", lambda k: k.reason),
        Column("File", lambda k: SIDES[k.side]),
    )


def kernel_rows(measured: Iterable[Measured | None]) -> list[KernelUse]:
    """The reports of both sides, one after the other."""
    return [use for one in measured if one is not None for use in one.kernels]
