"""A compressed-tensors folder ('pack-quantized') as a layout: weights, config.json, and the files that go along.

What stands in config.json is what the library `compressed-tensors` reads; it refuses keys that it does not know inside
a scheme, so a scheme has the six keys that every version has and no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.layout import Layout
from core.export.safetensors_files import INDEX_NAME, MAX_SHARD, SafetensorsArray, safetensors_files
from core.tensor_info import Role, TensorInfo

FORMAT = "pack-quantized"
# Parts beside the decoder in a model that sees or hears; 'language_model' is the decoder in such a model.
_TOWERS = frozenset(
    {"language_model", "vision_tower", "vision_model", "visual", "audio_tower", "multi_modal_projector", "connector"}
)
_ALL_EXPERTS = r"re:.*\.experts\..*"
_NO_LINEAR = (Role.EMBED, Role.NORM, Role.BIAS, Role.ROPE, Role.CONV)


@dataclass(frozen=True)
class Scheme:
    """How a Linear's weight is stored. group: neighbours along a row that share a scale; 0: the whole row."""

    bits: int
    group: int
    symmetric: bool

    def weights(self) -> dict[str, Any]:
        return {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "group_size": self.group or None,
            "strategy": "group" if self.group else "channel",
            "dynamic": False,
        }


def compressed_tensors_layout(
    checkpoint: Checkpoint,
    arrays: Sequence[SafetensorsArray],
    schemes: Mapping[str, Scheme],
    max_shard: int = MAX_SHARD,
) -> Layout:
    """Place arrays, each (name, shape, safetensors dtype, bytes), in a folder; `PlacedPart.tensor` is its index.

    schemes: weight name ('model.layers.0.mlp.up_proj.weight') → how it is stored; every other matrix of the checkpoint
    is listed as left alone. With no schemes the folder is a plain one.
    Raises UserError when the checkpoint has no config.json, without which nothing can load the folder.
    """
    if not checkpoint.config:
        raise UserError(
            "The model has no config.json, without which a folder of weights can not be loaded.",
            "Put the model's config.json beside the weights, or choose a GGUF target.",
        )
    files, parts, index = safetensors_files(arrays, max_shard)
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    if schemes:
        config["quantization_config"] = quantization_config(checkpoint.tensors, schemes)
    extras: list[tuple[str, bytes | Path]] = [("config.json", _json(config))]
    if index:
        extras.append((INDEX_NAME, index))
    extras += side_files(checkpoint)
    return Layout(files=files, parts=parts, extras=tuple(extras), folder=True)


def quantization_config(tensors: Iterable[TensorInfo], schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """`quantization_config` of config.json: a group for each scheme, and every matrix that has none under `ignore`.

    One scheme targets the class Linear; several target their modules by name, since a class can not tell them apart.
    """
    tensors = tuple(tensors)
    towers = any(t.name.partition(".")[0] in _TOWERS for t in tensors)
    distinct = list(dict.fromkeys(schemes.values()))
    groups = {}
    for number, scheme in enumerate(distinct):
        names = [n for name, own in schemes.items() if own == scheme for n in _spellings(_module(name), towers)]
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if len(distinct) == 1 else names,
            "weights": scheme.weights(),
            "input_activations": None,
            "output_activations": None,
            "format": FORMAT,
        }
    return {
        "config_groups": groups,
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": None,
        "format": FORMAT,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": list(dict.fromkeys(n for m in ignored_modules(tensors, schemes) for n in _spellings(m, towers))),
    }


def ignored_modules(tensors: Iterable[TensorInfo], schemes: Mapping[str, Scheme]) -> list[str]:
    """Modules with a matrix that stays as it is. A tied head has no tensor of its own, yet is a Linear all the same.

    Experts that are stored as one tensor are no Linear, but vLLM asks for each as if it were.
    """
    tensors = tuple(tensors)
    left = [
        _module(t.name)
        for t in tensors
        if t.name.endswith(".weight") and len(t.shape) == 2 and t.role not in _NO_LINEAR and t.name not in schemes
    ]
    if not any(_module(name).endswith("lm_head") for name in [*left, *schemes]):
        left.append("lm_head")
    if any(".experts." in t.name and len(t.shape) == 3 for t in tensors) and not any(".experts." in n for n in schemes):
        left.append(_ALL_EXPERTS)
    return left


def _spellings(module: str, towers: bool) -> list[str]:
    """The module's name in the file, and in transformers since 4.52 where a model also sees or hears.

    There the decoder is `model.language_model`, its head `lm_head`, and every other part lies under `model`; published
    files keep the older names, which loaders translate for tensors but not inside this list.
    """
    first, _, rest = module.partition(".")
    if not towers or module in ("lm_head", _ALL_EXPERTS):
        return [module]
    if first == "language_model":
        return [module, rest.replace("model.", "model.language_model.", 1) if rest.startswith("model.") else rest]
    if first == "model":
        inner = rest.partition(".")[0]
        return [module] if inner in _TOWERS else [module, f"model.language_model.{rest}"]
    return [module, f"model.{module}"]


def side_files(checkpoint: Checkpoint) -> list[tuple[str, Path]]:
    """Tokenizer, templates, licence and so on, under the names they have; the index of the old weights is none."""
    found = [(path.name, path) for path in checkpoint.side_files if path.name not in ("config.json", INDEX_NAME)]
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    templates = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return found + [(f"{path.parent.name}/{path.name}", path) for path in templates]


def _module(weight: str) -> str:
    return weight.removesuffix(".weight")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
