"""Safetensors files, read by the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from core.errors import UserError
from core.export.safetensors_files import safetensors_files

RNG = np.random.default_rng(5)
# In an order in which, one after the other, some would not start at a multiple of their item's size.
ARRAYS = {
    "model.norm.weight": RNG.normal(size=3).astype(np.float16),
    "model.layers.0.a.weight_packed": RNG.integers(-9, 9, (3, 5)).astype(np.int32),
    "model.layers.0.a.weight_scale": RNG.normal(size=(3, 1)).astype(np.float16),
    "model.layers.0.a.weight_shape": np.array([3, 40]),
    "model.layers.1.b.weight": RNG.normal(size=(5, 7)).astype(np.float32),
    "flags": np.array([1, 2, 3], np.uint8),
}
DTYPES = {"float16": "F16", "int32": "I32", "int64": "I64", "float32": "F32", "uint8": "U8"}


def save(folder: Path, max_shard: int) -> tuple[list[str], bytes]:
    entries = [(n, a.shape, DTYPES[str(a.dtype)], a.nbytes) for n, a in ARRAYS.items()]
    files, parts, index = safetensors_files(entries, max_shard)
    assert [p.tensor for p in parts] == list(range(len(ARRAYS)))
    data = [bytearray(f.size) for f in files]
    for f, d in zip(files, data, strict=True):
        assert len(f.header) % 8 == 0
        d[: len(f.header)] = f.header
    for part, a in zip(parts, ARRAYS.values(), strict=True):
        assert part.offset % a.itemsize == 0
        data[part.file][part.offset : part.offset + part.nbytes] = a.tobytes()
    assert sum(f.size for f in files) == sum(len(f.header) for f in files) + sum(a.nbytes for a in ARRAYS.values())
    for f, d in zip(files, data, strict=True):
        (folder / f.name).write_bytes(bytes(d))
    return [f.name for f in files], index


def test_one_file(tmp_path: Path) -> None:
    names, index = save(tmp_path, 1 << 20)
    assert (names, index) == (["model.safetensors"], b"")
    found = load_file(tmp_path / "model.safetensors")
    assert set(found) == set(ARRAYS)
    assert all(np.array_equal(found[n], a) for n, a in ARRAYS.items())


def test_shards(tmp_path: Path) -> None:
    """Arrays of a module stay together, and a module larger than a shard gets one for itself."""
    names, index = save(tmp_path, 100)
    assert names == [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    content = json.loads(index)
    assert content["metadata"] == {"total_size": sum(a.nbytes for a in ARRAYS.values())}
    found = {}
    for name in names:
        shard = load_file(tmp_path / name)
        assert {content["weight_map"][key] for key in shard} == {name}
        found |= shard
    assert all(np.array_equal(found[n], a) for n, a in ARRAYS.items())
    assert len({content["weight_map"][n] for n in ARRAYS if n.startswith("model.layers.0.")}) == 1


def test_names_twice() -> None:
    entry = ("a", (1,), "U8", 1)
    with pytest.raises(UserError, match="'a'"):
        safetensors_files([entry, entry])


def test_no_arrays() -> None:
    files, parts, _ = safetensors_files([])
    assert len(files) == 1
    assert parts == ()
