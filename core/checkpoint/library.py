"""Models that are already on this computer: Hugging Face cache, LM Studio, Ollama."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MAX_ENTRIES = 2000  # of one folder; a folder with more is no model library
MAX_MODELS = 500
MAX_MANIFEST = 1 << 20
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"


@dataclass(frozen=True)
class LocalModel:
    """path: what `open_checkpoint` takes. name: as people know it. origin: who put it there. bytes: of its weights."""

    path: Path
    name: str
    origin: str
    bytes: int


def local_models(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> tuple[LocalModel, ...]:
    """All models found, by name. Looks at folder listings only, follows no deep trees, and never raises."""
    home = home or Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    found: dict[Path, LocalModel] = {}
    searches: tuple[tuple[Callable[[Path], Iterator[LocalModel]], tuple[Path, ...]], ...] = (
        (_hugging_face, _hub_folders(environ, home)),
        (_lm_studio, _lm_studio_folders(home)),
        (_ollama, _ollama_folders(environ, home)),
    )
    for search, folders in searches:
        for folder in folders:
            try:
                for model in islice(search(folder), MAX_MODELS):
                    found.setdefault(model.path, model)
            except (OSError, ValueError):  # not there, not ours to read, or a link that leads to itself
                continue
    return tuple(sorted(found.values(), key=lambda model: (model.name.lower(), model.origin)))


def _hub_folders(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    for key, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if environ.get(key):
            return (Path(environ[key]) / below,)
    cache = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else home / ".cache"
    return (cache / "huggingface" / "hub",)


def _lm_studio_folders(home: Path) -> tuple[Path, ...]:
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    pointer = home / ".lmstudio-home-pointer"  # LM Studio notes here where its files were moved to
    with contextlib.suppress(OSError, ValueError):
        folders.insert(0, Path(pointer.read_text(encoding="utf-8")[:4096].strip()) / "models")
    return tuple(folders)


def _ollama_folders(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    if environ.get("OLLAMA_MODELS"):
        return (Path(environ["OLLAMA_MODELS"]),)
    return (home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"))  # the second: its Linux service


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
    entries = [(path, size) for path in _entries(folder) if (size := _size(path)) > 0]
    weights = [size for path, size in entries if path.suffix == ".safetensors"]
    weights = weights or [size for path, size in entries if re.match(r"pytorch_model.*\.bin$", path.name)]
    if weights and any(path.name == "config.json" for path, _ in entries):
        yield LocalModel(folder, name, origin, sum(weights))
    ggufs = [
        (path, size) for path, size in entries if path.suffix.lower() == ".gguf" and "mmproj" not in path.name.lower()
    ]
    for path, size in ggufs:
        if _LATER_PART.search(path.name):
            continue
        stem = re.sub(r"-00001-of-\d{5}$", "", path.stem)
        parts = [s for p, s in ggufs if p != path and _LATER_PART.search(p.name) and p.name.startswith(stem + "-")]
        yield LocalModel(path, f"{name.rpartition('/')[0]}/{stem}".lstrip("/"), origin, size + sum(parts))


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
            models = list(_in_folder(snapshot, name, "Hugging Face"))
            if models:
                yield from models
                break


def _lm_studio(models: Path) -> Iterator[LocalModel]:
    for publisher in _entries(models):
        for repository in _entries(publisher):
            yield from _in_folder(repository, f"{publisher.name}/{repository.name}", "LM Studio")


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
