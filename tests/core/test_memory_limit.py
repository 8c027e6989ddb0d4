"""A large tensor, and rows of fifty million values, in a third of the memory that a conversion may take.

Held whole in float32, the tensor alone would be 1.4 GB.
"""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import LLAMA_CONFIG, safetensors_bytes
from tiny_models import write_llama

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 1_200_000_000 // 3
ROWS, COLUMNS = 128_256 // 3, 8192  # a third of Llama-3's vocabulary at the width of 70B: 700 MB in bf16


@pytest.mark.slow
@pytest.mark.parametrize("target", ["Q4_K_M", "w4a16-g128"])
def test_a_large_tensor_takes_little_memory(tmp_path, target):
    source = write_llama(tmp_path / "source", hidden=COLUMNS, heads=64, kv_heads=8, layers=1, ffn=1024)
    _widen_vocabulary(source)
    _convert(source, target, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["w4a16-channel", "w8a16-channel-asym"])
def test_rows_of_fifty_million_values_take_little_memory(tmp_path, target):
    rows, columns = 3, 50_000_000
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    end = rows * columns * 2
    entry = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, end]}
    part = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32).view(np.uint16)[1::2].tobytes()
    with (tmp_path / "source" / "model.safetensors").open("wb") as f:
        f.write(safetensors_bytes({"model.layers.0.mlp.down_proj.weight": entry}))
        start = f.tell()
        while f.tell() < start + end:
            f.write(part[: start + end - f.tell()])
    _convert(tmp_path / "source", target, tmp_path)


def _convert(source, target, tmp_path):
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
