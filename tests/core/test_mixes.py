"""The mixes against llama.cpp's own figures: bits per weight of Llama-3.1-8B in tools/quantize/README.md."""

from collections import Counter

import pytest

from core.assign import decide
from core.methods.choice import Calibrated, DataMethod
from core.mixes import more_bits
from core.models.gguf_tensors import MappedTensor, Piece
from core.models.shape import ModelShape
from core.recipe import Recipe
from core.targets import TARGETS, find_target
from core.tensor_info import Role, TensorInfo

LLAMA_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072)
LAYER = {
    "attn_q": (Role.ATTN_Q, (4096, 4096)),
    "attn_k": (Role.ATTN_K, (1024, 4096)),
    "attn_v": (Role.ATTN_V, (1024, 4096)),
    "attn_output": (Role.ATTN_OUT, (4096, 4096)),
    "ffn_gate": (Role.FFN_GATE, (14336, 4096)),
    "ffn_up": (Role.FFN_UP, (14336, 4096)),
    "ffn_down": (Role.FFN_DOWN, (4096, 14336)),
}


def tensor(name, role, shape, layer=None, dtype="BF16"):
    info = TensorInfo(name, shape, dtype, 0, role=role, layer=layer)
    keep = len(shape) == 1 or role is Role.ROUTER
    return MappedTensor(name, shape, (Piece(info, 0, info.rows),), role=role, layer=layer, keep=keep)


def model(shape=LLAMA_8B, layer=LAYER, head=True):
    out = [tensor("token_embd.weight", Role.EMBED, (shape.vocab, shape.hidden))]
    for i in range(shape.layers):
        out += [tensor(f"blk.{i}.{n}.weight", role, size, i) for n, (role, size) in layer.items()]
        out.append(tensor(f"blk.{i}.attn_norm.weight", Role.NORM, (shape.hidden,), i))
    if head:
        out.append(tensor("output.weight", Role.HEAD, (shape.vocab, shape.hidden)))
    return out


def types(target, tensors, shape, **options):
    fates = decide(find_target(target), Recipe(target, **options), tensors, shape, from_gguf=False)
    return {t.name: (f.format.name if f.format else t.sources[0].dtype) for t, f in zip(tensors, fates, strict=True)}


def data_for(target):
    """Of a recipe: what a target needs."""
    needed = target.startswith(("IQ2", "IQ3"))  # the others need none, and some mixes are larger with it
    return {"calibrated": Calibrated(DataMethod.IMPORTANCE)} if needed else {}


def bits(target):
    tensors = model()
    fates = decide(find_target(target), Recipe(target, **data_for(target)), tensors, LLAMA_8B, from_gguf=False)
    size = sum(f.format.bytes_for(t.shape).total for t, f in zip(tensors, fates, strict=True))
    values = sum(a.sources[0].values for a in tensors)
    return 8 * size / values


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("Q2_K", 3.16),
        ("Q3_K_S", 3.64),
        ("Q3_K_M", 4.00),
        ("Q3_K_L", 4.30),
        ("Q4_K_S", 4.67),
        ("Q4_K_M", 4.89),
        ("Q5_K_S", 5.57),
        ("Q5_K_M", 5.70),
        ("Q6_K", 6.56),
        ("Q8_0", 8.50),
        ("IQ2_XXS", 2.38),
        ("IQ2_XS", 2.59),
        ("IQ2_S", 2.74),
        ("IQ2_M", 2.93),
        ("IQ3_XXS", 3.25),
        ("IQ3_XS", 3.50),
        ("IQ3_S", 3.66),
        ("IQ3_M", 3.76),
        ("IQ4_XS", 4.46),
        ("IQ4_NL", 4.68),
    ],
)
def test_bits_per_weight_of_llama_3_1_8b(target, expected):
    assert bits(target) == pytest.approx(expected, abs=0.006)


def test_more_bits_layers_of_32():
    assert [i for i in range(32) if more_bits(i, 32)] == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


def test_70b_value_matrices_get_five_bits():
    shape = ModelShape("llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072)
    layer = {"attn_v": (Role.ATTN_V, (1024, 8192)), "ffn_up": (Role.FFN_UP, (28672, 8192))}
    got = types("Q4_K_M", model(shape, layer), shape)
    assert Counter(v for k, v in got.items() if "attn_v" in k) == {"Q6_K": 40, "Q5_K": 40}


def test_eight_experts_raise_attention():
    shape = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 32000, 32768, experts=8, experts_used=2)
    layer = {
        "attn_k": (Role.ATTN_K, (1024, 4096)),
        "attn_v": (Role.ATTN_V, (1024, 4096)),
        "attn_output": (Role.ATTN_OUT, (4096, 4096)),
        "ffn_down_exps": (Role.FFN_DOWN, (8, 4096, 14336)),
        "ffn_gate_inp": (Role.ROUTER, (8, 4096)),
    }
    got = types("Q4_K_M", model(shape, layer), shape)
    assert got["blk.5.attn_k.weight"] == got["blk.5.attn_v.weight"] == "Q8_0"
    assert got["blk.5.attn_output.weight"] == "Q5_K"
    assert got["blk.0.ffn_down_exps.weight"] == "Q6_K"
    assert got["blk.4.ffn_down_exps.weight"] == "Q4_K"
    assert got["blk.5.ffn_gate_inp.weight"] == "F32"


def test_mxfp4_moe_gives_experts_four_bits():
    shape = ModelShape("qwen3moe", 2, 2048, 32, 4, 128, 768, 151936, 40960, experts=128, experts_used=8)
    layer = {"attn_q": (Role.ATTN_Q, (4096, 2048)), "ffn_up_exps": (Role.FFN_UP, (128, 768, 2048))}
    got = types("MXFP4_MOE", model(shape, layer), shape)
    assert got["blk.0.ffn_up_exps.weight"] == "MXFP4"
    assert got["blk.0.attn_q.weight"] == got["output.weight"] == "Q8_0"


def test_tied_embedding_is_treated_as_the_head():
    got = types("Q4_K_M", model(head=False), LLAMA_8B)
    assert got["token_embd.weight"] == "Q6_K"
    assert types("Q4_K_M", model(), LLAMA_8B)["token_embd.weight"] == "Q4_K"


def test_a_bare_type_is_that_type_everywhere():
    got = types("Q4_K", model(), LLAMA_8B)
    assert {v for k, v in got.items() if "norm" not in k} == {"Q4_K"}


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ("Q4_K", "Q5_0"),
        ("Q5_K", "Q5_1"),
        ("Q6_K", "Q8_0"),
        ("Q3_K", "Q4_0"),
        ("Q2_K", "Q4_0"),
        ("IQ4_XS", "IQ4_NL"),
        ("TQ1_0", "Q4_0"),
    ],
)
def test_rows_that_256_does_not_divide_fall_back(wanted, got):
    tensors = [tensor("blk.0.ffn_up.weight", Role.FFN_UP, (64, 576), 0), *model()[:1]]
    assert types(wanted, tensors, LLAMA_8B)["blk.0.ffn_up.weight"] == got


def test_rows_that_32_does_not_divide_stay_in_16_bits():
    tensors = [tensor("blk.0.ffn_up.weight", Role.FFN_UP, (64, 100), 0)]
    assert types("Q4_K_M", tensors, LLAMA_8B)["blk.0.ffn_up.weight"] == "BF16"


def test_every_target_has_a_format():
    for target in TARGETS:
        if not target.is_folder:
            assert types(target.name, model(), LLAMA_8B, **data_for(target.name))
