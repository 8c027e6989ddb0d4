"""ModelOpt folders (TensorRT-LLM, vLLM, SGLang): hf_quant_config.json, and the same in config.json.

Both as NVIDIA's `modelopt` writes them (0.47, `convert_hf_quant_config_format`). Loaders know such a folder by the
producer's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.ecosystem import Ecosystem, Words, ignored_modules, module
from core.export.folder import as_json
from core.formats.coded import Coded
from core.formats.float4_packed import ModelOptNvfp4
from core.formats.scaled8 import Scaled8
from core.tensor_info import Role

_PRODUCER = {"name": "modelopt", "version": "0.47.0"}


class ModelOpt(Ecosystem):
    """One algorithm for the whole folder; what stays in 16 bits is listed by module."""

    name = "modelopt"

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        algorithms = {algorithm(form): name for name, form in chosen.items()}
        if len(algorithms) > 1:
            first, second = list(algorithms.items())[:2]
            raise UserError(
                f"'{first[1]}' would be {first[0]} and '{second[1]}' {second[0]}, which one ModelOpt folder can not "
                "hold here.",
                "Use one ModelOpt format, and 'keep' for what shall stay in 16 bits.",
            )
        (name,) = algorithms
        embeddings = [module(t.name) for t in checkpoint.tensors if t.role is Role.EMBED and t.name.endswith(".weight")]
        kept = sorted({*ignored_modules(checkpoint.tensors, chosen), *embeddings})
        group = _GROUPS[name]
        about: dict[str, Any] = {"quant_algo": name, "kv_cache_quant_algo": None}
        if "group_size" in group["weights"]:
            about["group_size"] = group["weights"]["group_size"]
        about["exclude_modules"] = kept
        config = {
            "config_groups": {"group_0": {**group, "targets": ["Linear"]}},
            "ignore": kept,
            "quant_algo": name,
            "producer": _PRODUCER,
            "quant_method": "modelopt",
        }
        return _words(config, about)

    def with_cache(self, words: Words) -> Words:
        about = {**json.loads(words.files[0][1])["quantization"], "kv_cache_quant_algo": "FP8"}
        return _words({**words.config["quantization_config"], "kv_cache_scheme": _FP8}, about)


def _words(config: Mapping[str, Any], about: Mapping[str, Any]) -> Words:
    files = (("hf_quant_config.json", as_json({"producer": _PRODUCER, "quantization": about})),)
    return Words({"quantization_config": config}, files)


_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
_NVFP4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
_GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "FP8": {"input_activations": _FP8, "weights": _FP8},
    "NVFP4": {"input_activations": _NVFP4, "weights": _NVFP4},
}


def algorithm(form: Coded) -> str:
    """ModelOpt's name for a format of this ecosystem."""
    if isinstance(form, Scaled8):
        return "FP8"
    if isinstance(form, ModelOptNvfp4):
        return "NVFP4"
    raise ValueError(f"{form.name} is no ModelOpt format")
