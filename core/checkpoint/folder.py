"""Hugging Face folders: which weight files make up the model, its config, and the files that go along with it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.checkpoint.files import LFS_PREFIX, cannot_read, read_start
from core.checkpoint.findings import some
from core.errors import UserError

MAX_JSON = 64 << 20
SAFETENSORS_INDEX = "model.safetensors.index.json"
PYTORCH_INDEX = "pytorch_model.bin.index.json"
PYTORCH_SUFFIXES = (".bin", ".pt", ".pth")
UNFINISHED = (".incomplete", ".crdownload", ".part", ".aria2", ".download", ".partial", ".!ut")
_SHARD = re.compile(r"^(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<suffix>safetensors|bin)$")
# Files of PyTorch that are no weights: trainer state and the like.
_NO_WEIGHTS = (
    "training_args",
    "optimizer",
    "scheduler",
    "rng_state",
    "random_states",
    "trainer_state",
    "adapter_model",
    "scaler",
)
_SIDE = re.compile(
    r"^(?:generation_config\.json|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt|spiece\.model|"
    r"tekken\.json|sentencepiece.*|chat_template.*|preprocessor_config\.json|processor_config\.json|.*\.tiktoken|"
    r"(?:LICEN[CS]E|NOTICE|USE_POLICY|README|COPYING).*|.*\.py)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold the tensors, in order. index: tensor name → file name, as an index file says, else empty."""

    files: tuple[Path, ...]
    index: dict[str, str] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()


def read_json(path: Path, required: bool = True) -> dict[str, Any]:
    """A JSON object; {} when the file is absent and not required. Raises UserError when it is damaged or too large."""
    if not path.exists():
        if required:
            raise UserError(f"{path.name} is not there.", f"Check the folder {path.parent}.")
        return {}
    raw = read_start(path, MAX_JSON + 1)
    if raw.startswith(LFS_PREFIX):
        raise UserError(f"{path.name} is a Git LFS pointer, not the file itself.", "Run `git lfs pull` in that folder.")
    if len(raw) > MAX_JSON:
        raise UserError(f"{path.name} is larger than any such file should be.", "Download it again.")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is damaged: it is no valid JSON.", "Download it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{path.name} does not hold what its name says.", "Download it again.")
    return found


def list_folder(folder: Path) -> list[Path]:
    """Files of a folder by name. Raises UserError when it can not be read."""
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_file() or entry.is_symlink())
    except OSError as error:
        raise cannot_read(folder, error) from error


def side_files(folder: Path) -> tuple[Path, ...]:
    """Tokenizer, generation config, chat template, licence, README and the model's own code."""
    return tuple(entry for entry in list_folder(folder) if _SIDE.match(entry.name) and entry.is_file())


def find_weights(folder: Path) -> WeightFiles:
    """The weight files of a folder: safetensors before PyTorch, an index before a guess. No weights: files is empty.

    Raises UserError when files that belong to the model are missing, or when the folder holds several models.
    """
    entries = list_folder(folder)
    unfinished = _unfinished(folder, entries)
    by_name = {entry.name: entry for entry in entries}
    for index_name, suffixes in ((SAFETENSORS_INDEX, (".safetensors",)), (PYTORCH_INDEX, PYTORCH_SUFFIXES)):
        weights = [e for e in entries if e.suffix in suffixes and not e.name.startswith(_NO_WEIGHTS)]
        if index_name in by_name:
            # A safetensors index left behind in a folder that only has PyTorch weights must not hide them.
            if not weights and any(
                e.suffix in PYTORCH_SUFFIXES and e.stem.startswith("pytorch_model") for e in entries
            ):
                continue
            return _from_index(folder, by_name[index_name], weights, unfinished)
        other = [e for e in entries if e.name.endswith(suffixes[0] + ".index.json")]
        if len(other) == 1 and weights:
            return _from_index(folder, other[0], weights, unfinished)
        if weights:
            return WeightFiles(_without_index(folder, weights, unfinished), {}, unfinished)
    return WeightFiles((), {}, unfinished)


def _from_index(folder: Path, index_path: Path, present: Sequence[Path], unfinished: tuple[str, ...]) -> WeightFiles:
    weight_map = read_json(index_path).get("weight_map")
    again = "Download the index again."
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()) or not weight_map:
        raise UserError(f"{index_path.name} does not say which tensor lies in which file.", again)
    names = sorted(set(weight_map.values()))
    if any(name != Path(name).name or "\\" in name or name in ("", ".", "..") for name in names):
        raise UserError(f"{index_path.name} names files outside of its folder.", again)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        others = [entry.name for entry in present if entry.name not in names]
        if others and len(missing) == len(names):
            raise UserError(
                f"{index_path.name} names {some(missing)}, but the files there are {some(others)}.",
                "Download the index that belongs to these files, or delete it if there is one file only.",
            )
        raise missing_shards(missing, len(names), unfinished)
    return WeightFiles(tuple(folder / name for name in names), weight_map, unfinished)


def _without_index(folder: Path, weights: Sequence[Path], unfinished: tuple[str, ...]) -> tuple[Path, ...]:
    named = [w for w in weights if w.name in ("model.safetensors", "pytorch_model.bin")]
    if named:
        return (named[0],)
    sets = {(m["base"], m["count"], m["suffix"]) for w in weights if (m := _SHARD.match(w.name))}
    if len(sets) == 1:
        base, count, suffix = sets.pop()
        names = [f"{base}-{number:05d}-of-{count}.{suffix}" for number in range(1, min(int(count), 100_000) + 1)]
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise missing_shards(missing, len(names), unfinished)
        return tuple(folder / name for name in names)
    if len(weights) == 1:
        return (weights[0],)
    raise UserError(
        f"This folder holds {len(weights)} weight files that do not say how they belong together: "
        f"{some([w.name for w in weights])}.",
        "Open one of the files, or add the index that came with them.",
    )


def missing_shards(missing: Sequence[str], total: int, unfinished: Sequence[str] = ()) -> UserError:
    """The error for parts of a model that are not there."""
    hint = "Download the missing files into the same folder."
    if unfinished:
        hint = f"The download is not finished ({some(unfinished)}): start it again, it goes on where it was."
    return UserError(f"{len(missing)} of the model's {total} weight files are missing: {some(missing)}.", hint)


def _unfinished(folder: Path, entries: Iterable[Path]) -> tuple[str, ...]:
    found = [entry.name for entry in entries if entry.name.lower().endswith(UNFINISHED)]
    partial = folder / ".cache" / "huggingface" / "download"  # where `hf download --local-dir` keeps what it has so far
    with contextlib.suppress(OSError):
        found += [entry.name for entry in partial.iterdir() if entry.suffix == ".incomplete"]
    return tuple(sorted(found))
