from dataclasses import replace

import pytest
from decoder_models import write_model
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.contract import ByteCount
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod
from core.plan import Action, make_plan, misfit_costs
from core.progress import CancelToken
from core.recipe import KEEP, KeepGroup, Misfit, Recipe, Rule
from core.run import run
from core.targets import TARGETS, find_target


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with open_checkpoint(write_llama(tmp_path_factory.mktemp("tiny"), tied=False)) as checkpoint:
        yield checkpoint


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    with open_checkpoint(write_llama(tmp_path_factory.mktemp("narrow"), hidden=96, heads=2, kv_heads=1)) as checkpoint:
        yield checkpoint


def formats(plan):
    return {t.name: t.format_name for t in plan.tensors}


@pytest.mark.parametrize("target", [t.name for t in TARGETS])
def test_bytes_add_up_to_the_whole_output(tiny, target):
    data = Calibrated(DataMethod.IMPORTANCE) if find_target(target).needs_importance else None
    plan = make_plan(tiny, Recipe(target, calibrated=data))
    assert plan.bytes.total == plan.bytes_total
    assert sum((t.bytes for t in plan.tensors), ByteCount()).total <= plan.bytes_total
    assert (
        sum(t.bytes.total for t in plan.tensors) + plan.layout.header_bytes + plan.layout.extra_bytes
        == plan.bytes_total
    )
    assert all(t.reason for t in plan.tensors)


def test_rules_win_over_the_mix_and_the_first_rule_wins(tiny):
    recipe = Recipe("Q4_K_M", rules=(Rule("layers.0.*down_proj", "Q8_0"), Rule("ffn_down", "Q6_K")))
    got = formats(make_plan(tiny, recipe))
    assert got["blk.0.ffn_down.weight"] == "Q8_0"
    assert got["blk.1.ffn_down.weight"] == "Q6_K"


def test_a_rule_that_matches_nothing_is_an_error(tiny):
    with pytest.raises(UserError, match="matches no tensor"):
        make_plan(tiny, Recipe("Q4_K_M", rules=(Rule("no_such", "Q8_0"),)))


def test_a_rule_for_tensors_that_can_not_be_quantized_is_an_error(tiny):
    with pytest.raises(UserError, match="can not be quantized"):
        make_plan(tiny, Recipe("Q4_K_M", rules=(Rule("norm", "Q8_0"),)))


def test_an_unknown_format_in_a_rule_names_the_known_ones(tiny):
    with pytest.raises(UserError, match="Q6_K"):
        make_plan(tiny, Recipe("Q4_K_M", rules=(Rule("ffn_down", "Q7_K"),)))


def test_keep_groups_and_layers(tiny):
    got = formats(make_plan(tiny, Recipe("Q4_K_M", keep=frozenset({KeepGroup.EMBEDDING}), keep_last=1)))
    assert got["token_embd.weight"] == "BF16"
    assert got["blk.1.ffn_up.weight"] == "BF16"
    assert got["blk.0.ffn_up.weight"] == "Q4_K"


def test_misfits_fall_back_stay_or_stop(narrow):
    recipe = Recipe("Q4_K_M")
    assert formats(make_plan(narrow, recipe))["blk.0.attn_q.weight"] == "Q5_0"
    assert formats(make_plan(narrow, replace(recipe, misfit=Misfit.KEEP)))["blk.0.attn_q.weight"] == "BF16"
    with pytest.raises(UserError, match="96 values do not divide into blocks of 256"):
        make_plan(narrow, replace(recipe, misfit=Misfit.STOP))
    costs = misfit_costs(narrow, recipe)
    assert costs[Misfit.STOP] is None
    assert costs[Misfit.SMALLER] < costs[Misfit.KEEP]


def test_fallback_is_warned_of_with_its_cause(narrow):
    plan = make_plan(narrow, Recipe("Q4_K_M"))
    assert plan.fallback_share > 0.1
    assert any("rows of 96" in w for w in plan.warnings)
    assert not any("rows of" in w for w in make_plan(narrow, Recipe("Q8_0")).warnings)


def test_groups_fall_back_to_smaller_groups(narrow):
    plan = make_plan(narrow, Recipe("w4a16-g128"))
    got = {t.name: t for t in plan.tensors}
    assert got["model.layers.0.self_attn.q_proj.weight"].format_name == "w4a16-g32"
    assert got["model.layers.0.mlp.down_proj.weight"].format_name == "w4a16-g128"
    assert got["model.embed_tokens.weight"].action is Action.COPY


def test_output_larger_than_the_source_is_warned_of(tiny):
    assert any("not smaller" in w for w in make_plan(tiny, Recipe("F32")).warnings)


def test_unknown_target_suggests_a_near_one(tiny):
    with pytest.raises(UserError, match="Q4_K_M"):
        make_plan(tiny, Recipe("Q4_KM"))


def test_plan_of_a_file_and_its_folder_agree(tiny, tmp_path):
    one = make_plan(tiny, Recipe("Q8_0"))
    folder = write_llama(tmp_path / "two", tied=False, shards=2)
    with open_checkpoint(folder) as other:
        assert make_plan(other, Recipe("Q8_0")).bytes.payload == one.bytes.payload


def test_a_head_that_256_does_not_divide_is_no_fallback(narrow):
    plan = make_plan(narrow, Recipe("Q4_0"))
    assert formats(plan)["token_embd.weight"] == "Q8_0"
    assert not plan.warnings


def test_more_layers_than_there_are_can_not_be_kept(tiny):
    with pytest.raises(UserError, match="2 layers; 100"):
        make_plan(tiny, Recipe("Q8_0", keep_first=100))


def test_the_same_types_again_are_said_to_change_nothing(tiny, tmp_path):
    for _ in run(make_plan(tiny, Recipe("Q8_0")), tiny, tmp_path / "a.gguf", CancelToken()):
        pass
    with open_checkpoint(tmp_path / "a.gguf") as made:
        plan = make_plan(made, Recipe("Q8_0"))
        assert plan.source_bytes == plan.bytes_total
        assert any("has its format already" in w for w in plan.warnings)


def test_zero_points_are_warned_of(tiny):
    def warned(target):
        return " ".join(make_plan(tiny, Recipe(target)).warnings)

    assert "CompressedTensorsConfig with dequantize=True" in warned("w4a16-g64-asym")
    assert "Marlin" not in warned("w4a16-g64-asym")
    assert "Marlin" in warned("w8a16-g64-asym")
    assert "zero points" not in warned("w4a16-g64")


def test_a_rules_reason_is_the_tensors_reason(tiny):
    because = "kept: channel 1,247 is 38 × the median"
    for target, kept in (("Q4_K_M", "BF16"), ("w4a16-g128", "BF16")):
        plan = make_plan(tiny, Recipe(target, rules=(Rule(r"layers\.0\..*down_proj", "keep", because),)))
        (t,) = [t for t in plan.tensors if t.reason == because]
        assert t.format_name == kept
    plan = make_plan(tiny, Recipe("Q4_K_M", rules=(Rule("ffn_up", "Q8_0", because), Rule("ffn_down", "Q8_0"))))
    assert {t.reason for t in plan.tensors if t.format_name == "Q8_0"} == {because, "your rule 'ffn_down'"}


@pytest.mark.parametrize("target", [t.name for t in TARGETS if t.needs_importance])
def test_what_needs_an_importance_matrix_says_so(tiny, target):
    with pytest.raises(UserError, match="needs an importance matrix") as caught:
        make_plan(tiny, Recipe(target))
    assert "importance" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "rules", "named"),
    [
        ("w4a16-g32", (Rule("^model.layers.1.self_attn.q_proj", KEEP),), "model.layers.1.self_attn"),
        ("w4a16-g32", (Rule("up_proj", "w8a16-g32"),), "model.layers.0.mlp, model.layers.1.mlp"),
        ("gptq-4bit-g32", (Rule("v_proj", "gptq-8bit-g32"),), "model.layers.0.self_attn, model.layers.1.self_attn"),
        ("awq-g32", (Rule("k_proj", KEEP),), "model.layers.0.self_attn, model.layers.1.self_attn"),
        ("w4a16-g32", (Rule("[qkv]_proj", "w8a16-g32"), Rule("down_proj|o_proj", KEEP)), ""),
        ("mlx-4bit-g32", (Rule("q_proj", KEEP),), ""),
        ("Q4_K_M", (Rule("q_proj", KEEP),), ""),
        ("w4a16-g32", (), ""),
    ],
)
def test_parts_of_what_vllm_joins_are_warned_of_where_they_differ(target, rules, named, tiny):
    """vLLM: 'all shards of fused layers to have the same precision'."""
    plan = make_plan(tiny, Recipe(target, rules=rules))
    said = [w for w in plan.warnings if w.startswith("vLLM makes one matrix of query, key and value")]
    assert len(said) == bool(named)
    assert not named or f": {named}. Give them one format" in said[0]


def test_experts_of_a_layer_that_differ_are_warned_of(tmp_path):
    folder = tmp_path / "moe"
    write_model(folder, "qwen3moe")
    with open_checkpoint(folder) as checkpoint:
        (said,) = (
            w for w in make_plan(checkpoint, Recipe("w4a16-g32")).warnings if w.startswith("vLLM makes one matrix")
        )  # rows of 48 values in the down projections are kept
        assert "model.layers.0.mlp.experts" in said
        plan = make_plan(checkpoint, Recipe("w4a16-g32", rules=(Rule("experts", KEEP),)))
    assert not any(w.startswith("vLLM makes one matrix") for w in plan.warnings)
