"""Products of other libraries, as `kernels.gpu.bench` calls them: whichever imports, each in whatever way it offers.

A peer takes rows, columns and a device and returns a function of activations [M, K]. What is missing or has another
interface is a sentence, and the benchmark goes on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

GROUP = 128
Product = Callable[[torch.Tensor], object]


def _bitsandbytes(rows: int, columns: int, device: str) -> Product:
    functional, package = import_module("bitsandbytes.functional"), import_module("bitsandbytes")
    w = torch.randn(rows, columns, dtype=torch.bfloat16, device=device)
    packed, state = functional.quantize_4bit(w, blocksize=64, quant_type="nf4")
    return lambda x: package.matmul_4bit(x, packed.t(), quant_state=state)


def _torchao(rows: int, columns: int, device: str) -> Product:
    quantization = import_module("torchao.quantization")
    linear = torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16, device=device)
    tries: list[Callable[[], Any]] = [
        lambda: quantization.Int4WeightOnlyConfig(group_size=GROUP),
        lambda: quantization.Int4WeightOnlyConfig(group_size=GROUP, version=1),
        lambda: quantization.int4_weight_only(group_size=GROUP),
    ]
    x = torch.zeros(1, columns, dtype=torch.bfloat16, device=device)

    def make(config: Callable[[], Any]) -> Product:
        quantization.quantize_(linear, config())
        linear(x)
        return linear

    return _first(make, tries)


def _gemlite(rows: int, columns: int, device: str) -> Product:
    core = import_module("gemlite.core")
    layer = getattr(core, "GemLiteLinear", None) or core.GemLiteLinearTriton
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, device=device)
    scales = torch.rand(rows * columns // GROUP, 1, dtype=torch.float16, device=device) / 100
    zeros = torch.full_like(scales, 8)
    settings = {
        "W_nbits": 4, "group_size": GROUP, "in_features": columns, "out_features": rows,
        "input_dtype": core.DType.FP16, "output_dtype": core.DType.FP16,
    }  # fmt: skip
    made = layer(**settings)
    made.pack(codes, scales, zeros, None)
    return lambda x: made(x.to(torch.float16))


def _marlin(rows: int, columns: int, device: str) -> Product:
    utils = import_module("vllm.model_executor.layers.quantization.utils.marlin_utils")
    test = import_module("vllm.model_executor.layers.quantization.utils.marlin_utils_test")
    kind = import_module("vllm.scalar_type").scalar_types.uint4b8
    w = torch.randn(columns, rows, dtype=torch.float16, device=device)
    _, packed, scales, order, sorting, *_ = _named(test.marlin_quantize, w=w, quant_type=kind, group_size=GROUP,
                                                   act_order=False)  # fmt: skip
    workspace = _first(
        lambda make: make(),
        [lambda: utils.marlin_make_workspace_new(w.device), lambda: utils.marlin_make_workspace(rows, w.device)],
    )
    zeros = utils.marlin_make_empty_g_idx(w.device)

    def product(x: torch.Tensor) -> object:
        return _named(
            utils.apply_gptq_marlin_linear, input=x.to(torch.float16), weight=packed, weight_scale=scales,
            weight_zp=zeros, g_idx=order, g_idx_sort_indices=sorting, workspace=workspace, wtype=kind,
            output_size_per_partition=rows, input_size_per_partition=columns, is_k_full=True,
        )  # fmt: skip

    return product


def _named(function: Callable[..., Any], **values: Any) -> Any:
    """Calls with those of the values that the function has a name for."""
    names = inspect.signature(function).parameters
    every = any(one.kind is one.VAR_KEYWORD for one in names.values())
    return function(**{name: value for name, value in values.items() if every or name in names})


def _first(make: Callable[[Any], Any], tries: list[Any]) -> Any:
    """The first that works; raises what the last one raised."""
    for number, one in enumerate(tries):
        try:
            return make(one)
        except Exception:
            if number == len(tries) - 1:
                raise
    raise AssertionError


PEERS: dict[str, tuple[str, str, Callable[[int, int, str], Product]]] = {
    "bitsandbytes NF4 g64": ("bitsandbytes", "bitsandbytes", _bitsandbytes),
    "torchao int4 g128": ("torchao", "torchao", _torchao),
    "gemlite int4 g128": ("gemlite", "gemlite", _gemlite),
    "Marlin int4 g128 (vLLM)": ("vllm", "vllm", _marlin),
}


def why(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


def peers(rows: int, columns: int, device: str, copies: int) -> Iterator[tuple[str, str, list[Product]]]:
    """Each peer's name, its version or why it can not be measured, and its products, of so many weights."""
    for name, (module, package, make) in PEERS.items():
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            missing = "is not installed" if error.name == module else why(error)
            yield name, missing, []
            continue
        except Exception as error:  # noqa: BLE001  (a peer may fail in any way, and the benchmark goes on)
            yield name, f"does not load, {why(error)}", []
            continue
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "of no known version"
        try:
            yield name, found, [make(rows, columns, device) for _ in range(copies)]
        except Exception as error:  # noqa: BLE001
            yield name, f"{found} does not run, {why(error)}", []
