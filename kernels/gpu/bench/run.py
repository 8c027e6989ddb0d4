"""Measures the GPU's kernels on this card, in one process, and prints as it goes.

    python -m kernels.gpu.bench --quick [--out FOLDER] [--sections ceilings,products] [--tune]

ceilings: copies and matrix products that this card can do at best. correctness: every self-test, on odd shapes.
products: 4-bit weights at batch 1 … 128 beside bfloat16. step: a whole decode step of a model of 8 billion parameters
beside what reading its weights takes. formats: others at one and sixteen tokens. encoders: from how many values on they
are quicker than the processor, kept for conversions. peers: whichever libraries import.
Each section has its time; one that runs out of it says what it left out. Results: gpu-bench.json and .svg in --out.

--tune: searches configurations for this card and these shapes before all else, and keeps them in the user's cache
folder, where `kernels.gpu.configurations` finds them; nothing is tuned inside a timing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

QUICK = {"ceilings": 15.0, "correctness": 90.0, "products": 75.0, "step": 60.0, "formats": 25.0,
         "encoders": 10.0, "peers": 70.0}  # fmt: skip
THOROUGH = 10.0  # times as long, without --quick
TUNING = 240.0


@dataclass(frozen=True)
class Sizes:
    """What is measured. small: the stand-in's, on which figures mean nothing."""

    shapes: tuple[tuple[int, int], ...] = ((4096, 4096), (14336, 4096))
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    formats: tuple[str, ...] = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "int8")
    copy_bytes: int = 1 << 29
    matrix: int = 8192
    values: tuple[int, ...] = tuple(1 << n for n in range(14, 25, 2))  # of a block that is encoded
    small: bool = False


TINY = Sizes(((48, 128),), (1, 16, 70), ("Q4_K", "int8"), 1 << 12, 32, (1 << 10, 1 << 11), True)


@dataclass
class Bench:
    """results: what goes into the JSON file, by section."""

    clock: Any
    sizes: Sizes
    say: Callable[[str], None]
    results: dict[str, Any] = field(default_factory=dict)

    def put(self, section: str, **values: Any) -> None:
        self.results[section].setdefault("rows", []).append(values)

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a copy reads and writes; 0 where it was not measured."""
        return float(self.results.get("ceilings", {}).get("copy_bytes_a_second", 0.0))


def ceilings(bench: Bench) -> None:
    import torch

    device, sizes, own = bench.clock.device, bench.sizes, bench.results["ceilings"]
    source, target = (torch.ones(sizes.copy_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    copied = bench.clock.time([partial(target.copy_, source)])
    own["copy_bytes_a_second"] = 2 * sizes.copy_bytes / copied.seconds
    bench.say(f"copy: {own['copy_bytes_a_second'] / 1e9:.0f} GB/s read and written")
    del source, target
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (torch.ones(sizes.matrix, sizes.matrix, dtype=dtype, device=device) for _ in range(2))
        timing = bench.clock.time([partial(torch.matmul, a, b)])
        name = str(dtype).removeprefix("torch.")
        own[f"{name}_flops"] = 2 * sizes.matrix**3 / timing.seconds
        bench.say(f"{name} products: {own[f'{name}_flops'] / 1e12:.1f} TFLOP/s")


def correctness(bench: Bench) -> None:
    from kernels.gpu import selftest
    from kernels.gpu.bench.peers import why
    from kernels.gpu.selftest import checks

    tests = checks.common()[:: 9 if bench.sizes.small else 1]
    for number, (kernel, shape_class) in enumerate(tests):
        _check(bench, "correctness", f"{len(tests) - number} of {len(tests)} self-tests")
        try:
            reason = checks.run(kernel, shape_class, bench.clock.device)
        except Exception as error:  # noqa: BLE001  (one kernel that does not compile is a result among others)
            reason = why(error)
        words = selftest.words(shape_class)
        bench.put("correctness", kernel=kernel, shapes=words, reason=reason)
        bench.say(f"{kernel} ({words}): {reason or 'right'}" if words else f"{kernel}: {reason or 'right'}")


def products(bench: Bench) -> None:
    for rows, columns in bench.sizes.shapes:
        for batch in bench.sizes.batches:
            _check(bench, "products", f"{rows} × {columns} from {batch} tokens on")
            plain = _plain(bench, rows, columns, batch)
            _measured(bench, "products", "int4 g128", rows, columns, batch, plain)


def formats(bench: Bench) -> None:
    rows, columns = bench.sizes.shapes[0]
    for batch in (1, 16):
        plain = _plain(bench, rows, columns, batch)
        for name in bench.sizes.formats:
            _check(bench, "formats", f"{name} and what follows, {batch} tokens")
            _measured(bench, "formats", name, rows, columns, batch, plain)


def peers(bench: Bench) -> None:
    import torch

    from kernels.gpu.bench.clock import OutOfTime
    from kernels.gpu.bench.peers import peers as others
    from kernels.gpu.bench.peers import why

    versions: dict[str, str] = bench.results["peers"].setdefault("versions", {})
    known = {(r["rows"], r["columns"], r["batch"]): r["seconds"] for r in _rows(bench, "products", "bfloat16")}
    for rows, columns in bench.sizes.shapes:
        copies = bench.clock.copies(rows * columns // 2)
        for name, version, made in others(rows, columns, bench.clock.device, copies):
            versions[name] = version
            if not made:
                bench.say(f"{name}: {version}")
                continue
            for batch in bench.sizes.batches:
                _check(bench, "peers", f"{name} and what follows, {rows} × {columns} from {batch} tokens on")
                x = torch.randn(batch, columns, dtype=torch.bfloat16, device=bench.clock.device)
                try:
                    timing = bench.clock.time([partial(one, x) for one in made])
                except OutOfTime:
                    raise
                except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
                    bench.say(f"{name}, {batch} tokens: does not run, {why(error)}")
                    versions[name] = f"{version}; does not run, {why(error)}"
                    break
                plain = known.get((rows, columns, batch))
                _said(bench, "peers", name, rows, columns, batch, (timing, 0), plain)


def step(bench: Bench) -> None:
    from kernels.gpu.bench.step import TINY as SMALL
    from kernels.gpu.bench.step import Shape, Step

    for batch in (1, 8):
        _check(bench, "step", f"{batch} sequences")
        made = Step(SMALL if bench.sizes.small else Shape(), batch, bench.clock.device)
        timing = bench.clock.time([made.run])
        bound = made.nbytes / bench.bandwidth if bench.bandwidth else 0.0
        bench.put("step", batch=batch, seconds=timing.seconds, captured=timing.captured, read_bytes=made.nbytes,
                  bound_seconds=bound, context=made.shape.context)  # fmt: skip
        share = f", {bound / timing.seconds:.0%} of what copying as much takes" if bound else ""
        how = "captured" if timing.captured else "not captured: launches are counted"
        bench.say(f"step of {batch}: {timing.seconds * 1e3:.2f} ms ({how}){share}")
        del made


def encoders(bench: Bench) -> None:
    from kernels.gpu.bench.encoding import encoders as measured

    measured(bench)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "ceilings": ceilings, "correctness": correctness, "products": products, "step": step, "formats": formats,
    "encoders": encoders, "peers": peers,
}  # fmt: skip


def _rows(bench: Bench, section: str, name: str) -> list[dict[str, Any]]:
    return [row for row in bench.results.get(section, {}).get("rows", ()) if row.get("name") == name]


def _check(bench: Bench, section: str, left: str) -> None:
    """Raises OutOfTime, and writes down what is left."""
    bench.results[section]["left_out"] = left
    bench.clock.check()
    del bench.results[section]["left_out"]


def _plain(bench: Bench, rows: int, columns: int, batch: int) -> float:
    """Seconds of the library's product in bfloat16."""
    import torch

    known = [r["seconds"] for r in _rows(bench, "products", "bfloat16")
             if (r["rows"], r["columns"], r["batch"]) == (rows, columns, batch)]  # fmt: skip
    if known:
        return known[0]
    device, kind = bench.clock.device, torch.bfloat16
    count = bench.clock.copies(2 * rows * columns)
    weights = [torch.randn(rows, columns, dtype=kind, device=device) for _ in range(count)]
    x = torch.randn(batch, columns, dtype=kind, device=device)
    timing = bench.clock.time([partial(torch.nn.functional.linear, x, w) for w in weights])
    bench.results.setdefault("products", {})
    bench.put("products", name="bfloat16", rows=rows, columns=columns, batch=batch, seconds=timing.seconds,
              captured=timing.captured, read_bytes=2 * rows * columns)  # fmt: skip
    return timing.seconds


def _ours(bench: Bench, name: str, rows: int, columns: int, batch: int) -> tuple[Any, int]:
    """Timing, and the bytes of the weights."""
    import torch

    from kernels.gpu.bench.step import made_up
    from kernels.gpu.products.weight_only import product

    first = made_up(name, rows, columns, bench.clock.device)
    others = [made_up(name, rows, columns, bench.clock.device) for _ in range(bench.clock.copies(first.nbytes) - 1)]
    x = torch.randn(batch, columns, device=bench.clock.device).to(torch.float16)
    return bench.clock.time([partial(product, x, w) for w in (first, *others)]), first.nbytes


def _measured(bench: Bench, section: str, name: str, rows: int, columns: int, batch: int, plain: float) -> None:
    """A product of ours; one that does not compile leaves the others."""
    from kernels.gpu.bench.clock import OutOfTime
    from kernels.gpu.bench.peers import why

    try:
        _said(bench, section, name, rows, columns, batch, _ours(bench, name, rows, columns, batch), plain)
    except OutOfTime:
        raise
    except Exception as error:  # noqa: BLE001  (torch's, the driver's or one of Triton's)
        bench.results[section]["failed"] = f"{name}, {rows} × {columns}, {batch} tokens: {why(error)}"
        bench.say(f"failed: {bench.results[section]['failed']}")


def _said(
    bench: Bench, section: str, name: str, rows: int, columns: int, batch: int, found: tuple[Any, int],
    plain: float | None,
) -> None:  # fmt: skip
    timing, nbytes = found
    values = {"times_bfloat16": plain / timing.seconds} if plain else {}
    if nbytes and bench.bandwidth:
        values["share_of_copy"] = nbytes / timing.seconds / bench.bandwidth
    bench.put(section, name=name, rows=rows, columns=columns, batch=batch, seconds=timing.seconds,
              captured=timing.captured, read_bytes=nbytes, **values)  # fmt: skip
    parts = [f"{timing.seconds * 1e6:.1f} µs"]
    if plain:
        parts.append(f"{values['times_bfloat16']:.2f} × bfloat16")
    if "share_of_copy" in values:
        parts.append(f"{values['share_of_copy']:.0%} of copy bandwidth")
    if not timing.captured:
        parts.append("launches counted")
    bench.say(f"{name}, {rows} × {columns}, {batch} tokens: {', '.join(parts)}")


def about(device: str) -> dict[str, str]:
    """Card and versions that the figures are of."""
    import torch
    import triton

    from kernels import gpu
    from kernels.gpu import selftest

    found = {"torch": str(torch.__version__), "triton": str(triton.__version__), "sources": selftest.sources()[:12]}
    if device != "cuda":
        return {"card": "stand-in: figures mean nothing", **found}
    state = gpu.state()
    return {"card": state.name, "chip": state.card, "driver": selftest.driver(), **found}


def run(bench: Bench, wanted: list[str], budget: float, kept: Callable[[], None]) -> None:
    """Each section within its time; kept: called after each, so that nothing is lost."""
    from kernels.gpu.bench.clock import OutOfTime
    from kernels.gpu.bench.peers import why

    for name in wanted:
        own = bench.results.setdefault(name, {})
        bench.say(f"\n{name}, at most {QUICK[name] * budget:.0f} s")
        start = time.monotonic()
        try:
            with bench.clock.section(QUICK[name] * budget):
                SECTIONS[name](bench)
        except OutOfTime:
            bench.say(f"{name}: out of time, left out: {own.get('left_out', 'the rest')}")
        except Exception as error:  # noqa: BLE001  (a section that fails leaves the others)
            own["failed"] = why(error)
            bench.say(f"{name}: failed, {own['failed']}")
        own["took_seconds"] = round(time.monotonic() - start, 1)
        kept()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="under six minutes; without it, ten times as long")
    parser.add_argument("--out", type=Path, default=Path.cwd())
    parser.add_argument("--sections", default=",".join(QUICK))
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)  # cpu: the interpreter, for tests
    asked = parser.parse_args(arguments)
    wanted = asked.sections.split(",")
    if unknown := set(wanted) - set(QUICK):
        parser.error(f"sections are {', '.join(QUICK)}, not {', '.join(sorted(unknown))}")
    if asked.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from kernels import gpu

    if asked.device != "cpu" and not gpu.state().ready:
        sys.stderr.write(f"The GPU's kernels can not run: {gpu.state().reason}. {gpu.state().remedy}\n")
        return 1
    return _measure(asked, wanted)


def _measure(asked: argparse.Namespace, wanted: list[str]) -> int:
    from kernels.gpu.bench import plot, tune
    from kernels.gpu.bench.clock import Clock

    start = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    bench = Bench(Clock(asked.device), TINY if asked.device == "cpu" else Sizes(), say)
    bench.results["about"] = about(asked.device)
    say(", ".join(f"{name} {value}" for name, value in bench.results["about"].items()))
    if asked.tune:
        tune.tune(bench.clock, bench.sizes, TUNING, say)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "gpu-bench.json"

    def keep() -> None:
        bench.results["about"]["seconds"] = f"{time.monotonic() - start:.0f}"
        file.write_text(json.dumps(bench.results, indent=1, ensure_ascii=False), encoding="utf-8")

    run(bench, wanted, 1.0 if asked.quick else THOROUGH, keep)
    (asked.out / "gpu-bench.svg").write_text(plot.svg(bench.results), encoding="utf-8")
    say(f"\n{file.name} and gpu-bench.svg written after {time.monotonic() - start:.0f} s")
    failed = any("failed" in section for name, section in bench.results.items() if name in SECTIONS)
    wrong = any(row["reason"] for row in bench.results.get("correctness", {}).get("rows", ()))
    return 1 if failed or wrong else 0
