import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import write_folder
from tiny_models import write_llama

from core.cli import main
from core.cli_commands import COMMANDS
from core.errors import Cancelled

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("source") / "tiny"))


def as_json(capsys, *words):
    code = main([*map(str, words), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_plan_as_json_has_the_promised_fields(capsys, folder):
    code, data, _ = as_json(capsys, "plan", folder, "--to", "Q4_K_M")
    assert code == 0
    assert data["bytes_total"] > 0
    assert {"name", "action", "format", "bytes", "reason"} <= set(data["tensors"][0])
    assert min(data["expected_seconds"], data["expected_memory_bytes"], data["scratch_bytes"]) > 0


def test_plan_says_what_each_way_with_rows_that_do_not_divide_costs(capsys, folder, tmp_path):
    narrow = str(write_llama(tmp_path / "narrow", hidden=96, heads=2, kv_heads=1))
    _, data, _ = as_json(capsys, "plan", narrow, "--to", "Q4_K_M")
    costs = data["misfit_bytes"]
    assert costs["stop"] is None
    assert data["bytes_total"] == costs["smaller-block"] < costs["keep-16-bit"]
    _, kept, _ = as_json(capsys, "plan", narrow, "--to", "Q4_K_M", "--misfit", "keep-16-bit")
    assert kept["bytes_total"] == costs["keep-16-bit"]
    assert main(["plan", narrow, "--to", "Q4_K_M"]) == 0
    assert "stop refuses" in capsys.readouterr().out
    assert as_json(capsys, "plan", folder, "--to", "Q4_K_M")[1]["misfit_bytes"] == {}


def test_convert_as_json_matches_the_plan(capsys, folder, tmp_path):
    _, plan, _ = as_json(capsys, "plan", folder, "--to", "q4_k_m")
    code, data, _ = as_json(capsys, "convert", folder, "--to", "q4_k_m", "-o", str(tmp_path / "o.gguf"))
    assert code == 0
    assert data["predicted_bytes"] == data["actual_bytes"] == plan["bytes_total"] == Path(data["output"]).stat().st_size
    assert {"name", "snr_db", "max_error"} <= set(data["tensors"][0])
    assert data["serve"][0] == {"runtime": "llama.cpp", "text": f"llama-server -m {data['output']}", "note": ""}
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


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["plan", "no/such", "--to", "Q8_0"], 1, "not there"),
        (["plan", "FOLDER"], 1, "target"),
        (["plan", "FOLDER", "--recipe", "/dev/zero"], 1, "can not be read"),
        (["convert", "FOLDER", "--to", "Q8_0", "--threads", "many"], 2, "--threads"),
        (["frobnicate"], 2, "frobnicate"),
        ([], 2, "COMMAND"),
    ],
)
def test_json_tells_of_every_failure(folder, words, code, says, capsys):
    got, data, err = as_json(capsys, *[folder if w == "FOLDER" else w for w in words])
    assert got == code
    assert says in data["error"]
    assert says in err


def test_json_of_a_cancelled_conversion(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("core.progress.CancelToken.check", lambda self: (_ for _ in ()).throw(Cancelled))
    code, data, _ = as_json(capsys, "convert", folder, "--to", "Q8_0", "-o", tmp_path / "out")
    assert (code, data["error"]) == (3, "Cancelled.")


def test_names_that_the_output_has_no_letters_for(tmp_path):
    source = write_folder(tmp_path / "s", {"模型 😀.weight": np.zeros((2, 2), np.float32)})
    for words in (["info", "--json"], ["plan", "--to", "w4a16-g32"], ["plan", "--to", "w4a16-g32", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "core.cli", words[0], str(source), *words[1:]],
            cwd=REPOSITORY,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert done.returncode == 0, done.stderr
        if "--json" in words:
            assert json.loads(done.stdout)["tensors"][0]["name"] == "模型 😀.weight"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_under_stdout_is_one_sentence(folder, options):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "core.cli", "formats", *options],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert b"can not be written (No space left" in done.stderr
    assert b"failed where it should not" not in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_second_interrupt_does_not_wait(monkeypatch):
    seen = []

    def busy(args, token):
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(token.cancelled)
        os.kill(os.getpid(), signal.SIGINT)
        seen.append("went on")
        return 0

    monkeypatch.setitem(COMMANDS, "formats", busy)
    assert main(["formats"]) == 3
    assert seen == [True]


def test_thousands_are_readable_where_output_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert main(["info", str(write_llama(tmp_path / "größe"))]) == 0
    text = written.getvalue().decode("cp1252")
    assert re.search(r"\d \d{3} parameters", text)
    assert "u202f" not in text
