"""Models that are already on this computer: Hugging Face's cache, LM Studio, Ollama, llama.cpp, our own folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from core.checkpoint.files import LFS_PREFIX
from core.checkpoint.library_places import hub_folders, llama_cpp_folders, lm_studio_folders, ollama_folders

MAX_ENTRIES = 2000  # of one folder; a folder with more is no model library
MAX_MODELS = 500
MAX_MANIFEST = 1 << 20
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_PART = re.compile(r"^(?P<base>.+)-\d{5}-of-(?P<count>\d{5})\.(?P<suffix>safetensors|bin|gguf)$")
_OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"


@dataclass(frozen=True)
class LocalModel:
    """path: what `open_checkpoint` takes. name: as people know it. origin: who put it there. bytes: of its weights.

    missing: weight files that are named and not there, since a download has not ended or a link leads nowhere.
    """

    path: Path
    name: str
    origin: str
    bytes: int
    missing: int = 0


def local_models(
    environ: Mapping[str, str] = os.environ, home: Path | None = None, folders: Sequence[Path] = ()
) -> tuple[LocalModel, ...]:
    """All models found, by name. folders: more places to look in, such as the one for downloads.

    Looks at folder listings only, follows no deep trees, never raises. A file that two programs share is named once.
    """
    home = home or Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    found: dict[str, LocalModel] = {}
    searches: tuple[tuple[Callable[[Path], Iterator[LocalModel]], Sequence[Path]], ...] = (
        (_plain_folder, folders),
        (_hugging_face, hub_folders(environ, home)),
        (_lm_studio, lm_studio_folders(home)),
        (_ollama, ollama_folders(environ, home)),
        (_llama_cpp, llama_cpp_folders(environ, home)),
    )
    for search, places in searches:
        for place in places:
            try:
                for model in islice(search(place), MAX_MODELS):
                    found.setdefault(os.path.realpath(model.path), model)
            except (OSError, ValueError):  # not there, not ours to read, or a link that leads to itself
                continue
    return tuple(sorted(found.values(), key=lambda model: (model.name.lower(), model.origin)))


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing when it can not be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in islice(entries, MAX_ENTRIES))
    except OSError:
        return []


def _size(path: Path) -> int:
    """Bytes of a file, following links; −1 when there is none at the end of them."""
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def _in_folder(folder: Path, name: str, origin: str) -> Iterator[LocalModel]:
    """A folder of weights is one model; GGUF files beside them are one each, a split set counted once."""
    listed = _entries(folder)
    entries = [(path, size) for path in listed if (size := _size(path)) > 0 and not _is_pointer(path, size)]
    weights = [(path, size) for path, size in entries if path.suffix == ".safetensors"]
    weights = weights or [(path, size) for path, size in entries if re.match(r"pytorch_model.*\.bin$", path.name)]
    if weights and any(path.name == "config.json" for path, _ in entries):
        missing = _missing([path for path, _ in weights], listed)
        yield LocalModel(folder, name, origin, sum(size for _, size in weights), missing)
    ggufs = [
        (path, size) for path, size in entries if path.suffix.lower() == ".gguf" and "mmproj" not in path.name.lower()
    ]
    for path, size in ggufs:
        if _LATER_PART.search(path.name):
            continue
        stem = re.sub(r"-00001-of-\d{5}$", "", path.stem)
        parts = [s for p, s in ggufs if p != path and _LATER_PART.search(p.name) and p.name.startswith(stem + "-")]
        missing = _missing([path], [p for p, _ in ggufs])
        yield LocalModel(path, f"{name.rpartition('/')[0]}/{stem}".lstrip("/"), origin, size + sum(parts), missing)


def _missing(weights: Sequence[Path], listed: Sequence[Path]) -> int:
    """How many of the parts that the names speak of are not there, or are links that lead nowhere."""
    shard = next((m for path in weights if (m := _PART.match(path.name))), None)
    if shard is None:
        return 0
    names = {path.name for path in listed if _size(path) > 0}
    count = int(shard["count"])
    return sum(
        f"{shard['base']}-{number:05d}-of-{shard['count']}.{shard['suffix']}" not in names
        for number in range(1, min(count, MAX_ENTRIES) + 1)
    )


def _is_pointer(path: Path, size: int) -> bool:
    """Whether Git LFS has left a note in place of the file."""
    if size > 1024 or path.suffix not in (".safetensors", ".gguf", ".bin"):
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(LFS_PREFIX)) == LFS_PREFIX
    except OSError:
        return True


def _with_folders(folder: Path, name: str, origin: str) -> Iterator[LocalModel]:
    """A repository: what lies at its top, and in the folders below, where large GGUFs are kept by quantization."""
    yield from _in_folder(folder, name, origin)
    for below in _entries(folder):
        if not below.name.startswith(".") and below.is_dir():
            yield from _in_folder(below, f"{name}/{below.name}" if _has_config(below) else name, origin)


def _has_config(folder: Path) -> bool:
    return _size(folder / "config.json") > 0


def _hugging_face(hub: Path) -> Iterator[LocalModel]:
    for repository in _entries(hub):
        if not repository.name.startswith("models--"):
            continue
        name = repository.name.removeprefix("models--").replace("--", "/")
        snapshots = _entries(repository / "snapshots")
        try:
            current = (repository / "refs" / "main").read_text(encoding="utf-8")[:64].strip()
        except (OSError, ValueError):
            current = ""
        snapshots.sort(key=lambda path: path.name != current)
        for snapshot in snapshots:
            models = list(_with_folders(snapshot, name, "Hugging Face"))
            if models:
                yield from models
                break


def _lm_studio(models: Path) -> Iterator[LocalModel]:
    for publisher in _entries(models):
        for repository in _entries(publisher):
            yield from _with_folders(repository, f"{publisher.name}/{repository.name}", "LM Studio")


def _plain_folder(folder: Path) -> Iterator[LocalModel]:
    """OWNER/NAME, NAME, or files, as people keep them."""
    yield from _in_folder(folder, folder.name, folder.name)
    for owner in _entries(folder):
        if owner.name.startswith(".") or not owner.is_dir():
            continue
        yield from _in_folder(owner, owner.name, folder.name)
        for repository in _entries(owner):
            if not repository.name.startswith(".") and repository.is_dir():
                yield from _with_folders(repository, f"{owner.name}/{repository.name}", folder.name)


def _llama_cpp(cache: Path) -> Iterator[LocalModel]:
    """OWNER_NAME_FILE.gguf, all in one folder."""
    yield from _in_folder(cache, "", "llama.cpp")


def _ollama(models: Path) -> Iterator[LocalModel]:
    """manifests/HOST/NAMESPACE/MODEL/TAG is a JSON list of layers; the weights are the blob of one of them, a GGUF."""
    for host in _entries(models / "manifests"):
        for namespace in _entries(host):
            for model in _entries(namespace):
                for tag in _entries(model):
                    blob = _ollama_blob(tag, models / "blobs")
                    if blob is not None:
                        owner = "" if namespace.name == "library" else f"{namespace.name}/"
                        yield LocalModel(blob, f"{owner}{model.name}:{tag.name}", "Ollama", _size(blob))


def _ollama_blob(manifest: Path, blobs: Path) -> Path | None:
    if not 0 < _size(manifest) <= MAX_MANIFEST:
        return None
    try:
        layers = json.loads(manifest.read_bytes())["layers"]
        digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_WEIGHTS)
        blob = blobs / digest.replace(":", "-")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    return blob if re.fullmatch(r"sha256-[0-9a-f]{64}", blob.name) and _size(blob) > 0 else None
