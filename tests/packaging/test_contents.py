"""What goes into the program's folder, what a library needs, and the bill of materials."""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import collecting
import compare
import description as d
import elf
import icons
import parts
import PySide6
import pytest
import sbom

import build

ROOT = Path(__file__).parents[2]
QT = Path(PySide6.__file__).parent / "Qt" / "lib"  # as the wheels for Linux have it


def test_what_is_left_out_and_what_stays():
    qt = "PySide6/Qt/"
    assert collecting.wanted(qt + "plugins/platforms/libqxcb.so")
    assert collecting.wanted(qt + "plugins/imageformats/libqsvg.so")
    assert not collecting.wanted(qt + "plugins/imageformats/libqpdf.so")
    assert not collecting.wanted(qt + "plugins/platformthemes/libqgtk3.so")
    assert not collecting.wanted(qt + "translations/qtbase_de.qm")
    assert collecting.wanted(qt + "lib/libQt6Widgets.so.6")
    assert not collecting.wanted(qt + "lib/libQt6Quick.so.6")
    assert not collecting.wanted("torch/include/ATen/ATen.h")
    assert collecting.wanted("torch/lib/libtorch_cpu.so")
    if sys.platform.startswith("linux"):
        assert not collecting.wanted("libstdc++.so.6")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries of the system are sorted on Linux only")
def test_a_library_goes_with_the_plugin_that_needed_it(tmp_path):
    library = QT / "libQt6Gui.so.6"
    needs = elf.read(library)
    other = tmp_path / "libQt6Core.so.6"
    shutil.copyfile(library.with_name("libQt6Core.so.6"), other)
    entries = [
        ("PySide6/QtGui.so", str(library), "EXTENSION"),
        ("libQt6Core.so.6", str(other), "BINARY"),
        ("libgtk.so.1", str(other), "BINARY"),
        ("libgtk.so", "libgtk.so.1", "SYMLINK"),
        ("libcore.so", "libQt6Core.so.6", "SYMLINK"),
    ]
    assert "libQt6Core.so.6" in needs.libraries
    assert [e[0] for e in collecting.keep(entries)] == ["PySide6/QtGui.so", "libQt6Core.so.6", "libcore.so"]


@pytest.mark.skipif(shutil.which("readelf") is None or not QT.is_dir(), reason="compared with readelf, on Linux")
def test_needs_of_a_library_as_readelf_says():
    library = QT / "libQt6Gui.so.6"
    told = subprocess.run(["readelf", "-dVW", library], capture_output=True, text=True, check=True).stdout
    needs = elf.read(library)
    assert list(needs.libraries) == re.findall(r"\(NEEDED\).*\[(.+)\]", told)
    assert needs.soname == re.search(r"\(SONAME\).*\[(.+)\]", told)[1]
    versions = set(re.findall(r"Name: ((?:GLIBC|GLIBCXX|CXXABI|GCC)_[\w.]+)", told))
    assert {v for names in needs.versions.values() for v in names if v.startswith(("G", "C"))} == versions
    assert elf.newest({"GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE"}, "GLIBC") == (2, 34)


def test_other_files_need_nothing(tmp_path):
    for data in (b"", b"\x7fELF", b"#!/bin/sh\n" * 20):
        path = tmp_path / "file"
        path.write_bytes(data)
        assert elf.read(path) is None


def test_hashes_name_every_file_and_link(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("bits")
    (tmp_path / "link").symlink_to("a/b.txt")
    lines = build.hashes(tmp_path).splitlines()
    assert lines == [f"{hashlib.sha256(b'bits').hexdigest()}  a/b.txt", "-> a/b.txt  link"]


def test_a_program_without_its_compiled_kernels_ends_the_build(tmp_path):
    for name in ("_engine.cpython-311-x86_64-linux-gnu.so", "_cpu.pyd", "support_matrix.json", "guide/index.md"):
        place = tmp_path / "_internal" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    build.check_whole(tmp_path)
    (tmp_path / "_internal" / "_cpu.pyd").unlink()
    with pytest.raises(SystemExit, match="_cpu"):
        build.check_whole(tmp_path)


def test_sums_keep_other_flavours_and_forget_what_is_gone(tmp_path):
    extras = tmp_path / "extras"
    extras.mkdir()
    (extras / "sbom.cdx.json").write_text("{}")
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.deb").write_bytes(b"o")
    (out / "p.deb").write_bytes(b"p")
    (out / "SHA256SUMS").write_text(f"{'0' * 64}  old.deb\n{'1' * 64}  gone.deb\n{'2' * 64}  p.deb\n")
    build.finish([out / "p.deb"], out, d.CPU, extras, "listed\n")
    lines = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert lines["old.deb"] == "0" * 64
    assert "gone.deb" not in lines
    assert lines["p.deb"] == build.sha256(out / "p.deb")


def test_bill_of_materials_is_what_the_lock_says():
    lock = sbom.locked(ROOT / "constraints.txt")
    here = parts.distributions("torch") + parts.distributions("gguf")
    document = sbom.bill(here, d.CPU, "2026-01-02T00:00:00Z")
    assert document["bomFormat"] == "CycloneDX"
    assert document["specVersion"] == "1.5"
    refs = [p["bom-ref"] for p in document["components"]]
    assert document["dependencies"][0]["dependsOn"] == refs
    assert any(r.startswith("pkg:pypi/torch@") and "+" not in r for r in refs)
    assert json.loads(json.dumps(document)) == document
    assert document == sbom.bill(here, d.CPU, "2026-01-02T00:00:00Z")
    wrong = sbom.differences(document, {**lock, "numpy": "0.1"})
    assert [w for w in wrong if "numpy" in w]
    del lock["torch"]
    assert "torch is not in constraints.txt." in sbom.differences(document, lock)


def test_closure_follows_requirements_without_extras():
    names = {parts.canonical(p.name) for p in parts.distributions("jinja2")}
    assert names == {"jinja2", "markupsafe"}
    assert parts.distributions("no-such-distribution") == []


def test_closure_takes_the_extras_that_are_asked_for(monkeypatch):
    class Fake:
        def __init__(self, name, requires):
            self.name, self.requires = name, requires

    known = {
        "a": Fake("a", ["b[x]>=1", 'never; extra == "y"']),
        "b": Fake("b", ['c; extra == "x"', 'never; extra == "z"']),
        "c": Fake("c", None),
        "never": Fake("never", None),
    }
    monkeypatch.setattr(importlib.metadata, "distribution", known.__getitem__)
    assert [p.name for p in parts.distributions("a")] == ["a", "b", "c"]


def test_torch_or_gguf_brings_numpy():
    assert importlib.metadata.version("numpy") in {
        p.version for p in parts.distributions("torch") + parts.distributions("gguf")
    }


def test_icons_have_the_sizes_that_they_say(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "packaging" / "icons.py", tmp_path],
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for size in d.ICON_SIZES:
        data = (tmp_path / f"bitsmith-{size}.png").read_bytes()
        assert data[16:24] == size.to_bytes(4, "big") * 2
    assert (tmp_path / "bitsmith.ico").read_bytes()[:4] == b"\0\0\1\0"
    apple = (tmp_path / "bitsmith.icns").read_bytes()
    assert apple[:4] == b"icns"
    assert int.from_bytes(apple[4:8], "big") == len(apple)
    assert icons.ico({16: b"abc", 256: b"de"})[-5:] == b"abcde"


@pytest.mark.slow
def test_the_program_imports_nothing_that_is_left_out():
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("block.py")],
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_builds_are_compared_by_name_and_hash():
    same = f"{'a' * 64}  one file\n"
    assert compare.differences(same + f"{'b' * 64}  x\n", same + f"{'c' * 64}  x\n-> one file  y\n") == ["x", "y"]
    assert compare.differences(same, same) == []
