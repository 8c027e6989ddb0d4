"""The program's icon in every size and form, drawn from one SVG. Needs PySide6, and no display."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import description

SOURCE = description.ROOT / "resources" / "bitsmith.svg"
# Apple's types for PNG pictures in an icns file: 16, 32, 64, 128, 256 and 512 points wide.
_ICNS = {16: b"icp4", 32: b"icp5", 64: b"icp6", 128: b"ic07", 256: b"ic08", 512: b"ic09"}
_ICO = (16, 24, 32, 48, 64, 128, 256)


def draw(size: int) -> bytes:
    """The icon as a PNG of size × size."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtCore import QBuffer, QByteArray, QIODevice
    from PySide6.QtGui import QGuiApplication, QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    application = QGuiApplication.instance() or QGuiApplication([])
    picture = QImage(size, size, QImage.Format.Format_ARGB32)
    picture.fill(0)
    painter = QPainter(picture)
    QSvgRenderer(str(SOURCE)).render(painter)
    painter.end()
    data = QByteArray()
    buffer = QBuffer(data)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    picture.save(buffer, "PNG")  # type: ignore[call-overload]  # PySide's annotation lacks the device
    del application
    return bytes(data.data())


def ico(pictures: dict[int, bytes]) -> bytes:
    """Windows' form: a table of PNGs (a width of 256 is written as 0)."""
    head, body = struct.pack("<HHH", 0, 1, len(pictures)), b""
    offset = len(head) + 16 * len(pictures)
    for size, png in sorted(pictures.items()):
        head += struct.pack("<BBBBHHII", size % 256, size % 256, 0, 0, 1, 32, len(png), offset + len(body))
        body += png
    return head + body


def icns(pictures: dict[int, bytes]) -> bytes:
    """macOS' form: types and lengths, big-endian, each before its PNG."""
    body = b"".join(_ICNS[size] + struct.pack(">I", len(png) + 8) + png for size, png in sorted(pictures.items()))
    return b"icns" + struct.pack(">I", len(body) + 8) + body


def write(folder: Path) -> dict[int, Path]:
    """All of them into `folder`; size → PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {size: draw(size) for size in sorted({*description.ICON_SIZES, *_ICNS, *_ICO})}
    for size, png in pictures.items():
        (folder / f"bitsmith-{size}.png").write_bytes(png)
    (folder / "bitsmith.ico").write_bytes(ico({s: pictures[s] for s in _ICO}))
    (folder / "bitsmith.icns").write_bytes(icns({s: pictures[s] for s in _ICNS}))
    return {size: folder / f"bitsmith-{size}.png" for size in description.ICON_SIZES}


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1]))
