"""A virtual screen (Xvfb) whose picture is read straight from its memory: no tool and no library of the tested side."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Screen:
    """display: for DISPLAY. memory: the file that Xvfb draws into, an XWD picture (X11/XWDFile.h)."""

    display: str
    memory: Path

    def read(self) -> tuple[int, int, bytes]:
        """Width, height, and rows of blue, green, red, unused."""
        with self.memory.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            head = struct.unpack_from(">25I", data)
            size, width, height, line, colours = head[0], head[4], head[5], head[12], head[19]
            start = size + colours * 12
            return width, height, b"".join(data[start + y * line : start + y * line + width * 4] for y in range(height))

    def shows_something(self) -> bool:
        """Whether a window with contents is there: a filled area alone, such as a background, does not count."""
        _, height, pixels = self.read()
        step = len(pixels) // height
        rows = [pixels[y * step : (y + 1) * step] for y in range(0, height, 8)]
        seen = {row[x : x + 3] for row in rows for x in range(0, step, 32)}
        return len(seen) > 12

    def save(self, path: Path) -> Path:
        """The picture as a PNG."""
        width, height, pixels = self.read()
        rgb = bytearray(width * height * 3)
        rgb[0::3], rgb[1::3], rgb[2::3] = pixels[2::4], pixels[1::4], pixels[0::4]
        rows = b"".join(b"\0" + rgb[y * width * 3 : (y + 1) * width * 3] for y in range(height))

        def chunk(kind: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        )
        return path

    def wait(self, seconds: float, beside: subprocess.Popen[bytes]) -> float | None:
        """Seconds until something shows; None when the program ended, or nothing came."""
        start = time.monotonic()
        while (passed := time.monotonic() - start) < seconds:
            if self.shows_something():
                return passed
            if beside.poll() is not None:
                return None
            time.sleep(0.02)
        return None


@contextmanager
def screen(width: int = 1100, height: int = 700) -> Iterator[Screen]:
    """A screen of its own for the time of the block. Xvfb picks a free number and tells it."""
    with tempfile.TemporaryDirectory(prefix="screen-") as folder:
        reads, writes = os.pipe()
        command = ["Xvfb", "-displayfd", str(writes), "-screen", "0", f"{width}x{height}x24", "-fbdir", folder, "-ac"]
        server = subprocess.Popen(command, pass_fds=[writes], stderr=subprocess.DEVNULL)
        os.close(writes)
        try:
            with os.fdopen(reads) as told:
                number = told.readline().strip()
            if not number:
                raise SystemExit("Xvfb did not start.")
            yield Screen(f":{number}", Path(folder) / "Xvfb_screen0")
        finally:
            server.terminate()
            server.wait()
