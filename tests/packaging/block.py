"""Run as a program: import everything of ours with the left-out modules blocked, and use torch as the methods do."""

import importlib
import importlib.abc
import importlib.machinery
import pkgutil
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "packaging"))
sys.path.insert(0, str(Path(__file__).parents[2]))
import description


class Absent(importlib.abc.Loader):
    def create_module(self, spec):
        raise ModuleNotFoundError(f"No module named {spec.name!r}: the installed program has none", name=spec.name)

    def exec_module(self, module): ...


class Blocked(importlib.abc.MetaPathFinder):
    names = tuple(description.excluded(description.CPU))

    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in self.names):
            return importlib.machinery.ModuleSpec(name, Absent())
        return None


sys.meta_path.insert(0, Blocked())
OPTIONAL = ("transformers", "pyarrow", "triton")  # what the program can do without, and says so
importlib.import_module("pyqtgraph")  # which plots load when the first of them is drawn
for package in ("app", "core", "kernels", "resources"):
    top = importlib.import_module(package)
    for found in pkgutil.walk_packages(top.__path__, package + "."):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in OPTIONAL:
                raise

torch = importlib.import_module("torch")
weight = torch.randn(8, 8, requires_grad=True)
loss = torch.nn.functional.mse_loss(torch.nn.functional.silu(torch.randn(4, 8) @ weight), torch.zeros(4, 8))
loss.backward()
assert weight.grad is not None
best = torch.optim.Adam([weight], lr=0.1)
best.step()
best.zero_grad()
with tempfile.TemporaryDirectory() as folder:
    torch.save({"w": weight.detach()}, Path(folder) / "pytorch_model.bin")
    (Path(folder) / "config.json").write_text("{}")
    source = importlib.import_module("core.checkpoint").open_checkpoint(Path(folder) / "pytorch_model.bin")
    assert [t.name for t in source.tensors] == ["w"]
sys.stdout.write("all of the program, without what is left out\n")
