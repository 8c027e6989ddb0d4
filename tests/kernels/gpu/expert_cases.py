"""Products with experts that are read from memory, under Triton's interpreter: one JSON line a case.

Errors are shares of Σ |x| · |w| by the float64 reference; traffic is what loads touch, address by address.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle

import numpy as np
import torch
from gpu_cases import NF4, Case, blocks, elements, groups
from interpreted import Traffic, exact_dot, tell

from kernels import dispatch, matrix
from kernels.gpu.products import experts, weight_only
from kernels.gpu.weights import layout
from kernels.gpu.weights.forms import GGML_FORMS
from kernels.layouts import LAYOUTS
from kernels.reference import matrix as reference

EXPERTS, USED = 5, 2
HEIGHTS = (37, 23, 5, 33)
_PLANES = ("low", "high", "scales", "third")


def mixtures() -> Iterator[tuple[str, list[Case]]]:
    """Each format's experts, of different values."""
    heights = cycle(HEIGHTS)

    def several(make: Callable[[int], Case]) -> list[Case]:
        rows = next(heights)
        made = [make(rows) for _ in range(EXPERTS)]
        for number, case in enumerate(made):  # rows in another order are other values, of which every scale is right
            made[number] = turned(case, number)
        return made

    for kind in GGML_FORMS:
        columns = {256: 512, 64: 320}.get(LAYOUTS[kind].block, 288)
        yield kind, several(lambda rows, kind=kind, columns=columns: blocks(kind, rows, columns))
    for bits, group, third, scale_type, columns in (
        *((2, 64, "zeros", "F16", 576), (3, 48, "", "F32", 150), (4, 128, "", "F16", 384), (4, 0, "", "F32", 83)),
        *((5, 32, "minimums", "F16", 160), (6, 16, "zeros", "BF16", 272), (8, 0, "", "F32", 201)),
    ):
        setting = (bits, group, third, scale_type)
        yield (
            f"int{bits} g{group} {third} {scale_type}",
            several(lambda rows, setting=setting, columns=columns: groups(*setting, rows, columns)),
        )
    yield "table4", several(lambda rows: groups(4, 64, "", "F32", rows, 192, table=np.array(NF4, np.float32)))
    rng = np.random.default_rng(4)
    tiles = rng.random((3, 3)).astype(np.float32)
    yield "F8_E4M3", [elements("F8_E4M3", tiles * (1 + n), (16, 128), 37, 300, "tiles") for n in range(EXPERTS)]
    yield "F8_E5M2", [elements("F8_E5M2", None, (1, 1), 23, 131, "alone") for _ in range(EXPERTS)]


def turned(case: Case, by: int) -> Case:
    """The same with rows in another order; of NVFP4, another scale of the tensor as well."""
    packed, taken = case.packed, case.matrix.stored.take(np.arange(case.packed.rows))
    shifted = {
        name: np.ascontiguousarray(np.roll(plane, by, axis=1))
        for name in _PLANES
        if (plane := getattr(packed, name)) is not None
    }
    scale = packed.tensor_scale * (1 + by) if packed.source == "NVFP4" else packed.tensor_scale
    made = np.roll(taken, by, axis=0) * (scale / packed.tensor_scale)
    return Case(case.name, replace(packed, **shifted, tensor_scale=scale), _dense(made))


def _dense(values: np.ndarray) -> matrix.Matrix:
    data = np.ascontiguousarray(values, np.float32).view(np.uint8)
    rows, columns = values.shape
    return matrix.from_elements("F32", rows, columns, lambda a, b: data.reshape(rows, -1)[a:b])


def aligned(packed: layout.Packed) -> weight_only.Weights:
    """As torch allocates, which numpy does not."""
    made = weight_only.upload(packed, "cpu")
    return replace(made, **{n: plane.clone() for n in _PLANES if (plane := getattr(made, n)) is not None})


def run(name: str, mixture: list[Case], tokens: int, split: int, traffic: Traffic) -> None:
    uploaded = [aligned(case.packed) for case in mixture]
    gathered = experts.gather_experts(uploaded)
    packed = mixture[0].packed
    rng = np.random.default_rng(tokens)
    x = torch.from_numpy(rng.standard_normal((tokens, packed.columns)).astype(np.float32)).to(torch.float16)
    met = np.stack([rng.permutation(EXPERTS)[:USED] for _ in range(tokens)]).astype(np.int32)
    planes = {f"{plane} {n}": getattr(w, plane) for n, w in enumerate(uploaded) for plane in _PLANES}
    traffic.start(planes | {"x": x})
    how = replace(experts.configuration_of(gathered, tokens * USED), split=split)
    found = experts.expert_product(x, gathered, torch.from_numpy(met.reshape(-1)), how).double().numpy()
    wide = x.to(torch.float32).numpy()
    error = 0.0
    for pair, expert in enumerate(met.reshape(-1)):
        row, stored = wide[pair // USED : pair // USED + 1], mixture[expert].matrix.stored
        expected = reference.product(row, stored, packed.rows, "EXACT").astype(np.float64)[0]
        w = stored.take(np.arange(packed.rows)).astype(np.float64)
        size = (np.abs(row).astype(np.float64) @ np.abs(w).T)[0]
        error = max(error, float((np.abs(found[pair] - expected) / np.where(size > 0, size, 1)).max()))
    read = sum(traffic.nbytes(key) for key in planes)
    whole = sum(plane.nbytes for name in _PLANES if (plane := getattr(packed, name)) is not None)
    tell(
        case=name, tokens=tokens, split=split, rows=packed.rows, error=error, share=read / (whole * met.size),
        strangers=sum(traffic.nbytes(f"{p} {n}") for p in _PLANES for n in range(EXPERTS) if n not in met),
    )  # fmt: skip


def refused() -> None:
    plain = [aligned(blocks("Q4_0", 5, 64).packed) for _ in range(2)]
    other = aligned(blocks("Q8_0", 5, 64).packed)
    ordered = aligned(groups(4, 32, "", "F16", 5, 64, ordered=True).packed)
    shifted = replace(plain[0], low=torch.zeros(plain[0].low.numel() + 1, dtype=torch.int32)[1:].view_as(plain[0].low))
    met = torch.zeros(3, dtype=torch.int32)
    tries: dict[str, Callable[[], object]] = {
        "formats": lambda: experts.gather_experts([plain[0], other]),
        "order": lambda: experts.gather_experts([ordered, ordered]),
        "place": lambda: experts.gather_experts([plain[0], shifted]),
        "pairs": lambda: experts.expert_product(torch.ones(2, 64).half(), experts.gather_experts(plain), met),
        "types": lambda: experts.expert_product(torch.ones(1, 64), experts.gather_experts(plain), met),
    }
    for what, start in tries.items():
        try:
            start()
        except ValueError as error:
            tell(refused=what, reason=str(error))


def main() -> None:
    traffic = Traffic(("x",))
    exact_dot()
    with dispatch.only("reference"):
        for number, (name, mixture) in enumerate(mixtures()):
            for tokens in (1, 3):
                run(name, mixture, tokens, 1 + (number + tokens) % 2, traffic)
        run(
            "int4 g128, 4 tokens", [turned(groups(4, 128, "zeros", "F16", 37, 300), n) for n in range(5)], 4, 2, traffic
        )
    refused()


if __name__ == "__main__":
    sys.exit(main())
