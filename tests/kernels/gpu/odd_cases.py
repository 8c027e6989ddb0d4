"""What breaks kernels on people's cards, under Triton's interpreter: offsets past 2³¹, positions outside, empty
batches, values that are NaN, tensors that are not contiguous. One JSON line a case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from interpreted import exact_dot, tell
from triton.runtime import interpreter

from kernels.gpu import operations
from kernels.gpu.bench.step import made_up
from kernels.gpu.configurations import TILE, VECTOR, Configuration
from kernels.gpu.products import weight_only

FAR = 1 << 30  # values between two rows: the third one is 2³¹ values after the first


class Guard:
    """Counts loads and stores outside of the tensors that are known."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.outside = 0
        builder = interpreter.InterpreterBuilder
        load, store = builder.create_masked_load, builder.create_masked_store

        def masked_load(own: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            if self.look(pointers, mask):
                return load(own, pointers, mask, *rest)
            mask = interpreter.TensorHandle(np.zeros_like(mask.data), mask.dtype)  # what is there is somebody else's
            return load(own, pointers, mask, *rest)

        def masked_store(own: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            return store(own, pointers, value, mask, *rest) if self.look(pointers, mask) else None

        builder.create_masked_load, builder.create_masked_store = masked_load, masked_store

    def look(self, pointers: Any, mask: Any) -> bool:
        if not self.ranges:
            return True
        addresses = np.asarray(pointers.data, np.int64)[np.asarray(mask.data, bool)]
        known = np.zeros(addresses.shape, bool)
        for low, high in self.ranges:
            known |= (addresses >= low) & (addresses < high)
        self.outside += int((~known).sum())
        return bool(known.all())

    def watch(self, *tensors: torch.Tensor) -> None:
        self.outside = 0
        self.ranges = [(t.untyped_storage().data_ptr(), t.untyped_storage().data_ptr() + t.untyped_storage().nbytes())
                       for t in tensors]  # fmt: skip


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.nan_to_num(1e9), b.nan_to_num(1e9)))


def outside(guard: Guard) -> None:
    """Positions, slots and starts that tables, cache and queries have not."""
    x = torch.randn(4, 3, 32)
    cos, sin = torch.randn(5, 16), torch.randn(5, 16)
    for pairs in (False, True):
        good = operations.rotate(x, cos, sin, numbers(0, 1, 2, 4), pairs)
        at, out = numbers(-1, 1, 5, 4), torch.empty_like(x)
        guard.watch(x, cos, sin, at, out)
        found = operations.rotate(x, cos, sin, at, pairs, out)
        tell(case=f"rotate {pairs}", outside=guard.outside, nan=[bool(row.isnan().all()) for row in found],
             same=same(found[[1, 3]], good[[1, 3]]))  # fmt: skip
        guard.watch()
    cache = operations.make_cache(2, 2, 40, 32, torch.float32, "cpu")
    cache.keys.codes.normal_(), cache.values.codes.normal_()
    q = torch.randn(6, 4, 32)
    slots, at = numbers(0, 2, -1, 1, 0, 1), numbers(39, 3, 3, 40, -1, 7)
    good = operations.attend_tokens(q, cache, numbers(0, 0, 0, 0, 0, 1), numbers(39, 0, 0, 0, 0, 7), 40, 0.2)
    for longest in (40, 5000):
        out = torch.empty_like(q)
        guard.watch(q, cache.keys.codes, cache.values.codes, slots, at, out)
        found = operations.attend_tokens(q, cache, slots, at, longest, 0.2, out=out)
        tell(case=f"tokens {longest}", outside=guard.outside, nan=[bool(row.isnan().all()) for row in found],
             same=same(found[[0, 5]], good[[0, 5]]))  # fmt: skip
        guard.watch()
    right = operations.attend_prompt(q, cache, numbers(0, 3), numbers(1), numbers(2), 3, 0.2)[:3].clone()
    starts, slots, at = numbers(0, 3, 4, 9), numbers(1, 5, 0), numbers(2, 0, 39)
    out = torch.empty_like(q)
    guard.watch(q, cache.keys.codes, cache.values.codes, starts, slots, at, out)
    found = operations.attend_prompt(q, cache, starts, slots, at, 5, 0.2, out=out)
    tell(case="prompt", outside=guard.outside, nan=[bool(row.isnan().all()) for row in found],
         same=same(found[:3], right))  # fmt: skip
    guard.watch()


def far() -> None:
    """Rows that are 2³⁰ values apart, in memory that nobody touches between them."""
    base = torch.empty(2 * FAR + 4096, dtype=torch.float16)

    def strided(*shape: int) -> torch.Tensor:
        rest = [int(np.prod(shape[i + 1 :])) for i in range(1, len(shape))]
        view = base.as_strided(shape, (FAR, *rest))
        view.copy_(torch.randn(shape))
        return view

    x, gain = strided(3, 96), torch.ones(96)
    tell(far="norm", same=same(operations.rms_norm(x, gain, 1e-5), operations.rms_norm(x.contiguous(), gain, 1e-5)))
    found, wanted = (operations.quantize(one, "int8").codes for one in (x, x.contiguous()))
    tell(far="quantize", same=bool(torch.equal(found, wanted)))
    found, wanted = (operations.activate_mul("silu", one, one, torch.empty(3, 96)) for one in (x, x.contiguous()))
    tell(far="activate", same=same(found, wanted))
    found, wanted = (operations.find_outliers(one, 2.0).flags for one in (x, x.contiguous()))
    tell(far="outliers", same=bool(torch.equal(found, wanted)))
    cos, sin, at = torch.randn(9, 16), torch.randn(9, 16), numbers(0, 4, 8)
    heads = strided(3, 2, 32)
    found, wanted = (
        operations.rotate(one, cos, sin, at, False, torch.empty(3, 2, 32)) for one in (heads, heads.contiguous())
    )
    tell(far="rotate", same=same(found, wanted))
    across = base.as_strided((2, 3, 32), (32, FAR, 1))  # heads that are far apart
    across.copy_(torch.randn(2, 3, 32))
    found, wanted = (
        operations.rotate(one, cos, sin, at[:2], True, torch.empty(2, 3, 32)) for one in (across, across.contiguous())
    )
    tell(far="rotate heads", same=same(found, wanted))
    caches = [operations.make_cache(1, 2, 9, 32, torch.float16, "cpu") for _ in range(2)]
    for one, cache in zip((heads, heads.contiguous()), caches, strict=True):
        operations.store_cache(one, one, cache, numbers(0, 0, 0), at)
    tell(far="store", same=same(caches[0].keys.codes, caches[1].keys.codes))
    zero = numbers(0, 0, 0)
    found, wanted = (
        operations.attend_tokens(one, caches[0], zero, at, 9, 0.2, out=torch.empty(3, 2, 32))
        for one in (heads, heads.contiguous())
    )
    tell(far="tokens", same=same(found, wanted))
    runs = numbers(0, 3), numbers(0), numbers(4)
    found, wanted = (
        operations.attend_prompt(one, caches[0], *runs, 3, 0.2, out=torch.empty(3, 2, 32))
        for one in (heads, heads.contiguous())
    )
    tell(far="prompt", same=same(found, wanted))
    large = operations.make_cache(1, 4, 1 << 24, 32, torch.float16, "cpu")  # 2³¹ values
    one = torch.randn(1, 4, 32).to(torch.float16)
    last = numbers((1 << 24) - 1)
    operations.store_cache(one, one, large, numbers(0), last)
    found = operations.attend_tokens(one, large, numbers(0), last, 1, 0.2, window=1, out=torch.empty(1, 4, 32))
    tell(far="cache", same=bool(torch.allclose(found, one.float(), atol=1e-3)))


def empty() -> None:
    """No tokens: an empty result, and no launch that a driver refuses."""
    none, heads = torch.empty(0, 96), torch.empty(0, 4, 32)
    weights, gain = made_up("int4 g128", 32, 96, "cpu"), torch.ones(96)
    cache = operations.make_cache(1, 2, 8, 32, torch.float16, "cpu")
    ints = torch.empty(0, dtype=torch.int32)
    scaled = operations.upload_scaled("int8", np.ones((32, 96), np.int8), np.ones(32, np.float32), "cpu")
    tables = torch.ones(4, 16), torch.ones(4, 16)
    cases: dict[str, Callable[[], torch.Tensor]] = {
        "product": lambda: weight_only.product(none.to(torch.float16), weights),
        "norm": lambda: operations.rms_norm(none, gain, 1e-5),
        "activate": lambda: operations.activate_mul("silu", none, none),
        "quantize": lambda: operations.quantize(none, "int8").codes,
        "scaled": lambda: operations.scaled_product(operations.quantize(none, "int8"), scaled),
        "rotate": lambda: operations.rotate(heads, *tables, ints, False),
        "tokens": lambda: operations.attend_tokens(heads, cache, ints, ints, 8, 1.0),
        "prompt": lambda: operations.attend_prompt(heads, cache, numbers(0), ints, ints, 0, 1.0),
    }
    for case, start in cases.items():
        tell(empty=case, shape=list(start().shape))
    operations.store_cache(torch.empty(0, 2, 32), torch.empty(0, 2, 32), cache, ints, ints)


def spoiled() -> None:
    """A token with NaN or Inf leaves all others as they are, also those that share its program."""
    weights = made_up("int4 g128", 37, 256, "cpu")
    clean = torch.randn(19, 256).to(torch.float16)
    for value in (float("nan"), float("inf")):
        dirty = clean.clone()
        dirty[7, 3] = value
        others = torch.arange(19) != 7
        for how in (Configuration(VECTOR, 16, 4, 1, 2), Configuration(TILE, 32, 4, 32, 1, 2)):
            count = 19 if how.regime == TILE else 1
            rows = [7] if count == 1 else list(range(19))
            a, b = (weight_only.product(x[rows], weights, how) for x in (clean, dirty))
            kept = others if count > 1 else torch.zeros(1, dtype=torch.bool)
            tell(spoiled=f"product {how.regime}", same=same(a[kept], b[kept]), seen=not bool(b[~kept].isfinite().any()))
        a, b = (operations.rms_norm(x, torch.ones(256), 1e-5) for x in (clean, dirty))
        tell(spoiled="norm", same=same(a[others], b[others]), seen=not bool(b[7].isfinite().all()))
        made = operations.upload_scaled("int8", np.ones((32, 256), np.int8), np.ones(32, np.float32), "cpu")
        a, b = (operations.scaled_product(operations.quantize(x, "int8"), made) for x in (clean, dirty))
        tell(spoiled="int8", same=same(a[others], b[others]), seen=bool(b[7].isnan().all()))
    cache = operations.make_cache(2, 1, 40, 32, torch.float32, "cpu")
    cache.keys.codes[0].normal_(), cache.values.codes[0].normal_()
    for side in (cache.keys, cache.values):
        side.codes[:, :, 8:] = side.codes[1] = float("nan")  # what an earlier sequence left behind
    q = torch.randn(2, 2, 32)
    found = operations.attend_tokens(q, cache, numbers(0, 0), numbers(3, 7), 40, 0.2)
    tell(spoiled="stale cache", same=bool(found.isfinite().all()), seen=True)
    found = operations.attend_prompt(q, cache, numbers(0, 2), numbers(0), numbers(6), 2, 0.2)
    tell(spoiled="stale cache, prompt", same=bool(found.isfinite().all()), seen=True)


def shapes() -> None:
    """What is not contiguous is taken as it is or refused, never misread."""
    weights = made_up("int4 g128", 32, 128, "cpu")
    wide = torch.randn(6, 256).to(torch.float16)
    for case, x in (
        ("columns", wide[:, ::2]),
        ("rows", wide[::2, :128]),
        ("transposed", wide[:, :6].T.repeat(1, 22)[:, :128]),
    ):
        tell(
            layout=f"product {case}",
            same=same(weight_only.product(x, weights), weight_only.product(x.contiguous(), weights)),
        )
    every = torch.randn(1, 128).expand(3, 128)
    found, wanted = (operations.rms_norm(one, torch.ones(128), 1e-5) for one in (every, every.contiguous()))
    tell(layout="norm of one row", same=same(found, wanted))
    x, cache = torch.randn(4, 64), operations.make_cache(1, 2, 8, 32, torch.float32, "cpu")
    tries: dict[str, Callable[[], object]] = {
        "norm": lambda: operations.rms_norm(x[:, ::2], torch.ones(32), 1e-5),
        "gain": lambda: operations.rms_norm(x, torch.ones(128)[::2], 1e-5),
        "activate": lambda: operations.activate_mul("silu", x.T, x.T),
        "encode": lambda: operations.encode_groups(x[:, :32], 4, 32, True),
        "positions": lambda: operations.rotate(
            x.view(4, 2, 32), torch.ones(4, 16), torch.ones(4, 16), torch.zeros(8, dtype=torch.int32)[::2], True
        ),
        "queries": lambda: operations.attend_tokens(
            x.view(4, 32, 2).transpose(1, 2), cache, numbers(0), numbers(0), 8, 1.0
        ),
        "window": lambda: operations.attend_tokens(
            torch.randn(1, 2, 32), cache, numbers(0), numbers(0), 8, 1.0, window=-1
        ),
        "tokens": lambda: operations.attend_tokens(
            torch.empty(70000, 2, 32),
            cache,
            torch.zeros(70000, dtype=torch.int32),
            torch.zeros(70000, dtype=torch.int32),
            8,
            1.0,
        ),
    }
    for what, start in tries.items():
        try:
            start()
            tell(refused=what, reason="")
        except ValueError as error:
            tell(refused=what, reason=str(error))


def main() -> None:
    torch.manual_seed(1)
    exact_dot()
    outside(Guard())
    far()
    empty()
    spoiled()
    shapes()


if __name__ == "__main__":
    sys.exit(main())
