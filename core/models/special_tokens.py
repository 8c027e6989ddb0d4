"""Special tokens, whether they are added around a prompt, and the chat template, from a folder's side files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.models.side_files import read_json, read_text

# Kind → GGUF key. 'seperator' is spelled so in the format.
ID_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "cls": "tokenizer.ggml.cls_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
}


@dataclass
class SpecialTokens:
    """ids: kind → token id. add: kind → whether a prompt gets it. templates: name → chat template, '' the default."""

    ids: dict[str, int] = field(default_factory=dict)
    add: dict[str, bool] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)


def read_special_tokens(
    folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, ids: Mapping[str, int], count: int
) -> SpecialTokens:
    """ids: id of every token by its text. count: tokens in all; ids beyond are left out.

    The text in tokenizer_config.json (then special_tokens_map.json) names a token; ids in config.json, then in
    generation_config.json, fill the gaps. What a prompt gets follows the post-processor of tokenizer.json, which is
    what really runs; `add_bos_token` of tokenizer_config.json where that says nothing.
    """
    settings = dict(read_json(folder / "tokenizer_config.json"))
    texts = {**read_json(folder / "special_tokens_map.json"), **{k: v for k, v in settings.items() if v is not None}}
    found = SpecialTokens(templates=read_templates(folder, settings))
    names = {kind: _text(texts.get(f"{kind}_token")) for kind in ID_KEYS}
    if tokenizer is not None:
        _apply_post_processor(tokenizer.get("post_processor"), names, found.add)
    for kind in ("bos", "eos", "sep"):
        value = settings.get(f"add_{kind}_token")
        if isinstance(value, bool):
            found.add.setdefault(kind, value)
    if tokenizer is not None and not (tokenizer.get("model") or {}).get("byte_fallback"):
        found.add.setdefault("bos", False)  # llama.cpp's default for a splitter may be to add it
    generation = read_json(folder / "generation_config.json")
    nested = config.get("text_config")
    nested = nested if isinstance(nested, Mapping) else {}
    for kind in ID_KEYS:
        key = f"{kind}_token_id"
        candidates = [ids.get(names[kind]) if names[kind] else None]
        given = [source.get(key) for source in (config, nested, generation)]
        # Several ends of a text come as a list: the first is the model's, the others are those of turns.
        candidates += [*given, *(value[0] for value in given if isinstance(value, list) and value)]
        number = next(
            (c for c in candidates if isinstance(c, int) and not isinstance(c, bool) and 0 <= c < count), None
        )
        if number is not None:
            found.ids[kind] = number
    return found


def _text(entry: Any) -> str:
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else ""


def _apply_post_processor(processor: Mapping[str, Any] | None, names: dict[str, str], add: dict[str, bool]) -> None:
    """Read from the template that is put around a single prompt which special tokens start and end it."""
    if not processor:
        return
    for step in processor.get("processors", [processor]):
        if step.get("type") == "ByteLevel":
            add.setdefault("bos", False)
            add.setdefault("eos", False)
        elif step.get("type") == "TemplateProcessing":
            single = step.get("single") or []
            if len(single) < 2:
                continue
            first = single[0].get("SpecialToken", {}).get("id")
            last = single[-1].get("SpecialToken", {}).get("id")
            if first:
                names["bos"] = names["bos"] or first
                add["bos"] = first in (names["bos"], names["cls"])
            if last:
                if names["eos"] and names["eos"] != last and not names["eot"]:
                    names["eot"] = names["eos"]  # what ends a turn is then not what ends a text
                names["eos"] = last
                add["eos"] = True


def read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, the default under ''. A file of their own goes before tokenizer_config.json."""
    given: Any = read_text(folder / "chat_template.jinja")
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if given and more:
        given = [{"name": "default", "template": given}]
        given += [{"name": p.stem, "template": read_text(p)} for p in more]
    given = given or settings.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(given, Mapping):
        given = [{"name": name, "template": template} for name, template in given.items()]
    if isinstance(given, str):
        return {"": given} if given else {}
    templates: dict[str, str] = {}
    for entry in given if isinstance(given, list) else []:
        name = re.sub(r"[^A-Za-z0-9]", "_", str(entry.get("name", "")))
        if name and isinstance(entry.get("template"), str):
            templates["" if name == "default" else name] = entry["template"]
    return templates
