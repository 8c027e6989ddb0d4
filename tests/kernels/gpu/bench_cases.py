"""The whole benchmark on a stand-in: the interpreter, tiny shapes, libraries that are made up. JSON lines, and files in
the folder that is given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from interpreted import exact_dot, scaled_dot, tell

from kernels.gpu import configurations, user_files
from kernels.gpu.bench import clock as bench_clock
from kernels.gpu.bench import peers as bench_peers
from kernels.gpu.bench import run as bench
from kernels.gpu.bench import step as bench_step
from kernels.gpu.bench import tune
from kernels.gpu.products import weight_only


def module(name: str, **values: Any) -> None:
    made = ModuleType(name)
    made.__path__ = []  # type: ignore[attr-defined]
    vars(made).update(values)
    sys.modules[name] = made


def working() -> None:
    """Peers with the interfaces that they have, each line of which is run."""

    def quantize_(linear: torch.nn.Linear, config: Any) -> None:
        if config == "new":
            raise NotImplementedError("needs a library that is not there")

    def config(group_size: int, version: int = 2) -> str:
        return "new" if version == 2 else "old"

    class Layer:
        def __init__(self, W_nbits: int, group_size: int, in_features: int, out_features: int, **types: Any) -> None:
            self.size = out_features

        def pack(self, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bias: None) -> None:
            assert codes.numel() == scales.numel() * bench_peers.GROUP

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(len(x), self.size)

    def marlin(weight: torch.Tensor, workspace: Any, wtype: str, is_k_full: bool, **more: Any) -> torch.Tensor:
        return more["input"] @ weight

    start = "vllm.model_executor.layers.quantization.utils"
    module("bitsandbytes", matmul_4bit=lambda x, w, quant_state: x @ w)
    module("bitsandbytes.functional", quantize_4bit=lambda w, blocksize, quant_type: (w, None))
    module("torchao")
    module("torchao.quantization", quantize_=quantize_, Int4WeightOnlyConfig=config)
    module("gemlite")
    module("gemlite.core", GemLiteLinearTriton=Layer, DType=SimpleNamespace(FP16=1))
    module("vllm")
    module("vllm.scalar_type", scalar_types=SimpleNamespace(uint4b8="u4"))
    module(f"{start}.marlin_utils", apply_gptq_marlin_linear=marlin, marlin_make_empty_g_idx=lambda device: None,
           marlin_make_workspace=lambda rows, device: None)  # fmt: skip
    module(f"{start}.marlin_utils_test", marlin_quantize=lambda w, quant_type, group_size, act_order: (
        None, w, None, None, None, None))  # fmt: skip


def broken() -> None:
    """Peers whose interface is another, or that do not load."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("torchao", "gemlite", "vllm")]:
        del sys.modules[name]
    module("torchao")
    module("torchao.quantization", quantize_=None)
    module("gemlite")
    module("bitsandbytes", matmul_4bit=lambda x, w, quant_state: x.no_such_thing)
    module("vllm")


def out_of_time() -> None:
    """A section whose time is over says what it left out, and the next one is measured."""
    clock = bench_clock.Clock("cpu")
    said: list[str] = []
    found = bench.Bench(clock, bench.TINY, said.append)
    for name in bench.QUICK:
        bench.QUICK[name] = 0.0 if name == "products" else 60.0
    bench.SECTIONS["formats"] = lambda _bench: 1 / 0
    bench.run(found, ["products", "formats", "ceilings"], 1.0, lambda: None)
    tell(left=found.results["products"].get("left_out", ""), failed=found.results["formats"]["failed"],
         copy=found.results["ceilings"]["copy_bytes_a_second"], said=said)  # fmt: skip


def tuned() -> None:
    """What is kept is found again by the same product, and by no other; a candidate that is wrong or fails is none."""
    weights = bench_step.made_up("int4 g128", 64, 512, "cpu")
    before = weight_only.chosen(weights, 1)
    key = configurations.tuned_key(1, 64, weights.form.words, weights.form.tiles(512), weights.nbytes)
    best = configurations.Configuration("vector", 16, 2, 1, 2)
    kept = configurations.keep_tuned("cpu", key, best)
    others = [weight_only.chosen(weights, 2), weight_only.chosen(bench_step.made_up("int4 g128", 96, 512, "cpu"), 1)]
    tell(tuned=kept and weight_only.chosen(weights, 1) == best != before, others=best not in others,
         measured=configurations.measured("cpu"))  # fmt: skip
    whole = weight_only.product

    def odd(x: torch.Tensor, w: weight_only.Weights, how: configurations.Configuration) -> torch.Tensor:
        if how.split == 4:
            raise RuntimeError("out of resource: shared memory")
        return whole(x, w, how) * (2 if how.split == 2 else 1)

    weight_only.product = odd  # type: ignore[assignment]
    _, first, found, gain = tune._best(bench_clock.Clock("cpu"), bench.TINY, "int4 g128", 48, 1024, 3)
    weight_only.product = whole
    tell(chosen=found.split, first=first.split, gain=gain)


class Cuda:
    """What the clock asks of `torch.cuda`, counted: a device that does at once what it is told."""

    def __init__(self) -> None:
        self.now, self.replays, self.recording, self.refuses = 0.0, 0, False, False
        clock = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = clock.now

            def elapsed_time(self, other: Any) -> float:
                return other.at - self.at

        class Graph:
            def replay(self) -> None:
                clock.replays += 1
                clock.now += 6.0  # milliseconds

        class Context:
            def __init__(self, recorded: bool = False) -> None:
                self.recorded = recorded

            def __enter__(self) -> None:
                if self.recorded and clock.refuses:
                    raise RuntimeError("operation not permitted when stream is capturing")

            def __exit__(self, *_error: object) -> None:
                pass

            def wait_stream(self, _other: Any) -> None:
                pass

        properties = SimpleNamespace(L2_cache_size=50 << 20)
        values = {
            "Event": Event, "CUDAGraph": Graph, "Stream": Context, "current_stream": Context,
            "stream": lambda _stream: Context(), "graph": lambda _graph: Context(True), "synchronize": lambda: None,
            "get_device_properties": lambda _index: properties, "mem_get_info": lambda: (80 << 30, 80 << 30),
        }  # fmt: skip
        for name, value in values.items():
            setattr(torch.cuda, name, value)


def events() -> None:
    """The clock's own lines for a card."""
    cuda, calls = Cuda(), []
    clock = bench_clock.Clock("cuda")
    captured = clock.time([lambda: calls.append(1)] * 3)
    cuda.refuses = True

    def slow() -> None:
        cuda.now += 4.0

    loop = clock.time([slow] * 2)
    tell(captured=captured.captured, seconds=captured.seconds, rounds=captured.rounds, replays=cuda.replays,
         copies=[clock.copies(8 << 20), clock.copies(1 << 30), clock.copies(1)],
         looped=[loop.captured, loop.seconds], about=sorted(bench.about("cuda")))  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    user_files.folder = lambda: folder / "cache"  # type: ignore[assignment]
    exact_dot()
    scaled_dot()
    write = sys.stdout.write
    working()
    lines: list[str] = []
    sys.stdout.write = lambda text: lines.append(text) or len(text)  # type: ignore[method-assign,func-returns-value]
    code = bench.main(["--quick", "--device", "cpu", "--tune", "--out", str(folder)])
    sys.stdout.write = write  # type: ignore[method-assign]
    tell(code=code, printed="".join(lines))
    broken()
    tell(peers={name: [version, len(made)] for name, version, made in bench_peers.peers(32, 128, "cpu", 2)})
    found = bench.Bench(bench_clock.Clock("cpu"), bench.TINY, lambda _text: None)
    found.results["peers"] = {}
    bench.peers(found)
    tell(versions=found.results["peers"]["versions"])
    tuned()
    out_of_time()
    events()


if __name__ == "__main__":
    sys.exit(main())
