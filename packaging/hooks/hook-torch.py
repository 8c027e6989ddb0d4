"""torch as the program uses it: the modules that are imported and the libraries that those load.

PyInstaller's own hook takes every submodule and every source file, some 100 MB that only compilers and exporters read.
"""

from pathlib import Path

from PyInstaller import compat
from PyInstaller.utils.hooks import PY_DYLIB_PATTERNS, collect_dynamic_libs, get_package_paths

folder = Path(get_package_paths("torch")[1])
cuda = any((folder / "lib").glob("*torch_cuda*")) or any((folder / "lib").glob("*torch_hip*"))
module_collection_mode = "pyz+py" if cuda else "pyz"
binaries = collect_dynamic_libs("torch", search_patterns=[*PY_DYLIB_PATTERNS, "*.so.*"])
datas = [(str(folder / "version.py"), "torch")]
# Imported by C++ code or by name.
hiddenimports = [
    "torch._C",
    "torch._VF",
    "torch._dispatch.python",
    "torch._refs",
    "torch._decomp",
    "torch._meta_registrations",
]
if cuda and compat.is_linux:
    # CUDA's libraries are packages of their own, found through torch's requirements.
    import importlib.metadata

    for requirement in importlib.metadata.requires("torch") or []:
        name = requirement.split(";")[0].split("=")[0].strip()
        if name.startswith("nvidia-"):
            for file in importlib.metadata.files(name) or []:
                if ".so" in file.name:
                    binaries.append((str(file.locate()), str(file.parent)))
bindepend_symlink_suppression = ["**/torch/lib/*.so*"]
