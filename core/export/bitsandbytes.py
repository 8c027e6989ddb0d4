"""bitsandbytes folders (transformers, PEFT, vLLM): `quantization_config` of config.json.

The loader makes every Linear that is not under `llm_int8_skip_modules` a module of bitsandbytes. Which table a 4-bit
weight has, and whether its scales are quantized, its own quant_state says; the config's word is for new weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from core.checkpoint.architecture import text_config
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.ecosystem import ALL_EXPERTS, Ecosystem, Words, ignored_modules
from core.formats.bitsandbytes import FourBit
from core.formats.coded import Coded
from core.models.gguf_tensors import MappedTensor

_COMPUTE = ("bfloat16", "float16", "float32")


class BitsAndBytes(Ecosystem):
    """4-bit formats may stand beside each other, 8 bits only alone. Experts stay: transformers 5 loads no others."""

    name = "bitsandbytes"

    def takes(self, tensor: MappedTensor) -> bool:
        return super().takes(tensor) and ".experts." not in tensor.name

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        names = Counter(f.name for f in chosen.values())
        four = [f for f in chosen.values() if isinstance(f, FourBit)]
        if four and len(four) < len(chosen):
            raise UserError(
                f"A bitsandbytes folder can not hold 4-bit and 8-bit weights ({', '.join(names)}).",
                "Choose 4-bit formats for all rules, or bnb-int8 for all.",
            )
        most = max(four, key=lambda f: names[f.name]) if four else None
        return Words({"quantization_config": _config(checkpoint, chosen, most)})


def _config(checkpoint: Checkpoint, chosen: Mapping[str, Coded], four: FourBit | None) -> dict[str, Any]:
    """The keys that transformers writes, in its order. four: the format of most weights; None for 8 bits."""
    return {
        "_load_in_4bit": four is not None,
        "_load_in_8bit": four is None,
        "bnb_4bit_compute_dtype": _compute_dtype(checkpoint.config),
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": four.kind if four else "fp4",
        "bnb_4bit_use_double_quant": four is not None and four.nested,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": _skipped(checkpoint, chosen),
        "llm_int8_threshold": 6.0,
        "load_in_4bit": four is not None,
        "load_in_8bit": four is None,
        "quant_method": "bitsandbytes",
    }


def _compute_dtype(config: Mapping[str, Any]) -> str:
    """What values are multiplied in: the model's own type."""
    for part in (config, text_config(config)):
        found = str(part.get("dtype") or part.get("torch_dtype") or "").removeprefix("torch.")
        if found in _COMPUTE:
            return found
    return "bfloat16"


def _skipped(checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> list[str]:
    """Modules that stay Linear. A name stands for all below it; experts are named as a whole."""
    left = [m.partition(".experts.")[0] + ".experts" if ".experts." in m else m for m in _modules(checkpoint, chosen)]
    return list(dict.fromkeys(left))


def _modules(checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> list[str]:
    return [m for m in ignored_modules(checkpoint.tensors, chosen) if m != ALL_EXPERTS]
