"""Which weights runtimes make one matrix of, so that these must be stored alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core.catalog import readers
from core.checkpoint.findings import some
from core.tensor_info import Role

if TYPE_CHECKING:
    from core.plan import Plan

# Projections of one input.
JOINED = (frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V}), frozenset({Role.FFN_GATE, Role.FFN_UP}))
EXPERT = re.compile(r"\.experts\.\d+\.")


def module_of(name: str) -> str:
    """'model.layers.0.self_attn' of 'model.layers.0.self_attn.q_proj.weight'."""
    return name.removesuffix(".weight").rpartition(".")[0]


def apart_warning(plan: Plan) -> str:
    """One sentence where vLLM would read the output, but for parts of one matrix in different formats; '' else.

    vLLM takes one scheme for query, key and value, one for gate and up, and one for all experts of a layer.
    """
    if not plan.target.is_folder or "vLLM" not in readers(plan.target):
        return ""
    kinds: dict[tuple[str, int], set[str]] = {}
    for t in plan.tensors:
        if len(t.shape) != 2 or not t.name.endswith(".weight"):
            continue
        if expert := EXPERT.search(t.name):
            key = (f"{t.name[: expert.start()]}.experts", -1)
        else:
            number = next((i for i, roles in enumerate(JOINED) if t.role in roles), None)
            if number is None:
                continue
            key = (module_of(t.name), number)
        kinds.setdefault(key, set()).add(t.format_name)
    mixed = [module for (module, _), formats in kinds.items() if len(formats) > 1]
    if not mixed:
        return ""
    return (
        "vLLM makes one matrix of query, key and value, one of gate and up, and one of a layer's experts, and does not "
        f"load parts of one in different formats: {some(list(dict.fromkeys(mixed)))}. Give them one format, or keep "
        "all of them."
    )
