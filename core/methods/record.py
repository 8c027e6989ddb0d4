"""How an artifact's numbers were chosen from data: written into it, so that a file can be traced, and read back.

A folder has it in config.json as the object 'bitsmith', which loaders pass over; a GGUF as keys 'bitsmith.…', and as
llama.cpp's own 'quantize.imatrix.…' where importance chose. What is only known once the text was read is foreseen in
the plan, and put in its place by `stamped`, which moves no byte of anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.calibration.settings import CalibrationText, Domain
from core.checkpoint.base import Checkpoint, Container
from core.export.folder import as_json
from core.export.gguf_values import GGUFType, GGUFValue, encode_record, u32
from core.export.layout import Layout
from core.methods.choice import Calibrated, DataMethod
from core.units import format_count

KEY = "bitsmith"
LONGEST_NAME = 255  # characters of a file's name
_NUMBERS = ("samples", "length", "seed")


@dataclass(frozen=True)
class Known:
    """What the text, or the file with the importance, turned out to be.

    fingerprint: 64 hex digits, of the samples' tokens or of the file. samples: that there are, of `length` tokens.
    entries, chunks: of the importance matrix, as llama.cpp counts them.
    """

    fingerprint: str
    samples: int = 0
    length: int = 0
    entries: int = 0
    chunks: int = 0


def record_of(calibrated: Calibrated, known: Known | None = None) -> dict[str, Any]:
    """What is written, of JSON's own types. known: None before the text was read; the record is then as long, or
    longer, as it will be."""
    text = calibrated.text
    found: dict[str, Any] = {"method": calibrated.name}
    if calibrated.alpha is not None:
        found["alpha"] = float(calibrated.alpha)
    if calibrated.aim:
        found["aim"] = True
    if calibrated.online:
        found["online"] = True
    if calibrated.imatrix:
        found["imatrix"] = _name(calibrated.imatrix)
    else:
        found["text"] = text_name(text)
        found["samples"] = known.samples if known else text.samples
        found["length"] = known.length if known else text.length
        found["seed"] = text.seed
        if text.chat:
            found["chat"] = True
    return {**found, "fingerprint": known.fingerprint if known else "0" * 64}


def text_name(text: CalibrationText) -> str:
    """The file's name without its folder, or which of the bundled texts."""
    return _name(text.path) if text.path else f"bundled: {', '.join(d.value for d in text.domains or Domain)}"


def gguf_records(calibrated: Calibrated, known: Known | None = None) -> dict[str, GGUFValue]:
    """The same as GGUF's keys."""
    found = {f"{KEY}.{name}": _value(name, value) for name, value in record_of(calibrated, known).items()}
    if calibrated.chooser is DataMethod.IMPORTANCE:
        file = _name(calibrated.imatrix) if calibrated.imatrix else "measured by Bitsmith"
        found["quantize.imatrix.file"] = GGUFValue(GGUFType.STRING, file)
        if not calibrated.imatrix:
            found["quantize.imatrix.dataset"] = GGUFValue(GGUFType.STRING, text_name(calibrated.text))
        found["quantize.imatrix.entries_count"] = u32(known.entries if known else 0)
        found["quantize.imatrix.chunks_count"] = u32(known.chunks if known else 0)
    return found


def stamped(layout: Layout, calibrated: Calibrated, known: Known) -> Layout:
    """The layout of a plan with what is known now. Sizes and offsets stay as they are."""
    if not layout.folder:
        before, after = gguf_records(calibrated), gguf_records(calibrated, known)
        header = layout.files[0].header
        for key, value in after.items():
            header = header.replace(encode_record(key, before[key]), encode_record(key, value), 1)
        assert len(header) == len(layout.files[0].header)
        return replace(layout, files=(replace(layout.files[0], header=header), *layout.files[1:]))
    extras = tuple(
        (name, _stamped_config(content, record_of(calibrated, known)) if name == "config.json" else content)
        for name, content in layout.extras
    )
    return replace(layout, extras=extras)


def read_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a file says of itself; {} where it says nothing, or nothing that can be understood."""
    if checkpoint.container is Container.GGUF:
        metadata = checkpoint.metadata
        found = {k.removeprefix(f"{KEY}."): metadata[k] for k in metadata if k.startswith(f"{KEY}.")}
        if not found and isinstance(file := metadata.get("quantize.imatrix.file"), str):
            found = {"method": "importance", "imatrix": file}  # of llama-quantize
    else:
        data = checkpoint.config.get(KEY)
        found = dict(data) if isinstance(data, Mapping) else {}
    good = {k: v for k, v in found.items() if isinstance(v, int if k in _NUMBERS else str | bool | float)}
    return good if isinstance(good.get("method"), str) else {}


def text_of_record(record: Mapping[str, Any]) -> str:
    """'64 × 512 tokens of prose.txt, seed 0, fingerprint 01ab…'; '' for a record that names none."""
    parts = []
    if "imatrix" in record:
        parts.append(f"importance matrix {record['imatrix']}")
    elif "text" in record:
        size = [format_count(record[name]) for name in ("samples", "length") if name in record]
        parts.append(f"{' × '.join(size)} tokens of {record['text']}" if size else str(record["text"]))
        parts += [f"seed {record['seed']}"] if "seed" in record else []
        parts += ["in the chat template"] if record.get("chat") is True else []
    if "fingerprint" in record:
        parts.append(f"fingerprint {record['fingerprint']}")
    return ", ".join(parts)


def _stamped_config(content: bytes | Path, record: Mapping[str, Any]) -> bytes:
    assert isinstance(content, bytes)
    new = as_json({**json.loads(content), KEY: record})
    return new + b"\n" * (len(content) - len(new))


def _value(name: str, value: object) -> GGUFValue:
    if isinstance(value, bool):
        return GGUFValue(GGUFType.BOOL, value)
    if isinstance(value, int):
        return GGUFValue(GGUFType.U64 if name == "seed" else GGUFType.U32, value)
    return GGUFValue(GGUFType.F32 if isinstance(value, float) else GGUFType.STRING, value)


def _name(path: str) -> str:
    """A file's name as any program can read it."""
    return Path(path).name.encode("utf-8", "replace").decode()[:LONGEST_NAME]
