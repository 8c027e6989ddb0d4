"""What PyInstaller's spec asks: which files go into the program's folder."""

from __future__ import annotations

import fnmatch
import importlib.util
import sys
import sysconfig
from pathlib import Path

import description
import elf

Entry = tuple[str, str, str]  # name below the program's folder, where it is now, PyInstaller's kind

_CODE = (".py", ".pyc", ".so", ".pyd", ".h", ".inl", ".cpp")


def resources(flavour: description.Flavour) -> list[tuple[str, str]]:
    """Data files of our packages, as PyInstaller wants them: (path, folder)."""
    found = []
    for package in ("app", "core", "kernels", "resources"):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"The package {package} is not installed here.")
        top = Path(next(iter(spec.submodule_search_locations)))
        data = (p for p in sorted(top.rglob("*")) if p.is_file() and p.suffix not in _CODE)
        found += [(str(path), str(Path(package) / path.parent.relative_to(top))) for path in data]
    if flavour.name == "gpu" and not sys.platform.startswith("win"):
        # Triton compiles its launcher against Python's headers, where sysconfig says that they are.
        found.append((sysconfig.get_paths()["include"], f"include/python{sys.version_info[0]}.{sys.version_info[1]}"))
    return found


def also(flavour: description.Flavour) -> list[str]:
    """Modules that are imported by name, by libraries: PyInstaller can not see them."""
    names = ["PySide6.QtSvg", "PySide6.QtOpenGL", "PySide6.QtOpenGLWidgets", "PySide6.QtTest"]  # the last by pyqtgraph
    if importlib.util.find_spec("keyring"):
        names += [
            "keyring.backends." + n for n in ("SecretService", "Windows", "macOS", "kwallet", "chainer", "fail", "null")
        ]
    if flavour.name == "gpu":
        names += ["triton", "triton.backends.nvidia", "triton.backends.amd"]
    return names


def keep(entries: list[Entry]) -> list[Entry]:
    """The entries of PyInstaller's table that the program needs.

    On Linux libraries of the system that only a left-out plugin linked to (GTK's, say) go with it.
    """
    kept = [e for e in entries if wanted(e[0].replace("\\", "/"))]
    if not sys.platform.startswith("linux"):
        return kept
    libraries = {_base(e): Path(e[1]) for e in kept if e[2] in ("BINARY", "EXTENSION")}
    # Loaded by Python or by name; libpython by the program itself.
    roots = {_base(e) for e in kept if "/" in e[0] or e[2] == "EXTENSION" or e[0].startswith("libpython")}
    lost = elf.orphans(libraries, roots)
    kept = [e for e in kept if e[2] != "BINARY" or e[0] not in lost]
    names = {e[0] for e in kept}
    return [e for e in kept if e[2] != "SYMLINK" or str(Path(e[0]).parent / e[1]) in names]


def _base(entry: Entry) -> str:
    return entry[0].rpartition("/")[2]


def wanted(name: str) -> bool:
    """Whether a file, by its name below the program's folder, goes in."""
    base = name.rpartition("/")[2]
    if any(fnmatch.fnmatch(name, pattern) for pattern in description.LEFT_OUT_FILES):
        return False
    if sys.platform.startswith("linux") and any(fnmatch.fnmatch(base, p) for p in description.SYSTEM_LIBRARIES):
        return False
    if "/plugins/" in name and "PySide6" in name:
        plugin = name.rpartition("/plugins/")[2]
        return any(fnmatch.fnmatch(plugin, pattern) for pattern in description.QT_PLUGINS)
    if "Qt6" in base or base.startswith("Qt"):
        stem = base.replace("libQt6", "").replace("Qt6", "").removeprefix("Qt")
        return not stem.startswith(description.QT_LIBRARIES_LEFT_OUT)
    return True


def icon() -> str | None:
    """The program's icon in the form of this system, made by build.py; Linux takes it from the icon theme."""
    name = {"win32": "bitsmith.ico", "darwin": "bitsmith.icns"}.get(sys.platform)
    return str(description.ROOT / "build" / "installer" / "icons" / name) if name else None


def info_plist() -> dict[str, object]:
    """macOS: which files the program opens, and that it is drawn in full resolution."""
    return {
        "CFBundleDisplayName": description.TITLE,
        "CFBundleShortVersionString": description.VERSION,
        "NSHighResolutionCapable": True,
        "LSMinimumSystemVersion": "13.0",
        "NSHumanReadableCopyright": f"{description.TITLE} contributors, {description.LICENCE}",
        "CFBundleDocumentTypes": [
            {
                "CFBundleTypeName": what,
                "CFBundleTypeExtensions": [pattern.removeprefix("*.")],
                "CFBundleTypeRole": "Viewer",
                "LSHandlerRank": "Alternate",
            }
            for what, pattern, _magic in description.MIME_TYPES.values()
        ],
    }
