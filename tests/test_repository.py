"""What the repository says about itself is so: pins, system libraries, names of folders, length of files."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from app.system_check import CORE, WAYLAND, X11

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 600


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[ <>=;\[]", name)[0]).lower()


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, or, in an unpacked archive, none."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_every_dependency_has_one_exact_version() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line) for line in lines)
    pinned = {normal(line) for line in lines}
    assert {normal(name) for name in wanted} - pinned == {"triton"}
    assert "torch==2.13.0" in lines
    assert "torch==2.13.0" in read("Makefile")


@pytest.mark.parametrize(("column", "words"), [(0, "apt install"), (1, "dnf install")])
def test_system_libraries_stand_in_the_readme(column: int, words: str) -> None:
    commands = [block for block in read("README.md").split("\n\n") if words in block]
    assert len(commands) == 1
    named = set(commands[0].replace("\\\n", " ").split())
    needed = {packages[column] for packages in {**CORE, **X11, **WAYLAND}.values()}
    assert needed <= named


def test_ci_installs_what_the_window_needs() -> None:
    named = set(read(".ci/run").split())
    assert {debian for debian, _ in {**CORE, **X11}.values()} <= named


def test_our_names_win() -> None:
    """`packaging` is the library in spite of our folder, `kernels` and `core` are ours in spite of other packages."""
    spec = importlib.util.find_spec("packaging")
    assert spec is not None
    assert spec.origin is not None
    assert ROOT / "packaging" not in Path(spec.origin).parents
    assert not (ROOT / "packaging" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))
    for name in ("app", "core", "kernels"):
        origin = importlib.util.find_spec(name).origin  # type: ignore[union-attr]
        assert Path(origin or "") == ROOT / name / "__init__.py"
        assert set(packages_distributions().get(name, [])) <= {"bitsmith"}


def test_no_file_is_too_long() -> None:
    files = tracked("*.py", "*.cpp", "*.h", "*.inl")
    long = {str(path.relative_to(ROOT)): n for path in files if (n := path.read_bytes().count(b"\n")) > LONGEST}
    assert not long


def test_nothing_that_may_not_be_committed() -> None:
    names = [path.name for path in tracked()]
    assert not [name for name in names if name.endswith((".gguf", ".safetensors", ".bin", ".pt", ".whl", ".so"))]


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in tracked("tests/**/test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_links_in_documents_lead_somewhere() -> None:
    for page in tracked("*.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_core_starts_without_qt_and_torch() -> None:
    code = "import sys, core.cli; print(sorted({'torch', 'PySide6', 'pyqtgraph', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
