"""What people drop: folders, files, and what is no model; each answered by one sentence and a next step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import (
    gguf_bytes,
    gguf_tensor,
    gguf_text,
    llama_tensors,
    write_folder,
    write_safetensors,
    write_shards,
)

from core.checkpoint import open_checkpoint
from core.errors import UserError

GGUF = gguf_bytes([gguf_text("general.architecture", "llama")], [gguf_tensor("x", (4,), 0, 0)], bytes(16))


def refusal(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        open_checkpoint(path)
    assert caught.value.message.endswith(".")
    assert caught.value.hint.endswith(".")
    return caught.value


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "m", 6)
    for number in (2, 3, 5, 6):
        (folder / f"model-{number:05d}-of-00006.safetensors").unlink()
    for path in (folder, folder / "model-00001-of-00006.safetensors", folder / "config.json"):
        error = refusal(path)
        # Five tensors over six files: the sixth holds none, so the index does not name it.
        assert error.message.startswith("3 of the model's 5 weight files are missing: model-00002-of-00006.safetensors")
    (folder / "model-00002-of-00006.safetensors.incomplete").touch()
    assert "start it again" in refusal(folder).hint


def test_missing_shards_without_an_index(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "m")
    (folder / "model.safetensors.index.json").unlink()
    assert len(open_checkpoint(folder).files) == 3
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "1 of the model's 3 weight files are missing: model-00002-of-00003.safetensors" in refusal(folder).message
    (folder / ".cache" / "huggingface" / "download").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "download" / "abc.incomplete").touch()
    assert "abc.incomplete" in refusal(folder).hint


def test_an_index_of_another_download(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "m")
    index = {"weight_map": {"a": "model-00001-of-00009.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refusal(folder).message
    assert "names model-00001-of-00009.safetensors, but the files there are model-00001-of-00003.safetensors" in message


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a\\b", ""])
def test_an_index_can_not_leave_its_folder(tmp_path: Path, name: str) -> None:
    folder = write_shards(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "outside of its folder" in refusal(folder).message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"a": ' * 5000])
def test_a_damaged_index(tmp_path: Path, text: str) -> None:
    folder = write_shards(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refusal(folder).message


def test_a_damaged_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text("{")
    assert refusal(folder).message == "config.json is damaged: it is no valid JSON."
    (folder / "config.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "Git LFS pointer" in refusal(folder).message


def test_one_shard_that_is_a_pointer(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "m")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    (folder / "model-00002-of-00003.safetensors").write_text(pointer)
    error = refusal(folder)
    assert error.message == "model-00002-of-00003.safetensors is a Git LFS pointer, not the file itself."
    assert "git lfs pull" in error.hint


def test_the_same_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for number in (1, 2):
        write_safetensors(folder / f"model-{number:05d}-of-00002.safetensors", {"x": np.ones((2, 2), np.float32)})
    assert refusal(folder).message.startswith("x is both in model-00001-of-00002.safetensors and in ")


def test_folders_without_a_model(tmp_path: Path) -> None:
    def folder(name: str, *files: str) -> Path:
        (tmp_path / name).mkdir(parents=True)
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        return tmp_path / name

    cases = {
        folder("empty"): "The folder empty is empty.",
        folder("read", "README.md"): "read holds no weights.",
        folder("bare", "config.json"): "bare has a config but no weights.",
        folder(
            "lora", "adapter_config.json", "adapter_model.safetensors"
        ): "lora is an adapter (LoRA), not a whole model.",
        folder("keras", "tf_model.h5"): "keras only holds weights in a format that can not be opened: tf_model.h5.",
        folder("part", "a.safetensors.crdownload"): "The download in part is not finished (a.safetensors.crdownload).",
        folder("hub", "models--a--b/snapshots/1/x", "models--c--d/refs/main"): (
            "hub holds no model itself, only folders: models--a--b, models--c--d."
        ),
        folder("outer", "inner/a.gguf"): "outer holds no model itself, but the folder inner does.",
        folder(
            "models--a--b", "snapshots/123/config.json"
        ): "models--a--b is a download cache; the model is one level down.",
    }
    for path, message in cases.items():
        assert refusal(path).message == message
    assert str(Path("snapshots") / "123") in refusal(tmp_path / "models--a--b").hint


def test_a_folder_of_several_models(tmp_path: Path) -> None:
    for name in ("a-Q4.gguf", "a-Q8.gguf"):
        (tmp_path / name).write_bytes(GGUF)
    assert refusal(tmp_path).message == "This folder holds 2 GGUF files: a-Q4.gguf, a-Q8.gguf."
    (tmp_path / "a-Q8.gguf").rename(tmp_path / "mmproj-a.gguf")
    assert open_checkpoint(tmp_path).files == (tmp_path / "a-Q4.gguf",)
    for name in ("one.safetensors", "two.safetensors"):
        write_safetensors(tmp_path / name, {name: np.ones((2, 2), np.float32)})
    assert "2 weight files that do not say how they belong together" in refusal(tmp_path).message
    assert open_checkpoint(tmp_path / "two.safetensors").files == (tmp_path / "two.safetensors",)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert refusal(tmp_path / "typo").message == "typo is not there."
    for repository in ("HuggingFaceTB/SmolLM2-135M", "a/b.c"):
        assert f"bitsmith download {repository}" in refusal(Path(repository)).hint
    for path in (tmp_path / "a" / "b", Path("nowhere/model.gguf"), Path("nowhere/a/b"), Path("tests/no-model")):
        assert refusal(path).hint == "Check the path for a typo."
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "link points to a file that was removed" in refusal(tmp_path / "link").hint
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refusal(tmp_path / "loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        assert refusal(tmp_path / "pipe.gguf").message == "pipe.gguf is not a file."
    (tmp_path / "a.gguf.part").touch()
    assert refusal(tmp_path / "a.gguf.part").message == "a.gguf.part is a download that is not finished."
    (tmp_path / "m.onnx").write_bytes(b"abc")
    assert refusal(tmp_path / "m.onnx").message == "m.onnx is not in a format that can be opened."
    with pytest.raises(UserError):
        open_checkpoint("a\0b")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"x": np.ones((2, 2), np.float32)})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")  # root, who may run the tests, is never refused

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(path).message == "a.safetensors may not be read by you."


def test_the_content_tells_what_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "sha256-abc").write_bytes(GGUF)  # as Ollama names its blobs
    (tmp_path / "wrong.safetensors").write_bytes(GGUF)
    for path in tmp_path.iterdir():
        assert open_checkpoint(path).architecture == "llama"


def test_pytorch_beside_safetensors_is_not_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"not even read")
    assert open_checkpoint(folder).files == (folder / "model.safetensors",)


def test_a_file_beside_the_model_s_own_opens_alone(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "m")
    write_safetensors(folder / "consolidated.safetensors", llama_tensors())
    checkpoint = open_checkpoint(folder / "consolidated.safetensors")
    assert checkpoint.files == (folder / "consolidated.safetensors",)
    assert checkpoint.architecture == "llama"
    assert len(open_checkpoint(folder).files) == 3


def test_threads_read_what_one_reads(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(400, 64)).astype(np.float32)
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "a.safetensors", {"x": values}))
    wrong: list[int] = []

    def read(seed: int) -> None:
        starts = np.random.default_rng(seed).integers(0, 380, 50).tolist()
        blocks = {start: checkpoint.read_rows(checkpoint.tensors[0], start, start + 20) for start in starts}
        wrong.extend(start for start, block in blocks.items() if (block != values[start : start + 20]).any())

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_opening_does_not_load_torch_or_gguf(tmp_path: Path) -> None:
    """Start-up is quick because neither is imported before it is needed."""
    folder = write_folder(tmp_path / "m")
    (tmp_path / "a.gguf").write_bytes(GGUF)
    code = (
        "import sys; from core.checkpoint import open_checkpoint; from core.checkpoint.doctor import examine;"
        "[examine(open_checkpoint(path)) for path in sys.argv[1:]];"
        "print(sorted({'torch', 'gguf', 'transformers', 'PySide6'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[3]
    run = [sys.executable, "-c", code, str(folder), str(tmp_path / "a.gguf")]
    result = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
