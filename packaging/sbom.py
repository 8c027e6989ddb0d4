"""CycloneDX 1.5 bill of materials: every distribution that the program carries, with version, licence and purl."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import description as d
import documents
from parts import canonical

_SPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122's namespace for object identifiers


def bill(distributions: Iterable[Distribution], flavour: d.Flavour, when: str) -> dict[str, Any]:
    """The document as JSON values. `when`: ISO 8601, UTC; the serial number follows from the contents."""
    parts = [_component(found) for found in distributions if canonical(found.name) != d.NAME]
    parts += [_other("python", ".".join(map(str, sys.version_info[:3])), "PSF-2.0")]
    key = f"{d.NAME} {d.VERSION} {flavour.name} {when} " + " ".join(p["bom-ref"] for p in parts)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, key)}",
        "version": 1,
        "metadata": {
            "timestamp": when,
            "component": {
                "type": "application",
                "bom-ref": f"{d.NAME}@{d.VERSION}",
                "name": d.NAME,
                "version": d.VERSION,
                "description": f"{d.SUMMARY} ({flavour.name})",
                "licenses": [{"license": {"id": d.LICENCE}}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": f"{d.NAME}@{d.VERSION}", "dependsOn": [p["bom-ref"] for p in parts]}],
    }


def _component(found: Distribution) -> dict[str, Any]:
    version = found.version.partition("+")[0]
    purl = f"pkg:pypi/{canonical(found.name)}@{version}"
    part = {"type": "library", "bom-ref": purl, "name": found.name, "version": found.version, "purl": purl}
    return {**part, "licenses": [{"license": {"name": documents.licence(found)}}]}


def _other(name: str, version: str, licence: str) -> dict[str, Any]:
    purl = f"pkg:generic/{name}@{version}"
    part = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**part, "licenses": [{"license": {"id": licence}}]}


def locked(constraints: Path) -> dict[str, str]:
    """constraints.txt: canonical name → version."""
    lines = constraints.read_text(encoding="utf-8").splitlines()
    pairs = (re.fullmatch(r"([\w.-]+)==(\S+)", line.strip()) for line in lines)
    return {canonical(m[1]): m[2] for m in pairs if m}


def differences(document: dict[str, Any], lock: dict[str, str], free: Iterable[str] = ("triton",)) -> list[str]:
    """Where a bill is not what the lock says: sentences, none when all is well. Local versions (+cpu) do not count."""
    wrong = []
    for part in document["components"]:
        name, version = canonical(part["name"]), part["version"].partition("+")[0]
        if not part["purl"].startswith("pkg:pypi/") or name in free:
            continue
        if name not in lock:
            wrong.append(f"{name} is not in constraints.txt.")
        elif lock[name] != version:
            wrong.append(f"{name} is {version}, and constraints.txt says {lock[name]}.")
    return wrong
