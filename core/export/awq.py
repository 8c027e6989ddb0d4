"""AWQ folders in the GEMM layout (vLLM, transformers with GPTQModel): `quantization_config` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.ecosystem import ALL_EXPERTS, Ecosystem, Words, ignored_modules
from core.formats.awq import Awq
from core.formats.coded import Coded


class AwqFolders(Ecosystem):
    """All modules have groups of one size. What is not converted is named by parts of names."""

    name = "AWQ"

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        groups = sorted({form.group for form in chosen.values() if isinstance(form, Awq)}, reverse=True)
        if len(groups) > 1:
            raise UserError(
                f"An AWQ folder has groups of one size; this recipe gives {' and '.join(map(str, groups))}.",
                f"Choose awq-g{groups[-1]}, or keep rows that do not divide in 16 bits (--misfit keep-16-bit).",
            )
        kept = ignored_modules(checkpoint.tensors, chosen)
        config: dict[str, Any] = {
            "quant_method": "awq",
            "bits": Awq.bits,
            "group_size": groups[0],
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": [".experts." if name == ALL_EXPERTS else name for name in kept],
        }
        return Words({"quantization_config": config})
