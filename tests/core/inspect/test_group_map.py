"""The map of a group against the file that a conversion really wrote, byte by byte, and against gguf's decoders."""

from __future__ import annotations

import numpy as np
import pytest
from inspect_models import GGUF_TYPES, SCHEMES, converted, gguf_recipe, open_checkpoint, write_experts
from tiny_models import write_llama

from core.errors import UserError
from core.formats import Method
from core.inspect.group_map import planned_group, stored_group
from core.inspect.group_types import GroupMap
from core.inspect.in_format import plan_in_format, recipe_with
from core.plan import make_plan
from core.recipe import Recipe

# Types whose ends a group's largest value may lie beyond, or whose scales are coarse: rounding is not all their error.
CLIPPING = ("Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q4_0", "MXFP4")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    with open_checkpoint(write_llama(tmp_path_factory.mktemp("llama"), layers=1, ffn=518, tied=False)) as checkpoint:
        yield checkpoint


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    with open_checkpoint(write_experts(tmp_path_factory.mktemp("experts"))) as checkpoint:
        yield checkpoint


def number(fields) -> int:
    """The stored number, from the bytes that the map shows."""
    total = 0
    for f in fields:
        word = int.from_bytes(f.data, "little")
        if f.digit >= 0:
            for _ in range(f.digit):
                word = word * 3 & 255
            total += word * 3 >> 8
        else:
            total |= (word >> f.bit & (1 << f.width) - 1) << f.shift
    return total


def check_bytes(group: GroupMap, output) -> None:
    """Everything that the map says of bytes is in the written file at the offset that it says."""
    files: dict[str, bytes] = {}
    for fields, code in [*zip(group.fields, group.codes, strict=True), *((m.fields, m.code) for m in group.metadata)]:
        for f in fields:
            array = group.arrays[f.array]
            data = files.setdefault(array.file, (output / array.file if array.file else output).read_bytes())
            assert data[f.offset : f.offset + len(f.data)] == f.data, (group.format, f)
            assert array.offset <= f.offset < f.offset + len(f.data) <= array.offset + array.nbytes
        if code is not None:
            signed = group.arrays[fields[0].array].dtype == "I8"  # stored less 128: the highest bit is the other one
            assert number(fields) ^ (128 if signed else 0) == int(code)


def places(t) -> list[tuple[int, int]]:
    """First, last, and some between, a tail group among them."""
    middle = t.rows // 2
    return [(0, 0), (t.rows - 1, t.columns - 1), (middle, t.columns // 2), (min(5, t.rows - 1), 33 % t.columns)]


def chosen(plan):
    """Of one layer, what differs: permuted rows, a long row, a norm, rows that do not fill a word of zero points."""
    return [(i, t) for i, t in enumerate(plan.tensors) if any(part in t.name for part in TRACED)]


TRACED = ("attn_k.", "k_proj", "ffn_up", "up_proj", "ffn_down", "down_proj", "attn_norm", "input_layernorm")


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_every_ggml_type_shows_the_bytes_of_the_written_file(llama, kind, tmp_path):
    output = tmp_path / "out.gguf"
    method = Method.ROUND if kind in ("Q4_K", "NVFP4") else Method.SEARCH
    plan = converted(llama, gguf_recipe(kind, method), output)
    seen = set()
    with open_checkpoint(output) as written:
        for i, t in chosen(plan):
            stored = written.tensor(t.name)
            for row, column in places(t):
                planned = planned_group(llama, plan, i, row, column)
                check_bytes(planned, output)
                found = stored_group(written, stored, row, column)
                check_bytes(found, output.parent)
                assert [f for fields in found.fields for f in fields] == [f for fs in planned.fields for f in fs]
                assert planned.columns[0] <= column < planned.columns[1]
                want = written.read_rows(stored, row, row + 1)[0, slice(*planned.columns)]
                np.testing.assert_array_equal(planned.reconstruction, want)
                np.testing.assert_array_equal(found.reconstruction, want)
                seen.add(planned.format)
    assert kind in seen


@pytest.mark.parametrize("kind", [k for k in GGUF_TYPES if k not in ("F32", "F16", "BF16")])
def test_levels_and_scales_give_what_the_gguf_library_decodes(llama, kind):
    """The table adds up: the grid at each code is the library's value, bit for bit."""
    plan = make_plan(llama, gguf_recipe(kind))
    index = next(i for i, t in enumerate(plan.tensors) if t.name == "blk.0.ffn_up.weight")
    assert plan.tensors[index].format_name == kind
    for row, column in places(plan.tensors[index]):
        g = planned_group(llama, plan, index, row, column)
        np.testing.assert_array_equal(g.grid[g.codes], g.reconstruction)
        meaning = {m.meaning: m.value for m in g.metadata}
        step = meaning.get("super-scale", 1.0) * meaning.get("sub-scale", 1.0) * meaning.get("scale", 1.0)
        low = meaning.get("minimum", 0.0) - meaning.get("super-minimum", 0.0) * meaning.get("sub-minimum", 0.0)
        by_hand = step * meaning.get("tensor scale", 1.0) * g.levels.astype(np.float64) + low
        np.testing.assert_allclose(g.reconstruction, by_hand, rtol=1e-5, atol=1e-7)
        assert np.all(np.abs(g.error) <= g.half_step * 1.02) or kind in CLIPPING


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_shows_the_bytes_of_the_written_folder(llama, scheme, tmp_path):
    output = tmp_path / "out"
    plan = converted(llama, Recipe(scheme, Method.SEARCH), output)
    seen = set()
    with open_checkpoint(output) as written:
        for i, t in chosen(plan):
            for row, column in places(t):
                planned = planned_group(llama, plan, i, row, column)
                check_bytes(planned, output)
                packed = planned.format.startswith("w")
                stored = written.tensor(t.name)
                found = stored_group(written, stored, row, column)
                check_bytes(found, output)
                np.testing.assert_array_equal(found.codes, planned.codes)
                np.testing.assert_array_equal(found.reconstruction, planned.reconstruction)
                assert (found.format, found.group) == (planned.format, planned.group)
                seen.add(planned.format)
                if packed:
                    names = [planned.arrays[f.array].name.rpartition("_")[2] for f in planned.fields[0]]
                    assert names == ["packed" if "a16" in scheme else "proj.weight"]
                    zeros = [m.code for m in planned.metadata if m.meaning == "zero point"]
                    zero = zeros[0] if zeros else 2 ** (t.format.contract.bits - 1)
                    np.testing.assert_array_equal(planned.levels, planned.codes - zero)
                    by_hand = np.float32(planned.metadata[0].value) * (planned.codes - zero).astype(np.float32)
                    np.testing.assert_array_equal(planned.reconstruction, by_hand)
    assert scheme in seen


@pytest.mark.parametrize("kind", ["NVFP4", "Q6_K"])
def test_an_expert_is_traced_to_its_own_tensor(experts, kind, tmp_path):
    output = tmp_path / "out.gguf"
    plan = converted(experts, gguf_recipe(kind, Method.SEARCH), output)
    index = next(i for i, t in enumerate(plan.tensors) if t.name == "blk.1.ffn_down_exps.weight")
    rows = plan.tensors[index].shape[-2]
    for expert in range(3):
        g = planned_group(experts, plan, index, expert * rows + 7, 200)
        check_bytes(g, output)
        assert g.expert == expert
        assert (g.source.tensor, g.source.row) == (f"model.layers.1.mlp.experts.{expert}.down_proj.weight", 7)
        source = experts.read_rows(experts.tensor(g.source.tensor), 7, 8)[0, slice(*g.columns)]
        np.testing.assert_array_equal(g.original, source)


def test_permuted_rows_are_traced_to_the_row_they_come_from(llama, tmp_path):
    """Row 2j+s of a head is the source's row s·D/2+j; D is 64 here."""
    output = tmp_path / "out.gguf"
    plan = converted(llama, gguf_recipe("Q8_0"), output)
    index = next(i for i, t in enumerate(plan.tensors) if t.name == "blk.0.attn_q.weight")
    for row, source_row in ((0, 0), (1, 32), (2, 1), (63, 63), (64, 64), (65, 96), (130, 129)):
        g = planned_group(llama, plan, index, row, 40)
        check_bytes(g, output)
        assert (g.source.tensor, g.source.row) == ("model.layers.0.self_attn.q_proj.weight", source_row)
        source = llama.read_rows(llama.tensor(g.source.tensor), source_row, source_row + 1)[0, slice(*g.columns)]
        np.testing.assert_array_equal(g.original, source)


def test_a_norms_offset_is_said_and_undone(tmp_path):
    """Gemma stores norm weights less one; the file has them whole."""
    from decoder_models import write_model

    write_model(tmp_path / "gemma", "gemma3")
    with open_checkpoint(tmp_path / "gemma") as checkpoint:
        output = tmp_path / "out.gguf"
        plan = converted(checkpoint, Recipe("Q8_0"), output)
        index = next(i for i, t in enumerate(plan.tensors) if t.name == "blk.0.attn_norm.weight")
        g = planned_group(checkpoint, plan, index, 0, 3)
        check_bytes(g, output)
        assert g.source.add == 1.0
        source = checkpoint.read_rows(checkpoint.tensor(g.source.tensor))[0]
        np.testing.assert_array_equal(g.original, source[slice(*g.columns)] + np.float32(1))
        np.testing.assert_array_equal(g.error, 0)


@pytest.mark.parametrize("kind", ["NVFP4", "Q6_K", "Q4_K"])
def test_a_source_that_is_quantized_in_larger_blocks(llama, kind, tmp_path):
    converted(llama, gguf_recipe("Q4_K"), tmp_path / "source.gguf")
    with open_checkpoint(tmp_path / "source.gguf") as source:
        output = tmp_path / "out.gguf"
        plan = converted(source, gguf_recipe(kind), output)
        index = next(i for i, t in enumerate(plan.tensors) if t.name == "blk.0.ffn_up.weight")
        g = planned_group(source, plan, index, 7, 120)
        check_bytes(g, output)
        assert (g.source.tensor, g.source.row) == ("blk.0.ffn_up.weight", 7)
        want = source.read_rows(source.tensor(g.source.tensor), 7, 8)[0, slice(*g.columns)]
        np.testing.assert_array_equal(g.original, want)
        assert (kind == "Q4_K") == bool(np.all(g.error == 0))


def test_long_rows_are_read_in_pieces(llama, monkeypatch):
    from core.inspect import group_map as module

    for scheme in ("w4a16-g64-asym", "w8a16-channel"):
        plan = make_plan(llama, Recipe(scheme, Method.ROUND))
        index = next(i for i, t in enumerate(plan.tensors) if t.name.endswith("o_proj.weight"))
        want = planned_group(llama, plan, index, 77, 200)
        with monkeypatch.context() as patched:
            for place in (module, __import__("core.blocks", fromlist=["blocks"])):
                patched.setattr(place, "LONG_ROW", 128)
            patched.setattr(module, "PIECE", 128)
            found = planned_group(llama, plan, index, 77, 200)
        assert found.fields == want.fields
        np.testing.assert_array_equal(found.original, want.original)


def test_a_whole_row_with_one_scale_is_shown_by_the_window(llama):
    plan = make_plan(llama, Recipe("w4a16-channel"))
    index = next(i for i, t in enumerate(plan.tensors) if t.name.endswith("q_proj.weight"))
    g = planned_group(llama, plan, index, 3, 130)
    assert (g.group, g.group_size, g.window, g.columns) == (0, 256, True, (128, 256))


def test_another_format_is_looked_at_by_a_rule_for_that_tensor_alone(llama):
    recipe = recipe_with(Recipe("Q4_K_M"), "blk.0.ffn_up.weight", "MXFP4")
    plan = make_plan(llama, recipe)
    assert [t.name for t in plan.tensors if t.format_name == "MXFP4"] == ["blk.0.ffn_up.weight"]


def test_a_place_outside_is_refused(llama):
    plan = make_plan(llama, Recipe("Q8_0"))
    with pytest.raises(IndexError):
        planned_group(llama, plan, 0, 0, 256)
    with pytest.raises(IndexError):
        stored_group(llama, llama.tensor("model.norm.weight"), 1, 0)


def test_types_that_store_several_values_in_one_code_say_so(tmp_path):
    from checkpoint_files import gguf_bytes, gguf_tensor, gguf_text

    entries = [gguf_tensor("blk.0.ffn_up.weight", (256, 1), 16, 0)]
    path = tmp_path / "iq2.gguf"
    path.write_bytes(gguf_bytes([gguf_text("general.architecture", "llama")], entries, bytes(96)))
    with open_checkpoint(path) as checkpoint, pytest.raises(UserError, match="IQ2_XXS stores several"):
        stored_group(checkpoint, checkpoint.tensors[0], 0, 0)


@pytest.mark.parametrize("target", ["Q4_0", "w4a16-g32"])
def test_a_vector_in_another_format_is_refused_in_its_own_words(target, tmp_path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
        number = next(i for i, t in enumerate(plan.tensors) if "norm" in t.name)
        assert plan_in_format(checkpoint, plan, number, "") == (plan, number)
        for other in ("Q8_0", "w8a16-g128"):
            with pytest.raises(UserError, match=r"norm.*stays in") as refused:
                plan_in_format(checkpoint, plan, number, other)
            assert refused.value.hint == "Choose a weight matrix."
