"""The one description of what is packaged: names, flavours, what is left out. All installers are made from it."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

NAME: str = _PROJECT["name"]
TITLE = "Bitsmith"
VERSION: str = _PROJECT["version"]
SUMMARY: str = _PROJECT["description"].rstrip(".")
LICENCE: str = _PROJECT["license"]
APP_ID = "org.bitsmith.Bitsmith"
MAINTAINER = os.environ.get("BITSMITH_MAINTAINER", "Bitsmith contributors <maintainers@bitsmith.invalid>")
DETAILS = (
    "Bitsmith turns the weights of a language model into 8, 6, 4 or fewer bits, for llama.cpp, vLLM, Transformers "
    "and other programs. It shows where the error goes while it happens, says exactly how large the result will be "
    "before anything runs, verifies the file that it wrote, and lets both models be compared side by side. "
    "No account, no telemetry; nothing leaves the computer."
)
KEYWORDS = ("quantization", "GGUF", "safetensors", "LLM", "language model", "llama.cpp")
# Files that a double click opens: MIME type → (what it is, pattern, magic bytes as (offset, text) or none).
MIME_TYPES = {
    "application/x-gguf": ("GGUF language model", "*.gguf", (0, "GGUF")),
    "application/x-safetensors": ("safetensors weights", "*.safetensors", None),
}
ICON_SIZES = (16, 22, 24, 32, 48, 64, 96, 128, 256, 512)


@dataclass(frozen=True)
class Flavour:
    """One build of the program.

    package: name of the Debian package and of the files. torch: what pip is asked for. leave_out: requirements of
    pyproject.toml that it does without. limit_mb: largest size of the compressed package in MB (10⁶ bytes), or None.
    """

    name: str
    package: str
    torch: str
    leave_out: tuple[str, ...]
    limit_mb: int | None
    says: str


CPU = Flavour("cpu", NAME, "torch", ("triton",), 300, "Everything runs on the processor.")
GPU = Flavour(
    "gpu",
    f"{NAME}-gpu",
    "torch",
    (),
    None,
    "Includes the libraries for NVIDIA cards (CUDA) or, built with ROCm's torch, AMD's.",
)
FLAVOURS = {f.name: f for f in (CPU, GPU)}


def requirements(flavour: Flavour) -> list[str]:
    """What pip installs for a flavour, torch aside; versions come from constraints.txt."""
    wanted = _PROJECT["dependencies"]
    return [r for r in wanted if not r.startswith(("torch", *flavour.leave_out))]


def locked(name: str) -> str:
    """The version that constraints.txt names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))


# PyInstaller is locked here: no test needs it.
BUILD_TOOLS = (
    "pyinstaller==6.22.3",
    "pyinstaller-hooks-contrib==2026.9",
    "scikit-build-core",
    "nanobind",
    "cmake",
    "ninja",
)


# ---- what is left out ------------------------------------------------------------------------------------------------

# Modules that no code path of the program imports; a test imports everything with these blocked.
# Those of torch are compilers, exporters and tests; of torch.distributed, torch itself imports the top at start.
EXCLUDED_MODULES = (
    "IPython",
    "_tkinter",
    "caffe2",
    "curses",
    "idlelib",
    "lib2to3",
    "matplotlib",
    "nanobind",
    "numba",
    "onnx",
    "onnxruntime",
    "pandas",
    "pip",
    "pyarrow",
    "pytest",
    "scipy",
    "setuptools",
    "tensorboard",
    "tensorflow",
    "tkinter",
    "torchvision",
    "transformers",
    "turtle",
    "wheel",
    "numpy.f2py",
    "numpy.distutils",
    "pyqtgraph.examples",
    "pyqtgraph.opengl",
    "pyqtgraph.jupyter",
    "sympy.parsing.latex",
    "sympy.parsing.autolev",
    "torch.utils.tensorboard",
    "torch.utils.benchmark",
    "torch.utils.bottleneck",
    "torch.utils.hipify",
    "torch.onnx",
    "torch.ao.pruning",
    "torch.distributed.elastic",
    "torch.distributed.pipelining",
    "torch.distributed.launcher",
    "functorch",
    "readline",
    "sqlite3",
    "PySide6.QtNetwork",
    "PySide6.QtPrintSupport",
    "PySide6.QtQml",
    "PySide6.QtQuick",
    "PySide6.QtSql",
    "PySide6.QtUiTools",
)


def excluded(flavour: Flavour) -> list[str]:
    """Modules that PyInstaller must not take, for a flavour."""
    return [*EXCLUDED_MODULES, *flavour.leave_out]


# Of Qt: plugins that stay. The window draws with widgets and reads SVG and PNG; the rest of Qt is not used.
QT_PLUGINS = (
    "platforms/*qxcb*",
    "platforms/*qwayland*",
    "platforms/*qoffscreen*",
    "platforms/*qminimal.*",
    "platforms/*qwindows*",
    "platforms/*qcocoa*",
    "styles/*",
    "iconengines/*qsvgicon*",
    "imageformats/*qsvg*",
    "imageformats/*qico*",
    "imageformats/*qjpeg*",
    "platforminputcontexts/*compose*",
    "platforminputcontexts/*ibus*",
    "platformthemes/*xdgdesktopportal*",
    "wayland-decoration-client/*",
    "wayland-graphics-integration-client/*",
    "wayland-shell-integration/*",
    "xcbglintegrations/*",
)
# Libraries of Qt that nothing above links to.
QT_LIBRARIES_LEFT_OUT = (
    "Qml",
    "Quick",
    "Pdf",
    "VirtualKeyboard",
    "Eglfs",
    "EglFs",
    "Network",
    "PrintSupport",
    "Sql",
    "UiTools",
)
# Folders and files (patterns below the program's folder) that PyInstaller's hooks collect and nothing reads.
LEFT_OUT_FILES = (
    "PySide6/Qt/translations/*",
    "PySide6/Qt/qml/*",
    "PySide6/Qt/metatypes/*",
    "torch/include/*",
    "torch/share/*",
    "torch/test/*",
    "torch/lib/libjitbackend_test.so",
    "torch/lib/libbackend_with_compiler.so",
    "torch/lib/libtorchbind_test.so",
    "torch/lib/libaoti_custom_ops.so",
    "*.pyi",
    "numpy/*.h",
    "PySide6/*.h",
    "torch/*.h",
    "*.cpp",
    "*.inl",
    "*.a",
    "*.dist-info/RECORD",
    "*.dist-info/INSTALLER",
    "*.dist-info/REQUESTED",
    "*.dist-info/direct_url.json",
    "*.dist-info/licenses/*",
)
# Taken from the system, where the graphics driver must find its own: a second libstdc++ or libdrm breaks Mesa's.
SYSTEM_LIBRARIES = (
    "libstdc++.so*",
    "libgcc_s.so*",
    "libX11.so*",
    "libX11-xcb.so*",
    "libXau.so*",
    "libXdmcp.so*",
    "libfontconfig.so*",
    "libfreetype.so*",
    "libexpat.so*",
    "libglib-2.0.so*",
    "libgthread-2.0.so*",
    "libdbus-1.so*",
    "libsystemd.so*",
    "libgcrypt.so*",
    "libgpg-error.so*",
    "libcap.so*",
    "liblz4.so*",
    "libzstd.so*",
    "libgtk-3.so*",
)
# Library of the system → Debian packages that have it (Ubuntu's and Debian 13's names after the bar).
DEBIAN_PACKAGES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libX11.so.6": "libx11-6",
    "libc.so.6": "libc6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libgcc_s.so.1": "libgcc-s1",
    "libglib-2.0.so.0": "libglib2.0-0 | libglib2.0-0t64",
    "libgthread-2.0.so.0": "libglib2.0-0 | libglib2.0-0t64",
    "libstdc++.so.6": "libstdc++6",
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
    "libwayland-egl.so.1": "libwayland-egl1",
    "libxcb.so.1": "libxcb1",
    "libzstd.so.1": "libzstd1",
    "libz.so.1": "zlib1g",
}
# Part of every glibc, or only named by libraries that load without them.
_GLIBC = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "ld-linux-x86-64.so.2",
)
GLIBC_LIBRARIES = frozenset((*_GLIBC, "libresolv.so.2", "libcrypt.so.1", "ld-linux-aarch64.so.1"))
# Come with a driver or with a device's tool kit, and are opened only where there is one.
DRIVER_LIBRARIES = frozenset(("libcuda.so.1", "libnvidia-ml.so.1", "libamdhip64.so"))
# Libraries whose layout was changed after linking (auditwheel's patchelf): strip would move what they point to.
NOT_STRIPPED = ("numpy.libs/*", "sentencepiece.libs/*", "scipy.libs/*", "*-????????.so*")
# Files that the program runs without, more slowly or with less to say, so that no trial of it would fail.
MUST_HAVE = ("_cpu.*", "_engine.*", "support_matrix.json", "guide/index.md")
# Files whose bytes may differ between two builds of the same sources, with the reason.
NOT_REPRODUCIBLE: dict[str, str] = {}
# Fonts make text; a session bus and a portal come with every desktop.
RECOMMENDS = ("fonts-dejavu-core", "xdg-utils", "shared-mime-info", "desktop-file-utils")
