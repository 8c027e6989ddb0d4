"""Roles, layers and experts from names; names are those of real checkpoints."""

from __future__ import annotations

import pytest

from core.roles import natural_key, parse_name
from core.tensor_info import Role

NAMES = """
model.embed_tokens.weight                                   EMBED
lm_head.weight                                              HEAD
model.norm.weight                                           NORM
model.layers.3.self_attn.q_proj.weight                      ATTN_Q       3
model.layers.3.self_attn.q_proj.bias                        BIAS         3
model.layers.3.self_attn.q_norm.weight                      NORM         3
model.layers.3.self_attn.k_proj.weight                      ATTN_K       3
model.layers.3.self_attn.v_proj.weight                      ATTN_V       3
model.layers.3.self_attn.o_proj.weight                      ATTN_OUT     3
model.layers.3.self_attn.qkv_proj.weight                    ATTN_QKV     3
model.layers.3.self_attn.sinks                              OTHER        3
model.layers.3.self_attn.rotary_emb.inv_freq                ROPE         3
model.layers.3.input_layernorm.weight                       NORM         3
model.layers.3.post_attention_layernorm.weight              NORM         3
model.layers.3.pre_feedforward_layernorm.weight             NORM         3
model.layers.3.mlp.gate_proj.weight                         FFN_GATE     3
model.layers.3.mlp.gate_up_proj.weight                      FFN_GATE_UP  3
model.layers.3.mlp.up_proj.weight                           FFN_UP       3
model.layers.3.mlp.down_proj.weight                         FFN_DOWN     3
model.layers.3.mlp.gate.weight                              ROUTER       3
model.layers.3.mlp.gate.e_score_correction_bias             BIAS         3
model.layers.3.mlp.router.weight                            ROUTER       3
model.layers.3.mlp.experts.7.gate_proj.weight               FFN_GATE     3  7
model.layers.3.mlp.experts.gate_up_proj                     FFN_GATE_UP  3  -  8
model.layers.3.mlp.experts.gate_up_proj_bias                BIAS         3  -  8
model.layers.3.mlp.experts.gate_up_proj_blocks              FFN_GATE_UP  3  -  8
model.layers.3.mlp.experts.gate_up_proj_scales              OTHER        3  -  8
model.layers.3.mlp.experts.down_proj                        FFN_DOWN     3  -  8
model.layers.3.mlp.shared_expert.gate_proj.weight           FFN_GATE     3
model.layers.3.mlp.shared_experts.down_proj.weight          FFN_DOWN     3
model.layers.3.mlp.shared_expert_gate.weight                ROUTER       3
model.layers.3.block_sparse_moe.gate.weight                 ROUTER       3
model.layers.3.block_sparse_moe.experts.5.w1.weight         FFN_GATE     3  5
model.layers.3.block_sparse_moe.experts.5.w2.weight         FFN_DOWN     3  5
model.layers.3.block_sparse_moe.experts.5.w3.weight         FFN_UP       3  5
model.layers.3.feed_forward.experts.gate_up_proj            FFN_GATE_UP  3  -  8
model.layers.3.feed_forward.router.weight                   ROUTER       3
model.layers.3.self_attn.q_a_proj.weight                    ATTN_Q       3
model.layers.3.self_attn.q_b_proj.weight                    ATTN_Q       3
model.layers.3.self_attn.kv_a_proj_with_mqa.weight          ATTN_K       3
model.layers.3.self_attn.kv_a_layernorm.weight              NORM         3
model.layers.3.self_attn.kv_b_proj.weight                   ATTN_V       3
model.layers.3.linear_attn.in_proj_qkvz.weight              ATTN_QKV     3
model.layers.3.linear_attn.conv1d.weight                    CONV         3
model.layers.3.linear_attn.out_proj.weight                  ATTN_OUT     3
model.layers.3.linear_attn.A_log                            OTHER        3
model.layers.3.conv.conv.weight                             CONV         3
model.language_model.layers.3.self_attn.v_proj.weight       ATTN_V       3
language_model.model.layers.3.mlp.down_proj.weight          FFN_DOWN     3
language_model.lm_head.weight                               HEAD
vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight  OTHER
model.visual.blocks.3.attn.qkv.weight                       OTHER
model.multi_modal_projector.linear_1.weight                 OTHER
v.blk.3.attn_q.weight                                       OTHER
mm.0.weight                                                 OTHER
transformer.wte.weight                                      EMBED
transformer.wpe.weight                                      OTHER
transformer.h.3.attn.c_attn.weight                          ATTN_QKV     3
transformer.h.3.attn.c_proj.weight                          ATTN_OUT     3
transformer.h.3.mlp.c_fc.weight                             FFN_UP       3
transformer.h.3.mlp.c_proj.weight                           FFN_DOWN     3
transformer.h.3.ln_1.weight                                 NORM         3
transformer.ln_f.weight                                     NORM
gpt_neox.embed_in.weight                                    EMBED
embed_out.weight                                            HEAD
gpt_neox.layers.3.attention.query_key_value.weight          ATTN_QKV     3
gpt_neox.layers.3.attention.dense.weight                    ATTN_OUT     3
gpt_neox.layers.3.mlp.dense_h_to_4h.weight                  FFN_UP       3
gpt_neox.layers.3.mlp.dense_4h_to_h.weight                  FFN_DOWN     3
gpt_neox.final_layer_norm.weight                            NORM
transformer.word_embeddings.weight                          EMBED
transformer.h.3.self_attention.query_key_value.weight       ATTN_QKV     3
transformer.h.3.self_attention.dense.weight                 ATTN_OUT     3
layers.3.attention.wq.weight                                ATTN_Q       3
layers.3.attention.wo.weight                                ATTN_OUT     3
layers.3.feed_forward.w1.weight                             FFN_GATE     3
tok_embeddings.weight                                       EMBED
bert.encoder.layer.3.attention.self.query.weight            ATTN_Q       3
bert.encoder.layer.3.attention.output.dense.weight          ATTN_OUT     3
bert.encoder.layer.3.intermediate.dense.weight              FFN_UP       3
bert.encoder.layer.3.output.dense.weight                    FFN_DOWN     3
token_embd.weight                                           EMBED
token_embd_norm.weight                                      NORM
output.weight                                               HEAD
output_norm.weight                                          NORM
rope_freqs.weight                                           ROPE
rope_factors_long.weight                                    ROPE
blk.3.attn_q.weight                                         ATTN_Q       3
blk.3.attn_q.bias                                           BIAS         3
blk.3.attn_q_norm.weight                                    NORM         3
blk.3.attn_output.weight                                    ATTN_OUT     3
blk.3.attn_qkv.weight                                       ATTN_QKV     3
blk.3.attn_kv_a_mqa.weight                                  ATTN_K       3
blk.3.attn_kv_b.weight                                      ATTN_V       3
blk.3.attn_sinks.weight                                     OTHER        3
blk.3.ffn_norm.weight                                       NORM         3
blk.3.post_ffw_norm.weight                                  NORM         3
blk.3.ffn_up.weight                                         FFN_UP       3
blk.3.ffn_gate_inp.weight                                   ROUTER       3
blk.3.ffn_gate_exps.weight                                  FFN_GATE     3  -  8
blk.3.ffn_up_exps.weight                                    FFN_UP       3  -  8
blk.3.ffn_down_exps.weight                                  FFN_DOWN     3  -  8
blk.3.ffn_gate_shexp.weight                                 FFN_GATE     3
blk.3.ffn_gate_inp_shexp.weight                             ROUTER       3
blk.3.ffn_down.5.weight                                     FFN_DOWN     3  5
blk.3.exp_probs_b.bias                                      BIAS         3
blk.3.ssm_conv1d.weight                                     CONV         3
model.layers.3.self_attn.q_proj.qweight                     ATTN_Q       3
model.layers.3.self_attn.q_proj.scales                      OTHER        3
model.layers.3.self_attn.q_proj.weight_packed               ATTN_Q       3
model.layers.3.self_attn.q_proj.weight_scale                OTHER        3
model.layers.3.mlp.down_proj.weight.absmax                  OTHER        3
something.else                                              OTHER
"""


@pytest.mark.parametrize("line", NAMES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_role_layer_and_expert(line: str) -> None:
    name, role, *rest = line.split()
    layer, expert, experts = rest + ["-", "-", "0"][len(rest) :]
    found = parse_name(name, (8, 16, 32))
    assert found.role is Role[role]
    assert found.layer == (None if layer == "-" else int(layer))
    assert found.expert == (None if expert == "-" else int(expert))
    assert found.experts == int(experts)


def test_odd_names_are_other_and_cheap() -> None:
    for name in (
        "",
        ".",
        "...",
        "a" * 5000,
        "layers." * 1000,
        "blk.99999999999.attn_q.weight",
        "blk.٣.attn_q.weight",
        "\0",
    ):
        parse_name(name, (1,))
    assert parse_name("blk.99999999999.attn_q.weight").layer is None


def test_natural_order() -> None:
    names = ["blk.10.a", "blk.2.a", "blk.1.b", "blk.1.a", "output", "blk.2.a.weight"]
    assert sorted(names, key=natural_key) == ["blk.1.a", "blk.1.b", "blk.2.a", "blk.2.a.weight", "blk.10.a", "output"]


def test_natural_order_takes_any_name() -> None:
    assert len(sorted(["9" * 5000, "٣", "", "1.2", "a1", "1a", "blk.2"], key=natural_key)) == 7
