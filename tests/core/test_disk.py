"""Refusals of a disk in words, room, names and locks: shared by outputs and downloads."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core import disk
from core.disk import Refusal, disk_errors, free_bytes, give_name, in_words, open_locked, refusal, remove_locked
from core.errors import UserError
from core.hub.disk import FolderLock, disk_problem
from core.journal import Journal

PLACE = Path("/media/stick/models/out.gguf")


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number), str(PLACE))


@pytest.mark.parametrize("kind", list(Refusal))
def test_every_kind_is_one_sentence_and_one_step_for_outputs_and_downloads(kind):
    number = next((n for n, found in disk._BY_NUMBER.items() if found is kind), 9999)
    assert refusal(refused(number)) is kind
    with pytest.raises(UserError) as output, disk_errors(PLACE):
        raise refused(number)
    download = disk_problem(refused(number), PLACE)
    assert output.value.message == download.message
    for text in (output.value.message, output.value.hint, download.hint):
        assert text.endswith(".")
        assert text.count(". ") == 0
        assert "{" not in text
    assert ("resume the run" in output.value.hint) == ("go on" in download.hint)


def test_a_disk_that_went_is_told_from_one_that_is_damaged():
    assert {refusal(refused(n)) for n in (errno.ENODEV, errno.ENXIO, errno.ENOENT)} == {Refusal.GONE}
    assert refusal(refused(errno.EIO)) is Refusal.FAILING
    windows = refused(errno.EACCES)
    windows.winerror = 21  # not ready: the stick was pulled out
    assert refusal(windows) is Refusal.GONE


def test_an_invalid_argument_speaks_of_the_name_only_where_there_was_one():
    assert refusal(refused(errno.EINVAL)) is Refusal.NAME
    assert refusal(OSError(errno.EINVAL, "Invalid argument")) is Refusal.OTHER


def test_long_names_are_cut_and_bytes_that_are_no_text_are_shown():
    sentence, _ = in_words(refused(errno.ENAMETOOLONG), PLACE.with_name("x" * 300), "resume the run")
    assert len(sentence) < 120
    place = Path(os.fsdecode(b"/media/\xff\xfe/out.gguf"))
    sentence, _ = in_words(refused(errno.ENOSPC), place, "resume the run")
    sentence.encode()


def test_room_of_a_disk_that_does_not_tell(tmp_path, monkeypatch):
    asked, real = [], shutil.disk_usage

    def usage(folder):
        asked.append(real(folder))  # which other programs change
        return shutil._ntuple_diskusage(9, 4, 5)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert free_bytes(tmp_path / "a" / "b") == free_bytes(tmp_path) == 5
    assert len(asked) == 2
    monkeypatch.undo()
    assert free_bytes(tmp_path / ("x" * 300)) == -1 or os.name != "posix"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    assert free_bytes(tmp_path) == -1


@pytest.mark.skipif(os.name != "posix", reason="Windows syncs no folders")
def test_a_file_system_that_can_not_sync_folders_is_no_failure(tmp_path, monkeypatch):
    def refuse(number):
        def fsync(_fd):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(errno.EINVAL)
    disk.sync_folder(tmp_path)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="put/output"):
        disk.sync_folder(tmp_path)


def test_a_file_that_a_scanner_holds_gets_its_name_later(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("x")
    held, real = [1, 1], Path.replace

    def replace(self, target):
        if held:
            held.pop()
            raise PermissionError(errno.EACCES, "held")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    give_name(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x"


def test_another_program_has_the_lock(tmp_path):
    path = tmp_path / "lock"
    taken = UserError("Taken.", "Wait.")
    code = (
        f"import sys; from core.disk import open_locked; from core.errors import UserError; from pathlib import Path\n"
        f"f = open_locked(Path({str(path)!r}), UserError('x')); print('has it', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(UserError, match="Taken"):
            open_locked(path, taken)
        other.kill()
    file = open_locked(path, taken)  # a program that died has no lock
    remove_locked(file, path)
    assert not path.exists()


def test_a_file_system_that_numbers_files_anew_each_time_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_is_at", lambda _fd, _path: False)
    Journal(tmp_path / "j").close()
    with FolderLock(tmp_path):
        pass


@pytest.mark.skipif(os.name != "posix", reason="POSIX's locks")
def test_a_file_system_without_locks_is_written_to_all_the_same(tmp_path, monkeypatch):
    import fcntl

    def refuse(_fd, _how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FolderLock(tmp_path):
        Journal(tmp_path / "j").close()
