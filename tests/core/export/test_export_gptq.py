"""GPTQ and AWQ folders: what config.json says, and what is stored, against codes unpacked one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from gptq_files import AWQ_ORDER
from job_help import convert
from safetensors import safe_open
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.export.gptq import quantization_config
from core.formats import EncodeOptions, Method, find_format
from core.formats.coded import Coded
from core.formats.gptq import Gptq
from core.plan import make_plan
from core.recipe import KEEP, Recipe, Rule
from core.tensor_info import Role, TensorInfo

BASE = "model.layers.0.mlp.up_proj"


def load_file(path: Path) -> dict[str, np.ndarray]:
    """The arrays of quantized layers; numpy has no bfloat16 for the others."""
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys() if "proj" in name}  # noqa: SIM118


def fields(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """uint32 [R, W] → codes [R, count], by whole rows as one long number."""
    rows = [sum(int(w) << (32 * i) for i, w in enumerate(row)) for row in words.view(np.uint32)]
    return np.array([[row >> (bits * i) & ((1 << bits) - 1) for i in range(count)] for row in rows])


def unpacked(arrays: Mapping[str, np.ndarray], base: str, bits: int, plus: int) -> np.ndarray:
    """The weight that GPTQ's four arrays stand for, [N, K]."""
    scales, index = arrays[f"{base}.scales"].astype(np.float64), arrays[f"{base}.g_idx"]
    codes = fields(np.ascontiguousarray(arrays[f"{base}.qweight"].T), bits, len(index)).T
    zeros = fields(arrays[f"{base}.qzeros"], bits, scales.shape[1]) + plus
    return (scales[index] * (codes - zeros[index])).T


@pytest.mark.parametrize(
    "target",
    ["gptq-4bit-g64", "gptq-2bit-g32-asym", "gptq-3bit-channel", "gptq-3bit-g128-asym", "gptq-8bit-g32-asym-v2"],
)
def test_gptq_arrays_by_the_book(target: str, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    _, result = convert(folder, target, tmp_path / "out")
    assert result.predicted_bytes == result.actual_bytes
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    form = find_format(target, "safetensors")
    assert isinstance(form, Gptq)
    size = form.group or 256
    assert arrays[f"{BASE}.qweight"].shape == (256 * form.bits // 32, 512)
    assert arrays[f"{BASE}.qzeros"].shape == (256 // size, 512 * form.bits // 32)
    assert (arrays[f"{BASE}.scales"].shape, arrays[f"{BASE}.scales"].dtype) == ((256 // size, 512), np.float16)
    assert np.array_equal(arrays[f"{BASE}.g_idx"], np.arange(256, dtype=np.int32) // size)
    want = unpacked(arrays, BASE, form.bits, 2 - form.version)
    with open_checkpoint(tmp_path / "out") as made, open_checkpoint(folder) as source:
        (up,) = [t for t in made.tensors if t.name == f"{BASE}.weight"]
        assert np.array_equal(made.read_rows(up), want)
        (original,) = [t for t in source.tensors if t.name == f"{BASE}.weight"]
        error = np.abs(source.read_rows(original) - want).reshape(-1, size).max(1)
        largest = np.abs(source.read_rows(original)).reshape(-1, size).max(1)
    assert (error <= form.bound(Method.SEARCH) * largest).all()
    zeros = fields(arrays[f"{BASE}.qzeros"], form.bits, 512)
    middle = (1 << (form.bits - 1)) - 1
    assert (zeros == middle).all() if form.symmetric else len(np.unique(zeros)) > 1


def test_awq_arrays_by_the_book(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    convert(folder, "awq-g64", tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert f"{BASE}.g_idx" not in arrays
    scales = arrays[f"{BASE}.scales"].astype(np.float64)
    place = np.argsort(AWQ_ORDER)  # nibble of each output
    codes, zeros = (
        fields(arrays[f"{BASE}.{end}"].reshape(-1, 1), 4, 8)[:, place].reshape(len(arrays[f"{BASE}.{end}"]), 512)
        for end in ("qweight", "qzeros")
    )
    want = (np.repeat(scales, 64, 0) * (codes - np.repeat(zeros, 64, 0))).T
    with open_checkpoint(tmp_path / "out") as made:
        (up,) = [t for t in made.tensors if t.name == f"{BASE}.weight"]
        assert np.array_equal(made.read_rows(up), want)
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert config == {
        "quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in ("gptq-2bit-g32-asym", "gptq-4bit-g64-asym", "gptq-8bit-channel-asym")
        for method in Method
        if method in find_format(name, "safetensors").methods
    ],
)
def test_the_first_layout_never_has_a_zero_point_of_zero(name: str, method: Method) -> None:
    """Rows without a negative value would have one; loaders disagree about what it decodes to."""
    form = find_format(name, "safetensors")
    assert isinstance(form, Gptq)
    x = np.abs(np.random.default_rng(0).standard_t(3, (32, 256)).astype(np.float32)) * 0.02
    x[5] = 0
    x[6:16] *= np.random.default_rng(1).choice([-1, 1], (10, 256))
    options = EncodeOptions(method=method, importance=np.linspace(0.1, 1, 256, dtype=np.float32))
    codes = form.numbers.quantize(x, options)
    assert codes.zeros is not None
    assert codes.zeros.min() == 1
    raw = form.encode(x, options)
    back = form.decode(raw, *x.shape)
    size = form.group or 256
    largest = np.abs(x).reshape(-1, size).max(1)
    assert (np.abs(back - x).reshape(-1, size).max(1) <= form.bound(method) * largest).all()
    assert not back[5].any()
    stored = fields(raw[2].view(np.uint32).reshape(256 // size, -1), form.bits, 32)
    assert stored.max() < (1 << form.bits) - 1


def test_long_rows_with_one_scale_have_none_either() -> None:
    form = find_format("gptq-4bit-channel-asym", "safetensors")
    x = np.abs(np.random.default_rng(0).normal(0, 1, (32, 4096)).astype(np.float32))
    options = EncodeOptions()
    rows = form.fit_rows(lambda: iter((x[:, :2048], x[:, 2048:])), options)
    assert (rows.zeros == 1).all()
    back = np.hstack(
        [form.numbers.values(form.numbers.quantize(p, EncodeOptions(rows=rows))) for p in np.split(x, 2, 1)]
    )
    assert np.abs(back - x).max() <= x.max() / 14 / 2 * 1.01


def tensors(layers: int = 3, experts: bool = False) -> list[TensorInfo]:
    roles = {"self_attn.q_proj": Role.ATTN_Q, "self_attn.k_proj": Role.ATTN_K, "self_attn.v_proj": Role.ATTN_V,
             "mlp.gate_proj": Role.FFN_GATE, "mlp.up_proj": Role.FFN_UP, "mlp.down_proj": Role.FFN_DOWN}  # fmt: skip
    if experts:
        roles = {"self_attn.q_proj": Role.ATTN_Q, "mlp.gate": Role.ROUTER}
        roles |= {f"mlp.experts.{e}.{p}_proj": Role.FFN_UP for e in range(4) for p in ("gate", "up", "down")}
    names = {f"model.layers.{i}.{place}.weight": role for i in range(layers) for place, role in roles.items()}
    names["lm_head.weight"] = Role.HEAD
    return [TensorInfo(name, (64, 64), "BF16", 8192, role=role, layer=0) for name, role in names.items()]


def chosen(given: list[TensorInfo], **special: str) -> dict[str, Coded]:
    """gptq-4bit-g64 for all, but what the words of a name say."""
    found: dict[str, Coded] = {}
    for t in given:
        if t.role not in (Role.HEAD, Role.ROUTER):
            name = next((f for word, f in special.items() if word in t.name), "gptq-4bit-g64")
            if name != KEEP:
                form = find_format(name, "safetensors")
                assert isinstance(form, Coded)
                found[t.name] = form
    return found


def resolved(config: Mapping, name: str) -> dict | None:
    """What GPTQModel and vLLM make of a module: its numbers, None for a plain one."""
    for pattern, other in config.get("dynamic", {}).items():
        if re.match(pattern[2:], name):
            return None if pattern[:2] == "-:" else {k: config[k] for k in ("bits", "group_size", "sym")} | other
    return {k: config[k] for k in ("bits", "group_size", "sym")}


MIXES = {
    "one format": {},
    "one kind of layer has more bits": {"down_proj": "gptq-8bit-g32"},
    "one layer is kept": {"layers.1.mlp": KEEP},
    "one of three that are fused differs": {"layers.2.self_attn.k_proj": "gptq-8bit-g64"},
    "whole rows with zero points": {"layers.1": "gptq-4bit-channel-asym"},
}


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_each_module_has_its_numbers(mix: str, experts: bool) -> None:
    given = tensors(experts=experts)
    forms = chosen(given, **MIXES[mix])
    config = quantization_config(given, forms)
    for t in given:
        form = forms.get(t.name)
        module = t.name.removesuffix(".weight")
        if module == "lm_head":
            assert not config["lm_head"]
            continue
        want = None
        if isinstance(form, Gptq):
            want = {"bits": form.bits, "group_size": form.group or -1, "sym": form.symmetric}
        assert resolved(config, module) == want, module
    assert ("dynamic" in config) == bool(MIXES[mix] or experts)


def test_patterns_are_one_for_all_layers_and_name_what_is_fused() -> None:
    given = tensors(12)
    config = quantization_config(given, chosen(given, down_proj="gptq-8bit-g32", self_attn=KEEP))
    assert config["dynamic"] == {
        r"-:^model\.layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|qkv_proj)$": {},
        r"+:^model\.layers\.\d+\.mlp\.down_proj$": {"bits": 8, "group_size": 32},
    }
    for name in ("model.layers.11.self_attn.qkv_proj", "model.layers.0.self_attn.q_proj"):
        assert resolved(config, name) is None


def test_both_layouts_of_zero_points_are_refused() -> None:
    given = tensors()
    with pytest.raises(UserError, match="every zero point less one"):
        quantization_config(given, chosen(given, down_proj="gptq-4bit-g64-asym-v2"))


def test_quantize_config_says_the_same(tmp_path: Path) -> None:
    convert(write_llama(tmp_path / "m"), "gptq-4bit-g64-asym-v2", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert config == json.loads((tmp_path / "out" / "quantize_config.json").read_text(encoding="utf-8"))
    assert config == {
        "bits": 4, "group_size": 64, "sym": False, "desc_act": False, "lm_head": False, "quant_method": "gptq",
        "method": "gptq", "checkpoint_format": "gptq_v2", "format": "gptq_v2", "pack_dtype": "int32",
        "meta": {"quantizer": ["bitsmith"]},
    }  # fmt: skip


def test_awq_has_groups_of_one_size(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m", hidden=192, heads=3, kv_heads=3)
    with open_checkpoint(folder) as checkpoint, pytest.raises(UserError, match="groups of one size") as problem:
        make_plan(checkpoint, Recipe("awq-g128"))
    assert "awq-g64" in problem.value.hint
    with open_checkpoint(folder) as checkpoint:
        rules = (Rule("down_proj", "awq-g32"),)
        with pytest.raises(UserError, match="64 and 32"):
            make_plan(checkpoint, Recipe("awq-g64", rules=rules))


@pytest.mark.parametrize(
    ("name", "shape"), [("gptq-4bit-g32", (40, 64)), ("gptq-2bit-channel", (64, 48)), ("awq-g32", (12, 64))]
)
def test_rows_that_do_not_fill_words_are_refused(name: str, shape: tuple[int, int]) -> None:
    assert find_format(name, "safetensors").accepts(shape).endswith(("32", "8"))
