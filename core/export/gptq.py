"""GPTQ folders (GPTQModel, transformers, vLLM): `quantization_config` of config.json, and quantize_config.json.

Modules that differ from most are named under `dynamic` by regular expressions, which are matched from the left: '+:…'
has other numbers, '-:…' none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.ecosystem import ALL_EXPERTS, Ecosystem, Words, ignored_modules, module
from core.export.folder import as_json
from core.formats.coded import Coded
from core.formats.gptq import Gptq
from core.tensor_info import TensorInfo

HEAD = "lm_head"
# What vLLM and SGLang make of projections with one input, and look up under that name.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class GptqFolders(Ecosystem):
    """All modules have one layout of zero points; bits, groups and symmetry may differ."""

    name = "GPTQ"

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        config = quantization_config(checkpoint.tensors, chosen)
        return Words({"quantization_config": config}, (("quantize_config.json", as_json(config)),))


def quantization_config(tensors: Iterable[TensorInfo], chosen: Mapping[str, Coded]) -> dict[str, Any]:
    """As GPTQModel writes it. Raises UserError for weights in both layouts."""
    modules = {module(name): form for name, form in chosen.items() if isinstance(form, Gptq)}
    versions = {form.version for form in modules.values()}
    if len(versions) > 1:
        raise UserError(
            "A GPTQ folder stores every zero point less one, or every one as it is (v2); this recipe asks for both.",
            "Choose formats that all end in -v2, or none that does.",
        )
    base = Counter(modules.values()).most_common(1)[0][0]
    kept = [name for name in ignored_modules(tensors, chosen) if name.rpartition(".")[2] != HEAD]
    config: dict[str, Any] = {
        **_numbers(base),
        "desc_act": False,
        "lm_head": any(name.rpartition(".")[2] == HEAD for name in modules),
        "quant_method": "gptq",
        "method": "gptq",
        "checkpoint_format": "gptq" if versions == {1} else "gptq_v2",
        "format": "gptq" if versions == {1} else "gptq_v2",
        "pack_dtype": "int32",
        "meta": {"quantizer": ["bitsmith"]},
    }
    if dynamic := _dynamic(modules, base, kept):
        config["dynamic"] = dynamic
    return config


def _numbers(form: Gptq) -> dict[str, Any]:
    return {"bits": form.bits, "group_size": form.group or -1, "sym": form.symmetric}


def _dynamic(modules: Mapping[str, Gptq], base: Gptq, kept: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The exceptions: a pattern → its other numbers, or '-:…' → {}."""
    usual = _numbers(base)
    given: dict[str, Gptq | None] = {**modules, **dict.fromkeys(kept)}
    special = given.pop(ALL_EXPERTS, base)
    found: dict[str, dict[str, Any]] = {} if special is base else {f"-:{ALL_EXPERTS.removeprefix('re:')}": {}}
    for pattern, form in _patterns(given).items():
        if form is None:
            found[f"-:{pattern}"] = {}
        elif other := {key: value for key, value in _numbers(form).items() if value != usual[key]}:
            found[f"+:{pattern}"] = other
    return found


def _patterns(given: Mapping[str, Gptq | None]) -> dict[str, Gptq | None]:
    """Regular expressions that match these modules: one for all layers and experts where they agree."""
    alike: dict[str, dict[str, Gptq | None]] = {}
    for name, form in given.items():
        alike.setdefault(_fused(name, given), {})[name] = form
    found: dict[str, Gptq | None] = {}
    by_place: dict[str, dict[str, Gptq | None]] = {}
    for pattern, members in alike.items():
        form = next(iter(members.values()))
        by_place.setdefault(re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", pattern), {})[pattern] = form
    for place, members in by_place.items():
        covered = {form for name, form in given.items() if re.match(place, name)}
        found |= {place: next(iter(members.values()))} if len(covered) == 1 else members
    return found


def _fused(name: str, given: Mapping[str, Gptq | None]) -> str:
    """A pattern for a module; for all that are fused with it too, and what they become, where they are alike."""
    place, _, last = name.rpartition(".")
    for whole, parts in _FUSED.items():
        members = [p for p in parts if f"{place}.{p}" in given]
        if last in members and len({given[f"{place}.{p}"] for p in members}) == 1:
            return f"^{re.escape(place)}\\.({'|'.join((*members, whole))})$"
    return f"^{re.escape(name)}$"
