"""Rows that are rotated while the model runs, by the library's float32 products."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RotationOnDevice:
    """Of runs of so many values: signs [width], None where all are 1, then matrices whose Kronecker product it is."""

    width: int
    signs: torch.Tensor | None
    factors: tuple[torch.Tensor, ...]

    def rotate(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """x R, in the type that the product after it takes."""
        rows = x.float().reshape(-1, self.width)
        if self.signs is not None:
            rows = rows * self.signs
        before = len(rows)
        for factor in self.factors:
            parts = rows.reshape(before, len(factor), -1)
            rows = parts[:, :, 0] @ factor if parts.shape[2] == 1 else factor.T @ parts
            before *= len(factor)
        return rows.reshape(x.shape).to(dtype)
