"""From any path that a person may drop to an open checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from core.checkpoint.base import Checkpoint
from core.checkpoint.files import cannot_read, check_is_weights, read_start
from core.checkpoint.findings import some
from core.checkpoint.folder import (
    PYTORCH_INDEX,
    PYTORCH_SUFFIXES,
    SAFETENSORS_INDEX,
    UNFINISHED,
    WeightFiles,
    find_weights,
    list_folder,
)
from core.checkpoint.gguf import open_gguf, split_parts
from core.checkpoint.hf import open_safetensors
from core.errors import UserError

# Formats of weights, and archives, that people try and that are not read here.
_FOREIGN = (".h5", ".msgpack", ".onnx", ".npz", ".ckpt", ".tflite", ".mlmodel", ".pkl", ".zip", ".gz", ".tar", ".7z")


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a model from its folder, any file of that folder, one .safetensors, .gguf or PyTorch file, or a part of one.

    Reads headers only. The first bytes tell what a file is, not only its extension. Raises UserError with one sentence
    and a next step for everything that can not be opened.
    """
    path = Path(path).expanduser()
    try:
        is_folder = path.is_dir()
        if not is_folder and not path.exists():
            lost = "The link points to a file that was removed: download it again."
            hint = lost if path.is_symlink() else _not_there(path)
            raise UserError(f"{path.name or path} is not there.", hint)
    except (OSError, ValueError) as error:
        raise cannot_read(path, error if isinstance(error, OSError) else OSError(str(error))) from error
    from core.packed.checkpoint import unpacked

    return unpacked(_open_folder(path) if is_folder else _open_file(path))


def _not_there(path: Path) -> str:
    """What to do about a path without anything behind it; a repository's name on the hub looks like one."""
    parts = path.parts
    named = len(parts) == 2 and all(re.fullmatch(r"[A-Za-z0-9][\w.-]*", part) for part in parts)
    if named and not path.parent.exists() and path.suffix not in (".safetensors", ".gguf", ".json", *PYTORCH_SUFFIXES):
        name = "/".join(parts)
        return f"If it is a model on Hugging Face, fetch it with 'bitsmith download {name}'; else check it for a typo."
    return "Check the path for a typo."


def _open_file(path: Path) -> Checkpoint:
    name = path.name.lower()
    if not path.is_file():  # reading a pipe or a device could wait for ever
        raise UserError(f"{path.name} is not a file.", "Choose a model file or its folder.")
    if name.endswith(UNFINISHED):
        raise UserError(f"{path.name} is a download that is not finished.", "Wait until it is, or start it again.")
    if name.endswith((".json", ".txt", ".md", ".jinja", ".model")):
        return _open_folder(path.parent)
    start = read_start(path, 4096)
    check_is_weights(path, start, path.stat().st_size)
    if start[:4] == b"GGUF" or name.endswith(".gguf"):
        return open_gguf(path)
    if start[:2] == b"PK" or name.endswith(PYTORCH_SUFFIXES):
        from core.checkpoint.pytorch import open_pytorch

        weights, folder = _around(path)
        return open_pytorch(folder or path, weights, folder)
    if name.endswith(_FOREIGN):
        raise UserError(
            f"{path.name} is not in a format that can be opened.", "Choose a .safetensors, .gguf or PyTorch .bin file."
        )
    weights, folder = _around(path)
    return open_safetensors(folder or path, weights, folder)


def _around(path: Path) -> tuple[WeightFiles, Path | None]:
    """The model folder that a weight file belongs to, or just the file (then with None)."""
    folder = path.parent
    names = {entry.name for entry in list_folder(folder)}
    if "config.json" in names or SAFETENSORS_INDEX in names or PYTORCH_INDEX in names or "-of-" in path.name:
        try:
            weights = find_weights(folder)
        except UserError:
            if "-of-" in path.name:  # part of a set: alone it is no model
                raise
            weights = WeightFiles(())
        if path in weights.files:
            return weights, folder
    return WeightFiles((path,)), folder if "config.json" in names else None


def _open_folder(folder: Path) -> Checkpoint:
    weights = find_weights(folder)
    if weights.files:
        if weights.files[0].suffix == ".safetensors":
            return open_safetensors(folder, weights, folder)
        from core.checkpoint.pytorch import open_pytorch

        return open_pytorch(folder, weights, folder)
    entries = list_folder(folder)
    ggufs = [entry for entry in entries if entry.suffix.lower() == ".gguf"]
    models = [g for g in ggufs if "mmproj" not in g.name.lower() and "imatrix" not in g.name.lower()] or ggufs
    if models:
        first = split_parts(models[0])
        if set(models) <= set(first):
            return open_gguf(models[0])
        raise UserError(
            f"This folder holds {len(models)} GGUF files: {some([g.name for g in models])}.",
            "Open the one that you want.",
        )
    raise _no_model(folder, entries, weights.unfinished)


def _no_model(folder: Path, entries: Sequence[Path], unfinished: Sequence[str]) -> UserError:
    """Why a folder without weights is no model, and what to open instead."""
    names = {entry.name for entry in entries}
    if "adapter_config.json" in names:
        return UserError(
            f"{folder.name} is an adapter (LoRA), not a whole model.",
            "Merge it into its base model first, then open the merged folder.",
        )
    if unfinished:
        return UserError(
            f"The download in {folder.name} is not finished ({some(unfinished)}).",
            "Start it again: it goes on where it was.",
        )
    try:
        folders = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        return cannot_read(folder, error)
    snapshots = folder / "snapshots"
    if snapshots in folders:
        inside = sorted(entry.name for entry in snapshots.iterdir())
        return UserError(
            f"{folder.name} is a download cache; the model is one level down.",
            f"Open {snapshots / inside[-1]}." if inside else "The cache is empty: download the model again.",
        )
    below = [f.name for f in folders[:1000] if any(f.glob("*.safetensors")) or any(f.glob("*.gguf"))]
    if below:
        return UserError(
            f"{folder.name} holds no model itself, but the folder {some(below)} does.", "Open that folder."
        )
    if folders and not entries:
        return UserError(
            f"{folder.name or folder} holds no model itself, only folders: {some([f.name for f in folders])}.",
            "Open the one that has the model in it.",
        )
    if not entries:
        return UserError(f"The folder {folder.name or folder} is empty.", "Open the folder that has the model in it.")
    other = [e.name for e in entries if e.suffix in _FOREIGN]
    if other:
        return UserError(
            f"{folder.name} only holds weights in a format that can not be opened: {some(other)}.",
            "Download the model's .safetensors files.",
        )
    if "config.json" in names:
        return UserError(f"{folder.name} has a config but no weights.", "Download the .safetensors files too.")
    return UserError(f"{folder.name} holds no weights.", "Open a folder with .safetensors or .gguf files.")
