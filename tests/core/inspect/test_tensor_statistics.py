"""Statistics of tensors against numpy's float64 on random and adversarial values, for every stored type."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoint_files import safetensors_bytes, write_safetensors

from core.checkpoint.opening import open_checkpoint
from core.errors import Cancelled, UserError
from core.inspect import matrix as matrix_module
from core.inspect import picture as picture_module
from core.inspect import statistics as statistics_module
from core.inspect.statistics import MAGNITUDE_BINS, TensorStatistics, inspect_tensor, magnitude_edges, tensor_statistics
from core.progress import CancelToken
from kernels import dispatch, ops

PLAIN = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")


def write(folder: Path, x: np.ndarray, dtype: str) -> Path:
    raw = ops.from_float32(x.reshape(1, x.size), dtype)
    header = {"w": {"dtype": dtype, "shape": list(x.shape), "data_offsets": [0, raw.size]}}
    path = folder / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, raw.tobytes()))
    return path


def look(path: Path, expert: int | None = None) -> TensorStatistics:
    with open_checkpoint(path) as checkpoint:
        return tensor_statistics(checkpoint, checkpoint.tensors[0], CancelToken(), expert)


def stored_values(path: Path) -> np.ndarray:
    """As the reader gives them: rounded to the type."""
    with open_checkpoint(path) as checkpoint:
        t = checkpoint.tensors[0]
        return checkpoint.read_rows(t).astype(np.float64)


def check(s: TensorStatistics, v: np.ndarray, exact: bool) -> None:
    """Against float64 over the rows × columns v."""
    real = v[np.isfinite(v)]
    size = np.sort(np.abs(real))
    n = real.size
    assert (s.values, s.finite, s.nonfinite, s.zeros) == (v.size, n, v.size - n, int((real == 0).sum()))
    assert (s.min, s.max) == ((real.min(), real.max()) if n else (0, 0))
    assert s.amax == size[-1] if n else s.amax == 0
    p999 = size[math.ceil(0.999 * n - 1e-9) - 1] if n else 0.0
    assert s.p999 == p999 if exact else s.p999 == pytest.approx(p999, rel=2**-7, abs=1e-40)
    assert s.outlier_ratio == (s.amax / s.p999 if s.p999 else (math.inf if s.amax else 1.0))
    if n:
        assert s.mean == pytest.approx(real.mean(), rel=1e-9, abs=1e-9 * size[-1])
        assert s.std == pytest.approx(real.std(), rel=1e-6, abs=1e-9 * size[-1])
        second = ((real - real.mean()) ** 2).mean()
        if second > (1e-7 * size[-1]) ** 2:
            assert s.kurtosis == pytest.approx(((real - real.mean()) ** 4).mean() / second**2, rel=1e-6)
    bins = np.searchsorted(magnitude_edges(), size[size > 0], side="right")
    want = np.bincount(bins, minlength=MAGNITUDE_BINS + 2)
    if exact:
        np.testing.assert_array_equal(s.histogram, want)
    else:  # a value may lie up to 2^-7 above the edge whose bin it is counted in
        moved = np.abs(np.cumsum(s.histogram) - np.cumsum(want)).max()
        assert moved <= (np.abs(np.log2(size[size > 0]) * 8 % 1) < 0.1).sum()
        assert s.histogram.sum() == want.sum()
    for stats, axis in ((s.rows, 1), (s.columns, 0)):
        for i, channel in enumerate(np.moveaxis(v, axis, 1)):
            c = np.abs(channel[np.isfinite(channel)])
            assert stats.max[i] == c.max(initial=0)
            assert stats.rms[i] == pytest.approx(math.sqrt((c**2).mean()) if c.size else 0, rel=1e-6)
            assert stats.median[i] == (np.float32(np.median(c)) if c.size else 0)
        assert stats.median_share == 1


def adversarial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((37, 131)) * 0.02).astype(np.float32)
    out = {"normal": x}
    out["one outlier"] = x.copy()
    out["one outlier"][20, 77] = -9.0
    out["constant"] = np.full((9, 50), -0.375, np.float32)
    out["constant rows"] = np.repeat(np.linspace(-1, 1, 30, dtype=np.float32)[:, None], 40, axis=1)
    out["NaN and Inf"] = x.copy()
    out["NaN and Inf"][3], out["NaN and Inf"][:, 5] = np.nan, np.inf
    out["NaN and Inf"][7, 7] = -np.inf
    out["nothing finite"] = np.full((3, 20), np.nan, np.float32)
    out["zeros"] = np.zeros((5, 40), np.float32)
    out["minus zero"] = np.where(x > 0, np.float32(-0.0), x)
    out["one column"] = x[:, :1]
    out["one row"] = x[:1]
    out["vector"] = x[0]
    out["far from zero"] = x + np.float32(200)
    out["two values"] = np.where(x > 0, np.float32(1), np.float32(-1))
    out["one value"] = np.array([[0.5]], np.float32)
    return out


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("name", sorted(adversarial()))
def test_against_float64(name: str, dtype: str, tmp_path: Path) -> None:
    x = adversarial()[name]
    path = write(tmp_path, x, dtype)
    v = stored_values(path)
    if dtype == "F64":
        v = v.astype(np.float32).astype(np.float64)
    s = look(path)
    assert s.shape == x.shape
    check(s, v, exact=dtype not in ("F32", "F64"))


@pytest.mark.parametrize("backend", dispatch.backends("channel_sums"))
def test_every_instruction_set(backend: str, tmp_path: Path) -> None:
    for dtype in ("BF16", "F16", "F32"):
        path = write(tmp_path, adversarial()["NaN and Inf"], dtype)
        with dispatch.only(backend):
            check(look(path), stored_values(path), exact=dtype != "F32")


def test_known_figures(tmp_path: Path) -> None:
    x = np.array([[1, -1, 1, -1], [3, -3, 0, -0.0]], np.float32)
    s = look(write(tmp_path, x, "BF16"))
    assert (s.min, s.max, s.amax, s.mean, s.zeros) == (-3, 3, 3, 0, 2)
    assert s.std == math.sqrt((4 + 18) / 8)
    assert s.kurtosis == pytest.approx((4 + 162) / 8 / (22 / 8) ** 2)
    assert s.rows.max.tolist() == [1, 3]
    assert s.rows.median.tolist() == [1, 1.5]
    assert s.columns.median.tolist() == [2, 2, 0.5, 0.5]
    constant = look(write(tmp_path, np.full((4, 4), 0.1, np.float32), "F32"))
    assert (constant.kurtosis, constant.outlier_ratio) == (0, 1)
    assert constant.std == pytest.approx(0, abs=1e-9)


def test_normal_has_kurtosis_three(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((400, 1000)).astype(np.float32)
    s = look(write(tmp_path, x, "BF16"))
    assert s.kurtosis == pytest.approx(3, abs=0.05)
    assert s.p999 == pytest.approx(3.29, abs=0.03)


def test_experts_one_and_all(tmp_path: Path) -> None:
    x = (np.random.default_rng(1).standard_normal((3, 20, 33)) * 0.1).astype(np.float32)
    x[1, 7, 30] = 40
    path = write(tmp_path, x, "BF16")
    v = stored_values(path)
    check(look(path), v, exact=True)
    for e in range(3):
        s = look(path, e)
        assert (s.expert, s.shape) == (e, (20, 33))
        check(s, v[20 * e : 20 * e + 20], exact=True)
    with pytest.raises(IndexError):
        look(path, 3)
    with pytest.raises(IndexError):
        look(write(tmp_path, x[0], "BF16"), 0)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0])
def test_quantized_sources(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((24, 96)).astype(np.float32)
    blocks = gguf.quants.quantize(x, kind)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check(look(tmp_path / "m.gguf"), gguf.quants.dequantize(blocks, kind).astype(np.float64), exact=False)


def test_integers_and_scalars(tmp_path: Path) -> None:
    x = np.arange(-40, 40, dtype=np.int32).reshape(8, 10)
    s = look(write_safetensors(tmp_path / "i.safetensors", {"w": x}))
    check(s, x.astype(np.float64), exact=False)
    path = write(tmp_path, np.array(2.5, np.float32), "BF16")
    assert look(path).amax == 2.5


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (0,)])
def test_empty(shape: tuple[int, ...], tmp_path: Path) -> None:
    s = look(write(tmp_path, np.zeros(shape, np.float32), "BF16"))
    assert (s.values, s.finite, s.amax, s.p999, s.outlier_ratio, s.kurtosis) == (0, 0, 0, 0, 1, 0)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_blocks_of_any_size_give_the_same(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, adversarial()["one outlier"], dtype)
    v = stored_values(path)
    for block in (8, 2000):
        monkeypatch.setattr(matrix_module, "BLOCK_VALUES", block)
        check(look(path), v, exact=dtype == "BF16")


def test_medians_of_what_can_not_be_held_are_of_evenly_spaced_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (np.random.default_rng(3).standard_normal((200, 96))).astype(np.float32)
    path = write(tmp_path, x, "BF16")
    v = np.abs(stored_values(path))
    monkeypatch.setattr(picture_module, "HELD_BYTES", 1000)
    monkeypatch.setattr(statistics_module, "SAMPLE_BYTES", 200 * 96 * 2 // 4)
    monkeypatch.setattr(matrix_module, "BLOCK_VALUES", 24 * 96)
    s = look(path)
    np.testing.assert_array_equal(s.columns.median, np.median(v[::4], axis=0).astype(np.float32))
    assert (s.columns.median_share, s.rows.median_share) == (0.25, 1)
    assert (s.columns.median_name, s.rows.median_name) == ("median of 25 % of the values", "median")
    np.testing.assert_array_equal(s.columns.max, v.max(axis=0))
    monkeypatch.setattr(matrix_module, "WHOLE_ROWS", 100)  # and now rows are cut, too
    monkeypatch.setattr(statistics_module, "LONG_ROW_SAMPLE", 32)
    monkeypatch.setattr(matrix_module, "BLOCK_VALUES", 8 * 40)
    s = look(path)
    np.testing.assert_array_equal(s.rows.median, np.median(v[:, ::3], axis=1).astype(np.float32))
    assert (s.columns.median_share, s.rows.median_share) == (0, 1 / 3)
    assert [len(s.columns.max), len(s.columns.rms), len(s.columns.median)] == [0, 0, 0]
    np.testing.assert_array_equal(s.rows.max, v.max(axis=1))
    assert s.finite == v.size


def test_rows_without_number_are_no_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of 40 million rows of two values: what is kept of each row would be gigabytes."""
    x = (np.random.default_rng(4).standard_normal((200, 6))).astype(np.float32)
    path = write(tmp_path, x, "BF16")
    v = np.abs(stored_values(path))
    monkeypatch.setattr(statistics_module, "MOST_ROWS", 199)
    monkeypatch.setattr(statistics_module, "COLUMN_SAMPLE", 50)
    s = look(path)
    assert [len(s.rows.max), len(s.rows.rms), len(s.rows.median)] == [0, 0, 0]
    np.testing.assert_array_equal(s.columns.max, v.max(axis=0))
    np.testing.assert_allclose(s.columns.rms, np.sqrt((v * v).mean(axis=0)), rtol=1e-6)
    np.testing.assert_array_equal(s.columns.median, np.median(v[::4], axis=0).astype(np.float32))
    assert s.columns.median_share == 0.25
    assert s.finite == v.size
    monkeypatch.setattr(statistics_module, "MOST_ROWS", 200)
    np.testing.assert_array_equal(look(path).rows.max, v.max(axis=1))


def test_cancelled_and_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path, adversarial()["normal"], "BF16")
    token = CancelToken()
    token.cancel()
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(Cancelled):
            inspect_tensor(checkpoint, checkpoint.tensors[0], token)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(UserError):
            inspect_tensor(checkpoint, checkpoint.tensors[0], CancelToken())


def test_p999_of_denormals_is_within_a_step_of_the_upper_sixteen_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(5).integers(1, 1 << 20, (64, 96), np.uint32).view(np.float32)
    exact = float(np.sort(values.ravel())[math.ceil(0.999 * values.size - 1e-9) - 1])
    found = look(write(tmp_path, values, "F32"))
    assert found.amax == float(values.max())
    assert abs(found.p999 - exact) <= 2.0**-133
