"""Each remedy is planned, carried out and measured: bytes to the byte, errors as the conversion finds them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from inspect_models import open_checkpoint, write_experts
from tiny_models import write_llama

from core.errors import Cancelled
from core.formats import Method
from core.inspect import remedies as module
from core.inspect.findings import Finding, FindingKind, channel_finding, findings
from core.inspect.outliers import OutlierChannel
from core.inspect.remedies import RemedyKind, apply, measured_error, remedies
from core.inspect.survey import survey
from core.output import output_size
from core.plan import Action, make_plan
from core.progress import CancelToken
from core.recipe import Misfit, Recipe, Rule
from core.run import run

DOWN = "model.layers.0.mlp.down_proj.weight"


def plant(tensors):
    """Input channel 77 of one matrix at forty times the others."""
    weight = tensors[DOWN].float()
    weight[:, 77] *= 40
    tensors[DOWN] = weight.to(torch.bfloat16)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    with open_checkpoint(write_llama(tmp_path_factory.mktemp("llama"), change=plant)) as checkpoint:
        yield checkpoint


def finding_of(plan, name=DOWN):
    index = next(i for i, t in enumerate(plan.tensors) if any(s.name == name for s in t.source.sources))
    return channel_finding(plan, index, OutlierChannel("input", 77, 6.0, 2.0, 37.6))


def offers(checkpoint, recipe, name=DOWN):
    plan = make_plan(checkpoint, recipe)
    finding = finding_of(plan, name)
    return plan, finding, list(remedies(checkpoint, plan, finding, CancelToken()))


def convert(checkpoint, plan, output):
    job = run(plan, checkpoint, output, CancelToken(), threads=1)
    while True:
        try:
            next(job)
        except StopIteration as end:
            return end.value


TARGETS = ("Q4_K_M", "Q4_0", "NVFP4", "w4a16-g128", "w8a16-channel")


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_and_errors_are_those_of_the_conversion(llama, target, tmp_path):
    plan, finding, offered = offers(llama, Recipe(target, Method.ROUND))
    name = plan.tensors[finding.index].name
    before = next(t for t in convert(llama, plan, tmp_path / "old").tensors if t.name == name)
    possible = [r for r in offered if r.possible]
    assert {RemedyKind.KEEP, RemedyKind.SEARCH} <= {r.kind for r in possible}
    for number, r in enumerate(possible):
        assert not r.sampled
        other = make_plan(llama, apply(plan.recipe, r))
        result = convert(llama, other, tmp_path / f"new{number}")
        assert result.actual_bytes - output_size(tmp_path / "old") == r.bytes_change, r.title
        after = next(t for t in result.tensors if t.name == name)
        assert after.format == r.format
        assert r.before.rms_error == pytest.approx(before.error.rms_error, rel=1e-9)
        want = after.error.rms_error if after.error else 0.0
        assert r.after.rms_error == pytest.approx(want, rel=1e-9, abs=1e-12)
        if r.rules:
            assert "channel 77 is 38 × the median" in next(t.reason for t in other.tensors if t.name == name)


def test_what_each_target_family_offers(llama):
    def kinds(target, method=Method.SEARCH):
        _, _, offered = offers(llama, Recipe(target, method))
        return {(r.kind.name, r.format if r.possible else r.why_not) for r in offered}

    assert kinds("Q4_K_M") == {
        ("KEEP", "BF16"),
        ("EIGHT", "Q8_0"),
        ("GROUP", "NVFP4"),
        ("FORMAT", "Q5_K"),
        ("FORMAT", "Q6_K"),
    }
    assert kinds("Q6_K") == {
        ("KEEP", "BF16"),
        ("EIGHT", "Q8_0"),
        ("GROUP", "there is no format of 6 bits in groups smaller than 16"),
        ("ASYMMETRIC", "there is no 6-bit format with a zero point or minimum"),
    }
    assert kinds("Q4_0") == {
        ("KEEP", "BF16"),
        ("EIGHT", "Q8_0"),
        ("GROUP", "NVFP4"),
        ("ASYMMETRIC", "Q4_K"),
        ("FORMAT", "Q5_K"),
        ("FORMAT", "Q6_K"),
    }
    assert kinds("w4a16-g128") == {
        ("KEEP", "BF16"),
        ("EIGHT", "w8a16-g128"),
        ("GROUP", "w4a16-g64"),
        ("GROUP", "w4a16-g32"),
        ("ASYMMETRIC", "w4a16-g128-asym"),
        ("FORMAT", "w4a16-g32-asym"),
    }
    assert kinds("w8a16-channel-asym", Method.ROUND) == {
        ("KEEP", "BF16"),
        ("GROUP", "w8a16-g128-asym"),
        ("GROUP", "w8a16-g64-asym"),
        ("FORMAT", "w8a16-g32-asym"),
        ("SEARCH", "w8a16-channel-asym"),
    }
    assert ("KEEP", "BF16") in kinds("TQ2_0")


def test_what_a_remedy_gains_is_seen(llama):
    _, _, offered = offers(llama, Recipe("w4a16-g128"))
    by_format = {r.format: r for r in offered}
    assert by_format["w4a16-g32"].gain_db > by_format["w4a16-g64"].gain_db > 0.5
    assert by_format["w8a16-g128"].gain_db > 15
    assert by_format["BF16"].gain_db == math.inf
    assert by_format["BF16"].bytes_change > by_format["w8a16-g128"].bytes_change > by_format["w4a16-g32"].bytes_change


def test_what_can_not_be_says_why(llama, tmp_path):
    folder = write_llama(tmp_path / "narrow", hidden=96, heads=2, kv_heads=1, ffn=96, change=plant)
    with open_checkpoint(folder) as narrow:  # rows of 96 divide by 32 only
        _, _, offered = offers(narrow, Recipe("w4a16-g32", misfit=Misfit.KEEP), DOWN)
        group = next(r for r in offered if r.kind is RemedyKind.GROUP)
        assert group.why_not == "there is no format of 4 bits in groups smaller than 32"
        _, _, offered = offers(narrow, Recipe("Q4_0"), DOWN)
        nvfp4 = next(r for r in offered if r.kind is RemedyKind.GROUP)
        assert not nvfp4.possible
        assert "blocks of 64" in nvfp4.why_not
        assert (nvfp4.bytes_change, nvfp4.before, nvfp4.gain_db) == (0, None, 0.0)
    _, _, offered = offers(llama, Recipe("Q4_0", rules=(Rule("token_embd", "Q4_0"),)), "model.embed_tokens.weight")
    embed = {r.format: r for r in offered}
    assert "no tensor scale" in embed["NVFP4"].why_not


def test_a_kept_tensor_has_no_remedy(llama):
    plan, _, offered = offers(llama, Recipe("Q4_0", rules=(Rule("down_proj", "keep"),)))
    assert offered == []
    assert plan.recipe.rules[0].reason == ""


def test_tensors_that_a_runtime_joins_change_together(llama):
    plan, finding, offered = offers(llama, Recipe("w4a16-g128"), "model.layers.1.self_attn.k_proj.weight")
    keep = next(r for r in offered if r.kind is RemedyKind.KEEP)
    assert "with q_proj and v_proj, which vLLM joins" in keep.title
    other = make_plan(llama, apply(plan.recipe, keep))
    changed = {t.name for t, o in zip(other.tensors, plan.tensors, strict=True) if t.format_name != o.format_name}
    assert changed == {f"model.layers.1.self_attn.{p}_proj.weight" for p in "qkv"}
    assert other.bytes_total - plan.bytes_total == keep.bytes_change
    plan, finding, offered = offers(llama, Recipe("Q4_0"), "model.layers.1.self_attn.k_proj.weight")
    assert len(next(r for r in offered if r.kind is RemedyKind.KEEP).rules) == 1
    assert finding.tensor == "blk.1.attn_k.weight"


def test_applying_is_a_new_value_and_the_last_remedy_of_a_tensor_counts(llama):
    old = Recipe("w4a16-g128", rules=(Rule("layers.1", "keep"),))
    plan, _, offered = offers(llama, old)
    by_kind = {r.kind: r for r in offered}
    kept = apply(old, by_kind[RemedyKind.KEEP])
    assert old.rules == (Rule("layers.1", "keep"),)
    assert kept.rules[1:] == old.rules
    assert kept.rules[0].reason == "kept: channel 77 is 38 × the median"
    assert Recipe.from_json(kept.to_json()) == kept
    eight = apply(kept, by_kind[RemedyKind.EIGHT])
    assert [r.format for r in eight.rules] == ["w8a16-g128", "keep"]
    own = replace(kept, rules=(replace(kept.rules[0], reason=""),))
    assert len(apply(own, by_kind[RemedyKind.EIGHT]).rules) == 2  # what the user wrote stays
    rounded = replace(old, method=Method.ROUND)
    search = next(
        r for r in remedies(llama, make_plan(llama, rounded), finding_of(plan), CancelToken())
        if r.kind is RemedyKind.SEARCH
    )  # fmt: skip
    assert apply(rounded, search).method is Method.SEARCH
    assert search.bytes_change == 0
    assert search.gain_db >= 0


def test_an_expert_stack_is_one_tensor(tmp_path):
    with open_checkpoint(write_experts(tmp_path / "experts")) as checkpoint:
        plan, _, offered = offers(checkpoint, Recipe("Q4_0"), "model.layers.0.mlp.experts.1.up_proj.weight")
        keep = next(r for r in offered if r.kind is RemedyKind.KEEP)
        other = make_plan(checkpoint, apply(plan.recipe, keep))
        assert [t.name for t in other.tensors if t.reason.startswith("kept: channel")] == ["blk.0.ffn_up_exps.weight"]


def test_large_tensors_get_a_quick_figure_first(llama, monkeypatch):
    monkeypatch.setattr(module, "SMALL", 1000)
    monkeypatch.setattr(module, "QUICK_VALUES", 30_000)
    _, _, offered = offers(llama, Recipe("w4a16-g128"))
    quick = {r.format: r for r in offered if r.sampled}
    exact = {r.format: r for r in offered if not r.sampled}
    assert set(quick) == set(exact)
    for name, r in exact.items():
        assert quick[name].bytes_change == r.bytes_change
        assert quick[name].after.rms_error == pytest.approx(r.after.rms_error, rel=0.1)


def test_measuring_can_be_cancelled(llama):
    plan = make_plan(llama, Recipe("Q4_0"))
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        list(remedies(llama, plan, finding_of(plan), token))
    with pytest.raises(Cancelled):
        measured_error(llama, plan.tensors[finding_of(plan).index], Method.ROUND, token)


# ---- findings --------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What findings look at of a survey's row."""

    name: str
    statistics: Any = None
    predicted: Any = None
    worst: tuple[OutlierChannel, ...] = ()


@dataclass
class Figures:
    outlier_ratio: float = 1.5
    nonfinite: int = 0
    problem: str = ""
    snr_db: float = 20.0
    finer_gain_db: float | None = 0.5
    format: str = "w4a16-g128"
    extra: dict[str, float] = field(default_factory=dict)


def rows_of(plan, **changes: Figures):
    names = [t.source.sources[0].name for t in plan.tensors if t.source.sources]
    found = []
    for name in names:
        figures = next((f for part, f in changes.items() if part in name), Figures())
        found.append(Row(name, figures, figures))
    return found


def test_findings_are_ranked_and_said_in_words(llama):
    plan = make_plan(llama, Recipe("w4a16-g128"))
    assert findings(rows_of(plan), plan) == ()
    found = findings(
        rows_of(
            plan, down_proj=Figures(outlier_ratio=12, snr_db=14), v_proj=Figures(finer_gain_db=2.5),
            norm=Figures(outlier_ratio=99, snr_db=1),
        ),
        plan,
    )  # fmt: skip
    assert [f.kind for f in found] == [FindingKind.OUTLIER] * 2 + [FindingKind.ERROR] * 2 + [FindingKind.GROUP_GAIN] * 2
    assert found[0].tensor == DOWN
    assert found[0].text == (
        "layers.0.mlp.down_proj: the largest value is 12 × what 99.9 % of the values stay below; in w4a16-g128 "
        "that coarsens its group."
    )
    assert found[2].text.endswith("keeps 14.0 dB in w4a16-g128, 6.0 dB less than the model's median tensor.")
    assert found[4].because == "finer scales gain 2.5 dB"
    assert all(plan.tensors[f.index].action is Action.QUANTIZE for f in found)


def test_what_is_nearly_exact_says_that_it_hardly_matters_and_comes_last(llama):
    plan = make_plan(llama, Recipe("w8a16-channel"))
    fine = Figures(outlier_ratio=40, snr_db=47.25, format="w8a16-channel")
    loud = Figures(outlier_ratio=12, snr_db=40, format="w8a16-channel")
    found = findings(rows_of(plan, down_proj=fine, v_proj=loud, up_proj=replace(fine, snr_db=math.inf)), plan)
    outliers = [f for f in found if f.kind is FindingKind.OUTLIER]
    assert [f.minor for f in found] == sorted(f.minor for f in found), "after all that matter, however loud"
    assert ["v_proj" in f.tensor for f in outliers[:2]] == [True, True]
    texts = [f.text for f in outliers if f.minor]
    assert len(texts) == 4
    assert all("hardly matters" in text for text in texts)
    assert sum("As planned it keeps 47.2 dB, so this" in text for text in texts) == 2
    assert sum("As planned it is stored exactly, so this" in text for text in texts) == 2
    stale = findings(rows_of(plan, down_proj=replace(fine, format="Q8_0")), plan)
    assert not any(f.minor for f in stale), "predicted in another format than the plan's"


def test_a_channel_is_named_with_its_ratio(llama):
    plan = make_plan(llama, Recipe("Q4_0"))
    found: Finding = finding_of(plan)
    assert found.text == (
        "layers.0.mlp.down_proj (blk.0.ffn_down): input channel 77 reaches 38 × the median channel; in Q4_0 that "
        "coarsens the groups it lies in."
    )
    assert (found.axis, found.channel, found.tensor) == ("input", 77, "blk.0.ffn_down.weight")
    assert np.isclose(found.weight, 20 * np.log10(37.6 / 2))


def test_a_planted_channel_is_found_first_and_its_remedy_kept_with_its_reason(tmp_path):
    """From the survey to the finished file."""
    from core.inspect.survey import survey

    with open_checkpoint(write_llama(tmp_path / "llama", change=plant)) as checkpoint:
        plan = make_plan(checkpoint, Recipe("w4a16-g128"))
        rows = list(survey(checkpoint, plan, CancelToken(), cache=tmp_path / "cache"))
        quick = findings(rows, plan)
        named = findings(rows, plan, checkpoint, CancelToken())
        for first in (quick[0], named[0]):
            assert (first.tensor, first.axis, first.channel) == (DOWN, "input", 77)
            assert first.ratio == pytest.approx(40, rel=0.2)
        keep = next(r for r in remedies(checkpoint, plan, named[0], CancelToken()) if r.kind is RemedyKind.KEEP)
        kept = make_plan(checkpoint, apply(plan.recipe, keep))
        assert next(t.reason for t in kept.tensors if t.name == DOWN) == f"kept: {named[0].because}"
        again = findings(list(survey(checkpoint, kept, CancelToken(), cache=tmp_path / "cache")), kept)
        assert DOWN not in {f.tensor for f in again}


def test_a_row_that_is_large_as_a_whole_harms_nobody(tmp_path):
    """It has scales of its own; a lone large value in a row does harm."""
    from core.inspect.survey import survey

    def change(tensors):
        weight = tensors[DOWN].float()
        weight[9] *= 40
        tensors[DOWN] = weight.to(torch.bfloat16)
        tensors["model.layers.1.mlp.up_proj.weight"][12, 34] = 6.0

    with open_checkpoint(write_llama(tmp_path / "llama", change=change)) as checkpoint:
        plan = make_plan(checkpoint, Recipe("w4a16-g128"))
        rows = list(survey(checkpoint, plan, CancelToken(), cache=tmp_path / "cache"))
        found = findings(rows, plan, checkpoint, CancelToken())
    places = {(f.tensor, f.axis, f.channel) for f in found if f.kind is FindingKind.OUTLIER and f.channel is not None}
    assert ("model.layers.1.mlp.up_proj.weight", "output", 12) in places
    assert ("model.layers.1.mlp.up_proj.weight", "input", 34) in places
    assert (DOWN, "output", 9) not in places


def test_a_quantized_source_is_kept_as_it_is(tmp_path, llama):
    convert(llama, make_plan(llama, Recipe("Q5_0")), tmp_path / "source.gguf")
    with open_checkpoint(tmp_path / "source.gguf") as source:
        _, _, offered = offers(source, Recipe("Q4_0"), "blk.0.ffn_down.weight")
    keep = next(r for r in offered if r.kind is RemedyKind.KEEP)
    assert (keep.title, keep.format, keep.after.snr_db) == ("Keep as it is", "Q5_0", math.inf)
    assert sum(r.format == "Q5_0" for r in offered) == 1


def test_values_that_the_format_refuses_come_first_and_are_kept(tmp_path):
    """One NaN does not keep the rest of the model from being judged."""

    def spoil(tensors):
        plant(tensors)
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan

    with open_checkpoint(write_llama(tmp_path / "spoilt", change=spoil)) as checkpoint:
        plan = make_plan(checkpoint, Recipe("Q4_0"))
        found = findings(survey(checkpoint, plan, CancelToken(), tmp_path / "cache"), plan)
        assert [f.kind for f in found[:2]] == [FindingKind.REFUSED, FindingKind.OUTLIER]
        assert {f.tensor for f in found[1:]} == {"blk.0.ffn_down.weight"}, "its error is no figure"
        assert found[0].text == (
            "layers.1.mlp.up_proj (blk.1.ffn_up) stops the conversion: it holds 1 value that is NaN or infinite, "
            "which Q4_0 can not store."
        )
        offered = list(remedies(checkpoint, plan, found[0], CancelToken()))
        (kept,) = [r for r in offered if r.possible]
        assert (kept.kind, kept.before, kept.after.snr_db, kept.gain_db) == (RemedyKind.KEEP, None, math.inf, math.inf)
        assert all("NaN" in r.why_not and r.bytes_change == 0 for r in offered if r.format == "Q8_0")
        after = make_plan(checkpoint, apply(plan.recipe, kept))
        assert after.bytes_total - plan.bytes_total == kept.bytes_change
        convert(checkpoint, after, tmp_path / "kept.gguf")
        named = channel_finding(plan, found[0].index, OutlierChannel("input", 5, 6.0, 2.0, 9.0))
        assert [r.kind for r in remedies(checkpoint, plan, named, CancelToken()) if r.possible] == [RemedyKind.KEEP]
