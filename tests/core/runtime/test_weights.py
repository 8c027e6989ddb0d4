"""Weights of every storage as matrices: values against independent decoders, and files that contradict themselves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from decoder_models import weights_of, write_model
from job_help import drive
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.base import Checkpoint
from core.errors import Cancelled, UserError
from core.formats import EncodeOptions, Method, find_format
from core.models.config import read_config
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.runtime.load import decoder_config
from core.runtime.reading import Reading
from core.runtime.storage import STORAGES, stored_weights
from core.runtime.weights import plan_weights, read_weights
from kernels.matrix import Matrix, read_rows


def convert(source: Path, target: str, output: Path) -> None:
    """Without search for better numbers, which takes long and is of no matter here."""
    with open_checkpoint(source) as checkpoint:
        drive(run(make_plan(checkpoint, Recipe(target, method=Method.ROUND)), checkpoint, output, CancelToken()))


def values(matrix: Matrix) -> np.ndarray:
    return read_rows(matrix, np.arange(matrix.rows))


def matrices_of(path: Path) -> tuple[dict[str, Matrix], Any]:
    with open_checkpoint(path) as checkpoint:
        weights, conversions = weights_of(checkpoint, decoder_config(checkpoint))
    return dict(weights.matrices), conversions


def plan_of(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        plan_weights(checkpoint, decoder_config(checkpoint))


# Folders -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_folder(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model", dtype=dtype, tied=False, shards=2, hidden=96, heads=3, kv_heads=1)
    matrices, conversions = matrices_of(folder)
    tensors = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    assert not conversions
    assert len(matrices) == 2 + 2 * 7
    for ours, theirs in (
        ("token_embd", "model.embed_tokens"),
        ("output", "lm_head"),
        ("blk.1.attn_k", "model.layers.1.self_attn.k_proj"),
        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj"),
    ):
        want = tensors[theirs + ".weight"].float().numpy()
        assert np.array_equal(values(matrices[ours + ".weight"]), want)


@pytest.mark.parametrize("target", ["w4a16-g32", "w4a16-g128-asym", "w8a16-channel", "w8a16-g64-asym", "w4a16-channel"])
def test_packed_folder(target: str, tmp_path: Path) -> None:
    """Against the arrays of the file, unpacked by the library that defines the format."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    source = write_llama(tmp_path / "source", tied=False)
    convert(source, target, tmp_path / "packed")
    matrices, conversions = matrices_of(tmp_path / "packed")
    tensors = {k: v for file in (tmp_path / "packed").glob("*.safetensors") for k, v in load_file(file).items()}
    assert not conversions
    bits = int(target[1])
    for ours, theirs in (("attn_q", "self_attn.q_proj"), ("ffn_down", "mlp.down_proj")):
        base = f"model.layers.1.{theirs}.weight"
        shape = torch.Size(tensors[base + "_shape"].tolist())
        scale = tensors[base + "_scale"].float()
        codes = unpack_from_int32(tensors[base + "_packed"], bits, shape).float()
        zeros: torch.Tensor | float = 0.0
        if base + "_zero_point" in tensors:
            places = torch.Size((shape[0], scale.shape[1]))
            zeros = unpack_from_int32(tensors[base + "_zero_point"], bits, places, packed_dim=0).float()
            zeros = zeros.repeat_interleave(shape[1] // scale.shape[1], dim=1)
        want = (codes - zeros) * scale.repeat_interleave(shape[1] // scale.shape[1], dim=1)
        assert np.array_equal(values(matrices[f"blk.1.{ours}.weight"]), want.numpy())
    assert matrices["output.weight"].format == "BF16"


@pytest.mark.parametrize(("start", "stop"), [(0, 40), (40, 64), (64, 88), (3, 5), (87, 88)])
def test_rows_are_cut_where_zeros_share_a_word(start: int, stop: int, tmp_path: Path) -> None:
    """Fused projections are cut anywhere; eight 4-bit zeros of neighbouring rows lie in a word."""
    form = find_format("w4a16-g32-asym", "safetensors")
    shape = (88, 64)
    parts = form.encode(np.random.default_rng(0).normal(0, 1, shape).astype(np.float32), EncodeOptions())
    tensors = {"a.weight_shape": torch.tensor(shape)}
    for part, data in zip(form.parts(shape), parts, strict=True):
        if part.suffix != "_shape":
            words = torch.from_numpy(np.array(data).view(np.int32 if part.dtype == "I32" else np.int16))
            words = words.reshape(part.shape)
            tensors["a.weight" + part.suffix] = words if part.dtype == "I32" else words.view(torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        ((stored,), unknown) = stored_weights(checkpoint)
        matrix = stored.load(start, stop, Reading(CancelToken()))
    assert not unknown
    assert stored.shape == shape
    want = form.decode(parts, *shape)[start:stop]
    assert np.array_equal(values(matrix), want)
    assert np.array_equal(stored.values(start, stop), want)


def test_groups_without_a_layout_are_decoded_and_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 16, (6, 64)).astype(np.uint8), rng.uniform(0.5, 1, (6, 8)).astype(np.float16)
    words = (codes.reshape(6, 8, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(2, dtype=np.uint32)
    tensors = {
        "a.weight_packed": torch.from_numpy(words.view(np.int32)),
        "a.weight_scale": torch.from_numpy(scales),
        "a.weight_shape": torch.tensor([6, 64]),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    reading = Reading(CancelToken())
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        ((stored,), _) = stored_weights(checkpoint)
        matrix = stored.load(0, 6, reading)
    want = (codes.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), 8, axis=1)
    np.testing.assert_allclose(values(matrix), want, rtol=2**-11)
    (conversion,) = reading.conversions
    assert (conversion.stored, conversion.kept) == ("int4 g8", "F16")
    assert "16" in conversion.reason


def test_pytorch_files(tmp_path: Path) -> None:
    """The same model in pytorch_model.bin."""
    folder = write_llama(tmp_path / "model", layers=1)
    want, _ = matrices_of(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    got, _ = matrices_of(folder)
    assert got.keys() == want.keys()
    assert all(np.array_equal(values(got[name]), values(want[name])) for name in want)


@pytest.mark.parametrize("scales", ["tensor", "row", "tile", "none"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats(scales: str, dtype: torch.dtype, tmp_path: Path) -> None:
    want: dict[str, np.ndarray] = {}

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "_proj" in n]:
            codes = tensors[name].float().mul(8).to(dtype)
            rows, columns = codes.shape
            shape = {"tensor": (1,), "row": (rows, 1), "tile": (-(-rows // 128), -(-columns // 128)), "none": ()}[
                scales
            ]
            scale = torch.rand(shape) + 0.5
            tensors[name] = codes
            whole = scale
            if scales == "tile":
                whole = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
            if scales != "none":
                tensors[name + ("_scale_inv" if scales == "tile" else "_scale")] = scale
            want[name] = (codes.float() * (whole if scales != "none" else 1)).numpy()

    matrices, conversions = matrices_of(write_llama(tmp_path / "model", hidden=192, heads=3, kv_heads=1, change=change))
    assert not conversions
    assert np.array_equal(values(matrices["blk.0.attn_q.weight"]), want["model.layers.0.self_attn.q_proj.weight"])
    assert np.array_equal(values(matrices["blk.1.ffn_down.weight"]), want["model.layers.1.mlp.down_proj.weight"])


def test_8_bit_integers(tmp_path: Path) -> None:
    want: dict[str, np.ndarray] = {}

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "_proj" in n]:
            scale = tensors[name].float().abs().amax(1, keepdim=True) / 127
            tensors[name], tensors[name + "_scale"] = (tensors[name] / scale).round().to(torch.int8), scale
            want[name] = (tensors[name].float() * scale).numpy()

    matrices, _ = matrices_of(write_llama(tmp_path / "model", change=change))
    assert matrices["blk.0.ffn_up.weight"].format.startswith("int8")
    assert np.array_equal(values(matrices["blk.0.ffn_up.weight"]), want["model.layers.0.mlp.up_proj.weight"])


def test_another_storage_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage placed in front of the list claims tensors before the others see them."""
    seen = []

    def storage(checkpoint: Checkpoint, tensors: Any) -> list[Any]:
        seen.extend(tensors)
        return []

    monkeypatch.setattr("core.runtime.storage.STORAGES", (storage, *STORAGES))
    plan_of(write_llama(tmp_path / "model"))
    assert "model.norm.weight" in seen


# GGUF ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M",
               "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4_MOE", "TQ1_0", "TQ2_0"]
)  # fmt: skip
def test_gguf(target: str, tmp_path: Path) -> None:
    """Against the decoders of the package gguf."""
    convert(write_llama(tmp_path / "source", layers=1), target, tmp_path / "model.gguf")
    matrices, conversions = matrices_of(tmp_path / "model.gguf")
    assert not conversions
    compared = 0
    for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors:
        if len(tensor.shape) < 2:
            continue
        want = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        assert np.array_equal(values(matrices[tensor.name]), want), tensor.name
        assert matrices[tensor.name].format.startswith(tensor.tensor_type.name)
        compared += 1
    assert compared == 8


def test_codebooks_without_a_layout_are_decoded_and_told(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.IQ3_S
    rng = np.random.default_rng(0)

    def replace(name: str, data: np.ndarray) -> tuple[np.ndarray, Any]:
        if "ffn_up" not in name:
            return data, None
        blocks = rng.integers(0, 256, (data.shape[0], data.shape[1] // 256 * 110)).astype(np.uint8)
        blocks.reshape(len(blocks), -1, 110)[:, :, :2] = np.array([0.01], np.float16).view(np.uint8)
        return blocks, kind

    path = rewritten(write_llama(tmp_path / "source", layers=1), tmp_path, replace)
    matrices, conversions = matrices_of(path)
    (tensor,) = [t for t in gguf.GGUFReader(path).tensors if "ffn_up" in t.name]
    want = gguf.quants.dequantize(tensor.data, kind)
    assert matrices["blk.0.ffn_up.weight"].format == "F16"
    np.testing.assert_allclose(values(matrices["blk.0.ffn_up.weight"]), want, rtol=2**-11, atol=2**-24)
    (conversion,) = conversions
    assert (conversion.name, conversion.stored, conversion.kept) == ("blk.0.ffn_up.weight", "IQ3_S", "F16")
    assert "IQ3_S" in conversion.reason


def rewritten(
    source: Path,
    folder: Path,
    change: Callable[[str, np.ndarray], tuple[np.ndarray, Any] | None],
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """An F32 GGUF of the model with tensors changed and added, written by the package gguf; None leaves one out."""
    if not (folder / "plain.gguf").exists():
        convert(source, "F32", folder / "plain.gguf")
    reader = gguf.GGUFReader(folder / "plain.gguf")
    writer = gguf.GGUFWriter(folder / "changed.gguf", "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            main = field.types[0]
            sub = field.types[-1] if main == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), main, sub)
    for tensor in reader.tensors:
        shape = tuple(reversed(tensor.shape.tolist()))
        changed = change(tensor.name, np.array(tensor.data).reshape(shape))
        if changed is not None:
            writer.add_tensor(tensor.name, changed[0], raw_dtype=changed[1])
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "changed.gguf"


def test_experts_of_a_stack_are_those_of_the_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "source", "mixtral")
    convert(tmp_path / "source", "F32", tmp_path / "model.gguf")
    matrices, _ = matrices_of(tmp_path / "model.gguf")
    folder, _ = matrices_of(tmp_path / "source")
    for name in ("blk.1.ffn_gate.2.weight", "blk.0.ffn_down.3.weight", "blk.2.ffn_up.0.weight"):
        assert np.array_equal(values(matrices[name]), values(folder[name]))


# Contradictions ------------------------------------------------------------------------------------------------------


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, *shape: int) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: torch.ones(shape, dtype=torch.bfloat16)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("model.layers.1.self_attn.k_proj.weight"), "no tensor 'model.layers.1.self_attn.k_proj.weight'"),
        (drop("model.norm.weight"), "no tensor 'model.norm.weight'"),
        (put("model.layers.1.mlp.up_proj.weight", 500, 256), "'model.layers.1.mlp.up_proj.weight' is 500 × 256"),
        (put("model.layers.0.self_attn.v_proj.weight", 128, 128), "v_proj.weight' is 128 × 128"),
        (put("model.layers.2.mlp.up_proj.weight", 512, 256), "2 layers, but 'model.layers.2.mlp.up_proj.weight'"),
        (
            put("model.embed_tokens.weight", 300, 256),
            "'model.embed_tokens.weight' has 300 rows, but the vocabulary 288",
        ),
        (put("model.layers.0.self_attn.q_norm.weight", 64), "'model.layers.0.self_attn.q_norm.weight' has no place"),
        (put("model.layers.0.self_attn.rel_bias.weight", 64), "rel_bias.weight' has no place"),
        (put("model.layers.1.input_layernorm.weight", 255), "'model.layers.1.input_layernorm.weight' is 255"),
    ],
)
def test_contradictions_are_refused_by_name(change: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        plan_of(write_llama(tmp_path / "model", change=change))
    assert words in error.value.message


def test_a_head_that_should_be_there(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")
    with pytest.raises(UserError, match=r"no tensor 'lm_head\.weight'"):
        plan_of(folder)


def test_a_scheme_that_is_not_known_names_tensor_and_scheme(tmp_path: Path) -> None:
    def exl2(tensors: dict[str, torch.Tensor]) -> None:
        base = "model.layers.0.mlp.up_proj."
        tensors.pop(base + "weight")
        tensors[base + "q_weight"] = torch.zeros(32, 512, dtype=torch.int32)
        tensors[base + "q_scale"] = torch.zeros(2, 64, dtype=torch.int32)

    with pytest.raises(UserError) as error:
        plan_of(write_llama(tmp_path / "model", change=exl2))
    assert "q_weight" in error.value.message
    assert "EXL2" in error.value.message


def test_packed_parts_that_do_not_fit(tmp_path: Path) -> None:
    convert(write_llama(tmp_path / "source"), "w4a16-g64", tmp_path / "packed")
    file = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(file)
    base = "model.layers.1.mlp.up_proj.weight"
    for name, wrong, words in (
        (base + "_scale", tensors[base + "_scale"][:, :3].contiguous(), f"'{base}_packed'"),
        (base + "_shape", torch.tensor([512, 250]), f"'{base}_packed'"),
        (base + "_g_idx", torch.zeros(256, dtype=torch.int32), f"'{base}_g_idx'"),
        (base + "_scale", tensors[base + "_scale"][:, :0].contiguous(), f"'{base}_packed'"),
        (base + "_shape", torch.tensor([2, 0], dtype=torch.int8), f"'{base}_shape' is no shape"),
        (base + "_scale", tensors[base + "_scale"].to(torch.int32), f"'{base}_scale' holds I32"),
        (base + "_scale", tensors[base + "_scale"][:, :2].contiguous(), f"'{base}_packed' holds int4 g128, but"),
        (base + "_packed", tensors[base + "_packed"][:, ::2].contiguous(), f"'{base}_packed' holds int2 g64, but"),
        (base + "_scale", None, f"'{base}_scale'"),
    ):
        changed = {**tensors, name: wrong}
        save_file({k: v for k, v in changed.items() if v is not None}, file, metadata={"format": "pt"})
        with pytest.raises(UserError) as error:
            plan_of(tmp_path / "packed")
        assert words in error.value.message


@pytest.mark.parametrize(
    ("target", "fields", "fits"),
    [
        ("w4a16-g64-asym", {}, True),
        ("w4a16-g64-asym", {"symmetric": True}, False),
        ("w4a16-g64", {"num_bits": 8}, False),
        ("w4a16-g64", {"group_size": 32}, False),
        ("w4a16-g64", {"strategy": "channel", "group_size": None}, False),
        ("w8a16-channel", {}, True),
        ("w8a16-channel", {"strategy": None, "group_size": -1}, True),
        ("w8a16-channel", {"strategy": "group", "group_size": 1024}, True),  # longer than a row
        ("w8a16-channel", {"strategy": "group", "group_size": 64}, False),
        ("w8a16-channel", {"num_bits": None, "symmetric": None, "strategy": None}, True),  # config.json is silent
    ],
)
def test_packed_weights_are_what_config_json_says(
    target: str, fields: dict[str, Any], fits: bool, tmp_path: Path
) -> None:
    convert(write_llama(tmp_path / "source", layers=1), target, tmp_path / "packed")
    path = tmp_path / "packed" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= fields
    path.write_text(json.dumps(config), encoding="utf-8")
    if fits:
        plan_of(tmp_path / "packed")
        return
    with pytest.raises(UserError, match=r"weight_packed' holds int\d .*, but config.json says otherwise"):
        plan_of(tmp_path / "packed")


def test_zeros_that_are_missing_or_none(tmp_path: Path) -> None:
    """Without them, every weight would be off by some steps, and the text would be nonsense."""
    convert(write_llama(tmp_path / "source", layers=1), "w4a16-g64-asym", tmp_path / "packed")
    file = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(file)
    zeros = tensors.pop("model.layers.0.mlp.up_proj.weight_zero_point")
    for dtype in (torch.int8, torch.int64, torch.bool):
        save_file(tensors | {"model.layers.0.mlp.up_proj.weight_zero_point": zeros.to(dtype)}, file)
        with pytest.raises(UserError, match=r"up_proj\.weight_zero_point' is"):
            plan_of(tmp_path / "packed")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"up_proj\.weight_packed' holds int4 g64, but"):
        plan_of(tmp_path / "packed")


def test_gguf_contradictions(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", layers=1)
    for name, change, words in (
        ("blk.0.attn_v.weight", None, "no tensor 'blk.0.attn_v.weight'"),
        ("token_embd.weight", lambda d: (d[:-32], None), "'token_embd.weight' has 256 rows, but the vocabulary 288"),
        ("blk.0.ffn_up.weight", lambda d: (d[:-1], None), "'blk.0.ffn_up.weight' is 511 × 256"),
    ):
        path = rewritten(
            source, tmp_path, lambda n, d, name=name, change=change: (d, None) if n != name else change and change(d)
        )
        with pytest.raises(UserError) as error:
            plan_of(path)
        assert words in error.value.message


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"blk.0.attn_q.bias2": (256,)}, "'blk.0.attn_q.bias2' has no place"),
        ({"blk.1.attn_q.weight": (256, 256)}, "says 1 layers, but 'blk.1.attn_q.weight' belongs to layer 1"),
        ({"blk.0.attn_qkv.weight": (512, 256)}, "'blk.0.attn_q.weight' and 'blk.0.attn_qkv.weight' are the same part"),
        ({"blk.0.ffn_up_exps.weight": (2, 512, 256)}, "'blk.0.ffn_up_exps.weight' has no place"),
        ({"rope_freqs.weight": (33,)}, "33 rope factors, where each head has 32"),
        ({"rope_freqs.weight": (0,)}, "'rope_freqs.weight' has 0 values"),
        ({"rope_freqs.weight": (1 << 20,)}, "'rope_freqs.weight' has 1\u202f048\u202f576 values"),
        ({"rope_factors_long.weight": (32,)}, "but no 'rope_factors_short.weight'"),
        ({"rope_factors_short.weight": (32,)}, "but no 'rope_factors_long.weight'"),
    ],
)
def test_gguf_tensors_that_are_too_much(more: dict[str, tuple[int, ...]], words: str, tmp_path: Path) -> None:
    tensors = {name: np.ones(shape, np.float32) for name, shape in more.items()}
    path = rewritten(write_llama(tmp_path / "source", layers=1), tmp_path, lambda _, d: (d, None), tensors)
    with pytest.raises(UserError) as error:
        plan_of(path)
    assert words in error.value.message


# Reading -------------------------------------------------------------------------------------------------------------


def test_progress_and_cancel(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model", hidden=512, heads=8, ffn=2048, layers=4)
    with open_checkpoint(folder) as checkpoint:
        config = read_config(checkpoint.config)
        assert config is not None
        plan = plan_weights(checkpoint, config)
        assert plan.nbytes == checkpoint.total_bytes
        steps = list(read_weights(plan, CancelToken(), threads=2))
        done = [step.bytes_done for step in steps]
        assert done == sorted(done)
        assert done[-1] == steps[-1].bytes_total == plan.nbytes
        assert {step.tensor for step in steps} >= {slot.name for slot in plan.slots}

        token = CancelToken()
        reading = read_weights(plan, token, threads=2)
        next(reading)
        token.cancel()
        start = time.monotonic()
        with pytest.raises(Cancelled):
            list(reading)
        assert time.monotonic() - start < 0.2
        reading = read_weights(plan, CancelToken(), threads=2)
        next(reading)
        reading.close()
        for thread in [t for t in threading.enumerate() if t.name.startswith("bitsmith-load")]:
            thread.join(1)  # of the cancelled one; the closed one has waited for its own
        assert not [t for t in threading.enumerate() if t.name.startswith("bitsmith-load")]


def test_a_file_that_has_changed_is_not_read(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    with open_checkpoint(folder) as checkpoint:
        config = decoder_config(checkpoint)
        plan = plan_weights(checkpoint, config)
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(200_000)
        with pytest.raises(UserError, match=r"model\.safetensors"):
            list(read_weights(plan, CancelToken()))


def test_8_bit_floats_whose_scale_is_missing_or_none(tmp_path: Path) -> None:
    base = "model.layers.0.mlp.up_proj.weight"

    def scaled(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "_proj" in n]:
            tensors[name + "_scale"] = torch.ones(len(tensors[name]), 1)
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    file = write_llama(tmp_path / "model", layers=1, change=scaled) / "model.safetensors"
    plan_of(tmp_path / "model")
    tensors = load_file(file)
    for change, words in (
        ({base + "_scale": None}, f"'{base}' has no scale"),
        ({base + "_scale": tensors[base + "_scale"].to(torch.int8)}, f"'{base}_scale' holds I8"),
        ({base: tensors[base].reshape(-1)[0].clone()}, f"'{base}' is 1 in F8_E4M3, so its scales"),
    ):
        changed = {k: v for k, v in (tensors | change).items() if v is not None}
        save_file(changed, file, metadata={"format": "pt"})
        with pytest.raises(UserError) as error:
            plan_of(tmp_path / "model")
        assert words in error.value.message
