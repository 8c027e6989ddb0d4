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
