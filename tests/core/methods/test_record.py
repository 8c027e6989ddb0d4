"""What an artifact says of how its numbers were chosen, and that a run never mixes what two texts chose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from decoder_models import write_model
from job_help import digest, drive

from core.calibration.imatrix_file import read_imatrix, write_imatrix
from core.calibration.settings import CalibrationText
from core.calibration.text import samples
from core.checkpoint import open_checkpoint
from core.checkpoint.base import Checkpoint
from core.checkpoint.doctor import examine
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.importance import importance_of
from core.methods.record import read_record, text_of_record
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Misfit, Recipe
from core.run import run

ONE, OTHER = (
    "The quick brown fox jumps over the lazy dog. " * 60,
    "0123456789 {}[](); SELECT * FROM t WHERE x = 1\n" * 60,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "llama"
    write_model(folder, "llama2")
    return folder


@pytest.fixture
def checkpoint(llama: Path) -> Iterator[Checkpoint]:
    with open_checkpoint(llama) as opened:
        yield opened


def recipe(target: str, text: Path | None = None, **fields: Any) -> Recipe:
    path = "" if text is None else str(text)
    choice = Calibrated(text=CalibrationText(path=path, samples=40, length=300, seed=5), **fields)
    return Recipe(target, misfit=Misfit.KEEP, calibrated=choice)


def convert(checkpoint: Checkpoint, wanted: Recipe, output: Path, **options: Any):
    return drive(run(make_plan(checkpoint, wanted), checkpoint, output, CancelToken(), threads=1, **options))[1]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "größe.txt"
    path.write_text(ONE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("Q4_0", {"method": DataMethod.GPTQ}),
        ("w4a16-g32", {"method": DataMethod.NONE, "transforms": (Transform.AWQ,)}),
        ("gptq-4bit-g32", {"method": DataMethod.CLIPPING}),
        ("mlx-4bit-g32", {"method": DataMethod.CLIPPING}),
        ("hqq-4bit-g32", {"method": DataMethod.CLIPPING}),
    ],
)
def test_every_target_says_how_it_was_made(checkpoint, text, tmp_path, target, fields):
    output = tmp_path / ("out.gguf" if target == "Q4_0" else "out")
    wanted = recipe(target, text, **fields)
    result = convert(checkpoint, wanted, output)
    assert result.actual_bytes == result.predicted_bytes  # fewer samples than foreseen move nothing
    taken = samples(checkpoint, wanted.calibrated.text)
    with open_checkpoint(output) as made:
        found = read_record(made)
        assert found == {
            "method": wanted.calibrated.name,
            "text": "größe.txt",
            "samples": len(taken.ids),
            "length": 256,  # of the model's context
            "seed": 5,
            "fingerprint": taken.fingerprint,
        }
        assert len(taken.ids) < 40
        finding = next(f for f in examine(made) if f.code == "calibrated")
        assert wanted.calibrated.name in finding.message
        assert taken.fingerprint in finding.message
    assert convert(checkpoint, wanted, output, resume=True).was_there


def test_settings_are_recorded_and_the_text_is_named_without_its_folder(checkpoint, tmp_path):
    choice = Calibrated(
        DataMethod.GPTQ, (Transform.SMOOTHQUANT,), CalibrationText(samples=2, length=32), alpha=0.5, aim=True
    )
    convert(checkpoint, Recipe("w8a8", calibrated=choice), tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())["bitsmith"]
    assert (found["method"], found["alpha"], found["aim"]) == ("SmoothQuant + GPTQ", 0.5, True)
    assert found["text"] == "bundled: prose, encyclopaedic, code, chat"
    words = text_of_record(found)
    assert words.startswith("2 × 32 tokens of bundled: prose")
    assert words.endswith(found["fingerprint"])


def test_importance_is_told_in_the_words_of_llama_cpp(checkpoint, text, tmp_path):
    wanted = recipe("Q4_0", text, method=DataMethod.IMPORTANCE)
    convert(checkpoint, wanted, tmp_path / "out.gguf")
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    kinds = {k: f.types[0].name for k, f in fields.items() if k.startswith("quantize.imatrix.")}
    assert kinds == {
        "quantize.imatrix.file": "STRING",
        "quantize.imatrix.dataset": "STRING",
        "quantize.imatrix.entries_count": "UINT32",
        "quantize.imatrix.chunks_count": "UINT32",
    }
    job = importance_of(checkpoint, wanted.calibrated, CancelToken())
    found = drive(job)[1]
    assert fields["quantize.imatrix.entries_count"].contents() == len(found.entries)
    assert fields["quantize.imatrix.chunks_count"].contents() == found.chunks
    assert fields["quantize.imatrix.dataset"].contents() == "größe.txt"
    with open_checkpoint(tmp_path / "out.gguf") as made:  # what is made from it says nothing of this any more
        drive(run(make_plan(made, Recipe("Q8_0")), made, tmp_path / "next.gguf", CancelToken()))
    assert not [k for k in gguf.GGUFReader(tmp_path / "next.gguf").fields if k.startswith(("quantize.", "bitsmith."))]


def test_nothing_is_recorded_without_data(checkpoint, tmp_path):
    drive(run(make_plan(checkpoint, Recipe("w4a16-g32")), checkpoint, tmp_path / "out", CancelToken()))
    assert "bitsmith" not in json.loads((tmp_path / "out" / "config.json").read_text())


@pytest.mark.parametrize("target", ["Q4_0", "w4a16-g32"])
@pytest.mark.parametrize("method", [DataMethod.CLIPPING, DataMethod.IMPORTANCE])
def test_another_text_is_not_mixed_into_what_one_has_begun(checkpoint, text, tmp_path, target, method):
    wanted, output = recipe(target, text, method=method), tmp_path / "out"
    convert(checkpoint, wanted, tmp_path / "right")
    job = run(make_plan(checkpoint, wanted), checkpoint, output, CancelToken(), threads=1)
    written = 0
    for step in job:
        written += step.phase == "writing"
        if written == 12:
            break
    job.close()
    text.write_text(OTHER, encoding="utf-8")
    with pytest.raises(UserError, match="another calibration text"):
        convert(checkpoint, wanted, output, resume=True)
    text.write_text(ONE, encoding="utf-8")
    convert(checkpoint, wanted, output, resume=True)
    assert digest(output) == digest(tmp_path / "right")
    text.write_text(OTHER, encoding="utf-8")
    with pytest.raises(UserError, match="exists already"):  # finished, but from another text
        convert(checkpoint, wanted, output, resume=True)


def test_another_importance_matrix_is_not_mixed_in(checkpoint, text, tmp_path):
    def matrix(content: str) -> None:
        text.write_text(content, encoding="utf-8")
        job = importance_of(
            checkpoint, Calibrated(text=CalibrationText(str(text), samples=4, length=32)), CancelToken()
        )
        write_imatrix(tmp_path / "imatrix.gguf", drive(job)[1])

    wanted = recipe("w4a16-g32", method=DataMethod.IMPORTANCE, imatrix=str(tmp_path / "imatrix.gguf"))
    output = tmp_path / "out"
    matrix(ONE)
    job = run(make_plan(checkpoint, wanted), checkpoint, output, CancelToken(), threads=1)
    for _ in range(12):
        next(job)
    job.close()
    matrix(OTHER)
    with pytest.raises(UserError, match="another calibration text"):
        convert(checkpoint, wanted, output, resume=True)


def test_what_a_matrix_has_nothing_for_is_said_once(checkpoint, text, tmp_path):
    job = importance_of(checkpoint, recipe("Q4_0", text).calibrated, CancelToken())
    found = drive(job)[1]
    path = tmp_path / "part.gguf"
    write_imatrix(path, replace(found, entries={n: e for n, e in found.entries.items() if "attn_q" in n}))
    result = convert(checkpoint, recipe("Q4_0", method=DataMethod.IMPORTANCE, imatrix=str(path)), tmp_path / "out.gguf")
    assert sum("has nothing for" in note for note in result.notes) == 1
    for entry in found.entries.values():
        entry.counts[:] = 0
    write_imatrix(path, found)
    said = f"{len(found.entries)} weights of the importance matrix, blk.0.attn_k.weight among them, met no token"
    assert [n for n in read_imatrix(path).remarks if "met no token" in n] == [f"{said}; all channels count the same."]


def test_what_is_odd_about_the_text_is_also_said_where_only_importance_is_measured(checkpoint, text, tmp_path):
    result = convert(checkpoint, recipe("Q4_0", text, method=DataMethod.IMPORTANCE), tmp_path / "out.gguf")
    assert any("of the 40 samples asked for" in note for note in result.notes)


@pytest.mark.parametrize(
    "metadata", [5, [], {"method": 7}, {"text": "x"}, {"method": "a", "samples": "many", "seed": []}]
)
def test_a_record_that_makes_no_sense_is_no_error(llama, tmp_path, metadata):
    shutil.copytree(llama, tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**config, "bitsmith": metadata}))
    with open_checkpoint(tmp_path / "odd") as made:
        found = read_record(made)
        assert found in ({}, {"method": "a"})
        text_of_record(found)
        examine(made)


def test_sizes_do_not_depend_on_the_forecast(checkpoint, text):
    wanted = recipe("w4a16-g32", text)
    plans = [make_plan(checkpoint, wanted, forecasts=f) for f in (True, False)]
    assert plans[0].bytes_total == plans[1].bytes_total > make_plan(checkpoint, Recipe("w4a16-g32")).bytes_total
