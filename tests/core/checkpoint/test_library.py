"""Models found on a computer that is made up for the test."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from core.checkpoint.library import LocalModel, local_models


def put(path: Path, content: bytes = b"12345") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def named(models: tuple[LocalModel, ...]) -> dict[str, LocalModel]:
    return {model.name: model for model in models}


def test_nothing_there(tmp_path: Path) -> None:
    assert named(local_models({}, tmp_path / "nobody")).keys() <= set()


def test_hugging_face_cache(tmp_path: Path) -> None:
    hub = tmp_path / ".cache" / "huggingface" / "hub"
    repository = hub / "models--org--name"
    blob = put(repository / "blobs" / "abc", b"1234567")
    for revision in ("aaa", "bbb"):
        put(repository / "snapshots" / revision / "config.json")
        (repository / "snapshots" / revision / "model.safetensors").symlink_to(blob)
    put(repository / "refs" / "main", b"bbb")
    put(hub / "models--gpt2" / "snapshots" / "x" / "pytorch_model.bin")
    put(hub / "models--gpt2" / "snapshots" / "x" / "config.json")
    put(hub / "models--org--many" / "snapshots" / "x" / "many-Q4.gguf")
    put(hub / "models--org--many" / "snapshots" / "x" / "many-Q8-00001-of-00002.gguf")
    put(hub / "models--org--many" / "snapshots" / "x" / "many-Q8-00002-of-00002.gguf")
    put(hub / "models--org--many" / "snapshots" / "x" / "mmproj-many.gguf")
    put(hub / "datasets--org--text" / "snapshots" / "x" / "model.safetensors")
    (hub / "models--org--broken" / "snapshots" / "x").mkdir(parents=True)
    (hub / "models--org--broken" / "snapshots" / "x" / "model.safetensors").symlink_to(hub / "gone")
    (hub / "models--org--loop").mkdir()
    (hub / "models--org--loop" / "snapshots").symlink_to(hub / "models--org--loop" / "snapshots")
    found = named(local_models({}, tmp_path))
    assert set(found) == {"org/name", "gpt2", "org/many-Q4", "org/many-Q8"}
    assert found["org/name"] == LocalModel(repository / "snapshots" / "bbb", "org/name", "Hugging Face", 7)
    assert found["org/many-Q8"].bytes == 10


@pytest.mark.parametrize(
    ("key", "below"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_the_cache_can_be_elsewhere(tmp_path: Path, key: str, below: str) -> None:
    put(tmp_path / "else" / below / "models--a--b" / "snapshots" / "x" / "b.gguf")
    assert set(named(local_models({key: str(tmp_path / "else")}, tmp_path / "home"))) == {"a/b"}


def test_lm_studio(tmp_path: Path) -> None:
    put(tmp_path / ".lmstudio" / "models" / "pub" / "repo" / "a-Q4_K_M.gguf")
    put(tmp_path / ".cache" / "lm-studio" / "models" / "pub" / "mlx" / "model.safetensors")
    put(tmp_path / ".cache" / "lm-studio" / "models" / "pub" / "mlx" / "config.json")
    put(tmp_path / "moved" / "models" / "pub" / "other" / "b.gguf")
    put(tmp_path / ".lmstudio-home-pointer", str(tmp_path / "moved").encode())
    found = named(local_models({}, tmp_path))
    assert set(found) == {"pub/a-Q4_K_M", "pub/mlx", "pub/b"}
    assert {model.origin for model in found.values()} == {"LM Studio"}


def test_ollama(tmp_path: Path) -> None:
    models = tmp_path / ".ollama" / "models"
    blob = put(models / "blobs" / ("sha256-" + "a" * 64), b"GGUF")
    library = models / "manifests" / "registry.ollama.ai" / "library"
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "a" * 64},
    ]
    put(library / "llama3" / "8b", json.dumps({"layers": layers}).encode())
    hostile = [
        b"",
        b"{",
        b"[]",
        b'{"layers": 3}',
        b'{"layers": [3]}',
        b'{"a":' * 9999,
        json.dumps({"layers": [layers[1] | {"digest": "../../../etc/passwd"}]}).encode(),
        json.dumps({"layers": [layers[1] | {"digest": 5}]}).encode(),
        json.dumps({"layers": [layers[1] | {"digest": "sha256:" + "c" * 64}]}).encode(),
    ]
    for number, content in enumerate(hostile):
        put(library / "bad" / str(number), content)
    assert local_models({}, tmp_path) == (LocalModel(blob, "llama3:8b", "Ollama", 4),)


def test_a_folder_that_can_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert local_models({}, tmp_path) == ()


def test_downloads_that_have_not_ended(tmp_path: Path) -> None:
    snapshot = tmp_path / ".cache" / "huggingface" / "hub" / "models--o--half" / "snapshots" / "x"
    put(snapshot / "config.json")
    put(snapshot / "model-00001-of-00003.safetensors", b"123")
    (snapshot / "model-00002-of-00003.safetensors").symlink_to(tmp_path / "gone")
    put(snapshot.parent.parent / "blobs" / "abc.incomplete")
    put(tmp_path / ".lmstudio" / "models" / "p" / "r" / "a-00001-of-00002.gguf")
    put(tmp_path / ".lmstudio" / "models" / "p" / "r" / "downloading_b.gguf.part")
    found = named(local_models({}, tmp_path))
    assert {name: model.missing for name, model in found.items()} == {"o/half": 2, "p/a": 1}


def test_notes_of_git_lfs_are_no_weights(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "owner" / "name"
    put(folder / "config.json")
    put(folder / "model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    assert local_models({}, tmp_path, [tmp_path / "mine"]) == ()


def test_files_by_quantization_in_folders(tmp_path: Path) -> None:
    snapshot = tmp_path / ".cache" / "huggingface" / "hub" / "models--o--many" / "snapshots" / "x"
    put(snapshot / "BF16" / "many-BF16-00001-of-00001.gguf")
    put(tmp_path / ".lmstudio" / "models" / "p" / "r" / "Q8_0" / "r-Q8_0.gguf")
    assert set(named(local_models({}, tmp_path))) == {"o/many-BF16", "p/r-Q8_0"}


def test_own_folder(tmp_path: Path) -> None:
    models = tmp_path / "Models"
    put(models / "loose-Q4_0.gguf")
    put(models / "owner" / "name" / "config.json")
    put(models / "owner" / "name" / "model.safetensors")
    put(models / "owner" / "name" / ".cache" / "x.gguf")
    put(models / "single" / "config.json")
    put(models / "single" / "pytorch_model.bin")
    put(models / "owner" / "two" / "chat" / "config.json")
    put(models / "owner" / "two" / "chat" / "model.safetensors")
    found = named(local_models({}, tmp_path, [models, tmp_path / "none"]))
    assert set(found) == {"loose-Q4_0", "owner/name", "single", "owner/two/chat"}
    assert {m.origin for m in found.values()} == {"Models"}


def test_llama_cpp(tmp_path: Path) -> None:
    put(tmp_path / "cache" / "llama.cpp" / "owner_name_a-Q4_0.gguf")
    put(tmp_path / "cache" / "llama.cpp" / "owner_name_b-Q4_0.gguf.downloadInProgress")
    put(tmp_path / "other" / "c.gguf")
    found = local_models({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path)
    if found:  # macOS and Windows keep it elsewhere
        assert [(m.name, m.origin) for m in found] == [("owner_name_a-Q4_0", "llama.cpp")]
    assert [m.name for m in local_models({"LLAMA_CACHE": "~/other"}, tmp_path)] == ["c"]


def test_chosen_folders_of_lm_studio_and_ollama(tmp_path: Path) -> None:
    put(tmp_path / ".lmstudio" / "settings.json", json.dumps({"downloadsFolder": str(tmp_path / "big")}).encode())
    put(tmp_path / "big" / "p" / "r" / "x.gguf")
    blob = put(tmp_path / "disk" / "blobs" / ("sha256-" + "a" * 64), b"GGUF")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "a" * 64}
    put(tmp_path / "disk" / "manifests" / "hf.co" / "o" / "n" / "Q4_0", json.dumps({"layers": [layer]}).encode())
    found = local_models({"OLLAMA_MODELS": str(tmp_path / "disk")}, tmp_path)
    assert [(m.name, m.origin) for m in found] == [("o/n:Q4_0", "Ollama"), ("p/x", "LM Studio")]
    put(tmp_path / ".lmstudio" / "settings.json", b"not JSON")
    (tmp_path / "link.gguf").symlink_to(blob)
    assert [m.origin for m in local_models({"OLLAMA_MODELS": str(tmp_path / "disk")}, tmp_path)] == ["Ollama"]


def test_a_shared_file_is_named_once(tmp_path: Path) -> None:
    real = put(tmp_path / "Models" / "o" / "n" / "a.gguf")
    link = tmp_path / ".lmstudio" / "models" / "o" / "n" / "a.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert [m.path for m in local_models({}, tmp_path, [tmp_path / "Models"])] == [real]


def test_a_service_s_own_folder(tmp_path: Path) -> None:
    from core.checkpoint.library_places import _of_unit

    unit = put(
        tmp_path / "override.conf", b'[Service]\nEnvironment="OLLAMA_HOST=0.0.0.0" "OLLAMA_MODELS=/data/ollama"\n'
    )
    assert _of_unit(unit) == [Path("/data/ollama")]
    assert _of_unit(tmp_path / "none") == []
