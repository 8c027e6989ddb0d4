"""A whole decode step of a model of 8 billion parameters, kernel by kernel, with weights that were made up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.gpu import operations
from kernels.gpu.products import weight_only
from kernels.gpu.weights.forms import GGML_FORMS, Form, grouped_form


@dataclass(frozen=True)
class Shape:
    """context: tokens behind each sequence's own."""

    layers: int = 32
    width: int = 4096
    inner: int = 14336
    heads: int = 32
    key_heads: int = 8
    head: int = 128
    vocabulary: int = 128256
    context: int = 1024


TINY = Shape(1, 64, 128, 4, 2, 16, 96, 8)


def form_of(name: str, columns: int) -> Form:
    """'int4 g128', 'int8' or a GGML type, with the tile that rows of so many columns have."""
    form = GGML_FORMS.get(name) or (grouped_form(8, 0) if name == "int8" else grouped_form(4, 128))
    return form.fitted(columns)


def made_up(name: str, rows: int, columns: int, device: str) -> weight_only.Weights:
    """Weights of random codes on the device, as `layout` would have packed them; the host packs nothing."""
    form = form_of(name, columns)
    tiles, groups = form.tiles(columns), form.groups(columns)
    limit = torch.iinfo(torch.int32)

    def codes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        high = limit.max if dtype == torch.int32 else 127
        return torch.randint(-high, high, shape, dtype=dtype, device=device)

    low = codes(torch.int32, tiles, rows, form.words)
    further = {0: None, 8: torch.uint8, 16: torch.int16}[form.slots * form.high]
    high = None if further is None else codes(torch.int32, tiles, rows, form.words).to(further)
    third: torch.Tensor | None = None
    if form.scales in ("plain", "zeros", "minimums"):
        scales = torch.rand(groups, rows, dtype=torch.float16, device=device) / 100
        third = scales.clone() if form.scales == "minimums" else None
    elif form.scales == "signed_bytes":
        scales = torch.randint(0, 60, (groups, rows), device=device).to(torch.uint8)
        third = torch.rand(-(-columns // 256), rows, device=device).div(1000).to(torch.float16).view(torch.int16)
    else:  # byte_pairs: a scale and a minimum of six bits, and d and dmin of 256 values
        scales = (torch.randint(0, 60, (groups, rows), device=device) * 257).to(torch.int16)
        halves = torch.rand(-(-columns // 256), rows, 2, device=device).div(1000).to(torch.float16)
        third = halves.view(torch.int32).squeeze(-1)
    planes = [plane for plane in (low, high, scales, third) if plane is not None]
    nbytes = sum(plane.nbytes for plane in planes)
    return weight_only.Weights(form, rows, columns, low, high, scales, third, None, None, 1.0, nbytes)


class Step:
    """One token of each of `batch` sequences, at the end of the context."""

    def __init__(self, shape: Shape, batch: int, device: str, name: str = "int4 g128") -> None:
        s = self.shape = shape
        half = torch.float16
        together = (s.heads + 2 * s.key_heads) * s.head
        sizes = ((together, s.width), (s.width, s.heads * s.head), (2 * s.inner, s.width), (s.width, s.inner))
        self.layers = [[made_up(name, *size, device) for size in sizes] for _ in range(s.layers)]
        self.head = made_up("int8", s.vocabulary, s.width, device)
        self.caches = [
            operations.make_cache(batch, s.key_heads, s.context, s.head, half, device) for _ in range(s.layers)
        ]
        angles = np.arange(s.context)[:, None] * 1e4 ** -(np.arange(s.head // 2) / (s.head // 2))
        self.cos, self.sin = (torch.from_numpy(f(angles).astype(np.float32)).to(device) for f in (np.cos, np.sin))
        self.gain = torch.ones(s.width, device=device)
        self.sequences = torch.arange(batch, dtype=torch.int32, device=device)
        self.positions = torch.full((batch,), s.context - 1, dtype=torch.int32, device=device)
        self.embedded = torch.randn(batch, s.width, device=device)
        self.sum = torch.zeros(batch, s.width, device=device)
        self.normed = torch.empty(batch, s.width, dtype=half, device=device)
        self.turned = torch.empty(batch, s.heads, s.head, dtype=half, device=device)
        self.seen = torch.empty_like(self.turned)
        self.active = torch.empty(batch, s.inner, dtype=half, device=device)

    @property
    def nbytes(self) -> int:
        """That a step has to read: every weight once, and the past of every sequence."""
        weights = sum(weight.nbytes for layer in self.layers for weight in layer) + self.head.nbytes
        return weights + sum(cache.nbytes for cache in self.caches)

    def run(self) -> torch.Tensor:
        """Logits float32 [batch, vocabulary]."""
        s, batch = self.shape, len(self.sequences)
        query, key = s.heads * s.head, s.key_heads * s.head
        self.sum.zero_()
        change = self.embedded
        for (first, out, wide, down), cache in zip(self.layers, self.caches, strict=True):
            operations.rms_norm(change, self.gain, 1e-5, self.sum, self.normed)
            all_heads = weight_only.product(self.normed, first)
            q = all_heads[:, :query].view(batch, s.heads, s.head)
            k = all_heads[:, query : query + key].view(batch, s.key_heads, s.head)
            v = all_heads[:, query + key :].view(batch, s.key_heads, s.head)
            operations.rotate(q, self.cos, self.sin, self.positions, False, self.turned)
            operations.rotate(k, self.cos, self.sin, self.positions, False, k)
            operations.store_cache(k, v, cache, self.sequences, self.positions)
            operations.attend_tokens(
                *(self.turned, cache, self.sequences, self.positions, s.context, s.head**-0.5), out=self.seen
            )
            change = weight_only.product(self.seen.view(batch, query), out)
            operations.rms_norm(change, self.gain, 1e-5, self.sum, self.normed)
            both = weight_only.product(self.normed, wide)
            operations.activate_mul("silu", both[:, : s.inner], both[:, s.inner :], self.active)
            change = weight_only.product(self.active, down)
        operations.rms_norm(change, self.gain, 1e-5, self.sum, self.normed)
        return weight_only.product(self.normed, self.head)
