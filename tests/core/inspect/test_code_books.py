"""Types with a code for several values, IQ1_S … IQ3_S: all that Inspect says of them, against the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from inspect_models import write_code_books

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.inspect.compare import compare
from core.inspect.group_map import stored_group
from core.inspect.statistics import inspect_tensor
from core.inspect.survey import survey
from core.progress import CancelToken
from kernels.layouts import SOURCE_KINDS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_code_books(tmp_path_factory.mktemp("books") / "books.gguf")


@pytest.fixture(scope="module")
def wanted(path: Path) -> dict[str, np.ndarray]:
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: gguf.dequantize(t.data, t.tensor_type) for t in tensors}


@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_statistics_and_picture(kind: str, path: Path, wanted: dict[str, np.ndarray]) -> None:
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensor(f"blk.0.{kind.lower()}.weight")
        assert tensor.dtype == kind
        values = wanted[tensor.name]
        found, pyramid = inspect_tensor(checkpoint, tensor, CancelToken())
        assert (found.finite, found.nonfinite) == (values.size, 0)
        assert found.amax == np.abs(values).max() > 0
        np.testing.assert_array_equal(found.columns.max, np.abs(values).max(axis=0))
        np.testing.assert_array_equal(found.rows.max, np.abs(values).max(axis=1))
        picture = pyramid.pooled((0, 64), (0, 512), 8, 16)
        np.testing.assert_array_equal(picture, np.abs(values).reshape(8, 8, 16, 32).max(axis=(1, 3)))


@pytest.mark.parametrize("kind", SOURCE_KINDS)
def test_that_its_bits_can_not_be_shown_is_one_plain_sentence(kind: str, path: Path) -> None:
    with open_checkpoint(path) as checkpoint, pytest.raises(UserError) as caught:
        stored_group(checkpoint, checkpoint.tensor(f"blk.0.{kind.lower()}.weight"), 3, 100)
    assert caught.value.message == f"{kind} stores several values in one code, so its bits can not be shown one by one."
    assert caught.value.hint


def test_survey_and_comparison(path: Path, wanted: dict[str, np.ndarray], tmp_path: Path) -> None:
    with open_checkpoint(path) as checkpoint, open_checkpoint(path) as other:
        rows = list(survey(checkpoint, None, CancelToken(), tmp_path))
        assert {r.name for r in rows} == set(wanted)
        assert all(r.statistics is not None and r.statistics.amax == np.abs(wanted[r.name]).max() for r in rows)
        compared = [s.row for s in compare(checkpoint, other, CancelToken()) if s.row is not None]
        assert {r.name for r in compared} == set(wanted)
        assert all(r.error is not None and r.error.max_error == 0 for r in compared)
