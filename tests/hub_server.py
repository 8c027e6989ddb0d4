"""A hub on the loopback interface: search, lists, files with ranges and redirects, and ways in which it can fail."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 2000  # bytes from which a file is kept as a large one
TOKEN = "hf_right_token"
CHUNK = 16384


@dataclass
class Repo:
    """files: name → content. gated: nobody without TOKEN gets its files. private: nobody without TOKEN sees it."""

    files: dict[str, bytes]
    licence: str = "apache-2.0"
    downloads: int = 1234
    gated: str = ""
    private: bool = False
    pending: bool = False
    renamed_to: str = ""
    has_tree: bool = True


@dataclass
class Fault:
    """Where `part` is in a request's path, `act` answers it instead, `times` times. act returns whether it answered."""

    part: str
    act: Callable[[Handler], bool]
    times: int = 1
    method: str = "GET"


@dataclass
class Seen:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Hub:
    """The server's state. endpoint: to be given as HF_ENDPOINT."""

    repos: dict[str, Repo] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    page: int = 1000  # files of one answer
    endpoint: str = ""
    closing: threading.Event = field(default_factory=threading.Event)

    def fail(self, part: str, act: Callable[[Handler], bool], times: int = 1, method: str = "GET") -> None:
        self.faults.append(Fault(part, act, times, method))

    def asked(self, part: str, method: str = "GET") -> list[Seen]:
        return [s for s in self.seen if part in s.path and s.method == method]

    def blob(self, sha: str) -> tuple[bytes, Repo]:
        for repo in self.repos.values():
            for content in repo.files.values():
                if hashlib.sha256(content).hexdigest() == sha:
                    return content, repo
        raise KeyError(sha)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def _handle(self) -> None:
        self.hub.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        for fault in self.hub.faults:
            if fault.times > 0 and fault.part in self.path and fault.method == self.command:
                fault.times -= 1
                if fault.act(self):
                    return
        parts = urlsplit(self.path)
        asked = {k: v[0] for k, v in parse_qs(parts.query).items()}
        with suppress(BrokenPipeError, ConnectionResetError):
            self._route(unquote(parts.path), parts.path, asked)

    def _route(self, path: str, raw: str, asked: dict[str, str]) -> None:
        if path == "/api/models":
            self._search(asked)
        elif path.startswith("/cdn/"):
            self.send_content(self.hub.blob(path.split("/")[2])[0])
        elif found := re.fullmatch(r"/api/models/(.+?)/(revision|tree)/([^/]+)", raw):
            self._api(unquote(found[1]), found[2], unquote(found[3]), asked)
        elif found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", raw):
            self._resolve(unquote(found[1]), unquote(found[2]), unquote(found[3]))
        else:
            self.answer(404, b"Not Found")

    @property
    def has_token(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    def _search(self, asked: dict[str, str]) -> None:
        words = asked.get("search", "").lower().split()
        found = [(n, r) for n, r in self.hub.repos.items() if all(w in n.lower() for w in words) and not r.private]
        found.sort(key=lambda pair: -pair[1].downloads)
        self.send_json([self._about(name, repo) for name, repo in found[: int(asked.get("limit", 10))]])

    def _about(self, name: str, repo: Repo) -> dict[str, Any]:
        return {
            "id": name, "modelId": name, "sha": COMMIT, "downloads": repo.downloads, "gated": repo.gated or False,
            "private": repo.private, "tags": ["text-generation", f"license:{repo.licence}"],
            "lastModified": "2026-01-02T03:04:05.000Z",
            "safetensors": {"parameters": {"BF16": 135_000_000}, "total": 135_000_000},
        }  # fmt: skip

    def _repo(self, name: str, revision: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        said = self.headers.get("authorization", "")
        if said and not self.has_token:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repo is not None and repo.renamed_to:
            self.answer(307, b"", {"location": self.path.replace(name, repo.renamed_to)})
        elif repo is None or (repo.private and not self.has_token):
            self.refuse(404 if self.has_token else 401, "RepoNotFound", "Repository not found")
        elif revision not in ("main", COMMIT, "refs/pr/1"):
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
        else:
            return repo
        return None

    def _api(self, name: str, kind: str, revision: str, asked: dict[str, str]) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        if kind == "revision":
            about = self._about(name, repo)
            about["siblings"] = [
                self._sibling(n, c) if "blobs" in asked else {"rfilename": n} for n, c in repo.files.items()
            ]
            self.send_json(about)
            return
        if not repo.has_tree:
            self.answer(404, b"Not Found")
            return
        names = sorted(repo.files)
        start = int(asked.get("cursor", 0))
        entries: list[dict[str, Any]] = [self._entry(n, repo.files[n]) for n in names[start : start + self.hub.page]]
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        headers = {}
        if start + self.hub.page < len(names):
            following = f"{self.hub.endpoint}{urlsplit(self.path).path}?recursive=true&cursor={start + self.hub.page}"
            headers["link"] = f'<{following}>; rel="next"'
        self.send_json(entries, headers)

    @staticmethod
    def _entry(name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content)}
        if len(content) >= LARGE:
            sha = hashlib.sha256(content).hexdigest()
            return entry | {
                "oid": "1" * 40,
                "lfs": {"oid": sha, "size": len(content), "pointerSize": 134},
                "xetHash": sha,
            }
        return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        entry = self._entry(name, content)
        large = {"lfs": {"sha256": entry["lfs"]["oid"], "size": len(content)}} if "lfs" in entry else {}
        return {"rfilename": name, "size": len(content), "blobId": entry["oid"]} | large

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repo = self._repo(name, revision)
        if repo is None:
            return
        if repo.gated and (not self.has_token or repo.pending):
            said = (
                "Your request to access it is awaiting a review"
                if repo.pending
                else f"Access to model {name} is restricted"
            )
            self.refuse(403 if self.has_token else 401, "GatedRepo", said)
            return
        if file not in repo.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        content = repo.files[file]
        if len(content) < LARGE:
            self.send_content(content)
            return
        sha = hashlib.sha256(content).hexdigest()
        headers = {
            "location": f"{self.hub.endpoint.replace('127.0.0.1', 'localhost')}/cdn/{sha}?signature=abc&expires=1",
            "x-linked-size": str(len(content)), "x-linked-etag": f'"{sha}"', "x-repo-commit": COMMIT, "x-xet-hash": sha,
            "link": f'<{self.hub.endpoint}/no-xet-here>; rel="xet-auth"',
        }  # fmt: skip
        self.answer(302, b"", headers)

    # ---- answers ---------------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"x-error-message": message} | ({"x-error-code": code} if code else {})
        self.answer(status, json.dumps({"error": message}).encode(), headers)

    def send_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self.answer(200, json.dumps(value).encode(), {"content-type": "application/json"} | (headers or {}))

    def first_byte(self) -> int:
        found = re.match(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(found[1]) if found else 0

    def begin(self, content: bytes, ranges: bool = True) -> bytes:
        """Send the head of an answer with a file's content; returns what belongs after it."""
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")) if ranges else None
        start = int(asked[1]) if asked else 0
        end = int(asked[2]) + 1 if asked and asked[2] else len(content)
        if asked and start >= len(content):
            self.answer(416, b"", {"content-range": f"bytes */{len(content)}"})
            return b""
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("content-range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("content-length", str(len(content[start:end])))
        self.send_header("etag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("accept-ranges", "bytes")
        self.end_headers()
        return content[start:end]

    def send_content(self, content: bytes, ranges: bool = True) -> None:
        left = self.begin(content, ranges)
        if self.command != "HEAD":
            self.wfile.write(left)

    def content_here(self) -> bytes:
        """The content that this request is about."""
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/cdn/"):
            return self.hub.blob(path.split("/")[2])[0]
        name, _, rest = path.strip("/").partition("/resolve/")
        return self.hub.repos[name].files[rest.partition("/")[2]]

    def cut_off(self) -> None:
        """End the connection in the middle."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


# ---- faults --------------------------------------------------------------------------------------------------------


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"no") -> Callable[[Handler], bool]:
    def act(handler: Handler) -> bool:
        handler.answer(code, body, headers)
        return True

    return act


def cut(after: int) -> Callable[[Handler], bool]:
    """So many bytes, then the connection is gone."""

    def act(handler: Handler) -> bool:
        handler.wfile.write(handler.begin(handler.content_here())[:after])
        handler.cut_off()
        return True

    return act


def slow(delay: float, chunk: int = CHUNK) -> Callable[[Handler], bool]:
    """A chunk, a pause, a chunk …"""

    def act(handler: Handler) -> bool:
        left = handler.begin(handler.content_here())
        with suppress(OSError):
            for start in range(0, len(left), chunk):
                handler.wfile.write(left[start : start + chunk])
                handler.wfile.flush()
                if handler.hub.closing.wait(delay):
                    break
        handler.close_connection = True
        return True

    return act


def silent(handler: Handler) -> bool:
    """No answer at all, for a minute."""
    handler.hub.closing.wait(60)
    handler.close_connection = True
    return True


def whole(handler: Handler) -> bool:
    """All of the file, whatever range was asked for."""
    handler.send_content(handler.content_here(), ranges=False)
    return True


def changed(handler: Handler) -> bool:
    """As many bytes, but one of them is another."""
    content = handler.content_here()
    middle = len(content) // 2
    handler.send_content(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    return True


def login_page(handler: Handler) -> bool:
    """What a hotel's network sends."""
    handler.answer(200, b"<html>Please log in</html>", {"content-type": "text/html"})
    return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in these tests."""


def serve(hub: Hub) -> Iterator[Hub]:
    """Run it; its endpoint is set. A generator for a fixture."""
    server = _Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:  # also when the generator is closed
        hub.closing.set()
        server.shutdown()
        server.server_close()


@contextmanager
def socks_proxy(hub: Hub) -> Iterator[tuple[str, list[str]]]:
    """A SOCKS 5 proxy that leads everybody to the hub: its address, and the names that it was asked for."""
    asked: list[str] = []
    port = urlsplit(hub.endpoint).port

    def handle(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            client.recv(64)
            client.sendall(b"\x05\x00")
            request = client.recv(512)
            asked.append(request[5 : 5 + request[4]].decode())
            client.sendall(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
            back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            back.start()
            _pass_on(client, server)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=handle, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", asked


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def model_files(weights: int = 300_000, shards: int = 2) -> dict[str, bytes]:
    """A repository with all sorts of files; the weights are no real ones."""
    files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b'{"a": 1}' * 400,
        "tokenizer_config.json": b"{}",
        "README.md": b"# A model\n",
        ".gitattributes": b"*.bin lfs\n",
        "pytorch_model.bin": b"\x80\x02" * 5000,
        "original/consolidated.00.pth": b"PK" * 3000,
    }
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    for number, name in enumerate(names):
        files[name] = hashlib.shake_256(b"%d" % number).digest(weights)
    files["model.safetensors.index.json"] = json.dumps(
        {"weight_map": {str(i): n for i, n in enumerate(names)}}
    ).encode()
    return files


def now() -> float:
    return time.monotonic()
