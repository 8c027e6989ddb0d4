"""Safetensors files as a layout.

File: u64 header length, JSON header, data without gaps. The header gives each array's dtype, shape and byte range from
the end of the header; it is filled up with spaces so that the data starts at a multiple of eight.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence

from core.errors import UserError
from core.export.layout import OutputFile, PlacedPart

MAX_SHARD = 5_000_000_000
INDEX_NAME = "model.safetensors.index.json"

_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}

SafetensorsArray = tuple[str, Sequence[int], str, int]


def safetensors_files(
    arrays: Sequence[SafetensorsArray],
    max_shard: int = MAX_SHARD,
    metadata: Mapping[str, str] | None = None,
    totals: Mapping[str, int] | None = None,
) -> tuple[tuple[OutputFile, ...], tuple[PlacedPart, ...], bytes]:
    """Place arrays, each (name, shape, safetensors dtype, bytes), in one file or in shards of at most `max_shard`.

    Arrays of one module stay in one shard; an array larger than a shard gets its own. `PlacedPart.tensor` is the
    array's index. The third result is the index file's content, b'' for a single file without `totals`, which are more
    numbers for it.
    metadata: of each file, {"format": "pt"} when None. Raises UserError when two arrays have the same name.
    """
    counts = Counter(name for name, _, _, _ in arrays)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UserError(f"Two arrays would both be called '{twice[0]}'.", "Check the folder for leftover files.")
    shards = _shards(arrays, max_shard)
    files = []
    parts = []
    weight_map = {}
    for number, shard in enumerate(shards):
        count = len(shards)
        name = "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        # Wide items first, so that each array starts at a multiple of its item's size without gaps.
        ordered = sorted(shard, key=lambda i: -_ITEM_BYTES.get(arrays[i][2], 1))
        header, size = _header([arrays[i] for i in ordered], metadata or {"format": "pt"})
        offset = len(header)
        for i in ordered:
            parts.append(PlacedPart(tensor=i, part=0, file=number, offset=offset, nbytes=arrays[i][3]))
            weight_map[arrays[i][0]] = name
            offset += arrays[i][3]
        files.append(OutputFile(name, header, len(header) + size))
    index = b""
    if len(shards) > 1 or totals:
        total = sum(nbytes for _, _, _, nbytes in arrays)
        content = {"metadata": {"total_size": total, **(totals or {})}, "weight_map": dict(sorted(weight_map.items()))}
        index = json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
    return tuple(files), tuple(sorted(parts, key=lambda p: p.tensor)), index


def _shards(arrays: Sequence[SafetensorsArray], max_shard: int) -> list[list[int]]:
    modules: list[list[int]] = []
    previous = None
    for i, (name, _, _, _) in enumerate(arrays):
        module = name.rpartition(".")[0]
        if not module or module != previous:
            modules.append([])
        modules[-1].append(i)
        previous = module
    shards: list[list[int]] = [[]]
    filled = 0
    for members in modules:
        size = sum(arrays[i][3] for i in members)
        if shards[-1] and filled + size > max_shard:
            shards.append([])
            filled = 0
        shards[-1] += members
        filled += size
    return shards


def _header(arrays: Sequence[SafetensorsArray], metadata: Mapping[str, str]) -> tuple[bytes, int]:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for name, shape, dtype, nbytes in arrays:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = _dump(entries).encode()
    text = text.ljust(-(-len(text) // 8) * 8, b" ")
    return struct.pack("<Q", len(text)) + text, position


def _dump(entries: Mapping[str, object]) -> str:
    """Compact JSON, a thousand entries at a time: one call would keep every other thread waiting until its end."""
    items = list(entries.items())
    pieces = (dict(items[i : i + 1000]) for i in range(0, len(items), 1000))
    return "{" + ",".join(json.dumps(p, separators=(",", ":"), ensure_ascii=False)[1:-1] for p in pieces) + "}"
