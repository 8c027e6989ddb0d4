"""Whether a checkpoint is already quantized, and how."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.checkpoint.architecture import text_config
from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.dtypes import is_block_type
from core.checkpoint.folder import read_json
from core.errors import UserError

# quant_method of config.json → the name people know.
_SCHEMES = {
    "gptq": "GPTQ", "awq": "AWQ", "compressed-tensors": "compressed-tensors", "compressed_tensors":
    "compressed-tensors", "bitsandbytes": "bitsandbytes", "fp8": "FP8", "fbgemm_fp8": "FBGEMM FP8", "mxfp4":
    "MXFP4", "modelopt": "ModelOpt", "modelopt_fp4": "ModelOpt NVFP4", "hqq": "HQQ", "torchao": "torchao", "aqlm":
    "AQLM", "quip": "QuIP#", "vptq": "VPTQ", "spqr": "SpQR", "higgs": "HIGGS", "bitnet": "BitNet", "eetq": "EETQ",
    "quanto": "Quanto", "quark": "Quark", "auto-round": "AutoRound", "intel/auto-round": "AutoRound", "exl2":
    "EXL2", "exl3": "EXL3", "marlin": "Marlin", "metal": "MLX", "fp_quant": "FP-Quant", "auto_round": "AutoRound",
    "gptq_marlin": "GPTQ", "awq_marlin": "AWQ",
}  # fmt: skip

# Last words of tensor names that give a scheme away when no config does.
_TRACES = (
    (".qzeros", "GPTQ or AWQ"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_inv", "FP8"),
    (".weight_scale_2", "ModelOpt NVFP4"),
    ("_proj_blocks", "MXFP4"),
    (".SCB", "bitsandbytes 8-bit"),
    (".weight.absmax", "bitsandbytes 4-bit"),
    (".W_q", "HQQ"),
    (".q_weight", "EXL2"),
    (".trellis", "EXL3"),
    (".scales", "MLX"),
    ("._weight_qdata", "torchao"),
    (".weight_scale", "FP8 or INT8"),
)


@dataclass(frozen=True)
class QuantizedSource:
    """scheme: its usual name. bits: of a weight, 0 when not told. readable: values can be decoded here (GGUF's types,
    and schemes of `core.packed`). stale: the config claims it, but no tensor bears it out.
    """

    scheme: str
    bits: float = 0.0
    readable: bool = False
    stale: bool = False

    @property
    def label(self) -> str:
        """'GPTQ, 4 bits a weight'."""
        return f"{self.scheme}, {self.bits:.3g} bits a weight" if self.bits else self.scheme


_KNOWN: weakref.WeakKeyDictionary[Checkpoint, QuantizedSource | None] = weakref.WeakKeyDictionary()


def quantized_source(checkpoint: Checkpoint) -> QuantizedSource | None:
    """How the checkpoint is quantized; None for 16-bit and wider. Looks at config and names only, and once."""
    if checkpoint not in _KNOWN:
        _KNOWN[checkpoint] = _look(checkpoint)
    return _KNOWN[checkpoint]


def _look(checkpoint: Checkpoint) -> QuantizedSource | None:
    if checkpoint.container is Container.GGUF:
        return _from_blocks(checkpoint)
    readable = any(t.packed for t in checkpoint.tensors)
    checkpoint = checkpoint.stored
    traces = _traces(checkpoint)
    config = quantization_config(checkpoint)
    if config is None:
        return QuantizedSource(traces, readable=readable) if traces else None
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    scheme = _SCHEMES.get(method, method or ("MLX" if "group_size" in config else "an unnamed method"))
    packed = bool(traces) or any(
        t.dtype[:1] in "IU" or t.dtype.startswith(("F8", "F4", "F6")) for t in checkpoint.tensors
    )
    return QuantizedSource(scheme, _bits(config), readable, stale=not packed)


def _from_blocks(checkpoint: Checkpoint) -> QuantizedSource | None:
    values: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for tensor in checkpoint.tensors:
        if is_block_type(tensor.dtype):
            values[tensor.dtype] += tensor.values
            nbytes[tensor.dtype] += tensor.nbytes
    if not values:
        return None
    most = values.most_common(1)[0][0]
    name = f"mostly {most}" if len(values) > 1 else most
    return QuantizedSource(name, 8 * nbytes.total() / max(1, values.total()), readable=True)


def _traces(checkpoint: Checkpoint) -> str:
    endings = tuple(ending for ending, _ in _TRACES)
    telling = [tensor.name for tensor in checkpoint.tensors if tensor.name.endswith(endings)]
    return next((scheme for ending, scheme in _TRACES if any(n.endswith(ending) for n in telling)), "")


def quantization_config(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """What config.json, or the file beside it, says of quantization; None when it says nothing."""
    config = checkpoint.config
    for part in (config, text_config(config)):
        for key in ("quantization_config", "compression_config", "quantization"):
            found = part.get(key)
            if isinstance(found, Mapping) and found:
                return found
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if not config:
        return None
    beside = _beside(folder, "hf_quant_config.json").get("quantization")
    if isinstance(beside, Mapping):
        return {"quant_method": "modelopt", **beside}
    beside = _beside(folder, "quantize_config.json")
    return {"quant_method": "gptq", **beside} if beside else None


def _beside(folder: Path, name: str) -> dict[str, Any]:
    try:
        return read_json(folder / name, required=False)
    except UserError:
        return {}


def _bits(config: Mapping[str, Any]) -> float:
    for key in ("bits", "w_bit", "nbits"):
        if isinstance(config.get(key), int):
            return float(config[key])
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        return 4.0
    if config.get("load_in_8bit") or config.get("_load_in_8bit") or "fp8" in str(config.get("quant_method")).lower():
        return 8.0
    if str(config.get("quant_method")) == "mxfp4":
        return 4.0
    for key in ("config_groups", "quant_config"):
        groups = config.get(key)
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights", group) if isinstance(group, Mapping) else {}
            found = weights.get("num_bits", weights.get("nbits")) if isinstance(weights, Mapping) else None
            if isinstance(found, int):
                return float(found)
    return {"NVFP4": 4.0, "FP8": 8.0, "W4A16_AWQ": 4.0}.get(str(config.get("quant_algo")), 0.0)
