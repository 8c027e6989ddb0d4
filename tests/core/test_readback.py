"""What is read back comes from the disk, whatever the file system can, and wherever blocks lie."""

import errno
import os

import numpy as np
import pytest

from core import recorder
from core.journal import Entry, WrittenBlock
from core.readback import ALIGNMENT, DirectFile
from kernels import ops

SIZE = 3 * ALIGNMENT + 77


@pytest.fixture
def written(tmp_path):
    path, data = tmp_path / "file", np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    path.write_bytes(data.tobytes())
    with path.open("rb") as f:
        os.fsync(f.fileno())
    return path, data


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (0, SIZE),
        (1, 1),
        (ALIGNMENT - 1, 2),
        (ALIGNMENT, ALIGNMENT),
        (5000, 7000),
        (SIZE - 3, 3),
        (SIZE - 3, 9),
        (SIZE, 4),
    ],
)
def test_any_window_is_read_as_it_was_written(written, offset, nbytes):
    path, data = written
    direct = DirectFile(path)
    found = direct.read(offset, nbytes)
    if found is None:
        pytest.skip("needs a file system with direct reads")
    assert np.array_equal(found, data[offset : offset + nbytes])
    direct.close()
    assert direct.read(0, 1) is None


def test_a_file_system_without_direct_reads_is_found_out_once(written, monkeypatch):
    path, _ = written

    def refuse(*_args):
        raise OSError(errno.EINVAL, "Invalid argument")

    direct = DirectFile(path)
    monkeypatch.setattr(os, "preadv", refuse, raising=False)
    assert direct.read(0, 10) is None
    assert not direct.available
    direct.close()


def test_a_disk_that_fails_is_no_file_system_without_direct_reads(written, monkeypatch):
    path, _ = written
    direct = DirectFile(path)
    if not direct.available:
        pytest.skip("needs a file system with direct reads")

    def fail(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output"):
        direct.read(0, 10)
    direct.close()


class Held:
    """Files in memory, as `OutputFiles.read` reads them."""

    def __init__(self, *files):
        self.files = files

    def read(self, file, offset, nbytes):
        assert offset + nbytes <= self.files[file].size
        return self.files[file][offset : offset + nbytes]


def stretches(data, file, offset, nbytes, count, stride):
    rows = [data[offset + i * stride : offset + i * stride + nbytes] for i in range(count)]
    return WrittenBlock(file, offset, nbytes, ops.crc32(np.concatenate(rows)), count, stride)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_blocks_side_by_side_are_checked_in_their_lines(monkeypatch, chunk):
    """Two stored arrays of 7 lines of 40 bytes, the second with one block alone, and a block that lies in one piece."""
    monkeypatch.setattr(recorder, "CHUNK", chunk)
    data = np.random.default_rng(1).integers(0, 256, 700, np.uint8)
    blocks = [stretches(data, 0, 11 + left, width, 7, 40) for left, width in ((0, 8), (8, 24), (32, 8))]
    blocks += [stretches(data, 0, 291, 40, 7, 40), stretches(data, 0, 571, 129, 1, 0)]
    entry = Entry(0, tuple(blocks[i] for i in (4, 2, 0, 3, 1)), None)
    assert recorder.intact(Held(data), entry)
    for at in (11, 18, 19, 42, 43, 50, 290, 291, 570, 571, 699):
        broken = data.copy()
        broken[at] ^= 4
        assert not recorder.intact(Held(broken), entry), at
    for at in (10, 0):
        broken = data.copy()
        broken[at] ^= 4
        assert recorder.intact(Held(broken), entry), at
