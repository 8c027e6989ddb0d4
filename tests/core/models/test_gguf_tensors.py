"""Names, shapes and values of the tensors that a GGUF has, for every architecture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import Checkpoint, open_checkpoint
from core.errors import UserError
from core.models import MappedTensor, map_tensors, read_mapped
from core.models.gguf_names import gguf_name, is_skipped
from core.models.gguf_tensors import conversion_warning
from core.models.read_mapped import interleaved

Tiny = Callable[[str], Path]
NAMES = (
    *("llama2", "llama3", "mistral", "mixtral", "qwen2", "qwen3", "qwen3moe"),
    *("gemma2", "gemma3", "gemma3-images", "phi3", "phi3-long"),
)

# A layer's tensors by GGUF name (without 'blk.N.' and '.weight') and shape, as llama.cpp's loaders ask for them.
ATTENTION = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
FEED_FORWARD = {"ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
WIDE = {"attn_norm": (64,), "attn_q": (128, 64), "attn_k": (64, 64), "attn_v": (64, 64), "attn_output": (64, 128)}
GEMMA = {**WIDE, **FEED_FORWARD, "post_attention_norm": (64,), "post_ffw_norm": (64,)}
QK_NORMS = {"attn_q_norm": (32,), "attn_k_norm": (32,)}


def experts(width: int) -> dict[str, tuple[int, ...]]:
    matrix = (4, width, 64)
    return {
        "ffn_norm": (64,),
        "ffn_gate_inp": (4, 64),
        "ffn_gate_exps": matrix,
        "ffn_up_exps": matrix,
        "ffn_down_exps": (4, 64, width),
    }


PHI3_FEED_FORWARD = {"ffn_norm": (64,), "ffn_up": (192, 64), "ffn_down": (64, 96)}
LAYERS = {
    "llama2": {**ATTENTION, **FEED_FORWARD, "attn_k": (64, 64), "attn_v": (64, 64)},
    "llama3": {**ATTENTION, **FEED_FORWARD},
    "mistral": {
        **FEED_FORWARD,
        "attn_norm": (64,),
        "attn_q": (96, 64),
        "attn_k": (48, 64),
        "attn_v": (48, 64),
        "attn_output": (64, 96),
    },
    "mixtral": {**ATTENTION, **experts(96)},
    "qwen2": {**ATTENTION, **FEED_FORWARD},
    "qwen3": {**WIDE, **FEED_FORWARD, **QK_NORMS},
    "qwen3moe": {**WIDE, **experts(48), **QK_NORMS},
    "gemma2": GEMMA,
    "gemma3": {**GEMMA, **QK_NORMS},
    "gemma3-images": {**GEMMA, **QK_NORMS},
    "phi3": {"attn_norm": (64,), "attn_qkv": (128, 64), "attn_output": (64, 64), **PHI3_FEED_FORWARD},
    "phi3-long": {"attn_norm": (64,), "attn_qkv": (192, 64), "attn_output": (64, 64), **PHI3_FEED_FORWARD},
}
BIASES = {
    "llama2": {
        "attn_q": (64,),
        "attn_k": (64,),
        "attn_v": (64,),
        "attn_output": (64,),
        "ffn_gate": (96,),
        "ffn_up": (96,),
        "ffn_down": (64,),
    },
    "qwen2": {"attn_q": (64,), "attn_k": (32,), "attn_v": (32,)},
}
COMPUTED = {"llama3": ["rope_freqs"], "phi3-long": ["rope_factors_long", "rope_factors_short"]}
TIED = ("llama3", "qwen3", "gemma2", "gemma3", "gemma3-images")


def expected(name: str) -> dict[str, tuple[int, ...]]:
    layers = 7 if name.startswith("gemma3") else 3
    out: dict[str, tuple[int, ...]] = {"token_embd.weight": (512, 64), "output_norm.weight": (64,)}
    if name not in TIED:
        out["output.weight"] = (512, 64)
    for i in range(layers):
        out |= {f"blk.{i}.{part}.weight": shape for part, shape in LAYERS[name].items()}
        out |= {f"blk.{i}.{part}.bias": shape for part, shape in BIASES.get(name, {}).items()}
    return out | {f"{part}.weight": (8,) for part in COMPUTED.get(name, [])}


def by_name(path: Path) -> dict[str, MappedTensor]:
    with open_checkpoint(path) as checkpoint:
        return {t.name: t for t in map_tensors(checkpoint)}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(name: str, tiny: Tiny) -> None:
    assert {t.name: t.shape for t in by_name(tiny(name)).values()} == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_stays_in_f32(name: str, tiny: Tiny) -> None:
    for tensor in by_name(tiny(name)).values():
        matrix = len(tensor.shape) > 1 and "norm" not in tensor.name and "ffn_gate_inp" not in tensor.name
        assert tensor.keep is not matrix, tensor.name
        assert tensor.layer == (int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else None)


def test_layers_come_in_the_model_s_order(tiny: Tiny) -> None:
    names = list(by_name(tiny("gemma3")))
    assert names[0] == "token_embd.weight"
    assert names[-1] == "output_norm.weight"
    assert names.index("blk.2.attn_q.weight") < names.index("blk.2.ffn_up.weight") < names.index("blk.3.attn_q.weight")


def source(folder: Path) -> dict[str, np.ndarray]:
    return {k: v.float().numpy() for k, v in load_file(folder / "model.safetensors").items()}


def values(path: Path, name: str) -> np.ndarray:
    with open_checkpoint(path) as checkpoint:
        mapped = {t.name: t for t in map_tensors(checkpoint)}[name]
        return read_mapped(checkpoint, mapped).reshape(mapped.shape)


def test_query_and_key_rows_are_interleaved(tiny: Tiny) -> None:
    """Written out by index: output row 2j+s of a head is source row s·D/2 + j."""
    folder = tiny("llama2")
    query = source(folder)["model.layers.1.self_attn.q_proj.weight"]
    got = values(folder, "blk.1.attn_q.weight")
    for head in range(4):
        for j in range(8):
            for s in range(2):
                assert np.array_equal(got[head * 16 + 2 * j + s], query[head * 16 + s * 8 + j])
    bias = source(folder)["model.layers.1.self_attn.k_proj.bias"]
    assert np.array_equal(values(folder, "blk.1.attn_k.bias")[:4], bias[[0, 8, 1, 9]])
    assert np.array_equal(
        values(folder, "blk.1.attn_v.weight"), source(folder)["model.layers.1.self_attn.v_proj.weight"]
    )


def test_key_rows_go_by_the_key_heads(tiny: Tiny) -> None:
    key = source(tiny("mistral"))["model.layers.0.self_attn.k_proj.weight"]
    assert np.array_equal(values(tiny("mistral"), "blk.0.attn_k.weight"), key[interleaved(48, 2)])


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma3"])
def test_other_architectures_keep_their_rows(name: str, tiny: Tiny) -> None:
    query = source(tiny(name))["model.layers.0.self_attn.q_proj.weight"]
    assert np.array_equal(values(tiny(name), "blk.0.attn_q.weight"), query)


def test_gemma_norms_gain_one(tiny: Tiny) -> None:
    weights = source(tiny("gemma3"))
    assert np.array_equal(values(tiny("gemma3"), "output_norm.weight"), weights["model.norm.weight"] + 1)
    q_norm = weights["model.layers.2.self_attn.q_norm.weight"]
    assert np.array_equal(values(tiny("gemma3"), "blk.2.attn_q_norm.weight"), q_norm + 1)
    assert np.array_equal(values(tiny("qwen3"), "output_norm.weight"), source(tiny("qwen3"))["model.norm.weight"])


@pytest.mark.parametrize(
    ("name", "expert"),
    [
        ("mixtral", "model.layers.1.block_sparse_moe.experts.{}.w2.weight"),
        ("qwen3moe", "model.layers.1.mlp.experts.{}.down_proj.weight"),
    ],
)
def test_experts_are_stacked_in_order(name: str, expert: str, tiny: Tiny) -> None:
    weights = source(tiny(name))
    want = np.stack([weights[expert.format(e)] for e in range(4)])
    assert np.array_equal(values(tiny(name), "blk.1.ffn_down_exps.weight"), want)


def test_fused_experts_are_taken_apart(copied: Tiny) -> None:
    """What transformers holds in memory, gate and up as one tensor of [experts, 2 × width, hidden], saved as it is."""
    folder = copied("qwen3moe")
    weights = load_file(folder / "model.safetensors")
    separate = {k: v.clone() for k, v in weights.items()}
    for i in range(3):
        stem = f"model.layers.{i}.mlp.experts."
        parts = {
            p: torch.stack([weights.pop(f"{stem}{e}.{p}.weight") for e in range(4)])
            for p in ("gate_proj", "up_proj", "down_proj")
        }
        weights[stem + "gate_up_proj"] = torch.cat([parts["gate_proj"], parts["up_proj"]], dim=1)
        weights[stem + "down_proj"] = parts["down_proj"]
    save_file(weights, folder / "model.safetensors")
    assert {t.name: t.shape for t in by_name(folder).values()} == expected("qwen3moe")
    for part, short in (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down")):
        want = torch.stack([separate[f"model.layers.2.mlp.experts.{e}.{part}.weight"] for e in range(4)])
        assert np.array_equal(values(folder, f"blk.2.ffn_{short}_exps.weight"), want.float().numpy())


def test_llama3_rope_factors(tiny: Tiny) -> None:
    """Waves shorter than original/4 stay, longer than original/1 are divided by 8, those between are blended."""
    got = values(tiny("llama3"), "rope_freqs.weight")
    wavelength = 2 * np.pi * 500000.0 ** (np.arange(8) / 8)
    smooth = (64 / wavelength - 1) / 3
    blended = 1 / ((1 - smooth) / 8 + smooth)
    want = np.where(wavelength < 16, 1, np.where(wavelength > 64, 8, blended))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert {1.0, 8.0} < set(got.tolist())


@pytest.fixture(scope="module")
def mixtral(tiny: Tiny) -> Iterator[tuple[Checkpoint, dict[str, MappedTensor], dict[str, np.ndarray]]]:
    with open_checkpoint(tiny("mixtral")) as checkpoint:
        tensors = {t.name: t for t in map_tensors(checkpoint)}
        names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.1.ffn_up_exps.weight", "blk.0.attn_norm.weight"]
        yield checkpoint, tensors, {n: read_mapped(checkpoint, tensors[n]) for n in names}


@given(data=st.data())
def test_row_blocks_are_parts_of_the_whole(data: st.DataObject, mixtral: tuple) -> None:
    """Blocks that begin and end inside a head, an expert or a piece."""
    checkpoint, tensors, whole = mixtral
    name = data.draw(st.sampled_from(sorted(whole)))
    rows = tensors[name].rows
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows + 3))
    block = read_mapped(checkpoint, tensors[name], start, stop)
    assert block.dtype == np.float32
    assert np.array_equal(block, whole[name][start:stop])


def test_whole_rows_of_heads_are_read_at_once(mixtral: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the block names all its columns: one read a row took twenty times as long."""
    checkpoint, tensors, whole = mixtral
    query = tensors["blk.0.attn_q.weight"]
    reads = []
    read_rows = checkpoint.read_rows
    monkeypatch.setattr(checkpoint, "read_rows", lambda *a: reads.append(a) or read_rows(*a), raising=False)
    block = read_mapped(checkpoint, query, 1, query.rows, (0, query.columns))
    assert np.array_equal(block, whole["blk.0.attn_q.weight"][1:])
    assert len(reads) == 1


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


def change_config(folder: Path, **fields: object) -> Path:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **fields}), encoding="utf-8")
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        by_name(folder)
    assert caught.value.hint
    return caught.value.message


def test_an_unknown_tensor_is_named(copied: Tiny) -> None:
    folder = change_weights(copied("qwen2"), lambda w: w.update({"model.layers.0.adapter.weight": torch.zeros(2, 2)}))
    assert "'model.layers.0.adapter.weight'" in refused(folder)


def test_a_missing_expert_is_named(copied: Tiny) -> None:
    folder = change_weights(copied("qwen3moe"), lambda w: w.pop("model.layers.1.mlp.experts.2.up_proj.weight"))
    assert "expert 2" in refused(folder)
    assert "blk.1.ffn_up_exps.weight" in refused(folder)


def test_a_missing_layer_is_named(copied: Tiny) -> None:
    def drop(weights: dict[str, torch.Tensor]) -> None:
        for name in [n for n in weights if n.startswith("model.layers.2.")]:
            del weights[name]

    assert "blk.2.attn_norm.weight" in refused(change_weights(copied("llama3"), drop))


def test_weights_of_another_model(copied: Tiny) -> None:
    assert "2 layers" in refused(change_config(copied("llama3"), num_hidden_layers=2))
    assert "heads" in refused(change_config(copied("llama3"), num_attention_heads=5))


def test_what_does_not_convert_is_said(copied: Tiny) -> None:
    folder = copied("qwen3moe")
    assert "norm_topk_prob" in refused(change_config(folder, norm_topk_prob=False))
    assert "already quantized (gptq)" in refused(change_config(folder, quantization_config={"quant_method": "gptq"}))
    assert "MambaForCausalLM" in refused(
        change_config(folder, model_type="mamba", architectures=["MambaForCausalLM"], quantization_config=None)
    )


@pytest.mark.parametrize(("name", "kind"), [("qwen2", "llama3"), ("llama3", "longrope"), ("phi3", "linear")])
def test_rope_that_a_loader_does_not_read(name: str, kind: str, copied: Tiny) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
    assert f"'{kind}'" in refused(change_config(copied(name), rope_parameters=rope))


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("llama3", {"hidden_act": "relu"}, "'relu'"),
        ("gemma3", {"hidden_activation": "silu"}, "'silu'"),
        ("gemma3", {"use_bidirectional_attention": True}, "both directions"),
        ("qwen3moe", {"mlp_only_layers": [0]}, "no experts"),
        ("qwen3moe", {"decoder_sparse_step": 2}, "no experts"),
        ("qwen2", {"head_dim": 32}, "width of 64"),
        ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16}}, "beta_fast"),
        ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "without its factors"),
        ("llama3", {"rope_parameters": {"rope_type": "linear"}}, "without a factor"),
        ("llama3", {"rope_parameters": None, "rope_theta": float("nan")}, "rope base nan"),
        ("llama3", {"num_key_value_heads": [2, 2, 2]}, "a list or text where a number belongs"),
        ("llama3", {"quantization_config": "awq"}, "already quantized"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "'linear' for sliding layers",
        ),
        ("llama3", {"architectures": ["OtherForCausalLM"]}, "OtherForCausalLM"),
        ("llama3", {"tie_word_embeddings": False}, "there is none"),
        ("llama3", {"intermediate_size": 95}, "95"),
        ("llama3", {"hidden_size": 128, "head_dim": 16}, "128"),
    ],
)
def test_what_llama_cpp_would_do_otherwise(name: str, fields: dict[str, object], words: str, copied: Tiny) -> None:
    assert words in refused(change_config(copied(name), **fields))


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("qwen3", "model.layers.0.self_attn.o_proj.bias", (64,)),
        ("llama3", "model.norm.bias", (64,)),
        ("llama3", "lm_head.bias", (512,)),
        ("gemma2", "lm_head.weight", (512, 64)),
        ("qwen3moe", "model.layers.0.mlp.up_proj.weight", (96, 64)),
    ],
)
def test_tensors_that_no_loader_takes(name: str, tensor: str, shape: tuple[int, ...], copied: Tiny) -> None:
    folder = change_weights(copied(name), lambda w: w.update({tensor: torch.ones(shape)}))
    assert f"'{tensor}'" in refused(folder)


def test_a_missing_matrix_is_named(copied: Tiny) -> None:
    folder = change_weights(copied("llama3"), lambda w: w.pop("model.layers.1.mlp.down_proj.weight"))
    assert "blk.1.ffn_down.weight" in refused(folder)


@pytest.mark.parametrize("left_out", ["architectures", "model_type"])
def test_class_or_type_alone_is_enough(left_out: str, copied: Tiny) -> None:
    for name in ("llama3", "gemma2"):
        assert "blk.2.attn_q.weight" in by_name(change_config(copied(name), **{left_out: None}))


def test_a_window_that_llama_cpp_does_not_keep(tiny: Tiny) -> None:
    warned = {}
    for name in ("mistral", "gemma3", "qwen2"):
        with open_checkpoint(tiny(name)) as checkpoint:
            warned[name] = conversion_warning(checkpoint)
    assert "looks back 64 tokens in 3 of 3 layers" in warned["mistral"]
    assert warned["gemma3"] == warned["qwen2"] == ""


def test_gemma_s_own_attention_scale(copied: Tiny) -> None:
    assert "scaled by 64" in refused(change_config(copied("gemma3"), query_pre_attn_scalar=64))


def test_a_head_that_repeats_the_embedding_is_left_out(copied: Tiny) -> None:
    folder = change_weights(
        copied("llama3"), lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()})
    )
    assert "output.weight" not in by_name(folder)


@pytest.mark.parametrize("name", ["llama3", "gemma3"])
def test_a_head_that_differs_is_kept(name: str, copied: Tiny) -> None:
    """As transformers 5 keeps it, though config.json says that head and embedding are one."""
    folder = copied(name)
    head = load_file(folder / "model.safetensors")["model.embed_tokens.weight"] + 1
    change_weights(folder, lambda w: w.update({"lm_head.weight": head}))
    assert by_name(folder)["output.weight"].shape == (512, 64)


def test_rows_past_gemma_s_vocabulary(copied: Tiny) -> None:
    def grow(weights: dict[str, torch.Tensor]) -> None:
        embedding = weights["model.embed_tokens.weight"]
        weights["model.embed_tokens.weight"] = torch.cat([embedding, torch.zeros(3, 64, dtype=embedding.dtype)])

    folder = change_weights(copied("gemma3"), grow)
    assert by_name(folder)["token_embd.weight"].shape == (512, 64)


def test_the_identity_of_a_copy(tmp_path: Path) -> None:
    mapped = by_name(write_llama(tmp_path))
    assert mapped["blk.0.attn_v.weight"].identity
    assert not mapped["blk.0.attn_q.weight"].identity
    assert [s.name for s in mapped["token_embd.weight"].sources] == ["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("blk.0.ssm_conv1d.weight", True),
        ("blk.0.time_mix_w1.weight", True),
        ("blk.0.altup_router.weight", True),
        ("blk.0.time_mix_output.weight", False),
        ("blk.0.ffn_down_exps.weight", False),
        ("per_layer_token_embd.weight", False),
    ],
)
def test_what_stays_of_a_gguf(name: str, keep: bool, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "other")
    writer.add_tensor(name, np.ones((2, 32), np.float32))
    writer.add_tensor("last.bias", np.arange(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path / "a.gguf") as checkpoint:
        first, last = map_tensors(checkpoint)
        assert (first.name, first.shape, first.keep, first.identity) == (name, (2, 32), keep, True)
        assert (last.rows, last.columns, last.keep) == (1, 3, True)
        assert np.array_equal(read_mapped(checkpoint, last), [[0, 1, 2]])


@pytest.mark.parametrize(
    ("name", "target_name"),
    [
        ("language_model.model.layers.3.mlp.up_proj.weight", "blk.3.ffn_up.weight"),
        ("model.language_model.layers.3.self_attn.o_proj.bias", "blk.3.attn_output.bias"),
        ("model.language_model.norm.weight", "output_norm.weight"),
        ("language_model.lm_head.weight", "output.weight"),
        ("embed_tokens.weight", "token_embd.weight"),
    ],
)
def test_prefixes(name: str, target_name: str) -> None:
    target = gguf_name(name, "gemma3")
    assert target is not None
    assert target.name == target_name


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "transformer.h.0.attn.masked_bias",
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        "model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
        "multi_modal_projector.mm_input_projection_weight",
    ],
)
def test_left_out(name: str) -> None:
    assert is_skipped(name)
    assert not is_skipped("model.layers.0.self_attn.q_proj.weight")
