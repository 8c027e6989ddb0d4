"""The folder beside an output in which calibrated weights wait for being packed, and from which a killed run goes on.

One safetensors file a block, and one with the residual stream before the first block that is not there yet. Files get
their names when they are whole and synced, so that what has a name can be trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from core.disk import disk_errors
from core.errors import UserError
from core.formats.numbers import Codes
from core.preferences import scratch_folder
from core.progress import CancelToken

_JOB = "job.json"
_STATE = "state.safetensors"
_ARRAYS = ("codes", "scales", "zeros", "offsets")
_TYPES = {"<f8": "F64", "<f4": "F32", "<i4": "I32", "|u1": "U8"}  # numpy's names → those of safetensors
_PIECE = 32 << 20  # bytes that are written, and synced, between two looks at the token


def scratch_path(output: Path) -> Path:
    """Where calibrated weights of an output wait: beside it, or in the folder that is set for such things."""
    folder = scratch_folder()
    if folder is None:
        return output.parent / f"{output.name}.calibrated"
    mark = hashlib.sha256(str(output.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return folder / f"{output.name}-{mark}.calibrated"


def waits(output: Path) -> bool:
    """Whether calibrated weights of a job wait for an output."""
    folder = scratch_path(output)
    return (folder / _JOB).is_file() and not folder.is_symlink()


def remove_scratch(output: Path) -> None:
    """Delete what waits for an output; a folder of that name that no job made is left alone."""
    folder = scratch_path(output)
    if waits(output):
        with disk_errors(output):
            shutil.rmtree(folder)


class Scratch:
    """One job's folder. job: names the source, the recipe and the text; another job's folder is emptied."""

    def __init__(self, output: Path, job: str, resume: bool, token: CancelToken) -> None:
        self.folder, self._token = scratch_path(output), token
        self._output = output
        with disk_errors(output):
            if not (resume and self._is_of(job)):
                self._check_foreign()
                remove_scratch(output)
                self.folder.mkdir(parents=True)
                (self.folder / _JOB).write_text(json.dumps({"job": job}), encoding="utf-8")

    def _is_of(self, job: str) -> bool:
        try:
            found = json.loads((self.folder / _JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(found, Mapping) and found.get("job") == job

    def _check_foreign(self) -> None:
        if self.folder.exists() and (self.folder.is_symlink() or not (self.folder / _JOB).is_file()):
            raise UserError(
                f"{self.folder.name} lies where calibrated weights wait, and no job made it.",
                "Move it away, or choose another name for the output.",
            )

    def block_file(self, name: str) -> Path:
        """The file of one block ('000012') or of what is in none ('outer')."""
        return self.folder / f"block-{name}.safetensors"

    def has_block(self, name: str) -> bool:
        return self.block_file(name).is_file()

    def write_block(
        self,
        name: str,
        floats: Mapping[str, np.ndarray],
        solved: Mapping[str, Codes],
        squares: Mapping[str, tuple[np.ndarray, int]] | None = None,
        experts: Sequence[int] = (),
        aims: Sequence[float] = (),
    ) -> None:
        """floats: changed weights, float32, by GGUF's names; solved: codes of weights; squares: Σx² of their inputs and
        over how many tokens, by the same names; experts: how many tokens each of the block's met; aims: how far GPTQ
        went towards the unchanged model's outputs."""
        arrays: dict[str, np.ndarray] = {f"{n}|float": np.ascontiguousarray(a) for n, a in floats.items()}
        about: dict[str, Any] = {}
        for weight, codes in solved.items():
            for part in _ARRAYS:
                if (a := getattr(codes, part)) is not None:
                    arrays[f"{weight}|{part}"] = np.ascontiguousarray(a)
            about[weight] = [codes.tensor_scale, codes.tile, codes.input_scale]
        counts = {}
        for weight, (total, count) in (squares or {}).items():
            arrays[f"{weight}|squares"], counts[weight] = total, count
        self._write(
            self.block_file(name),
            arrays,
            {
                "codes": json.dumps(about),
                "tokens": json.dumps(counts),
                "experts": json.dumps(list(experts)),
                "aims": json.dumps(list(aims)),
            },
        )

    def write_state(self, layer: int, arrays: Mapping[str, np.ndarray]) -> None:
        """What is needed to go on with that block."""
        self._write(self.folder / _STATE, dict(arrays), {"layer": str(layer)})

    def state(self) -> tuple[int, dict[str, np.ndarray]] | None:
        """What `write_state` was given last; None when there is nothing, or it is damaged."""
        try:
            with cast("Any", safe_open(self.folder / _STATE, "np")) as file:
                layer = int(file.metadata()["layer"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            return None
        return layer, arrays

    def _write(self, path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
        """A safetensors file, in pieces: a block of a large model takes seconds. Raises UserError, Cancelled."""
        part = path.with_name(path.name + ".part")
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that each starts at its own multiple
        end = 0
        for name, a in ordered:
            header[name] = {"dtype": _TYPES[a.dtype.str], "shape": a.shape, "data_offsets": [end, end + a.nbytes]}
            end += a.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        try:
            with disk_errors(self._output), part.open("wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for _, a in ordered:
                    view = memoryview(np.ascontiguousarray(a).reshape(-1).view(np.uint8))
                    for start in range(0, len(view), _PIECE):
                        self._token.check()
                        file.write(view[start : start + _PIECE])
                        file.flush()
                        os.fsync(file.fileno())
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        with disk_errors(self._output):
            part.replace(path)


class BlockFile:
    """One block's file, read by rows. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = cast("Any", safe_open(path, "np"))
        names = set(self._file.keys())
        self.floats = tuple(sorted(n.removesuffix("|float") for n in names if n.endswith("|float")))
        self._about: dict[str, list[float]] = json.loads(self._file.metadata()["codes"])
        self._tokens: dict[str, int] = json.loads(self._file.metadata()["tokens"])
        self.experts: tuple[int, ...] = tuple(json.loads(self._file.metadata()["experts"]))
        self.aims: tuple[float, ...] = tuple(json.loads(self._file.metadata().get("aims", "[]")))
        self._names = names

    @property
    def solved(self) -> tuple[str, ...]:
        return tuple(self._about)

    def squares(self) -> dict[str, tuple[np.ndarray, int]]:
        """Σx² [K] of each weight's input, and over how many tokens."""
        return {w: (self._file.get_tensor(f"{w}|squares"), count) for w, count in self._tokens.items()}

    def shape(self, weight: str, part: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(f"{weight}|{part}").get_shape())

    def values(self, weight: str, start: int, stop: int) -> np.ndarray:
        """float32 rows of a matrix, or values of a vector."""
        return self._file.get_slice(f"{weight}|float")[start:stop]

    def codes(self, weight: str, start: int, stop: int) -> Codes:
        """Rows start…stop of a solved weight."""
        tensor_scale, tile, input_scale = self._about[weight]
        rows = {p: slice(start, stop) for p in _ARRAYS}
        if tile != 1:
            rows["scales"] = slice(None)
        found = {p: self._file.get_slice(f"{weight}|{p}")[rows[p]] for p in _ARRAYS if f"{weight}|{p}" in self._names}
        codes = Codes(
            found["codes"],
            found["scales"],
            found.get("zeros"),
            found.get("offsets"),
            tensor_scale=tensor_scale,
            tile=int(tile),
            input_scale=input_scale,
        )
        if tile != 1:  # the scales are those of all rows
            whole = Codes(np.empty((self.shape(weight, "codes")[0], 0), np.uint8), codes.scales, tile=int(tile))
            part = whole.rows(start, stop)
            codes = Codes(
                codes.codes, part.scales, codes.zeros, codes.offsets, tensor_scale, part.tile, codes.input_scale
            )
        return codes
