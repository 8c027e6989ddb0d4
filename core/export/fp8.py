"""Folders in Hugging Face's own FP8 (DeepSeek's layout): `quantization_config` of config.json.

Its keys are those that transformers' FineGrainedFP8Config and vLLM's Fp8Config read. All weights have one layout; what
stays in 16 bits is listed by module.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.errors import UserError
from core.export.compressed_tensors import has_towers, spellings
from core.export.ecosystem import ALL_EXPERTS, Ecosystem, Words, ignored_modules
from core.formats.coded import Coded


class HuggingFaceFP8(Ecosystem):
    """One format for the whole folder."""

    name = "fp8"

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        kinds = {form.numbers: name for name, form in chosen.items()}
        if len(kinds) > 1:
            first, second = list(kinds.values())[:2]
            raise UserError(
                f"'{first}' and '{second}' would differ in their scales, which such a folder can not say.",
                "Choose fp8-block, whose config names each.",
            )
        (numbers,) = kinds
        towers = has_towers(checkpoint.tensors)
        kept = [m for m in ignored_modules(checkpoint.tensors, chosen) if m != ALL_EXPERTS]
        config = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [numbers.tile, numbers.group],
            "modules_to_not_convert": list(dict.fromkeys(n for m in kept for n in spellings(m, towers))),
        }
        if getattr(numbers, "scale", None) is ElementType.F8_E8M0:
            config["scale_fmt"] = "ue8m0"
        return Words({"quantization_config": config})
