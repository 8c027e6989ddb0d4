"""Measured activations on disk: measuring a large model again takes minutes, reading this takes none."""

from __future__ import annotations

import hashlib
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.inspect.activations import ActivationLayer, Activations, Place
from core.inspect.cache import cache_folder, keep, used

VERSION = 2  # of what is stored, and of what is measured: another one is measured anew
_FIGURES = ("max", "rms", "weight_max")
MAX_BYTES = 1 << 30  # a mixture of experts has a quarter of that


def cache_path(checkpoint: Checkpoint, tokens: list[int] | tuple[int, ...]) -> Path:
    """The file of a checkpoint, as it is now, and these tokens."""
    config = json.dumps(dict(checkpoint.config), sort_keys=True, default=str)  # no part of a folder's fingerprint
    key = f"{VERSION} {checkpoint.fingerprint()} {config} {list(tokens)}"
    name = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()
    return cache_folder() / f"activations-{name[:40]}.npz"


def store_activations(checkpoint: Checkpoint, found: Activations) -> None:
    """Keep a result. Without room or rights nothing is kept, and nothing is said: the next time measures again."""
    about = [
        {
            "name": a.name,
            "layer": a.layer,
            "place": a.place.value,
            "expert": a.expert,
            "tensors": a.tensors,
            "tokens": a.tokens,
            "channels": a.channels,
        }
        for a in found.layers
    ]
    arrays: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "tokens": np.array(found.tokens, np.int64),
        "channels": np.stack([np.concatenate([getattr(a, name) for a in found.layers]) for name in _FIGURES]),
        "token_max": np.concatenate([a.token_max for a in found.layers]),
        "cache": np.array(found.cache, np.float64).reshape(-1, 2),
        "snr": np.array([(a.tensor_snr_db, a.token_snr_db) for a in found.layers]),
    }
    keep(cache_path(checkpoint, found.tokens), lambda file: np.savez(file, **arrays))


def load_activations(checkpoint: Checkpoint, tokens: list[int]) -> Activations | None:
    """What was kept, None when there is nothing or it is damaged."""
    path = cache_path(checkpoint, tokens)
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        with np.load(path, allow_pickle=False) as data:
            about = json.loads(data["about"].tobytes())
            figures, token_max, snr = data["channels"], data["token_max"], data["snr"]
            kept, cache = data["tokens"].tolist(), tuple((float(k), float(v)) for k, v in data["cache"])
        if kept != tokens or figures.dtype != np.float32 or snr.shape != (len(about), 2):
            return None
        ends = list(accumulate(a["channels"] for a in about))
        rows = list(accumulate(a["tokens"] for a in about))
        if figures.shape != (len(_FIGURES), ends[-1]) or token_max.shape != (rows[-1],):
            return None
        layers = [
            ActivationLayer(
                str(a["name"]),
                a["layer"],
                Place(a["place"]),
                a["expert"],
                tuple(a["tensors"]),
                a["tokens"],
                figures[0, end - a["channels"] : end],
                figures[1, end - a["channels"] : end],
                figures[2, end - a["channels"] : end],
                token_max[row - a["tokens"] : row],
                float(snr[i, 0]),
                float(snr[i, 1]),
            )
            for i, (a, end, row) in enumerate(zip(about, ends, rows, strict=True))
        ]
    except Exception:  # noqa: BLE001 - whatever is wrong with the file, it is made again
        return None
    used(path)
    return Activations(tuple(layers), tuple(tokens), cache=cache)
