"""Targets sorted for choosing: each is found once, knobs lead to members, lossless ones follow from the numbers."""

from __future__ import annotations

from core.catalog import (
    Knob,
    Stored,
    base_of,
    family_rows,
    kind_of,
    knob_value,
    lossless,
    one_a_use,
    readers,
    stored_numbers,
    use_of,
    uses,
)
from core.contract import ElementType
from core.formats.numbers import Integers
from core.hardware.matrix import misfit_columns
from core.targets import TARGETS, find_target
from core.tensor_info import Role

LINEAR = frozenset({Role.ATTN_Q, Role.FFN_DOWN})


def test_every_target_stands_in_one_kind_and_one_row() -> None:
    kinds = [t for use in uses() for kind in use.kinds for t in kind.targets]
    rows = [t for row in family_rows() for t in row.targets]
    assert sorted(t.name for t in kinds) == sorted(t.name for t in rows) == sorted(t.name for t in TARGETS)
    for t in TARGETS:
        assert t in kind_of(t).targets
        assert kind_of(t) in use_of(t).kinds
    assert len({k.key for use in uses() for k in use.kinds}) == sum(len(use.kinds) for use in uses())
    titles = [k.title for use in uses() for k in use.kinds]
    assert len(set(titles)) == len(titles)
    names = [r.title for r in family_rows()]
    assert len(set(names)) == len(names), sorted(names)
    assert len(names) < 60


def test_members_of_a_row_are_read_by_the_same_runtimes() -> None:
    for row in family_rows():
        assert len({readers(t) for t in row.targets}) == 1


def test_every_setting_of_a_knob_leads_to_a_member_that_has_it() -> None:
    for use in uses():
        for kind in use.kinds:
            for knob in Knob:
                values = kind.values(knob)
                assert len(values) > 1 or kind.fixed(knob)
                for value in values:
                    for t in kind.targets[:8]:
                        found = kind.with_knob(t, knob, value)
                        assert found in kind.targets
                        assert knob_value(found, knob) == value
                        assert kind.with_knob(found, knob, value) == found or kind.values(knob) == [value]


def test_the_other_settings_stay_where_they_can() -> None:
    ints = kind_of(find_target("w4a16-g64-asym"))
    near = ints.with_knob(find_target("w4a16-g64-asym"), Knob.BITS, 8)
    assert near.name == "w8a16-g64-asym"
    assert ints.with_knob(near, Knob.SYMMETRIC, True).name == "w8a16-g64"
    mixes = kind_of(find_target("Q4_K_M"))
    assert mixes.with_knob(find_target("Q4_K_M"), Knob.BITS, 5).name == "Q5_K_M"


def test_the_usual_member_divides_the_models_rows() -> None:
    ints = kind_of(find_target("w4a16-g64"))
    assert ints.usual().name == "w4a16-g128"
    assert ints.usual((576, 1536)).name == "w4a16-g64"
    assert ints.usual((576,), ("w8a16-g32",)).name == "w8a16-g32"
    assert kind_of(find_target("Q2_K")).usual((4096,)).name == "Q4_K_M"
    for row in family_rows():
        assert not misfit_columns(row.usual((4096,)).name, (4096,))


def test_lossless_targets_hold_all_numbers_of_the_source() -> None:
    four = Stored(Integers(4, 64, True, ElementType.BF16), "int4 g64", LINEAR)
    found = lossless([four])
    assert {"w4a16-g64", "w4a16-g64-asym"} <= found
    assert not found & {"w4a16-g128", "w8a16-g64", "BF16", "F32", "Q4_K_M", "Q8_0"}
    assert all(base_of(find_target(n)).for_numbers(four.numbers) for n in found)  # type: ignore[arg-type]
    other = Stored(Integers(8, 64, True, ElementType.BF16), "int8 g64", LINEAR)
    assert not lossless([four, other])
    assert not lossless([Stored(four.numbers, "int4 g64", frozenset({Role.EMBED}))]) & {"w4a16-g64"}
    assert "Q4_K" in lossless([Stored(None, "Q4_K", LINEAR)])
    assert not lossless([four], folders=False) & {"w4a16-g64"}
    assert not lossless([])


def test_what_a_checkpoint_has_stored(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from tiny_models import write_llama

    from core.checkpoint import open_checkpoint
    from core.checkpoint.doctor import examine
    from core.plan import make_plan
    from core.progress import CancelToken
    from core.recipe import Recipe
    from core.run import run

    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        assert stored_numbers(checkpoint) == ()
        plan = make_plan(checkpoint, Recipe(target="w4a16-g32"))
        assert plan.lossless_note == ""
        for _ in run(plan, checkpoint, tmp_path / "packed", CancelToken()):
            pass
    with open_checkpoint(tmp_path / "packed") as packed:
        (stored,) = stored_numbers(packed)
        assert stored.numbers == Integers(4, 32, True, ElementType.BF16)
        assert "w4a16-g32-asym" in lossless([stored])
        assert "w4a16-g32" in one_a_use(lossless([stored]))
        (finding,) = (f for f in examine(packed) if f.code == "quantized")
        assert "quality can only fall" in finding.message
        assert finding.hint.startswith("Use the original 16-bit checkpoint; from this one, w4a16-g32, ")
        note = make_plan(packed, Recipe(target="w4a16-g32-asym")).lossless_note
        assert note.startswith("Lossless")
        assert make_plan(packed, Recipe(target="w8a16-g32")).lossless_note == ""
