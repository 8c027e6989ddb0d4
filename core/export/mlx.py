"""Folders for MLX (mlx-lm): the keys `quantization` and `quantization_config`, stacked experts, an index with totals.

mlx-lm 0.32 makes a module quantized where its `scales` are there, by what config.json says of its path, or of all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from core.checkpoint.base import Checkpoint
from core.checkpoint.hf import says_tied
from core.errors import UserError
from core.export.ecosystem import LINEAR_ROLES, Ecosystem, Words, module
from core.formats.coded import Coded
from core.formats.mlx import MLXWeights
from core.models.gguf_tensors import MappedTensor, Piece
from core.tensor_info import Role

_EXPERT = re.compile(r"(?P<block>.+)\.experts\.(?P<number>\d+)\.(?P<part>gate_proj|up_proj|down_proj|w[123])\.weight")
_PART = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# Models whose experts mlx-lm keeps as '….switch_mlp.{gate,up,down}_proj', where they are read quantized.
_STACKED = frozenset(
    ("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "mixtral", "phimoe", "ernie4_5_moe", "glm4_moe", "exaone_moe")
)


class Mlx(Ecosystem):
    """Embeddings and heads are quantized, too; a tied head is the embedding. Routers stay as they are."""

    name = "mlx"
    roles = LINEAR_ROLES | {Role.EMBED, Role.HEAD}
    stacks = True

    def takes(self, tensor: MappedTensor) -> bool:
        return tensor.name.endswith(".weight") and (len(tensor.shape) == 2 or ".switch_mlp." in tensor.name)

    def mapped(self, checkpoint: Checkpoint, tensors: Sequence[MappedTensor]) -> tuple[MappedTensor, ...]:
        """Experts one after the other in one tensor, as mlx-lm saves them; no head where the embedding is it."""
        if says_tied(checkpoint.config):
            tensors = [t for t in tensors if not (t.role is Role.HEAD and t.name.endswith("lm_head.weight"))]
        if checkpoint.config.get("model_type") not in _STACKED:
            return tuple(tensors)
        stacks: dict[str, dict[int, MappedTensor]] = defaultdict(dict)
        for t in tensors:
            if found := _EXPERT.fullmatch(t.name):
                part = _PART.get(found["part"], found["part"])
                stacks[f"{found['block']}.switch_mlp.{part}.weight"][int(found["number"])] = t
        first = {members[min(members)].name: name for name, members in stacks.items()}
        stacked = {t.name for members in stacks.values() for t in members.values()}
        return tuple(
            _stack(first[t.name], stacks[first[t.name]]) if t.name in first else t
            for t in tensors
            if t.name in first or t.name not in stacked
        )

    def words(self, checkpoint: Checkpoint, chosen: Mapping[str, Coded]) -> Words:
        alone = next((name for name in chosen if _EXPERT.fullmatch(name)), None)
        if alone is not None:
            kind = checkpoint.config.get("model_type", "this model")
            raise UserError(
                f"MLX keeps the experts of a layer in one tensor, and how it calls that of {kind} is not known here.",
                f"Keep experts such as '{alone}' with a 'keep' rule, or choose another target.",
            )
        each = {module(name): _words_of(form) for name, form in chosen.items()}
        most = Counter(tuple(w.items()) for w in each.values()).most_common(1)[0][0]
        quantization: dict[str, Any] = dict(most)
        quantization |= {path: w for path, w in each.items() if tuple(w.items()) != most}
        values = sum(t.values for t in checkpoint.tensors if not t.tied_to)
        return Words(
            {**_older_keys(checkpoint.config), "quantization": quantization, "quantization_config": quantization},
            metadata={"format": "mlx"},
            totals={"total_parameters": values},
        )


def _words_of(form: Coded) -> dict[str, Any]:
    if not isinstance(form, MLXWeights):
        raise ValueError(f"{form.name} is no MLX format")
    return {"group_size": form.numbers.group, "bits": form.bits, "mode": form.mode}


def _stack(name: str, members: Mapping[int, MappedTensor]) -> MappedTensor:
    """Experts [N, K] as one tensor [E, N, K]. Raises UserError where one is missing or has another shape."""
    numbers = sorted(members)
    if numbers != list(range(len(numbers))):
        missing = min(set(range(numbers[-1])) - set(numbers))
        raise UserError(f"'{name}' should have expert {missing}.", "A shard may be missing: download the model again.")
    ordered = [members[i] for i in numbers]
    first = ordered[0]
    if any(t.shape != first.shape or t.dtype != first.dtype for t in ordered):
        raise UserError(f"The experts of '{name}' differ in shape or type.", "Check the checkpoint.")
    pieces: tuple[Piece, ...] = tuple(p for t in ordered for p in t.pieces)
    return MappedTensor(name, (len(ordered), *first.shape), pieces, role=first.role, layer=first.layer)


def _older_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys under which mlx-lm looks for what transformers 5 writes elsewhere, where they are not there already."""
    found: dict[str, Any] = {}
    rope = config.get("rope_parameters")
    if isinstance(rope, Mapping):
        full, sliding = (rope.get(kind) for kind in ("full_attention", "sliding_attention"))
        if isinstance(sliding, Mapping) and "rope_theta" in sliding:
            found["rope_local_base_freq"] = sliding["rope_theta"]
        rope = full if isinstance(full, Mapping) else rope
        found |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
        if rope.get("rope_type", "default") != "default":
            found["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    if "num_local_experts" in config:
        found["num_experts"] = config["num_local_experts"]
    added = {key: value for key, value in found.items() if config.get(key) is None}
    text = config.get("text_config")
    if isinstance(text, Mapping) and (inner := _older_keys(text)):
        added["text_config"] = {**text, **inner}
    return added
