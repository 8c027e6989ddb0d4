"""Search, and what a repository holds: files with sizes and checksums, licence, conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from core.hub.access import Access
from core.hub.files import INDEX, HubFile, ambiguous
from core.hub.problems import HubError, Kind
from core.hub.reference import Reference
from core.hub.web import authorization, file_address, get_json, interruptible, make_client, refusal
from core.progress import CancelToken

if TYPE_CHECKING:
    import httpx2

RESULTS = 40
MOST_PAGES = 60  # of a thousand files
_FIELDS = ("downloads", "gated", "tags", "cardData", "safetensors", "gguf", "lastModified")
_ELEMENT_BITS = {
    "F64": 64,
    "I64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
    "F4": 4,
}


@dataclass(frozen=True)
class Found:
    """A search result. parameters, bytes (of the safetensors): 0 when the hub does not say.

    gated: its makers ask for conditions to be accepted.
    """

    repository: str
    downloads: int
    licence: str
    gated: bool
    parameters: int = 0
    bytes: int = 0
    updated: str = ""


@dataclass(frozen=True)
class Repository:
    """What is in a repository at one commit. blocked: why its files can not be fetched yet, None when they can.

    shards: folder → the weight files that its index names, where that was not plain.
    """

    name: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]
    licence: str
    gated: bool
    downloads: int
    blocked: HubError | None
    shards: Mapping[str, frozenset[str]]
    ignored: int = 0  # files whose names no folder may have


def search(words: str, access: Access, token: CancelToken, limit: int = RESULTS) -> tuple[Found, ...]:
    """Models whose names have these words, the most downloaded first. Raises HubError, Cancelled."""
    access.check()

    def work() -> tuple[Found, ...]:
        params = [("search", words), ("sort", "downloads"), ("direction", "-1"), ("limit", str(limit))]
        address = f"{access.endpoint}/api/models"
        with make_client(access) as client:
            try:
                answer, _ = get_json(access, client, address, params + [("expand[]", field) for field in _FIELDS])
            except HubError as error:
                if error.kind is not Kind.SERVER:
                    raise
                answer, _ = get_json(access, client, address, [*params, ("full", "true")])  # a simpler mirror
        if not isinstance(answer, list):
            raise _no_hub(access)
        rows = [_found(row) for row in answer if isinstance(row, dict)]
        return tuple(row for row in rows if row.repository)[:limit]

    return interruptible(work, token)


def repository(reference: Reference, access: Access, token: CancelToken) -> Repository:
    """List a repository. Raises HubError, Cancelled."""
    access.check()
    return interruptible(partial(_repository, reference, access), token)


def _repository(reference: Reference, access: Access) -> Repository:
    name, revision = reference.repository, reference.revision
    with make_client(access) as client:
        about_address = f"{access.endpoint}/api/models/{quote(name)}/revision/{quote(revision, safe='')}"
        about, _ = get_json(access, client, about_address, (), name)
        if not isinstance(about, dict):
            raise _no_hub(access)
        name = _text(about.get("id") or about.get("modelId")) or name  # its new name, if it has been renamed
        name = name if re.fullmatch(r"[\w.+-]+(?:/[\w.+-]+)?", name) else reference.repository
        commit = _text(about.get("sha"))
        commit = commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else ""
        try:
            entries = list(_tree(access, client, name, commit or revision))
        except HubError as error:
            if error.kind not in (Kind.MISSING, Kind.SERVER):
                raise
            entries = _siblings(get_json(access, client, about_address, [("blobs", "true")], name)[0], error)
        files = tuple(sorted((f for f in entries if is_plain(f.name)), key=lambda f: f.name))
        is_gated = about.get("gated") not in (None, False, "false")
        blocked = _blocked(access, client, name, commit or revision, files) if is_gated else None
        shards = {} if blocked else _shards(access, client, name, commit or revision, files)
    return Repository(
        name, revision, commit, files, _licence(about), is_gated, _number(about.get("downloads")), blocked, shards,
        len(entries) - len(files),
    )  # fmt: skip


def _tree(access: Access, client: httpx2.Client, name: str, revision: str) -> Iterator[HubFile]:
    address = f"{access.endpoint}/api/models/{quote(name)}/tree/{quote(revision, safe='')}"
    params = [("recursive", "true")]
    for _ in range(MOST_PAGES):
        answer, headers = get_json(access, client, address, params, name)
        if not isinstance(answer, list):
            raise _no_hub(access)
        for entry in answer:
            if isinstance(entry, dict) and entry.get("type") == "file":
                yield _file(_text(entry.get("path")), entry.get("size"), entry.get("lfs"), entry.get("oid"))
        following = _next_page(headers.get("link", ""))
        if not following:
            return
        page = urljoin(address, following)
        cursor = page.partition("?")[2]
        # A mirror may hand the hub's own address through: the pages are asked of the one that is in use.
        address, params = f"{address.partition('?')[0]}?{cursor}", []


def _next_page(link: str) -> str:
    found = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', link)
    return found[1] if found else ""


def _siblings(about: Any, error: HubError) -> list[HubFile]:
    """The files as a repository's description lists them, from a mirror that has no other list."""
    entries = about.get("siblings") if isinstance(about, dict) else None
    if not isinstance(entries, list) or not entries:
        raise error
    return [
        _file(_text(e.get("rfilename")), e.get("size"), e.get("lfs"), e.get("blobId"))
        for e in entries
        if isinstance(e, dict)
    ]


def _file(name: str, size: Any, large: Any, oid: Any) -> HubFile:
    large = large if isinstance(large, dict) else {}
    sha256 = _text(large.get("oid") or large.get("sha256")).removeprefix("sha256:").lower()
    size = large.get("size", size) if large else size
    git = _text(oid).lower()
    return HubFile(
        name,
        size if isinstance(size, int) and size >= 0 else -1,
        sha256 if re.fullmatch(r"[0-9a-f]{64}", sha256) else "",
        git if not large and re.fullmatch(r"[0-9a-f]{40}", git) else "",
    )


def is_plain(name: str) -> bool:
    """Whether a name stays below the folder it is put in, on any system."""
    parts = name.split("/")
    return bool(name) and len(name) < 400 and not any(
        part in ("", ".", "..") or _UNFIT.search(part) or part != part.rstrip(". ") or _RESERVED.match(part)
        for part in parts
    )  # fmt: skip


_UNFIT = re.compile(r'[\\:\x00-\x1f<>"|?*]')
_RESERVED = re.compile(r"^(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)


def _blocked(
    access: Access, client: httpx2.Client, name: str, revision: str, files: Sequence[HubFile]
) -> HubError | None:
    """Ask for the head of one small file: None when it would come."""
    wanted = [f for f in files if f.name.endswith("config.json")] or [f for f in files if not f.name.startswith(".")]
    if not wanted:
        return None
    try:
        response = client.head(file_address(access, name, revision, wanted[0].name), headers=authorization(access))
    except Exception:  # noqa: BLE001 - the download will tell
        return None
    return refusal(response, access, name) if response.status_code in (401, 403) else None


def _shards(
    access: Access, client: httpx2.Client, name: str, revision: str, files: Sequence[HubFile]
) -> dict[str, frozenset[str]]:
    """What the index says, in folders where the names alone do not tell which parts are meant."""
    result = {}
    for folder in ambiguous(files):
        path = f"{folder}/{INDEX}" if folder else INDEX
        try:
            response = client.get(file_address(access, name, revision, path), headers=authorization(access))
            weights = json.loads(response.content)["weight_map"].values() if response.status_code < 400 else ()
            named = frozenset(w for w in weights if isinstance(w, str))
        except Exception:  # noqa: BLE001 - the names have to do
            continue
        if named and named <= {f.name.rpartition("/")[2] for f in files}:
            result[folder] = named
    return result


def _found(row: Mapping[str, Any]) -> Found:
    weights = row.get("safetensors") or row.get("gguf")
    total = weights.get("total") if isinstance(weights, dict) else 0
    counts = weights.get("parameters") if isinstance(weights, dict) else None
    stored = counts.items() if isinstance(counts, dict) else ()
    return Found(
        _text(row.get("id") or row.get("modelId")),
        _number(row.get("downloads")),
        _licence(row),
        row.get("gated") not in (None, False, "false"),
        _number(total),
        sum(_number(count) * _ELEMENT_BITS.get(str(kind), 8) // 8 for kind, count in stored),
        _text(row.get("lastModified"))[:10],
    )


def _licence(row: Mapping[str, Any]) -> str:
    """As the hub abbreviates it: 'apache-2.0'; '' when not said."""
    card = row.get("cardData")
    named = card.get("license_name") or card.get("license") if isinstance(card, dict) else None
    if isinstance(named, list):
        named = ", ".join(str(n) for n in named)
    tags = row.get("tags")
    tagged = (
        next((t.partition(":")[2] for t in tags if str(t).startswith("license:")), "") if isinstance(tags, list) else ""
    )
    return " ".join((_text(named) or tagged).split())[:60]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _no_hub(access: Access) -> HubError:
    return HubError(
        Kind.SERVER,
        f"{access.endpoint} does not answer as a hub does.",
        "Check the address of the mirror (HF_ENDPOINT).",
    )
