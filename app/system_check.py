"""Whether Qt can start here. Asked before Qt is loaded, because Qt itself ends the program with an abort."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

# What Qt 6's libraries and plugins link to (readelf -d): library → (Debian and Ubuntu package, Fedora package).
Libraries = Mapping[str, tuple[str, str]]
CORE: Libraries = {
    "libEGL.so.1": ("libegl1", "libglvnd-egl"),
    "libGL.so.1": ("libgl1", "libglvnd-glx"),
    "libX11.so.6": ("libx11-6", "libX11"),
    "libxkbcommon.so.0": ("libxkbcommon0", "libxkbcommon"),
    "libdbus-1.so.3": ("libdbus-1-3", "dbus-libs"),
    "libfontconfig.so.1": ("libfontconfig1", "fontconfig"),
    "libfreetype.so.6": ("libfreetype6", "freetype"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2"),
    "libzstd.so.1": ("libzstd1", "libzstd"),
}
X11: Libraries = {
    "libX11-xcb.so.1": ("libx11-xcb1", "libX11-xcb"),
    "libxcb-cursor.so.0": ("libxcb-cursor0", "xcb-util-cursor"),
    "libxcb-icccm.so.4": ("libxcb-icccm4", "xcb-util-wm"),
    "libxcb-image.so.0": ("libxcb-image0", "xcb-util-image"),
    "libxcb-keysyms.so.1": ("libxcb-keysyms1", "xcb-util-keysyms"),
    "libxcb-randr.so.0": ("libxcb-randr0", "libxcb"),
    "libxcb-render.so.0": ("libxcb-render0", "libxcb"),
    "libxcb-render-util.so.0": ("libxcb-render-util0", "xcb-util-renderutil"),
    "libxcb-shape.so.0": ("libxcb-shape0", "libxcb"),
    "libxcb-shm.so.0": ("libxcb-shm0", "libxcb"),
    "libxcb-sync.so.1": ("libxcb-sync1", "libxcb"),
    "libxcb-util.so.1": ("libxcb-util1", "xcb-util"),
    "libxcb-xfixes.so.0": ("libxcb-xfixes0", "libxcb"),
    "libxcb-xkb.so.1": ("libxcb-xkb1", "libxcb"),
    "libxkbcommon-x11.so.0": ("libxkbcommon-x11-0", "libxkbcommon-x11"),
}
WAYLAND: Libraries = {
    "libwayland-client.so.0": ("libwayland-client0", "libwayland-client"),
    "libwayland-cursor.so.0": ("libwayland-cursor0", "libwayland-cursor"),
}
SCREENLESS = ("offscreen", "minimal", "vnc", "linuxfb", "eglfs")


def why_not(environment: Mapping[str, str] | None = None) -> str:
    """'' when a window can be opened, else one sentence that says what is missing and what to install."""
    environment = os.environ if environment is None else environment
    if importlib.util.find_spec("PySide6") is None:
        return "The window needs PySide6, which is not installed; install it with 'pip install PySide6-Essentials'."
    if not sys.platform.startswith("linux"):
        return ""
    missing = missing_libraries(CORE)
    if missing:
        return what_to_install(missing, CORE)
    wanted = environment.get("QT_QPA_PLATFORM", "").split(";")[0].split(":")[0]
    if wanted in SCREENLESS:
        return ""
    reasons = []
    if environment.get("WAYLAND_DISPLAY") and wanted in ("", "wayland"):
        reasons.append(what_to_install(missing_libraries(WAYLAND), WAYLAND))
    if environment.get("DISPLAY") and wanted in ("", "xcb"):
        reasons.append(_why_no_x11(environment["DISPLAY"]))
    if not reasons:
        return "There is no display here (DISPLAY and WAYLAND_DISPLAY are not set), so no window can be opened."
    return "" if "" in reasons else reasons[0]


def _why_no_x11(display: str) -> str:
    if not display_answers(display):
        return f"The display {display} does not answer, so no window can be opened."
    return what_to_install(missing_libraries(X11), X11)


def missing_libraries(names: Libraries) -> list[str]:
    """Those of `names` that the dynamic loader does not find."""
    missing = []
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    return missing


def display_answers(display: str) -> bool:
    """Whether an X server accepts a connection. True also when that can not be found out."""
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
    except OSError:
        return True
    xcb.xcb_connect.restype = ctypes.c_void_p
    xcb.xcb_connect.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    xcb.xcb_connection_has_error.argtypes = [ctypes.c_void_p]
    xcb.xcb_disconnect.argtypes = [ctypes.c_void_p]
    connection = xcb.xcb_connect(display.encode(), None)
    broken = bool(xcb.xcb_connection_has_error(connection))
    xcb.xcb_disconnect(connection)
    return not broken


def what_to_install(missing: list[str], names: Libraries) -> str:
    """'' or one sentence with the command of this distribution, or both package lists when it is not known."""
    if not missing:
        return ""
    debian = " ".join(dict.fromkeys(names[name][0] for name in missing))
    fedora = " ".join(dict.fromkeys(names[name][1] for name in missing))
    libraries = ", ".join(missing)
    family = _family()
    if family == "debian":
        return f"The window needs {libraries}; install it with 'sudo apt install {debian}'."
    if family == "fedora":
        return f"The window needs {libraries}; install it with 'sudo dnf install {fedora}'."
    return f"The window needs {libraries}; install it (Debian, Ubuntu: {debian}; Fedora: {fedora})."


def _family() -> str:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    words = {
        word
        for line in text.splitlines()
        if line.startswith(("ID=", "ID_LIKE="))
        for word in line.split("=", 1)[1].strip('"').split()
    }
    if words & {"debian", "ubuntu"}:
        return "debian"
    return "fedora" if words & {"fedora", "rhel", "centos"} else ""
