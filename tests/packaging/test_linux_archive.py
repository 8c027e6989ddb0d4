"""install.sh and uninstall.sh of the archive, with a program of three files in place of the real one."""

import os
import subprocess
import sys
import tarfile

import archive
import description as d
import documents
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the archive is for Linux")


@pytest.fixture
def unpacked(tmp_path):
    program, extras = tmp_path / "program", tmp_path / "extras"
    (program / "_internal").mkdir(parents=True)
    (program / "bitsmith").write_text('#!/bin/sh\necho "run with $1"\n')
    (program / "bitsmith").chmod(0o755)
    (program / "_internal" / "lib.so").symlink_to("data")
    (program / "_internal" / "data").write_text("data")
    for place, text in {
        "applications/bitsmith.desktop": documents.desktop_entry(),
        "mime/packages/bitsmith.xml": documents.mime_types(),
        "icons/hicolor/16x16/apps/bitsmith.png": "png",
    }.items():
        path = extras / "share" / place
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (extras / "THIRD-PARTY.txt").write_text("others")
    root = tmp_path / "bitsmith-1"
    archive.lay_out(root, program, extras)
    made = archive.build(root, tmp_path / "out" / "b.tar.gz", 1_700_000_000)
    place = tmp_path / "имя с пробелами 名字"
    with tarfile.open(made) as tar:
        assert {(m.uname, m.mtime) for m in tar} == {("root", 1_700_000_000)}
        tar.extractall(place, filter="data")
    return place / "bitsmith-1"


def sh(*words, **environment):
    done = subprocess.run(
        ["sh", *words], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_install_update_start_uninstall(unpacked, tmp_path):
    prefix = tmp_path / 'to $HOME "and" 100% back`\\'
    for _ in range(2):
        code, said = sh(unpacked / "install.sh", "--prefix", prefix)
        assert code == 0, said
    assert subprocess.check_output([prefix / "bin" / "bitsmith", "a b"], text=True) == "run with a b\n"
    entry = (prefix / "share" / "applications" / "bitsmith.desktop").read_text()
    escaped = str(prefix / "lib" / "bitsmith" / "bitsmith").replace("\\", "\\" * 4).replace("%", "%%")
    for letter in '"`$':
        escaped = escaped.replace(letter, "\\\\" + letter)
    assert f'Exec="{escaped}" %f' in entry.splitlines()
    (prefix / "share" / "icons" / "hicolor" / "16x16" / "apps" / "other.png").write_text("another program's")
    code, said = sh(prefix / "lib" / "bitsmith" / "uninstall.sh")
    assert code == 0, said
    left = [p.relative_to(prefix).as_posix() for p in prefix.rglob("*") if p.is_file()]
    assert left == ["share/icons/hicolor/16x16/apps/other.png"]


@pytest.mark.parametrize("others", [False, True])
def test_what_the_desktop_s_tools_made_goes_as_well(unpacked, tmp_path, others):
    tools = tmp_path / "tools"
    tools.mkdir()
    made = {"update-mime-database": "mime.cache globs2 version", "update-desktop-database": "mimeinfo.cache"}
    for name, files in made.items():
        (tools / name).write_text(f'#!/bin/sh\nfor last; do :; done\nfor f in {files}; do echo x >"$last/$f"; done\n')
        (tools / name).chmod(0o755)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    prefix = tmp_path / "prefix"
    theirs = [prefix / "share" / "mime" / "packages" / "a.xml", prefix / "share" / "applications" / "a.desktop"]
    for file in theirs if others else ():
        file.parent.mkdir(parents=True)
        file.write_text("another program's")
    assert sh(unpacked / "install.sh", "--prefix", prefix, **path)[0] == 0
    assert (prefix / "share" / "mime" / "mime.cache").exists()
    assert sh(prefix / "lib" / "bitsmith" / "uninstall.sh", **path)[0] == 0
    left = {p for p in prefix.rglob("*") if p.is_file()}
    again = {p.parent.parent / "mime.cache" for p in theirs[:1]} | {theirs[1].with_name("mimeinfo.cache")}
    assert left >= {*theirs, *again} if others else not left


def test_another_program_of_that_name_is_left_alone(unpacked, tmp_path):
    (tmp_path / "p" / "lib" / "bitsmith").mkdir(parents=True)
    (tmp_path / "p" / "lib" / "bitsmith" / "mine").write_text("mine")
    code, said = sh(unpacked / "install.sh", "--prefix", tmp_path / "p")
    assert code == 1
    assert "--prefix" in said
    assert (tmp_path / "p" / "lib" / "bitsmith" / "mine").read_text() == "mine"


def test_home_is_the_default_and_must_be_there(unpacked, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    assert sh(unpacked / "install.sh", HOME=str(home))[0] == 0
    assert (home / ".local" / "bin" / d.NAME).exists()
    code, said = sh(unpacked / "install.sh")
    assert code == 2
    assert "HOME" in said
    assert sh(unpacked / "install.sh", "--what")[0] == 2
    assert sh(unpacked / "uninstall.sh")[0] == 1
