"""Levels of a stored group, the share of them that values use, and the teaching data."""

from __future__ import annotations

import numpy as np
import pytest
from inspect_models import converted, gguf_recipe, open_checkpoint
from tiny_models import write_llama

from core.errors import UserError
from core.inspect.granularity import side_by_side
from core.inspect.grid import Grid, group_grid
from core.inspect.group_map import planned_group
from core.inspect.synthetic import Synthetic, synthetic_rows


def test_no_levels_none_used():
    assert Grid("F32", np.zeros(0, np.float32), np.zeros(0, np.int64)).used == 0
    assert Grid("Q4_0", np.array([-1, 0, 1, 2], np.float32), np.array([1, 0, 3, 1])).used == 0.75


def test_a_stored_groups_grid_holds_its_values(tmp_path):
    with open_checkpoint(write_llama(tmp_path / "llama", layers=1)) as checkpoint:
        for kind in ("Q4_K", "Q8_0", "NVFP4"):
            plan = converted(checkpoint, gguf_recipe(kind), tmp_path / f"{kind}.gguf")
            index = next(i for i, t in enumerate(plan.tensors) if t.name == "blk.0.ffn_up.weight")
            g = planned_group(checkpoint, plan, index, 3, 70)
            grid = group_grid(g)
            assert grid.counts.sum() == len(g.codes)
            assert set(grid.levels[grid.counts > 0]) == set(g.reconstruction)
            assert np.all(np.diff(grid.levels) > 0)


def test_the_teaching_data_is_the_same_everywhere_and_only_the_outlier_moves():
    rows = synthetic_rows(Synthetic(rows=64, columns=256))
    again = synthetic_rows(Synthetic(rows=64, columns=256, column=9, size=5))
    differs = np.argwhere(rows != again)
    assert set(differs[:, 1]) == {9, 40}
    np.testing.assert_allclose(np.abs(rows[:, 40]), 0.8, rtol=1e-6)
    normal = np.delete(rows, 40, axis=1) / 0.04
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.02
    assert abs((normal**4).mean() - 3) < 0.2
    # Box and Muller by hand, from the first draws of PCG64 with seed 11.
    raw = np.random.PCG64(11).random_raw(2 * 64 * 256)
    u, v = (((int(raw[i]) >> 11) + 1) / 2**53 for i in (0, 64 * 256))
    assert rows[0, 0] == np.float32(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v) * 0.04)
    one = synthetic_rows(Synthetic(row=3))
    assert np.count_nonzero(np.abs(one) > 0.5) == 1
    for wrong in (Synthetic(rows=0), Synthetic(std=float("nan")), Synthetic(size=-1)):
        with pytest.raises(UserError):
            synthetic_rows(wrong)


def test_an_outlier_spoils_its_group_only_when_groups_are_small():
    """The experiment of the error explorer: per tensor it collapses, groups of 32 keep it to themselves."""
    rows = synthetic_rows(Synthetic(columns=256, size=30, row=0, column=40))
    variants = {v.name: v for v in side_by_side(rows, 1, (0, 256), 4, True)}
    assert list(variants) == ["per tensor", "per channel", "groups of 128", "groups of 64", "groups of 32"]
    assert variants["per tensor"].snr_db < 8 < 15 < variants["per channel"].snr_db  # its row has no outlier
    spoiled = {v.name: v for v in side_by_side(rows, 0, (0, 256), 4, True)}
    assert [spoiled[n].row_snr_db for n in variants] == sorted(spoiled[n].row_snr_db for n in variants)
    inside = np.abs(spoiled["groups of 32"].reconstruction - rows[0])
    assert inside[96:].max() < 0.012 < inside[32:64].max()


def test_variants_by_hand():
    """INT4 symmetric: scale amax / 7.5 in float16, codes around 8."""
    row = np.zeros((1, 64), np.float32)
    row[0, :3] = 7.5, 1.0, -1.6
    row[0, 32:35] = 0.75, 0.1, -0.04
    by_name = {v.name: v for v in side_by_side(row, 0, (0, 64), 4, True)}
    whole, fine = by_name["per channel"], by_name["groups of 32"]
    assert "groups of 64" not in by_name  # it is the row
    assert (whole.scale, whole.zero, whole.boundaries) == (1.0, 8, (0,))
    assert whole.codes[[0, 1, 2, 32, 33]].tolist() == [15, 9, 6, 9, 8]
    assert whole.reconstruction[[0, 2, 32]].tolist() == [7, -2, 1]
    assert fine.boundaries == (0, 32)
    assert fine.codes[[32, 33, 34]].tolist() == [15, 9, 8]
    assert (whole.effective_bits, fine.effective_bits, by_name["per tensor"].effective_bits) == (4.25, 4.5, 4)
    assert whole.max_error == 0.5
    asymmetric = {v.name: v for v in side_by_side(row, 0, (0, 32), 4, False)}["per channel"]
    assert asymmetric.zero == round(1.6 / (9.1 / 15))
    wider = side_by_side(row, 0, (0, 64), 4, True, tensor_range=(-15.0, 2.0))[0]
    assert wider.scale == 2.0
    with pytest.raises(UserError):
        side_by_side(np.array([[np.nan, 1]], np.float32), 0, (0, 2), 4, True)
