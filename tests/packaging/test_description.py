"""The description that all installers are made from, and the texts made from it."""

import datetime as dt
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import description as d
import documents
import pytest

import build
from app import system_check

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_stands_in_pyproject_only():
    assert PROJECT["version"] == d.VERSION
    for path in [*(ROOT / "packaging").rglob("*"), ROOT / "Makefile"]:
        if path.is_file() and path.suffix in (".py", ".spec", ".iss", ".sh", ".plist", ".yml", ""):
            assert f'"{d.VERSION}"' not in path.read_text(encoding="utf-8"), path


def test_both_flavours_ask_for_everything_that_the_program_requires():
    names = {re.split(r"[<>=!;\[ ]", r)[0] for r in PROJECT["dependencies"]}
    asked = {re.split(r"[<>=!;\[ ]", r)[0] for r in d.requirements(d.GPU)} | {"torch"}
    assert names <= asked
    assert {re.split(r"[<>=!;\[ ]", r)[0] for r in d.requirements(d.CPU)} == asked - {"torch", "triton"}
    assert "triton" in d.excluded(d.CPU)
    assert "triton" not in d.excluded(d.GPU)
    assert re.fullmatch(r"[\d.]+", d.locked("torch"))


def test_control_fields():
    text = documents.control(d.CPU, ["libc6 (>= 2.36)", "libx11-6"], "amd64", 700_000)
    fields = dict(re.findall(r"^([A-Z][\w-]+): (.+)$", text, re.MULTILINE))
    assert fields["Package"] == "bitsmith"
    assert fields["Version"] == PROJECT["version"]
    assert fields["Architecture"] == "amd64"
    assert fields["Depends"] == "libc6 (>= 2.36), libx11-6"
    assert fields["Conflicts"] == "bitsmith-gpu"
    assert fields["Installed-Size"] == "700000"
    assert re.fullmatch(r".+ <\S+@\S+>", fields["Maintainer"])
    assert len(fields["Description"]) < 120  # Debian's policy asks for one line of under 80, lintian complains later
    assert text.split("Description: ")[1].split("\n")[1].startswith(" ")
    assert "bitsmith-gpu" not in documents.control(d.GPU, [], "amd64", 1).split("Conflicts: ")[1].split("\n")[0]


def test_dpkg_reads_the_control_file(tmp_path):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is Debian's")
    import deb

    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / "usr" / "file").write_text("x")
    program = tmp_path / "program"
    program.mkdir()
    made = deb.build(root, program, tmp_path / "p.deb", d.CPU, "amd64", 1_700_000_000)
    listed = subprocess.run(["dpkg-deb", "--contents", made], capture_output=True, text=True, check=True).stdout
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())
    version = subprocess.run(["dpkg-deb", "-f", made, "Version"], capture_output=True, text=True, check=True).stdout
    assert version.strip() == d.VERSION
    first = made.read_bytes()
    shutil.rmtree(root / "DEBIAN")
    assert deb.build(root, program, tmp_path / "q.deb", d.CPU, "amd64", 1_700_000_000).read_bytes() == first


def test_desktop_entry(tmp_path):
    entry = tmp_path / "bitsmith.desktop"
    entry.write_text(documents.desktop_entry(), encoding="utf-8")
    assert "Exec=bitsmith %f" in entry.read_text().splitlines()
    if shutil.which("desktop-file-validate"):
        done = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_mime_types_name_both_kinds_of_files():
    space = "{http://www.freedesktop.org/standards/shared-mime-info}"
    root = ET.fromstring(documents.mime_types())
    assert [g.get("pattern") for g in root.iter(f"{space}glob")] == ["*.gguf", "*.safetensors"]
    assert [m.get("value") for m in root.iter(f"{space}match")] == ["GGUF"]


def test_metainfo(tmp_path):
    path = tmp_path / f"{d.APP_ID}.metainfo.xml"
    path.write_text(documents.metainfo(dt.date(2026, 1, 2)), encoding="utf-8")
    root = ET.parse(path).getroot()
    assert root.findtext("id") == d.APP_ID
    assert root.find("releases/release").attrib == {"version": d.VERSION, "date": "2026-01-02"}
    if shutil.which("appstreamcli"):
        done = subprocess.run(
            ["appstreamcli", "validate", "--no-net", "--no-color", path], capture_output=True, text=True, check=False
        )
        assert not re.search(r"^[EW]:", done.stdout, re.MULTILINE), done.stdout


def test_windows_and_macos_know_the_same_file_types():
    import collecting

    script = (ROOT / "packaging" / "windows" / "bitsmith.iss").read_text(encoding="utf-8")
    kinds = [t["CFBundleTypeExtensions"][0] for t in collecting.info_plist()["CFBundleDocumentTypes"]]
    assert kinds == ["gguf", "safetensors"]
    assert all(f"Classes\\.{kind}\\" in script for kind in kinds)


def test_a_licence_is_named_for_every_distribution():
    for name in ("PySide6_Essentials", "torch", "numpy", "huggingface_hub"):
        assert documents.licence(importlib.metadata.distribution(name)) != "see its files"
    text = documents.third_party([importlib.metadata.distribution("numpy")])
    assert "numpy" in text
    assert "replace" in text  # how Qt's libraries are exchanged, which the LGPL asks to say
    assert documents.copyright_file(text).count("\n\n") == 1  # a second paragraph would start another entry


def test_a_build_ends_at_once_where_a_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded before the sentence that says what to install."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        system_check, "missing_libraries", lambda names: [n for n in names if n == "libxcb-keysyms.so.1"]
    )
    with pytest.raises(SystemExit, match="libxcb-keysyms"):
        build.check_system()
