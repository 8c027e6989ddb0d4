"""A folder as a layout: safetensors files, config.json with the ecosystem's words, and the files that go along."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.ecosystem import Ecosystem, Words
from core.export.layout import Layout
from core.export.safetensors_files import INDEX_NAME, MAX_SHARD, SafetensorsArray
from core.formats.coded import Coded

# What a source's config.json says of quantization that the new weights do not have.
QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization", "bitsmith")
_OWN_FILES = ("config.json", INDEX_NAME, "hf_quant_config.json", "quantize_config.json", "quant_config.json")


def folder_layout(
    checkpoint: Checkpoint,
    arrays: Sequence[SafetensorsArray],
    ecosystem: Ecosystem,
    chosen: Mapping[str, Coded],
    max_shard: int = MAX_SHARD,
    cache: bool = False,
    more: Mapping[str, Any] | None = None,
    run: int = 0,
) -> Layout:
    """Place arrays, each (name, shape, safetensors dtype, bytes), in a folder; `PlacedPart.tensor` is its index.

    chosen: weight name ('model.layers.0.mlp.up_proj.weight') → its format; with none the folder is a plain one.
    cache: whether some of the arrays are scales of a key-value cache. more: what else config.json says. run: values
    that a rotation mixes which happens to the down projections' inputs while the model runs; 0: none does.
    Raises UserError when the checkpoint has no config.json, without which nothing can load the folder.
    """
    if not checkpoint.config:
        raise UserError(
            "The model has no config.json, without which a folder of weights can not be loaded.",
            "Put the model's config.json beside the weights, or choose a GGUF target.",
        )
    words = ecosystem.words(checkpoint, chosen) if chosen else Words({})
    if cache and chosen:
        words = ecosystem.with_cache(words)
    if run and chosen:
        words = ecosystem.with_rotation(words, checkpoint, run)
    files, parts, index = ecosystem.files(checkpoint, arrays, chosen, words, max_shard)
    config = {k: v for k, v in checkpoint.config.items() if k not in QUANTIZATION_KEYS}
    extras: list[tuple[str, bytes | Path]] = [("config.json", as_json({**config, **words.config, **(more or {})}))]
    if index:
        extras.append((INDEX_NAME, index))
    extras += words.files
    extras += side_files(checkpoint)
    return Layout(files=files, parts=parts, extras=tuple(extras), folder=True)


def side_files(checkpoint: Checkpoint) -> list[tuple[str, Path]]:
    """Tokenizer, templates, licence and so on, under the names they have; what describes the old weights is none."""
    found = [(path.name, path) for path in checkpoint.side_files if path.name not in _OWN_FILES]
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    templates = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return found + [(f"{path.parent.name}/{path.name}", path) for path in templates]


def as_json(value: Mapping[str, Any]) -> bytes:
    """As the files of Hugging Face folders are written."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
