"""The `general.*` keys that describe a model to people: name, size, licence, and the sampling it recommends."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.gguf_values import GGUFType, GGUFValue, array, f32, string
from core.models.gguf_tensors import MappedTensor
from core.models.side_files import read_json, read_text

_SAMPLING_FLOATS = {
    "top_p": "top_p",
    "min_p": "min_p",
    "temperature": "temp",
    "repetition_penalty": "penalty_repeat",
}


def general_metadata(checkpoint: Checkpoint, folder: Path, tensors: Sequence[MappedTensor]) -> dict[str, GGUFValue]:
    """Keys after the architecture, without file type and quantization version."""
    card = read_card(folder / "README.md")
    keys = {"general.type": string("model"), **_sampling(folder)}
    keys |= _identity(checkpoint, folder, sum(math.prod(t.shape) for t in tensors))
    keys.setdefault("general.size_label", string(size_label(tensors)))
    for field in ("license", "license_name", "license_link"):
        value = card.get(field)
        if value:
            keys[f"general.{field.replace('_', '.')}"] = string(value if isinstance(value, str) else ",".join(value))
    tags = _many(card.get("tags")) + _many(card.get("pipeline_tag"))
    if tags:
        keys["general.tags"] = array(GGUFType.STRING, tags)
    languages = _many(card.get("language"))
    if languages:
        keys["general.languages"] = array(GGUFType.STRING, languages)
    return keys


def size_label(tensors: Sequence[MappedTensor]) -> str:
    """'135M', '8x7B': values in all, or experts × (shared values and those of one expert)."""
    shared = expert = 0
    counts = []
    for tensor in tensors:
        size = math.prod(tensor.shape)
        if "_exps." in tensor.name:
            counts.append(tensor.shape[0])
            expert += size // tensor.shape[0]
        else:
            shared += size
    label = _rounded(shared + expert)
    return f"{sum(counts) // len(counts)}x{label}" if counts else label


def _rounded(count: int) -> str:
    scale, unit = next(((s, u) for s, u in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if count > s), (1e3, "K"))
    value = count / scale
    digits = max(2 - len(str(round(value)).lstrip("0")), 0)
    return f"{value:.{digits}f}{unit}"


def _sampling(folder: Path) -> dict[str, GGUFValue]:
    settings = read_json(folder / "generation_config.json")
    keys = {}
    if isinstance(settings.get("top_k"), int):
        keys["general.sampling.top_k"] = GGUFValue(GGUFType.I32, settings["top_k"])
    for name, key in _SAMPLING_FLOATS.items():
        if isinstance(settings.get(name), (int, float)) and not isinstance(settings[name], bool):
            keys[f"general.sampling.{key}"] = f32(settings[name])
    return keys


_VERSION = re.compile(r"(v|iter)?\d+(\.\d+)*", re.IGNORECASE)
_SIZE = re.compile(r"((a|\d+x)?\d+([._]\d+)?[kmbt]\d?|small|mini|medium|large|x?xl)", re.IGNORECASE)
_TYPE = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_FINETUNE = re.compile(r"chat|instruct|vision", re.IGNORECASE)


def name_parts(name: str, values: int) -> dict[str, str]:
    """basename, version, size_label and finetune of a name such as 'Llama-3.1-8B-Instruct'.

    values: of the model; a size far from it is no size but, say, a context length ('8k'). A name of one word, or one
    without version, size or finetune, says nothing for certain and gives {}.
    """
    words = [word for word in name.split("-") if word]
    kinds = []
    for i, word in enumerate(words):
        if _VERSION.fullmatch(word):
            kinds.append("version")
        elif _TYPE.fullmatch(word):
            kinds.append("type")
        elif i and _SIZE.fullmatch(word):
            kinds.append("size" if _near(word, values) else "finetune")
        else:
            kinds.append("finetune" if i and _FINETUNE.fullmatch(word) else "")
    words = [w.lower() if k == "finetune" and _SIZE.fullmatch(w) else w for w, k in zip(words, kinds, strict=True)]
    start = next((i for i, k in enumerate(kinds) if k not in ("", "version") or not (k or words[i][0].isalpha())), None)
    base = len(words) if start is None else start
    while start is None and base and kinds[base - 1]:
        base -= 1  # a version at the very end is the model's; 'Llama-2' of 'Llama-2-7b' is its family
    rest = [(w, k or "finetune") for w, k in zip(words[base:], kinds[base:], strict=True)]
    if not any(k in ("size", "finetune", "version") for _, k in rest):
        return {}
    parts = {"basename": "-".join(words[:base])}
    parts |= {kind: "-".join(w for w, k in rest if k == kind) for kind in ("version", "finetune")}
    sizes = list(dict.fromkeys(_size(w) for w, k in rest if k == "size"))
    if any(any(c.isdigit() for c in size) for size in sizes):
        sizes = [size for size in sizes if not size.isalpha()]  # of 'mini' and '4B' the number says more
    parts["size_label"] = "-".join(sizes)
    return {kind: text for kind, text in parts.items() if text}


def _size(word: str) -> str:
    return word[:-1] + word[-1].upper() if re.search(r"\d[kmbt]$", word) else word


def _near(word: str, values: int) -> bool:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt])", word.replace("_", "."), re.IGNORECASE)
    if match is None:
        return True
    size = float(match[1]) * 1000.0 ** (" kmbt".find(match[2].lower()))
    return abs(size - values) <= 7 * values / 8


def _titled(name: str) -> str:
    """'smollm2-135m' → 'Smollm2 135m'."""
    words = name.strip().replace("-", " ").split()
    return " ".join(w.title() if w.islower() and not re.match(r"(v\d+(\.\d+)*|\d.*)$", w) else w for w in words)


def _identity(checkpoint: Checkpoint, folder: Path, values: int) -> dict[str, GGUFValue]:
    """Name and its parts: the model's own where config.json has it, else the folder's."""
    own = str(checkpoint.config.get("_name_or_path") or "")
    owner, _, name = own.rpartition("/") if own.count("/") <= 1 and not own.startswith(".") else ("", "", "")
    name = name or folder.resolve().name
    keys = {"general.name": string(_titled(name) or "model")}
    if owner:
        keys["general.organization"] = string(_titled(owner))
    return keys | {f"general.{kind}": string(text) for kind, text in name_parts(name, values).items()}


def _many(value: Any) -> list[str]:
    return [] if not value else [value] if isinstance(value, str) else [str(v) for v in value]


def read_card(path: Path) -> dict[str, str | list[str]]:
    """Scalars and plain lists of a model card's front matter; anything nested is left out. {} without one.

    A card that is no UTF-8 has none either: it says nothing that a program needs.
    """
    try:
        lines = read_text(path).splitlines()
    except UserError:
        return {}
    if not lines or lines[0].strip() != "---":
        return {}
    card: dict[str, str | list[str]] = {}
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return card
        if item := re.match(r"\s*-\s+(?![^'\"]*:\s)(.+)$", line):
            if key and isinstance(card.get(key, []), list):
                card.setdefault(key, []).append(_scalar(item[1]))  # type: ignore[union-attr]
        elif pair := re.match(r"([A-Za-z_]+):\s*(.*)$", line):
            key, value = pair[1], pair[2].strip()
            if value.startswith("[") and value.endswith("]"):
                card[key] = [_scalar(v) for v in value[1:-1].split(",") if v.strip()]
            elif value and value[0] not in "|>{&*":
                card[key] = _scalar(value)
        elif line[:1].strip():
            key = ""
    return {}


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return re.sub(r"\s+#.*$", "", text)
