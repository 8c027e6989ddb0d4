import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from job_help import convert, digest, drive, names
from tiny_models import write_llama

from core import run as run_module
from core.blocks import BlockWorker
from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import Cancelled, UserError
from core.formats import find_format
from core.journal import journal_path, partial_path
from core.output import OutputFiles
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import command_line, run, unfinished
from core.targets import TARGETS, find_target
from core.verify import verify_against

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("source") / "tiny", layers=3)


@pytest.mark.parametrize("target", [t.name for t in TARGETS if not t.needs_importance])
def test_output_has_the_planned_bytes_and_verifies(folder, tmp_path, target):
    output = tmp_path / "out"
    seen, result = convert(folder, target, output)
    files = [f for f in output.rglob("*") if f.is_file()] if output.is_dir() else [output]
    assert result.predicted_bytes == result.actual_bytes == sum(f.stat().st_size for f in files)
    assert output.is_dir() == find_target(target).is_folder
    assert names(tmp_path) == ["out"]
    assert seen[-1].share == pytest.approx(1.0)
    measured = (
        {"calibrating"} if find_format(find_target(target).base, find_target(target).container).needs_input else set()
    )
    assert {p.phase for p in seen} == {"writing", "verifying"} | measured
    with open_checkpoint(folder) as source, open_checkpoint(output) as made:
        plan = make_plan(source, Recipe(target))
        checked = [r for _, r in verify_against(plan, source, made, CancelToken())]
    assert len(checked) == len(result.tensors) == len(plan.tensors)
    for before, after in zip(result.tensors, checked, strict=True):
        if before.error is not None and before.error.max_error:
            assert after.error.snr_db == pytest.approx(before.error.snr_db, abs=1e-6)


def test_threads_and_block_sizes_do_not_change_the_bytes(folder, tmp_path, monkeypatch):
    convert(folder, "Q4_K_M", tmp_path / "a", threads=1)
    monkeypatch.setattr("core.blocks.BLOCK_BUDGET", 600_000)
    convert(folder, "Q4_K_M", tmp_path / "b", threads=3)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    convert(folder, "w4a16-g64-asym", tmp_path / "c", threads=2)
    monkeypatch.setattr("core.blocks.BLOCK_BUDGET", 256_000_000)
    convert(folder, "w4a16-g64-asym", tmp_path / "d", threads=1)
    assert digest(tmp_path / "c") == digest(tmp_path / "d")


@pytest.mark.parametrize("target", ["Q4_K_M", "w4a16-g64"])
def test_cancel_leaves_a_resumable_state_and_no_output(folder, tmp_path, target):
    output, whole = tmp_path / "out", tmp_path / "whole"
    token = CancelToken()
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
        job = run(plan, checkpoint, output, token, threads=1)
        for _ in range(7):
            next(job)
        token.cancel()
        with pytest.raises(Cancelled):
            drive(job)
        assert not output.exists()
        assert unfinished(output, plan)
        seen, result = drive(run(plan, checkpoint, output, CancelToken(), resume=True))
        assert len([p for p in seen if p.phase == "writing"]) < len(plan.tensors)
        assert len(result.tensors) == len(plan.tensors)
        drive(run(plan, checkpoint, whole, CancelToken()))
    assert digest(output) == digest(whole)
    assert names(tmp_path) == ["out", "whole"]


KILLED = """
import os, signal, sys
from pathlib import Path
from core import run as module
from core.checkpoint import open_checkpoint
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
source, output, target, steps = sys.argv[1:]
module.SYNC_SECONDS = 0.0 if int(steps) < 99 else 1e9  # then nothing is read back before all is written
with open_checkpoint(source) as checkpoint:
    job = module.run(make_plan(checkpoint, Recipe(target)), checkpoint, Path(output), CancelToken(), threads=1)
    for step, progress in enumerate(job, 1):
        if step == int(steps) or progress.phase == "verifying":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
@pytest.mark.parametrize(("target", "steps"), [("Q4_K_M", 1), ("Q4_K_M", 12), ("Q4_K_M", 99), ("w4a16-g64", 9)])
def test_killed_in_the_middle_then_resumed_gives_the_same_bytes(folder, tmp_path, target, steps):
    output = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, folder, output, target, str(steps)], cwd=REPOSITORY, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not output.exists()
    assert partial_path(output).exists()
    convert(folder, target, output, resume=True)
    convert(folder, target, tmp_path / "whole")
    assert digest(output) == digest(tmp_path / "whole")


def test_a_torn_journal_line_is_done_again(folder, tmp_path):
    output = tmp_path / "out"
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("Q8_0"))
        job = run(plan, checkpoint, output, CancelToken(), threads=1)
        for _ in range(9):
            next(job)
        job.close()
        journal = journal_path(output)
        journal.write_bytes(journal.read_bytes()[:-40])
        drive(run(plan, checkpoint, output, CancelToken(), resume=True))
    convert(folder, "Q8_0", tmp_path / "whole")
    assert digest(output) == digest(tmp_path / "whole")


def test_resume_refuses_the_partial_of_another_job(folder, tmp_path):
    output = tmp_path / "out"
    with open_checkpoint(folder) as checkpoint:
        job = run(make_plan(checkpoint, Recipe("Q8_0")), checkpoint, output, CancelToken())
        next(job)
        job.close()
        other = make_plan(checkpoint, Recipe("Q6_K"))
        assert not unfinished(output, other)
        with pytest.raises(UserError, match="another source"):
            next(run(other, checkpoint, output, CancelToken(), resume=True))
        drive(run(other, checkpoint, output, CancelToken()))


def test_two_runs_can_not_write_one_output(folder, tmp_path):
    output = tmp_path / "out"
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("Q8_0"))
        first = run(plan, checkpoint, output, CancelToken())
        next(first)
        with pytest.raises(UserError, match="Another run"):
            next(run(plan, checkpoint, output, CancelToken()))
        drive(first)
        assert output.exists()


def test_output_equal_to_input_is_refused(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    link = tmp_path / "link"
    link.symlink_to(copy)
    before = digest(copy)
    for source, target, output in [
        (copy, "w4a16-g64", copy),
        (copy, "w4a16-g64", link),
        (copy, "Q8_0", copy / "model.safetensors"),
        (copy / "model.safetensors", "w4a16-g64", tmp_path),
    ]:
        for overwrite in (False, True):
            with pytest.raises(UserError):
                convert(source, target, output, overwrite=overwrite)
    assert digest(copy) == before


def test_an_existing_output_is_only_replaced_on_request(folder, tmp_path):
    output = tmp_path / "out.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(UserError, match="exists already"):
        convert(folder, "Q8_0", output)
    assert output.read_bytes() == b"precious"
    convert(folder, "Q8_0", output, overwrite=True)
    assert output.read_bytes()[:4] == b"GGUF"


def test_a_folder_can_not_become_a_file(folder, tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        convert(folder, "Q8_0", tmp_path)


def test_too_little_disk_is_said_before_anything_is_written(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))
    with pytest.raises(UserError, match=r"1\.00 kB .* free"):
        convert(folder, "Q8_0", tmp_path / "out")
    assert names(tmp_path) == []


def test_a_disk_that_fills_up_is_named_and_the_run_can_go_on(folder, tmp_path, monkeypatch):
    real, calls = os.pwrite, []

    def full(fd, data, offset):
        calls.append(offset)
        if len(calls) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match="is full"):
        convert(folder, "Q8_0", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(os, "pwrite", real)
    convert(folder, "Q8_0", tmp_path / "out", resume=True)
    assert (tmp_path / "out").exists()


def test_a_disk_that_refuses_even_to_close_is_named(folder, tmp_path, monkeypatch):
    """As a network disk does whose server has gone."""
    calls = []

    def gone(*_args):
        calls.append(1)
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    real = os.fsync

    def fsync(fd):
        if calls or len(list(tmp_path.glob("*.partial"))) == 1:
            gone()
        return real(fd)

    close = OutputFiles.close

    def close_badly(self):
        close(self)
        gone()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(OutputFiles, "close", close_badly)
        with pytest.raises(UserError, match="has disappeared"):
            convert(folder, "Q8_0", tmp_path / "out")
    convert(folder, "Q8_0", tmp_path / "out", resume=True)
    assert names(tmp_path) == ["out"]


def test_too_little_memory_is_said_before_and_a_run_that_meets_it_can_go_on(folder, tmp_path, monkeypatch):
    with open_checkpoint(folder) as checkpoint:
        assert make_plan(checkpoint, Recipe("Q8_0")).warnings == ()
        with monkeypatch.context() as patch:
            patch.setattr("core.hardware.cpu.memory", lambda: (2 * 10**9, 5 * 10**6))
            (said,) = make_plan(checkpoint, Recipe("Q8_0")).warnings
    assert "5.00 MB" in said
    assert "close other programs" in said
    real, calls = BlockWorker.run, []

    def short(self, *block):
        calls.append(block)
        if len(calls) > 5:
            raise MemoryError
        return real(self, *block)

    with monkeypatch.context() as patch:
        patch.setattr(BlockWorker, "run", short)
        with pytest.raises(UserError, match="did not suffice"):
            convert(folder, "Q8_0", tmp_path / "out")
    convert(folder, "Q8_0", tmp_path / "out", resume=True)
    convert(folder, "Q8_0", tmp_path / "whole")
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


@pytest.mark.parametrize(("bad", "says"), [(float("nan"), "NaN or infinite"), (float("inf"), "NaN or infinite")])
def test_values_that_can_not_be_stored_name_their_tensor(tmp_path, bad, says):
    def spoil(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = bad

    source = write_llama(tmp_path / "source", change=spoil)
    with pytest.raises(UserError, match=says) as e:
        convert(source, "Q4_K_M", tmp_path / "out")
    assert "blk.1.ffn_up.weight" in e.value.message
    assert not (tmp_path / "out").exists()


def test_values_beyond_f16_are_refused_for_f16_and_kept_by_bf16(tmp_path):
    def enlarge(tensors):
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e5

    source = write_llama(tmp_path / "source", change=enlarge)
    with pytest.raises(UserError, match="F16 ends at 65\u202f504"):
        convert(source, "F16", tmp_path / "f16")
    _, result = convert(source, "BF16", tmp_path / "bf16")
    assert all(t.error is None or t.error.max_error == 0 for t in result.tensors)


def test_a_byte_that_changes_on_disk_is_found(folder, tmp_path):
    output = tmp_path / "out"
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("Q8_0"))
        job = run(plan, checkpoint, output, CancelToken(), threads=1)
        while next(job).tensor_index < len(plan.tensors) - 1:
            pass
        part = plan.layout.parts[1]
        with partial_path(output).open("r+b") as f:
            f.seek(part.offset + part.nbytes // 2)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        with pytest.raises(UserError, match="reads back differently"):
            drive(job)
    assert not output.exists()


def test_what_does_not_read_back_beside_the_work_is_written_again(folder, tmp_path, monkeypatch):
    """Tensors are read back while others are written; what differs must not reach the journal."""
    monkeypatch.setattr("core.run.SYNC_SECONDS", 0.0)
    written = OutputFiles.write
    flipped = []

    def damage(self, file, run, data):
        if not flipped and data.size > 1000:
            flipped.append(run.offset)
            data = data.copy()  # the block's checksum is taken of what should have been written
            data[500] ^= 1
        return written(self, file, run, data)

    monkeypatch.setattr(OutputFiles, "write", damage)
    output = tmp_path / "out"
    with pytest.raises(UserError, match="reads back differently"):
        convert(folder, "Q8_0", output)
    assert flipped
    assert not output.exists()
    seen = convert(folder, "Q8_0", output, resume=True)[0]
    assert len([p for p in seen if p.phase == "writing"]) < len(seen)
    convert(folder, "Q8_0", tmp_path / "whole")
    assert digest(output) == digest(tmp_path / "whole")


def test_gguf_to_gguf_keeps_every_other_key(folder, tmp_path):
    convert(folder, "BF16", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", "Q4_K_M", tmp_path / "b.gguf")
    convert(folder, "Q4_K_M", tmp_path / "c.gguf")
    a, b = GGUFReader(tmp_path / "a.gguf"), GGUFReader(tmp_path / "b.gguf")
    changed = {"general.file_type", "GGUF.kv_count", "GGUF.tensor_count"}
    assert set(a.fields) == set(b.fields)
    for key in set(a.fields) - changed:
        assert a.fields[key].contents() == b.fields[key].contents(), key
    assert b.fields["general.file_type"].contents() == 15
    assert digest(tmp_path / "b.gguf") == digest(tmp_path / "c.gguf")


def test_side_files_go_along_to_a_folder(folder, tmp_path):
    convert(folder, "w4a16-g64", tmp_path / "out")
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= set(
        names(tmp_path / "out")
    )
    for name in ("tokenizer.json", "generation_config.json", "README.md"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_all_zero_and_tiny_tensors_survive(tmp_path):
    def shrink(tensors):
        tensors["model.layers.0.mlp.up_proj.weight"].zero_()
        tensors["model.layers.0.mlp.gate_proj.weight"].mul_(1e-7)
        tensors["model.layers.1.mlp.gate_proj.weight"][:, :64] = 0

    source = write_llama(tmp_path / "source", change=shrink, dtype=torch.float32)
    for target in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q2_K", "IQ4_XS", "NVFP4", "MXFP4", "w4a16-g32-asym"):
        _, result = convert(source, target, tmp_path / target)
        by_name = {t.name: t for t in result.tensors}
        zero = by_name.get("blk.0.ffn_up.weight") or by_name["model.layers.0.mlp.up_proj.weight"]
        assert zero.error.max_error == 0


def test_command_line_does_the_same(folder, tmp_path):
    recipe = Recipe("Q4_K_M", rules=(Rule("ffn_down", "Q8_0"), Rule(r"blk\.0", "keep")), keep_last=1)
    text = command_line(recipe, folder, tmp_path / "b.gguf")
    with open_checkpoint(folder) as checkpoint:
        drive(run(make_plan(checkpoint, recipe), checkpoint, tmp_path / "a.gguf", CancelToken()))
    words = shlex.split(text)
    assert words[0] == "bitsmith"
    assert main(words[1:]) == 0
    assert digest(tmp_path / "a.gguf") == digest(tmp_path / "b.gguf")


def test_pause_holds_the_work(folder, tmp_path):
    token = CancelToken()
    token.pause()
    thread = threading.Thread(target=convert, args=(folder, "Q8_0", tmp_path / "out", token))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    token.resume()
    thread.join(60)
    assert (tmp_path / "out").exists()


def test_estimate_of_time_left_appears_after_a_while(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "QUIET_SECONDS", 0.0)
    seen, _ = convert(folder, "Q4_K_M", tmp_path / "out")
    assert all(p.seconds_left is not None and np.isfinite(p.seconds_left) for p in seen)
    assert [p.bytes_done for p in seen] == sorted(p.bytes_done for p in seen)
    assert seen[-1].bytes_done == seen[-1].bytes_total


def test_nvfp4_as_source_copies_or_applies_its_tensor_scales(folder, tmp_path):
    convert(folder, "NVFP4", tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", "NVFP4", tmp_path / "b.gguf")
    assert digest(tmp_path / "a.gguf") == digest(tmp_path / "b.gguf")
    _, direct = convert(folder, "Q8_0", tmp_path / "c.gguf")
    _, through = convert(tmp_path / "a.gguf", "Q8_0", tmp_path / "d.gguf")
    assert {t.name for t in direct.tensors} == {t.name for t in through.tensors}
    with open_checkpoint(tmp_path / "a.gguf") as a, open_checkpoint(tmp_path / "d.gguf") as d:
        name = "blk.0.ffn_up.weight"
        assert np.allclose(a.read_rows(a.tensor(name)), d.read_rows(d.tensor(name)), atol=2e-3)


def test_a_pause_saves_what_is_finished(folder, tmp_path):
    output, token = tmp_path / "out", CancelToken()
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("Q8_0"))
        job = run(plan, checkpoint, output, token, threads=1)
        for _ in range(9):
            next(job)
        before = journal_path(output).stat().st_size
        token.pause()
        threading.Timer(0.3, token.resume).start()
        next(job)
        assert journal_path(output).stat().st_size > before + 8 * 50
        job.close()
