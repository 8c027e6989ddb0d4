"""torch as the program uses it: the modules that are imported, and the libraries that those load.

PyInstaller's own hook takes every submodule, those for compilers, exporters and tests too.
"""

from pathlib import Path

from PyInstaller import compat
from PyInstaller.utils.hooks import PY_DYLIB_PATTERNS, collect_dynamic_libs, get_package_paths

folder = Path(get_package_paths("torch")[1])
cuda = any((folder / "lib").glob("*torch_cuda*")) or any((folder / "lib").glob("*torch_hip*"))
module_collection_mode = "pyz+py"  # it reads its own settings files, and what it compiles, as source
binaries = collect_dynamic_libs("torch", search_patterns=[*PY_DYLIB_PATTERNS, "*.so.*"])
# Looked for whenever torch is imported, where it can share memory between processes.
binaries += [(str(path), "torch/bin") for path in (folder / "bin").glob("torch_shm_manager")]
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
