"""The sample that an installed program carries."""

import hashlib
import sys

import pytest

from core import sample
from core.errors import UserError


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    path = tmp_path / "program" / sample.NAME
    path.parent.mkdir()
    path.write_bytes(b"GGUF and more")
    monkeypatch.setattr(sample, "BUNDLED", path)
    monkeypatch.setattr(sample, "BYTES", 13)
    monkeypatch.setattr(sample, "SHA256", hashlib.sha256(b"GGUF and more").hexdigest())
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    return path


def test_it_is_copied_to_where_outputs_can_stand_beside_it(bundled, tmp_path):
    made = sample.sample_path(tmp_path / "cache")
    assert made == tmp_path / "cache" / sample.NAME
    assert made.read_bytes() == b"GGUF and more"
    assert [p.name for p in made.parent.iterdir()] == [sample.NAME]
    bundled.unlink()
    assert sample.sample_path(tmp_path / "cache") == made


def test_a_damaged_one_is_not_taken(bundled, tmp_path):
    bundled.write_bytes(b"GGUF and mere")
    with pytest.raises(UserError, match="holds another"):
        sample.sample_path(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_it_pip_is_not_asked(bundled, tmp_path):
    bundled.unlink()
    with pytest.raises(UserError, match="has no sample"):
        sample.sample_path(tmp_path / "cache")
