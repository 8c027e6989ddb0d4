"""A single tensor of 2.1 GB, and the memory that converting it takes."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import write_llama

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 1_200_000_000
ROWS, COLUMNS = 128_256, 8192  # Llama-3's vocabulary at the width of 70B: 2.1 GB in bf16


@pytest.mark.slow
@pytest.mark.parametrize("target", ["Q4_K_M", "w4a16-g128"])
def test_a_tensor_of_two_gigabytes_takes_little_memory(tmp_path, target):
    source = write_llama(tmp_path / "source", hidden=COLUMNS, heads=64, kv_heads=8, layers=1, ffn=1024)
    _widen_vocabulary(source)
    command = [sys.executable, "-m", "core.cli", "convert", source, "--to", target, "-o", tmp_path / "out", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["predicted_bytes"] == data["actual_bytes"]
    assert data["peak_rss_bytes"] < LIMIT


def _widen_vocabulary(folder: Path) -> None:
    """Give the embedding ROWS rows of zeros by a hole at the end of the file, which takes no room on disk."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    size = ROWS * COLUMNS * 2
    entry = header["model.embed_tokens.weight"]
    entry["shape"] = [ROWS, COLUMNS]
    first = entry["data_offsets"][0]
    old = entry["data_offsets"][1] - first
    # Cut the old embedding out and put the new one last.
    data = data[:first] + data[first + old :]
    for name, other in header.items():
        if name != "__metadata__" and other is not entry and other["data_offsets"][0] > first:
            other["data_offsets"] = [o - old for o in other["data_offsets"]]
    entry["data_offsets"] = [len(data), len(data) + size]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
        f.truncate(f.tell() + size)
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = ROWS
    (folder / "config.json").write_text(json.dumps(config))
