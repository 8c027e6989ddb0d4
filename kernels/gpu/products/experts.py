"""Products of a few tokens with experts of a mixture that each program reads from memory: nothing asks the host.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1) on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.gpu.configurations import VECTOR, Configuration
from kernels.gpu.launcher import launch
from kernels.gpu.products import expert_matmul
from kernels.gpu.products.weight_only import Weights, chosen, constants

_ALIGNED = 16  # elements: planes begin at multiples of it from one another, so that loads stay wide


@dataclass(frozen=True)
class ExpertWeights:
    """One matrix of each expert, all of one form and shape, wherever they lie on the device.

    weights: they are read in place. places: int64 [experts, 4], elements from the first one's planes low, high, scales
    and third to an expert's. tensor_scales: float32 [experts].
    """

    weights: tuple[Weights, ...]
    places: torch.Tensor
    tensor_scales: torch.Tensor


def gather_experts(weights: Sequence[Weights]) -> ExpertWeights:
    """Raises ValueError with the reason where one kernel can not read all of them."""
    first = weights[0]
    for one in weights:
        if (one.form, one.rows, one.columns) != (first.form, first.rows, first.columns):
            raise ValueError("experts have weights of several formats or shapes")
        if one.order is not None:
            raise ValueError("experts have columns in an order of their own")
        if one.scales.dtype != first.scales.dtype or not _same(one.table, first.table):
            raise ValueError("experts have scales or tables of several kinds")
    places = torch.tensor(
        [[_distance(a, b) for a, b in zip(_planes(one), _planes(first), strict=True)] for one in weights]
    )
    if (places % _ALIGNED).any():
        raise ValueError("experts do not begin at multiples of 16 elements")
    device = first.low.device
    scales = torch.tensor([one.tensor_scale for one in weights], dtype=torch.float32)
    return ExpertWeights(tuple(weights), places.to(device), scales.to(device))


def configuration_of(experts: ExpertWeights, pairs: int) -> Configuration:
    """As of a product with one token: pairs of a token and an expert make programs enough without many parts."""
    how = chosen(experts.weights[0], 1)
    return replace(how, split=max(how.split // pairs, 1))


def expert_product(
    x: torch.Tensor, experts: ExpertWeights, met: torch.Tensor, how: Configuration | None = None
) -> torch.Tensor:
    """float16 or bfloat16 x [M, K] times weights of experts met int32 [pairs] → float32 [pairs, N].

    Pair p is of row p · M // pairs of x. Experts are not checked: they are a router's. Raises ValueError for other
    shapes and types.
    """
    first, pairs = experts.weights[0], len(met)
    if x.ndim != 2 or x.shape[1] != first.columns or not len(x) or pairs % len(x):
        raise ValueError(f"{list(x.shape)} does not multiply {pairs} matrices of {first.columns} columns")
    if x.dtype not in (torch.float16, torch.bfloat16) or met.dtype != torch.int32:
        raise ValueError(f"activations are float16 or bfloat16 and experts int32, not {x.dtype} and {met.dtype}")
    how = how or configuration_of(experts, pairs)
    assert how.regime == VECTOR
    parts = torch.empty((pairs, how.split, first.rows), dtype=torch.float32, device=x.device)
    low, high, scales, third = _planes(first)
    launch(
        expert_matmul.expert_product,
        (-(-first.rows // how.rows), how.split, pairs),
        *(x.contiguous(), met.contiguous(), experts.places, experts.tensor_scales, low, high, scales, third),
        first.table if first.table is not None else scales,
        *(parts, first.rows, first.columns, first.form.tiles(first.columns), scales.shape[1], pairs // len(x)),
        **constants(first.form),
        EVEN=first.columns % first.form.tile == 0,
        ROWS=how.rows,
        SPLIT=how.split,
        UNROLLED=how.unrolled,
        warps=how.warps,
        stages=None,
    )
    return parts[:, 0] if how.split == 1 else parts.sum(1)


def _planes(weights: Weights) -> tuple[torch.Tensor, ...]:
    """low, high, scales, third; in place of one that a format has not, one that is never read as it."""
    low, scales = weights.low, weights.scales
    high = weights.high if weights.high is not None else low
    return low, high, scales, weights.third if weights.third is not None else scales


def _distance(plane: torch.Tensor, first: torch.Tensor) -> int:
    """Elements from one to the other. Raises ValueError where it is no whole number."""
    if plane.device.type == "meta":
        return 0
    nbytes, size = plane.data_ptr() - first.data_ptr(), plane.element_size()
    if nbytes % size:
        raise ValueError("experts do not begin at multiples of 16 elements")
    return nbytes // size


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.device.type == "meta" or torch.equal(a, b)
