import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_models import write_llama

from core.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("source") / "tiny"))


def as_json(capsys, *words):
    code = main([*words, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_plan_as_json_has_the_promised_fields(capsys, folder):
    code, data, _ = as_json(capsys, "plan", folder, "--to", "Q4_K_M")
    assert code == 0
    assert data["bytes_total"] > 0
    assert {"name", "action", "format", "bytes", "reason"} <= set(data["tensors"][0])


def test_convert_as_json_matches_the_plan(capsys, folder, tmp_path):
    _, plan, _ = as_json(capsys, "plan", folder, "--to", "q4_k_m")
    code, data, _ = as_json(capsys, "convert", folder, "--to", "q4_k_m", "-o", str(tmp_path / "o.gguf"))
    assert code == 0
    assert data["predicted_bytes"] == data["actual_bytes"] == plan["bytes_total"] == Path(data["output"]).stat().st_size
    assert {"name", "snr_db", "max_error"} <= set(data["tensors"][0])
    assert data["seconds"] > 0
    assert data["peak_rss_bytes"] > 0
    assert main(["verify", data["output"]]) == 0
    assert main(["verify", data["output"], "--source", folder, "--to", "Q4_K_M"]) == 0
    capsys.readouterr()
    code, info, _ = as_json(capsys, "info", data["output"])
    assert code == 0
    assert info["architecture"] == "llama"


def test_the_target_decides_and_not_the_extension(folder, tmp_path):
    assert main(["convert", folder, "--to", "w4a16-g64", "-o", str(tmp_path / "name.gguf")]) == 0
    assert (tmp_path / "name.gguf" / "config.json").is_file()
    assert main(["convert", folder, "--to", "Q8_0", "-o", str(tmp_path / "name")]) == 0
    assert (tmp_path / "name").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "no/such/folder", "--to", "Q4_K_M"], 1),
        (["plan", "FOLDER"], 1),
        (["plan", "FOLDER", "--to", "Q9"], 1),
        (["plan", "FOLDER", "--to", "Q4_K_M", "--rule", "nothing=Q8_0"], 1),
        (["plan", "FOLDER", "--to", "Q4_K_M", "--rule", "Q8_0"], 1),
        (["plan", "FOLDER", "--to", "Q4_K_M", "--rule", "(=Q8_0"], 1),
        (["plan", "FOLDER", "--to", "Q4_K_M", "--keep", "nothing"], 1),
        (["plan", "FOLDER", "--recipe", "no.json"], 1),
        (["convert", "FOLDER", "--to", "Q4_K_M", "-o", "FOLDER", "--overwrite"], 1),
        (["convert", "FOLDER", "--to", "Q4_K_M", "--threads", "0"], 1),
        (["convert"], 2),
        (["frobnicate"], 2),
        (["plan", "FOLDER", "--to", "Q4_K_M", "--misfit", "maybe"], 2),
        (["--help"], 0),
        (["convert", "--help"], 0),
    ],
)
def test_exit_codes_and_no_traceback(folder, words, code, capsys):
    assert main([folder if w == "FOLDER" else w for w in words]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if code == 1:
        assert 1 <= len(err.strip().splitlines()) <= 2


def test_rules_and_keeps_reach_the_plan(capsys, folder):
    _, data, _ = as_json(
        capsys, "plan", folder, "--to", "Q4_K_M", "--rule", r"blk\.0\.ffn_down=Q6_K", "--keep", r"blk\.1\."
    )
    got = {t["name"]: t["format"] for t in data["tensors"]}
    assert got["blk.0.ffn_down.weight"] == "Q6_K"
    assert got["blk.1.ffn_up.weight"] == "BF16"


@pytest.mark.parametrize("command", ["formats", "devices", "check"])
def test_listings_as_text_and_json(capsys, command):
    assert main([command]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3
    code, data, _ = as_json(capsys, command)
    assert code == 0
    assert data


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM of Windows ends a process at once")
def test_sigterm_leaves_a_resumable_state(tmp_path):
    source = write_llama(tmp_path / "big", hidden=512, ffn=2048, layers=8, heads=8)
    command = [
        sys.executable,
        "-m",
        "core.cli",
        "convert",
        str(source),
        "--to",
        "IQ4_XS",
        "-o",
        str(tmp_path / "out.gguf"),
    ]
    process = subprocess.Popen(
        [*command, "--threads", "1"], cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    journal = tmp_path / "out.gguf.partial.journal"
    until = time.monotonic() + 60
    while not journal.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert b"Traceback" not in err
    assert not (tmp_path / "out.gguf").exists()
    assert subprocess.run([*command, "--resume"], cwd=REPOSITORY, check=False, capture_output=True).returncode == 0
    assert (tmp_path / "out.gguf").exists()


def test_a_closed_pipe_is_no_error(folder):
    script = f"{sys.executable} -m core.cli plan {folder} --to Q8_0 | head -1"
    done = subprocess.run(["bash", "-c", script], cwd=REPOSITORY, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
