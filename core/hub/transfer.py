"""One file from a hub into a partial file: resumed, checked, and stopped at once when asked.

A transfer is a thread. A thread that waits for a server can not be ended from outside, so `stop` takes the file away
from it: after `stop` has returned nothing is written any more, and the thread goes when its server or timeout lets it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from core.errors import UserError
from core.hub.access import Access
from core.hub.disk import disk_errors
from core.hub.files import HubFile
from core.hub.problems import HubError, Kind
from core.hub.web import RETRIED, asked_to_wait, authorization, explain, is_passing, refusal
from core.units import format_bytes, format_duration

if TYPE_CHECKING:
    import httpx2

SPAN = 16_000_000_000  # bytes of one request: hubs refuse to send much larger files as a whole
HASH_CHUNK = 4 << 20


class _Stopped(Exception):
    """The transfer has been stopped."""


class _Busy(Exception):
    """The server asks to come again; seconds None: it does not say when."""

    def __init__(self, seconds: float | None, problem: HubError) -> None:
        super().__init__()
        self.seconds, self.problem = seconds, problem


def new_digest(file: HubFile) -> Any:
    """A hash object for the file's checksum, or None when the hub has none for it."""
    if file.sha256:
        return hashlib.sha256()
    if file.git_sha1 and file.bytes >= 0:
        return hashlib.sha1(b"blob %d\0" % file.bytes)  # as git names a file's content
    return None


def is_right(file: HubFile, digest: Any) -> bool:
    """Whether a digest over all of the content is the one that the hub names."""
    return digest is None or digest.hexdigest() == (file.sha256 or file.git_sha1)


def write_all(out: BinaryIO, chunk: bytes) -> None:
    """All of it. Raises OSError."""
    left = memoryview(chunk)
    while left:
        left = left[out.write(left) :]


class Transfer:
    """Fetches `file` from `address` into `partial`, which may be there in part. Set `ended` is told when it has ended.

    received: bytes of the partial file that are there, once it is `ready`. error: why it failed. done: whole, checked
    and on the disk. note: what it waits for, in words; '' while bytes come.
    """

    def __init__(
        self,
        access: Access,
        client: httpx2.Client,
        repository: str,
        address: str,
        file: HubFile,
        partial: Path,
        ended: threading.Event,
    ) -> None:
        self.file, self.partial = file, partial
        self.received = 0
        self.fresh = 0  # bytes that came over the network
        self.error: BaseException | None = None
        self.ready = False  # `received` is known: what was there has been looked at
        self.done = False
        self.note = ""
        self._access, self._client, self._repository, self._address = access, client, repository, address
        self._ended = ended
        self._gate = threading.RLock()  # whoever holds it may touch the file
        self._stopped = threading.Event()
        self._response: httpx2.Response | None = None
        self._out: BinaryIO | None = None
        self._digest: Any = None
        self._size = file.bytes  # −1 until the server says it, where the list did not
        self._is_over = False  # an answer without a length has ended as it should
        self._whole_only = False  # the server does not send parts

    def start(self) -> None:
        # A daemon: a server that does not answer can not keep the program from ending.
        threading.Thread(target=self._run, name="bitsmith-download", daemon=True).start()

    @property
    def finished(self) -> bool:
        return self.done or self.error is not None

    def stop(self) -> None:
        """Nothing is written after this. What is there stays, to be resumed."""
        self._stopped.set()
        with self._gate:
            if self._out is not None:
                with suppress(OSError):
                    self._out.close()
        response = self._response
        if response is not None:
            with suppress(Exception):  # a connection that is gone is what is wanted
                stream = response.extensions["network_stream"]
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            self._fetch()
        except _Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - told by whoever looks at `error`
            if not self._stopped.is_set():
                self.error = explain(error, self._access)
        finally:
            with self._gate, suppress(OSError):
                if self._out is not None:
                    self._out.close()
            self._ended.set()

    def _fetch(self) -> None:
        with self._gate, disk_errors(self.partial):
            self._check()
            self._out = self.partial.open("r+b" if self.partial.exists() else "w+b", buffering=0)
        resumed = self._hash_present()
        self.ready = True
        while True:
            self._receive()
            if is_right(self.file, self._digest):
                break
            self._start_anew()
            if not resumed:
                raise HubError(
                    Kind.DAMAGED, f"{self.file.name} came damaged: its checksum is not the one that the hub names.",
                    "Try again; if it stays so, a proxy or mirror sends something else.",
                )  # fmt: skip
            resumed = False  # what lay there may have been wrong, so all of it is fetched once more
        with self._gate, disk_errors(self.partial):
            self._check()
            assert self._out is not None
            os.fsync(self._out.fileno())
            self._out.close()
            self.done = True

    def _hash_present(self) -> bool:
        """Take what is there of the file into the digest; True when there is anything."""
        self._digest = new_digest(self.file)
        while True:
            with self._gate, disk_errors(self.partial):
                self._check()
                assert self._out is not None
                if 0 <= self.file.bytes < self.received:
                    self._start_anew()
                    return False
                chunk = self._out.read(HASH_CHUNK)
                if not chunk:
                    return self.received > 0
                self.received += len(chunk)
            if self._digest is not None:
                self._digest.update(chunk)

    def _start_anew(self) -> None:
        with self._gate, disk_errors(self.partial):
            self._check()
            assert self._out is not None
            self._out.seek(0)
            self._out.truncate()
            self.received = 0
            self._digest = new_digest(self.file)

    def _receive(self) -> None:
        """Until all bytes are there. Connections that break are taken up again where they were."""
        patience, tries = self._access.patience, 0
        failure: UserError | None = None
        while self.received < self._size or (self._size < 0 and not self._is_over):
            before, wait = self.received, None
            try:
                self._request()
            except (_Stopped, HubError):
                raise
            except _Busy as busy:
                wait, failure = busy.seconds, busy.problem
                if wait is not None and wait > patience.longest:
                    raise busy.problem from None
            except Exception as error:
                if self._stopped.is_set() or not is_passing(error):
                    raise
                failure = explain(error, self._access)
            if self.received > before or (self._size < 0 and self._is_over):
                tries = 0
                continue
            tries += 1
            if tries >= patience.tries:
                raise failure or HubError(
                    Kind.DAMAGED, f"Only {format_bytes(self.received)} of {self.file.name} came.", "Try again."
                )
            pause = min(patience.first * 2 ** (tries - 1), patience.rest)
            self._rest(pause if wait is None else wait, asked=wait is not None)

    def _rest(self, seconds: float, asked: bool) -> None:
        who = "the hub asks to wait" if asked else "the connection broke off; trying again in"
        self.note = f"{who} {format_duration(max(seconds, 0.1))}"
        if self._stopped.wait(seconds):
            raise _Stopped
        self.note = ""

    def _request(self) -> None:
        """One request: a whole file, what is left of it, or a span of a very large one."""
        start = 0 if self._whole_only else self.received
        headers = {**authorization(self._access), "accept-encoding": "identity"}
        size = self._size
        end = min(start + SPAN, size) if size >= 0 else 0
        if start or (0 < end < size and not self._whole_only):
            headers["range"] = f"bytes={start}-{end - 1 if end < size else ''}"
        with self._client.stream("GET", self._address, headers=headers) as response:
            self._response = response
            self._check()
            try:
                self._take(response, start)
            finally:
                self._response = None

    def _take(self, response: httpx2.Response, start: int) -> None:
        status = response.status_code
        if status == 416 and start:
            self._start_anew()  # what is there is no part of what the server has
            return
        if status >= 400:
            response.read()
            problem = refusal(response, self._access, self._repository, self.file.name)
            if status in RETRIED:
                raise _Busy(asked_to_wait(response), problem)
            raise problem
        is_encoded = response.headers.get("content-encoding", "identity").lower() not in ("", "identity")
        if status == 206 and (is_encoded or _first_byte(response) != start):
            self._whole_only = True
            self._start_anew()
            return
        if status != 206 and self.received:
            self._start_anew()  # the server sends all of it, though a part was asked for
        total = _total(response)
        if total is not None and not is_encoded and 0 <= self.file.bytes != total:
            raise self._other_size(total)
        if total is not None and not is_encoded:
            self._size = total
        for chunk in response.iter_bytes():
            self._keep(chunk)
        self._is_over = True

    def _keep(self, chunk: bytes) -> None:
        if 0 <= self.file.bytes < self.received + len(chunk):
            raise self._other_size(self.received + len(chunk))
        with self._gate:
            self._check()
            assert self._out is not None
            with disk_errors(self.partial):
                write_all(self._out, chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        self.received += len(chunk)
        self.fresh += len(chunk)
        self.note = ""

    def _other_size(self, found: int) -> HubError:
        return HubError(
            Kind.DAMAGED,
            f"{self.file.name} has {format_bytes(found)} there, not {format_bytes(self.file.bytes)} as listed.",
            "List the repository again; a login page of the network may also be in the way.",
        )

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped


def _first_byte(response: httpx2.Response) -> int:
    found = re.match(r"\s*bytes\s+(\d+)-", response.headers.get("content-range", ""))
    return int(found[1]) if found else -1


def _total(response: httpx2.Response) -> int | None:
    """Bytes of the whole file, as the server says."""
    if response.status_code == 206:
        found = re.search(r"/(\d+)\s*$", response.headers.get("content-range", ""))
        return int(found[1]) if found else None
    length = response.headers.get("content-length", "")
    return int(length) if length.isdigit() else None
