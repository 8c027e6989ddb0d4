"""Which files of a repository are fetched: layouts of repositories as they are found on the hub."""

from __future__ import annotations

import pytest

from core.errors import UserError
from core.hub.files import HubFile, ambiguous, choices, choose, fates

SIDE = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md", "LICENSE"]


def listed(*names: str) -> list[HubFile]:
    return [HubFile(name, 10 + number) for number, name in enumerate(names)]


def fetched(*names: str, path: str = "", tag: str = "") -> set[str]:
    return {f.name for f in choose(choices(listed(*names)), path, tag).files}


def test_safetensors_and_what_belongs_to_them() -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    wanted = {
        *SIDE,
        "model.safetensors.index.json",
        *shards,
        "special_tokens_map.json",
        "chat_template.jinja",
        "merges.txt",
    }
    other = [
        ".gitattributes", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json",
        "original/consolidated.00.pth",
        "original/params.json", "consolidated.safetensors", "onnx/model.onnx", "onnx/config.json", "flax_model.msgpack",
        "tf_model.h5", "model.fp16-00001-of-00002.safetensors", "adapter_model.safetensors", "training_args.bin",
        "runs/events.out", "name-f16.gguf", "assets/picture.png", "original/model.safetensors",
    ]  # fmt: skip
    found = choices(listed(*wanted, *other))
    assert {f.name for f in found[0].files} == wanted
    assert [f.name for f in found[0].weights] == sorted(shards) or {f.name for f in found[0].weights} == set(shards)
    assert [(c.kind, c.title) for c in found[1:]] == [("gguf", "F16")]
    told = fates(listed(*wanted, *other), found[0])
    assert len(told) == len(wanted) + len(other)
    assert {f.file.name for f in told if f.fetched} == wanted
    assert all(f.reason for f in told)
    reasons = {f.file.name: f.reason for f in told}
    assert "part 1 of 2" in reasons[found[0].weights[0].name]
    assert "PyTorch" in reasons["pytorch_model-00001-of-00002.bin"]
    assert "other programs" in reasons["original/params.json"]
    assert reasons["tokenizer.json"] == "tokenizer"
    assert reasons["name-f16.gguf"] == "the same model as GGUF"


def test_pytorch_only_where_there_is_nothing_else() -> None:
    assert "pytorch_model.bin" in fetched(*SIDE, "pytorch_model.bin", "training_args.bin", "name.h5")
    assert "training_args.bin" not in fetched(*SIDE, "pytorch_model.bin", "training_args.bin")
    assert "pytorch_model.bin" not in fetched(*SIDE, "pytorch_model.bin", "model.safetensors")


def test_an_index_left_over_beside_one_file_stays_out() -> None:
    assert "model.safetensors.index.json" not in fetched(*SIDE, "model.safetensors", "model.safetensors.index.json")


def test_two_sets_of_parts_need_the_index() -> None:
    names = [*SIDE, "model.safetensors.index.json", "model-00001-of-00001.safetensors",
             "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]  # fmt: skip
    assert ambiguous(listed(*names)) == ("",)
    assert ambiguous(listed(*names[:-2])) == ()
    shards = {"": frozenset({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})}
    found = choices(listed(*names), shards)[0]
    assert {f.name for f in found.weights} == shards[""]


def test_quantized_folders_keep_their_settings() -> None:
    names = {*SIDE, "quantize_config.json", "gptq_model-4bit-128g.safetensors"}
    assert fetched(*names) == names
    names = {*SIDE, "hf_quant_config.json", "model.safetensors"}
    assert fetched(*names) == names
    names = {*SIDE, "qmodel.pt"}
    assert fetched(*names) == names


GGUFS = [
    "README.md", "Name-7B-Q4_K_M.gguf", "Name-7B-Q8_0.gguf", "Name-7B-UD-Q2_K_XL.gguf", "mmproj-F16.gguf",
    "imatrix.dat",
    "BF16/Name-7B-BF16-00001-of-00002.gguf", "BF16/Name-7B-BF16-00002-of-00002.gguf", "Name-7B-imatrix.gguf",
]  # fmt: skip


def test_one_gguf_of_many() -> None:
    found = choices(listed(*GGUFS))
    assert [c.title for c in found] == ["BF16", "Q8_0", "Q4_K_M", "UD-Q2_K_XL"]
    assert [f.name for f in found[0].weights] == [n for n in GGUFS if n.startswith("BF16")]
    assert fetched(*GGUFS, tag="q4_k_m") == {"README.md", "Name-7B-Q4_K_M.gguf"}
    assert fetched(*GGUFS, tag="Q2_K_XL") == {"README.md", "Name-7B-UD-Q2_K_XL.gguf"}
    assert fetched(*GGUFS, path="Name-7B-Q8_0.gguf") == {"README.md", "Name-7B-Q8_0.gguf"}
    assert len(fetched(*GGUFS, path="BF16")) == 3
    assert len(fetched(*GGUFS, path="BF16/Name-7B-BF16-00002-of-00002.gguf")) == 3
    assert fetched(*GGUFS, path="*Q8*.gguf") == {"README.md", "Name-7B-Q8_0.gguf"}
    told = {f.file.name: f.reason for f in fates(listed(*GGUFS), found[1])}
    assert told["Name-7B-Q4_K_M.gguf"] == "another quantization"
    assert "pictures" in told["mmproj-F16.gguf"]
    for bad in ({"tag": "Q3_K"}, {"path": "no.gguf"}):
        with pytest.raises(UserError, match="Q8_0"):
            fetched(*GGUFS, **bad)


def test_ggufs_of_two_models_in_one_repository() -> None:
    titles = [c.title for c in choices(listed("small-Q8_0.gguf", "large-Q8_0.gguf", "model.gguf"))]
    assert len(set(titles)) == 3
    assert all(titles)


def test_models_in_folders() -> None:
    names = ["README.md", "base/config.json", "base/model.safetensors", "chat/config.json", "chat/model.safetensors"]
    found = choices(listed(*names))
    assert [c.folder for c in found] == ["base", "chat"]
    assert fetched(*names, path="chat") == {"chat/config.json", "chat/model.safetensors"}


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "adapter"),
        (["model_index.json", "unet/diffusion_pytorch_model.bin"], "pictures"),
        (["model.safetensors", "README.md"], "config.json"),
        (["config.json", "tf_model.h5"], "format"),
        (["consolidated.safetensors", "params.json", "tekken.json"], "config.json"),
        (["README.md"], "no weights"),
        ([], "no weights"),
    ],
)
def test_repositories_without_a_model(names: list[str], word: str) -> None:
    with pytest.raises(UserError) as caught:
        choices(listed(*names))
    assert word in caught.value.message
    assert caught.value.hint
