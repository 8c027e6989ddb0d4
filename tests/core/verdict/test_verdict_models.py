"""Two tiny models from files to a verdict, against figures of transformers and numpy."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from decoder_models import reference_logits
from gguf.quants import dequantize, quantize
from job_help import convert, drive
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import Cancelled, UserError
from core.formats import Method
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.runtime.tokenizer import open_text
from core.verdict import source_logits
from core.verdict.evaluate import EvalStep, evaluate
from core.verdict.evaluation import Evaluation
from core.verdict.settings import EvalSettings, EvalText, Score
from core.verdict.text import read_evaluation_text

TEXT = "The quick brown fox jumps over the lazy dog, the hen and the other fourteen things. " * 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, its Q8_0 file, another vocabulary, and a source with a NaN in its second layer."""
    folder = tmp_path_factory.mktemp("models")

    def louder(tensors: dict[str, Any]) -> None:
        for name, tensor in tensors.items():
            if "norm" not in name:
                tensor *= 3

    def damaged(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = float("nan")

    write_llama(folder / "source", hidden=64, ffn=96, change=louder)
    with open_checkpoint(folder / "source") as checkpoint:  # as the gguf package rounds
        plan = make_plan(checkpoint, Recipe("Q8_0", method=Method.ROUND))
        drive(run(plan, checkpoint, folder / "artifact.gguf", CancelToken()))
    convert(folder / "source", "Q4_0", folder / "worse.gguf")
    write_llama(folder / "damaged", hidden=64, ffn=96, change=damaged)
    write_llama(folder / "other", hidden=64, ffn=96)
    tokenizer = json.loads((folder / "other" / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["merges"] = []
    (folder / "other" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def text(models: Path, **options: Any) -> EvalText:
    return EvalText(str(models / "text.txt"), **{"windows": 3, "length": 64, **options})


def measure(models: Path, artifact: str = "artifact.gguf", source: str = "source", **options: Any) -> Evaluation:
    settings = EvalSettings(**{"text": text(models), "layers": 0, **options})
    with open_checkpoint(models / source) as a, open_checkpoint(models / artifact) as b:
        return evaluate(a, b, settings)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def unpacked_copy(source: Path, folder: Path) -> Path:
    """The source with every matrix rounded to Q8_0 and back by the gguf package, in float32."""
    shutil.copytree(source, folder)
    tensors = {name: t.float().numpy() for name, t in load_file(folder / "model.safetensors").items()}
    kind = gguf.GGMLQuantizationType.Q8_0
    rounded = {n: dequantize(quantize(t, kind), kind) if t.ndim == 2 else t for n, t in tensors.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_figures_are_those_of_transformers(models: Path, tmp_path: Path) -> None:
    """Both through transformers in float32, figures in float64."""
    found = measure(models, text=text(models, spread=False)).quality
    with open_checkpoint(models / "source") as source:
        ids = np.array(open_text(source).encode(TEXT)[: 3 * 64], np.int32).reshape(3, 64)
    rounded = unpacked_copy(models / "source", tmp_path / "rounded")
    a, b = (
        np.stack([log_softmax(reference_logits(folder, window))[:-1] for window in ids])
        for folder in (models / "source", rounded)
    )
    right = ids[:, 1:, None]
    source_nll, nll = (-np.take_along_axis(x, right, axis=2)[..., 0] for x in (a, b))
    kl = (np.exp(a) * (a - b)).sum(axis=2)
    same = a.argmax(axis=2) == b.argmax(axis=2)
    delta = np.exp(-nll) - np.exp(-source_nll)
    assert found.perplexity_source.value == pytest.approx(np.exp(source_nll.mean()), rel=2e-3)
    assert found.perplexity_ratio.value == pytest.approx(np.exp((nll - source_nll).mean()), rel=2e-3)
    error = np.exp(source_nll.mean()) * source_nll.mean(axis=1).std(ddof=1) / np.sqrt(3)
    assert found.perplexity_source.error == pytest.approx(error, rel=1e-2)
    assert found.kl_mean.value == pytest.approx(kl.mean(), rel=1e-2)
    assert found.kl_p99.value == pytest.approx(np.percentile(kl, 99), rel=3e-2)
    assert found.delta_rms.value == pytest.approx(np.sqrt((delta**2).mean()), rel=1e-2)
    assert found.agreement.value == pytest.approx(same.mean(), abs=0.006)  # one near-tie of 189


def test_second_half_scores_the_same_tokens_of_fewer(models: Path) -> None:
    found = measure(models, text=text(models, score=Score.SECOND_HALF))
    assert (found.quality.windows, found.quality.tokens) == (3, 31)


def test_the_source_is_measured_once(models: Path) -> None:
    first = measure(models)
    assert (first.reused, first.kept) == (False, True)
    assert [p.suffix for p in source_logits.folder().iterdir()] == [".logits"]
    again = measure(models)
    assert again.reused
    assert again.quality == first.quality
    worse = measure(models, "worse.gguf")
    assert worse.reused
    assert worse.quality.perplexity_source == first.quality.perplexity_source
    assert worse.quality.kl_mean.value > 5 * first.quality.kl_mean.value


def test_side_by_side_without_a_file_gives_the_same(models: Path) -> None:
    assert measure(models, use_cache=False).quality == measure(models).quality
    assert len(list(source_logits.folder().iterdir())) == 1


@pytest.mark.parametrize("how", ["too large", "no folder"])
def test_where_no_file_can_be_kept(models: Path, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if how == "too large":
        monkeypatch.setattr(source_logits, "MOST_BYTES", 1000)
    else:
        (tmp_path / "cache").write_text("a file")
    found = measure(models, prompts=("The",), new_tokens=4)
    assert not found.kept
    assert len(found.texts) == 1


@pytest.mark.parametrize("how", ["cut", "head", "one byte", "checksum"])
def test_a_damaged_file_is_made_again_and_said(models: Path, how: str) -> None:
    first = measure(models)
    path = next(source_logits.folder().iterdir())
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[-100:]
    else:
        data[{"head": 3, "one byte": len(data) // 2, "checksum": -1}[how]] ^= 1
    path.write_bytes(data)
    again = measure(models)
    assert not again.reused
    assert again.quality == first.quality
    assert any("damaged" in words for words in again.warnings)
    third = measure(models)
    assert third.reused
    assert not third.warnings


def test_other_text_and_arithmetic_are_other_files(models: Path) -> None:
    measure(models)
    assert not measure(models, text=text(models, windows=2)).reused
    assert not measure(models, arithmetic="fast").reused


def test_a_model_with_itself(models: Path) -> None:
    found = measure(models, "source", layers=20, prompts=("The",), new_tokens=8)
    assert found.quality.kl_max.value < 1e-5
    assert found.quality.flips.value == 0
    assert abs(found.quality.perplexity_ratio.value - 1) < 1e-6
    assert [layer.mean for layer in found.layers.layers] == [0.0, 0.0, 0.0]
    assert found.texts[0].difference is None


def test_error_by_layer(models: Path) -> None:
    good, bad = (measure(models, name, layers=32).layers for name in ("artifact.gguf", "worse.gguf"))
    assert [layer.layer for layer in good.layers] == [None, 0, 1]
    assert 0 < good.layers[-1].mean < bad.layers[-1].mean < 1
    assert all(layer.mean <= layer.worst for layer in bad.layers)


def test_other_tokens_are_refused(models: Path) -> None:
    with pytest.raises(UserError, match="cut the text into different tokens"):
        measure(models, "other")


def test_other_vocabularies_are_refused(models: Path, tmp_path: Path) -> None:
    config = json.loads((models / "other" / "config.json").read_text(encoding="utf-8"))
    folder = tmp_path / "fewer"
    write_llama(folder, hidden=64, ffn=96, change=lambda t: t.update({k: t[k][:256] for k in t if "embed" in k}))
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 256}), encoding="utf-8")
    with pytest.raises(UserError, match="The source knows 288 tokens and the artifact 256"):
        measure(models, str(folder))


def test_values_that_are_not_finite_are_told_with_the_layer(models: Path) -> None:
    for source, artifact in (("source", "damaged"), ("damaged", "source")):
        with pytest.raises(UserError, match="damaged computes values that are not finite from layer 1 on"):
            measure(models, artifact, source)
    assert not any(source_logits.folder().glob(".partial*"))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"windows": 0}, "windows is 0"),
        ({"length": 4}, "length is 4"),
        ({"length": 1024}, "longer than the context|a window takes"),
    ],
)
def test_texts_that_do_not_fit_are_refused(models: Path, options: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part):
        measure(models, text=text(models, **options))


def test_a_short_text_gives_fewer_windows(models: Path) -> None:
    found = measure(models, text=text(models, windows=1000))
    assert 3 < found.quality.windows < 1000
    assert "1\u202f000 windows that were asked for" in found.warnings[0]


def test_one_window_has_no_errors(models: Path) -> None:
    assert measure(models, text=text(models, windows=1)).quality.kl_mean.error is None


def test_progress_rises_and_ends_at_one(models: Path) -> None:
    steps: list[EvalStep] = []
    with open_checkpoint(models / "source") as a, open_checkpoint(models / "artifact.gguf") as b:
        settings = EvalSettings(text=text(models), layers=16, prompts=("The",), new_tokens=4, needle=(128,))
        found = evaluate(a, b, settings, steps.append)
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert found.needle is not None
    assert len(found.needle.places) == 3
    assert steps[-1].quality == found.quality


def test_cancel_is_heard_soon(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = CancelToken()
    settings = EvalSettings(text=text(models), layers=16)
    cancelled = 0.0

    def see(step: EvalStep) -> None:
        nonlocal cancelled
        if step.stage == "measuring the artifact" and not cancelled:
            cancelled = time.perf_counter()
            threading.Thread(target=token.cancel).start()

    with open_checkpoint(models / "source") as a, open_checkpoint(models / "artifact.gguf") as b:
        with pytest.raises(Cancelled):
            evaluate(a, b, settings, see, token)
        assert time.perf_counter() - cancelled < 0.3


def test_the_bundled_text_is_no_calibration_text() -> None:
    from importlib.resources import files

    own = read_evaluation_text(EvalText())
    assert len(own) > 100_000
    folder = files("resources").joinpath("text")
    lines = {line for line in own.splitlines() if len(line) > 80}
    for name in ("prose.txt", "encyclopaedic.txt", "code.txt"):
        if folder.joinpath(name).is_file():
            shared = lines & set(folder.joinpath(name).read_text(encoding="utf-8").splitlines())
            assert not shared


def test_command_line(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(models / "source"), str(models / "artifact.gguf"), "--text", str(models / "text.txt")]
    words += ["--windows", "3", "--length", "64", "--layers", "16", "--prompt", "The", "--new-tokens", "6"]
    report = tmp_path / "report.html"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"prompt": "The", "choices": [" quick", " slow"], "answer": 0}), encoding="utf-8")
    extra = ["--tasks", str(tasks), "--needle", "128", "--speed", "--thresholds", "loose", "--method", "round"]
    assert main([*words, *extra, "--report", str(report), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"]["passed"]
    assert data["method"] == "round"
    assert data["tasks"]["items"] == 1
    assert data["speed"]["decode_ratio"] > 0
    assert data["source"]["container"] == "safetensors"
    assert {row["format"] for row in data["artifact"]["contract"]} == {"Q8_0", "F32"}
    assert any(c["runtime"] == "llama.cpp" for c in data["serving"])
    assert "PASS" in report.read_text(encoding="utf-8").upper()

    limits = tmp_path / "none.json"
    limits.write_text('{"kl_mean": 0}')
    assert main([*words, "--thresholds", str(limits), "--report", str(tmp_path / "report.md")]) == 1
    out = capsys.readouterr().out
    assert "fails the thresholds 'none'" in out
    assert "Error by layer" in out
    assert "## Rollback" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        (["--thresholds", "tight"], "no thresholds 'tight'"),
        (["--report", "report.pdf"], "not written as '.pdf'"),
        (["--threads", "0"], "0 threads can not compute"),
        (["--new-tokens", "-1"], "-1 tokens"),
        (["--needle", "5"], "hides nothing"),
        (["--text", "none.txt"], "can not be read"),
    ],
)
def test_command_lines_that_are_refused(
    models: Path, extra: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(models / "source"), str(models / "artifact.gguf"), *extra]) == 1
    assert part in capsys.readouterr().err


def test_a_report_does_not_replace_anything_unasked(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(models / "source"), str(models / "artifact.gguf"), "--report"]
    old = tmp_path / "old.md"
    old.write_text("old")
    assert main([*words, str(old)]) == 1
    assert "exists already" in capsys.readouterr().err
    for name in ("README.md", "config.json"):
        part = models / "source" / name
        before = part.read_bytes()
        report = (tmp_path / name).with_suffix(".json") if name == "config.json" else part
        if report != part:
            report.symlink_to(part)
        for other in (part, report):
            assert main([*words, str(other), "--overwrite"]) == 1
            assert "belongs to the model" in capsys.readouterr().err
        assert part.read_bytes() == before


def test_a_file_against_itself_judges_its_cache(models: Path) -> None:
    """With the same weights on both sides all that differs is what the artifact's keys and values are kept in."""
    same = measure(models, artifact="source")
    eight = measure(models, artifact="source", cache="Q8_0")
    four = measure(models, artifact="source", cache="Q4_0", needle=(128,))
    assert same.quality.kl_mean.value == 0
    assert 0 < eight.quality.kl_mean.value < four.quality.kl_mean.value
    assert "cache F16" in four.arithmetic
    assert "cache Q4_0" in four.arithmetic
    assert four.needle is not None
    assert len(four.needle.places) == 3
    with pytest.raises(UserError, match="no cache format"):
        measure(models, cache="Q9")
    with pytest.raises(UserError, match="must be rotated"):
        measure(models, cache="LM2")
