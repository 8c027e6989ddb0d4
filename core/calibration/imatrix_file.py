"""llama.cpp's files of importance matrices, its older format (.dat) and the GGUF one.

GGUF: for each weight the float32 tensors '<name>.in_sum2' [E, K] (Σx²) and '<name>.counts' [E, 1], and the keys
general.type 'imatrix', imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size. Older: i32 number of entries; for
each i32 length and name, i32 calls, i32 number of values, float32 values (mean square × calls); then i32 calls in all,
i32 length and name of the data set, which may be missing. Source: llama.cpp, tools/imatrix, common/imatrix-loader.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from core.calibration.imatrix import Importance, ImportanceMatrix
from core.checkpoint.files import cannot_read, read_exactly
from core.checkpoint.gguf_header import GgufHeader, RawTensor, read_header
from core.disk import disk_errors
from core.errors import UserError
from core.export.gguf_values import MAX_NAME, GGUFType, GGUFValue, encode_record, u32

SUMS, COUNTS = ".in_sum2", ".counts"
MOST_ENTRIES = 1 << 18
LONGEST_NAME = 1 << 12  # bytes
LARGEST = 1 << 32  # bytes of a file of the older format; a model of 400 B parameters has 100 MB
_F32 = 0  # GGML's number of the type
_ALIGNMENT, _VERSION = 32, 3
_AGAIN = "Download or compute it again."


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Either format, told by the file's first bytes. Raises UserError for what is none, is cut off, or has no numbers.

    Experts that met no token keep a count of 0; `Importance.means` says what stands in for them.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if start != b"GGUF" and path.stat().st_size > LARGEST:
                raise _no_matrix(path)
            older = b"" if start == b"GGUF" else start + file.read()
    except OSError as e:
        raise cannot_read(path, e) from e
    found = _read_gguf(path) if start == b"GGUF" else _read_older(path, older)
    for name, entry in found.entries.items():
        if not np.isfinite(entry.sums).all() or (entry.sums < 0).any():
            raise UserError(
                f"{path.name} has values for {name} that are no mean squares (NaN, Inf or below 0).", _AGAIN
            )
    empty = [name for name, entry in found.entries.items() if not entry.counts.any()]
    notes = []
    if empty:
        who = empty[0] if len(empty) == 1 else f"{len(empty)} weights of the importance matrix, {empty[0]} among them,"
        notes.append(f"{who} met no token; all channels count the same.")
    return ImportanceMatrix(
        found.entries, found.chunks, found.chunk_size, found.datasets, (*found.about_experts(), *notes)
    )


def write_imatrix(path: Path, matrix: ImportanceMatrix) -> None:
    """In the older format when the name ends with .dat, in GGUF otherwise; whole or not at all. Raises UserError.

    The older format has no counts of experts: one that met no token is written with the mean of the others.
    """
    data = _older_bytes(matrix) if path.suffix.lower() == ".dat" else imatrix_bytes(matrix)
    with disk_errors(path, "try again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
            try:
                file.write(data)
                file.close()
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)


def _no_matrix(path: Path) -> UserError:
    return UserError(
        f"{path.name} is not an importance matrix.", "Choose a file of llama-imatrix, or one that was computed here."
    )


def _read_gguf(path: Path) -> ImportanceMatrix:
    header = read_header(path)
    tensors = {t.name: t for t in header.tensors}
    names = [n.removesuffix(SUMS) for n in tensors if n.endswith(SUMS)]
    if not names:
        if "general.architecture" in header.metadata:
            raise UserError(
                f"{path.name} is a model, not an importance matrix.", "Choose the file that llama-imatrix wrote."
            )
        raise _no_matrix(path)
    entries = {}
    for name in sorted(names):
        if name + COUNTS not in tensors:
            raise UserError(f"{path.name} has no counts for {name}.", _AGAIN)
        sums, counts = (_values(path, header, tensors[name + suffix]) for suffix in (SUMS, COUNTS))
        if not counts.size or sums.size % counts.size or not np.isfinite(counts).all():
            raise UserError(f"{path.name} has {sums.size} sums and {counts.size} counts for {name}.", _AGAIN)
        entries[name] = Importance(sums.reshape(counts.size, -1), np.rint(counts).clip(0).astype(np.int64))
    metadata = header.metadata
    datasets = metadata.get("imatrix.datasets")
    return ImportanceMatrix(
        entries,
        _number(metadata, "imatrix.chunk_count"),
        _number(metadata, "imatrix.chunk_size"),
        tuple(datasets) if isinstance(datasets, list) else (),
    )


def _number(metadata: Mapping[str, object], key: str) -> int:
    value = metadata.get(key)
    return value if isinstance(value, int) and value >= 0 else 0


def _values(path: Path, header: GgufHeader, tensor: RawTensor) -> np.ndarray:
    """float32 [values]"""
    if tensor.kind != _F32:
        raise UserError(f"{path.name} has {tensor.name} in another type than F32.", _AGAIN)
    size = 4
    for axis in tensor.dims:
        size *= axis
    start = header.data_start + tensor.offset
    if start + size > header.file.size:
        raise UserError(f"{path.name} is cut off in {tensor.name}.", _AGAIN)
    out = np.empty(size, np.uint8)
    read_exactly(header.file, start, out)
    return out.view("<f4")


class _Bytes:
    """Numbers and texts of the older format, one after the other."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.at = path, data, 0
        self.entry = "its head"

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise UserError(f"{self.path.name} is cut off in {self.entry}.", _AGAIN)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        return int(struct.unpack("<i", self.take(4))[0])

    def text(self) -> str:
        length = self.number()
        if not 0 <= length <= LONGEST_NAME:
            raise _no_matrix(self.path)
        return self.take(length).decode("utf-8", "replace")


def _read_older(path: Path, data: bytes) -> ImportanceMatrix:
    if not data:
        raise UserError(f"{path.name} is empty.", _AGAIN)
    file = _Bytes(path, data)
    count = file.number()
    if not 1 <= count <= MOST_ENTRIES or count * 16 > len(data) + LONGEST_NAME:
        raise _no_matrix(path)
    entries: dict[str, Importance] = {}
    for i in range(count):
        file.entry = f"entry {i + 1} of {count}"
        name = file.text()
        if not name.isprintable() or not name:
            raise _no_matrix(path)
        file.entry = f"the entry of {name}"
        calls, number = file.number(), file.number()
        if number < 1:
            raise UserError(f"{path.name} has {number} values for {name}.", _AGAIN)
        values = np.frombuffer(file.take(4 * number), "<f4").reshape(1, -1)
        entries[name] = Importance(values, np.array([max(calls, 1)], np.int64))
    chunks, datasets = 0, []
    if file.left >= 4:  # older ones end here
        chunks = file.number()
        if file.left >= 4 and (dataset := file.text()):
            datasets.append(dataset)
    return ImportanceMatrix(entries, max(chunks, 0), 0, tuple(datasets))


def _older_bytes(matrix: ImportanceMatrix) -> bytes:
    out = [struct.pack("<i", len(matrix.entries))]
    size = max(matrix.chunk_size, 1)
    for name, entry in sorted(matrix.entries.items()):
        calls = max(1, -(-int(entry.counts.max()) // size))
        values = (entry.means * np.float32(calls)).astype("<f4").reshape(-1)
        text = name.encode()
        out += [struct.pack("<i", len(text)), text, struct.pack("<ii", calls, values.size), values.tobytes()]
    text = (matrix.datasets[-1] if matrix.datasets else "").encode()[:LONGEST_NAME]
    return b"".join([*out, struct.pack("<ii", matrix.chunks, len(text)), text])


def imatrix_bytes(matrix: ImportanceMatrix) -> bytes:
    """The GGUF format. Raises UserError for names that are too long for it."""
    strings = GGUFValue(GGUFType.ARRAY, list(matrix.datasets), GGUFType.STRING)
    records = [
        encode_record("general.type", GGUFValue(GGUFType.STRING, "imatrix")),
        encode_record("imatrix.datasets", strings),
        encode_record("imatrix.chunk_count", u32(matrix.chunks)),
        encode_record("imatrix.chunk_size", u32(matrix.chunk_size or 1)),
    ]
    infos, data = [], bytearray()
    for name, entry in sorted(matrix.entries.items()):
        experts, columns = entry.sums.shape
        for suffix, dims, values in ((SUMS, (columns, experts), entry.sums), (COUNTS, (1, experts), entry.counts)):
            text = (name + suffix).encode()
            if len(text) > MAX_NAME:
                raise UserError(f"'{name}' is too long a name for an importance matrix.", "Use a .dat file.")
            head = struct.pack("<Q", len(text)) + text
            axes = dims if experts > 1 else dims[:1]  # as llama-imatrix leaves out the last where it is 1
            infos.append(head + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, _F32, len(data)))
            data += np.ascontiguousarray(values, "<f4").tobytes()
            data += bytes(-len(data) % _ALIGNMENT)
    head = b"".join([b"GGUF", struct.pack("<IQQ", _VERSION, len(infos), len(records)), *records, *infos])
    return head + bytes(-len(head) % _ALIGNMENT) + bytes(data)
