"""Sensitivities of small models, against transformers; and from a budget to a written file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_models import reference_logits, write_model
from job_help import drive
from safetensors.numpy import load_file, save_file

from core.budget.device import budget_of, find_device
from core.budget.recipes import best, curve
from core.budget.sensitivity import cost, sensitivities
from core.budget.table import Sensitivities
from core.budget.wish import CONTAINERS, Wish
from core.calibration.settings import CalibrationText
from core.calibration.text import samples
from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import Cancelled, UserError
from core.formats import find_format
from core.hardware.table import known_devices
from core.inspect.cache import cache_folder
from core.memory import kv_bytes, workspace_bytes
from core.methods.choice import Calibrated, DataMethod
from core.methods.rounded import rounded
from core.models import model_shape
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import KEEP, Recipe
from core.run import run

TEXT = CalibrationText(samples=4, length=24)
WISH = Wish(calibrated=Calibrated(DataMethod.IMPORTANCE, text=TEXT), probe=CalibrationText(samples=4, length=32))
PLAIN = replace(WISH, calibrated=None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("budget")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


def finish(job: Generator[Any, None, Sensitivities]) -> Sensitivities:
    while True:
        try:
            next(job)
        except StopIteration as stop:
            return stop.value


def measured(source: Path, wish: Wish) -> Sensitivities:
    with open_checkpoint(source) as checkpoint:
        return finish(sensitivities(checkpoint, wish, CancelToken()))


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def distributions(folder: Path, ids: np.ndarray) -> np.ndarray:
    logits = np.concatenate([reference_logits(folder, row) for row in ids]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_predictions_agree_with_transformers(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Each weight alone in a format, the others as they are: KL in float32 against what was predicted."""
    source, changed = tiny("llama2"), tmp_path / "llama2"
    found = measured(source, PLAIN)
    with open_checkpoint(source) as checkpoint:
        ids = samples(checkpoint, PLAIN.probe, CancelToken()).ids
        names = {t.name: t.source.sources[0].name for t in make_plan(checkpoint, Recipe("Q8_0")).tensors}
    true = distributions(source, ids)
    weights = load_file(source / "model.safetensors")
    changed.mkdir()
    for file in source.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    predicted, direct = [], []
    for unit in found.units[::3]:
        name = names[unit.name]
        for option in (o for o in unit.options if o.format in ("Q4_0", "Q5_1")):
            form = find_format(option.format, "gguf")
            own = rounded(weights[name], form, None, CancelToken())
            save_file({**weights, name: own}, changed / "model.safetensors", {"format": "pt"})
            other = distributions(changed, ids)
            direct.append(float((np.exp(true) * (true - other)).sum(axis=1).mean()))
            predicted.append(option.kl)
    assert len(direct) == 16
    assert rank_correlation(np.array(predicted), np.array(direct)) > 0.97
    assert np.median(np.abs(np.log(np.array(predicted) / np.array(direct)))) < np.log(1.25)


def test_a_planted_tensor_is_found(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Weights that no input ever meets, so large that their group's scale leaves nothing of the others."""
    source, planted = tiny("llama2"), tmp_path / "planted"
    planted.mkdir()
    for file in source.iterdir():
        (planted / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    dead = slice(0, None, 16)
    weights["model.layers.1.input_layernorm.weight"][dead] = 0.0
    weights["model.layers.1.self_attn.v_proj.weight"][:, dead] = 4.0
    save_file(weights, planted / "model.safetensors", {"format": "pt"})
    found = measured(planted, PLAIN)
    by_name = {u.name: u for u in found.units}
    kl = {name: next(o.kl for o in u.options if o.format == "Q4_0") for name, u in by_name.items()}
    assert max(kl, key=lambda n: kl[n] / by_name[n].values) == "blk.1.attn_v.weight"
    point = best(found, found.smallest + (found.largest - found.smallest) // 4)
    bits = {
        u.name: next(o.bytes for o in u.options if o.format == form) / u.values
        for u, form in zip(found.units, point.formats, strict=True)
    }
    assert bits["blk.1.attn_v.weight"] == max(bits.values())


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("llama3", "gguf"),
        ("qwen3moe", "gguf"),
        ("phi3", "gguf"),
        ("llama2", "compressed-tensors"),
        ("qwen3moe", "compressed-tensors"),
        ("llama2", "mlx"),
        ("llama2", "gptq"),
        ("llama2", "hqq"),
    ],
)
def test_a_budget_becomes_a_file_of_the_promised_size(
    name: str, container: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    names = {
        "compressed-tensors": ("w4a16-g32", "w8a16-g32"),
        "gptq": ("gptq-4bit-g32", "gptq-8bit-g32"),
        "mlx": ("mlx-4bit-g32", "mlx-6bit-g32", "mlx-8bit-g32"),
        "hqq": ("hqq-4bit-g32", "hqq-8bit-g32"),
    }
    wish = replace(WISH, container=container, formats=names.get(container, ()))
    with open_checkpoint(tiny(name)) as checkpoint:
        found = finish(sensitivities(checkpoint, wish, CancelToken()))
        for share in (0.2, 0.6):
            budget = int(found.smallest + share * (found.largest - found.smallest))
            point = best(found, budget, checkpoint)
            plan = make_plan(checkpoint, point.recipe)
            formats = {t.name: t.format_name for t in plan.tensors}
            for unit, form in zip(found.units, point.formats, strict=True):
                for tensor in unit.tensors:
                    assert form == formats[tensor] or (form == KEEP and formats[tensor] in ("BF16", "F32")), tensor
            assert point.bytes == plan.bytes_total <= budget
            if container == "gguf":
                assert best(found, budget).bytes == point.bytes
        output = tmp_path / ("out.gguf" if container == "gguf" else "out")
        _, result = drive(run(plan, checkpoint, output, CancelToken()))
    assert result.actual_bytes == point.bytes


def test_what_a_runtime_fuses_has_one_format(tiny: Callable[[str], Path]) -> None:
    wish = replace(WISH, container="compressed-tensors", formats=("w4a16-g32", "w8a16-g32"))
    found = measured(tiny("qwen3moe"), wish)
    units = [{t.split(".", 3)[3].removesuffix(".weight") for t in u.tensors} for u in found.units if u.layer == 0]
    assert {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"} in units
    assert {"self_attn.o_proj"} in units
    assert sorted(len(u) for u in units) == [1, 3, 18]


def test_every_point_of_the_curve_can_be_planned(tiny: Callable[[str], Path]) -> None:
    with open_checkpoint(tiny("llama3")) as checkpoint:
        found = finish(sensitivities(checkpoint, WISH, CancelToken()))
        for point in curve(found, 12):
            assert make_plan(checkpoint, point.recipe, forecasts=False).bytes_total == point.bytes


def test_a_second_time_nothing_is_measured(tiny: Callable[[str], Path]) -> None:
    first = measured(tiny("llama3"), WISH)
    with open_checkpoint(tiny("llama3")) as checkpoint:
        job = sensitivities(checkpoint, WISH, CancelToken())
        with pytest.raises(StopIteration) as stop:
            next(job)
    assert stop.value.value == first


def test_a_damaged_table_is_measured_anew_and_said(tiny: Callable[[str], Path]) -> None:
    wish = replace(PLAIN, formats=("Q4_0",))
    first = measured(tiny("llama2"), wish)
    (path,) = cache_folder().glob("budget-*")
    data = path.read_bytes()
    at = data.index(b'"slope": ') + 9
    path.write_bytes(data[:at] + b"9" + data[at + 1 :])  # still JSON
    again = measured(tiny("llama2"), wish)
    assert "damaged" in again.notes[0]
    assert again.units == first.units
    assert measured(tiny("llama2"), wish).notes == ()


def test_cancelling_stops_within_some_tenths_of_a_second(tiny: Callable[[str], Path]) -> None:
    token = CancelToken()
    with open_checkpoint(tiny("qwen3moe")) as checkpoint:
        job = sensitivities(checkpoint, WISH, token)
        for _ in range(6):
            next(job)
        token.cancel()
        begun = time.monotonic()
        with pytest.raises(Cancelled):
            finish(job)
        assert time.monotonic() - begun < 0.3


def test_a_cost_is_stated_beforehand(tiny: Callable[[str], Path]) -> None:
    with open_checkpoint(tiny("llama2")) as checkpoint:
        few = cost(checkpoint, WISH)
        many = cost(checkpoint, replace(WISH, probe=CalibrationText(samples=64, length=128)))
    assert 0 < few.seconds < many.seconds
    assert 0 < few.memory < many.memory


def test_a_device_leaves_what_cache_and_workspace_do_not_take(tiny: Callable[[str], Path]) -> None:
    with open_checkpoint(tiny("llama2")) as checkpoint:
        shape = model_shape(checkpoint)
        assert shape is not None
        beside = kv_bytes(shape, 2048) + workspace_bytes(shape, 2048)
        assert budget_of(checkpoint, 8_000_000_000, 2048) == 8_000_000_000 - beside
        with pytest.raises(UserError, match="The cache and the workspace"):
            budget_of(checkpoint, beside, 2048)
    some = next(d for d in known_devices() if d.memory_bytes)
    assert find_device(some.name) == find_device(some.id) == some
    with pytest.raises(UserError, match="no device"):
        find_device("abacus 3000")


@pytest.mark.parametrize(
    "fields",
    [
        {"container": "zip"},
        {"formats": ("w4a16-g32",)},
        {"formats": ("F16",)},
        {"formats": ("keep",)},
        {"container": "mlx", "formats": ("gptq-4bit-g32",)},
        {"container": "compressed-tensors", "formats": ("fp8-static",)},
        {"calibrated": Calibrated(DataMethod.GPTQ)},
    ],
)
def test_wishes_that_can_not_be_met_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError) as e:
        Wish(**fields)
    assert e.value.hint


def test_the_usual_formats_of_each_container_can_be_mixed() -> None:
    for container in CONTAINERS:
        wish = Wish(container)
        assert wish.target.name
        assert wish.choices()


WORDS = ["--method", "clip-search", "--windows", "2", "--window-length", "24"]


def test_the_command_line_writes_a_recipe(
    tiny: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, recipe = str(tiny("llama3")), tmp_path / "recipe.json"
    words = ["budget", source, *WORDS, "--curve", "--json"]
    assert main([*words, "--size", "150kB", "-o", str(recipe)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["chosen"]["bytes"] <= 150_000 < data["largest"]
    assert [p["kl"] for p in data["curve"]] == sorted((p["kl"] for p in data["curve"]), reverse=True)
    assert main(["convert", source, "--recipe", str(recipe), "-o", str(tmp_path / "out.gguf")]) == 0
    assert (tmp_path / "out.gguf").stat().st_size == data["chosen"]["bytes"]
    assert main(["budget", source, *WORDS, "--size", "150kB"]) == 0
    assert "predicted KL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "1kB"], "do not hold this model"),
        (["--size", "1GB"], "in 16 bits"),
        ([], "No budget is given"),
        (["--size", "1MB", "--device", "RTX 4090"], "Several budgets"),
        (["--device", "abacus"], "no device"),
        (["--memory", "1kB"], "The cache and the workspace"),
        (["--curve", "-o", "x.json"], "The curve has many recipes"),
        (["--size", "100kB", "-o", "no/such/place.json"], "can not be written"),
    ],
)
def test_bad_budgets_are_refused_before_anything_is_measured(
    words: list[str], said: str, tiny: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", str(tiny("llama2")), *WORDS, *words]) == 1
    message = capsys.readouterr().err.splitlines()
    assert said in message[0]
    assert len(message) == 2


CALIBRATED = ["--samples", "4", "--length", "24"]


def test_a_conversion_finds_its_mix_itself(
    tiny: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, file, folder = tiny("llama3"), tmp_path / "out.gguf", tmp_path / "out"
    assert main(["convert", str(source), *CALIBRATED, "--size", "150kB", "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.index("predicted KL") < said.index("done in")
    assert 140_000 < file.stat().st_size <= 150_000
    words = ["convert", str(source), *CALIBRATED, "--to", "mlx-4bit-g64", "--size", "170kB", "-o", str(folder)]
    assert main(words) == 0
    assert 160_000 < sum(f.stat().st_size for f in folder.iterdir()) <= 170_000


def test_a_memory_too_small_for_16_bits_gets_a_mix_beside_cache_and_workspace(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    source, file, context = tiny("llama3"), tmp_path / "out.gguf", 200
    with open_checkpoint(source) as checkpoint:
        shape = model_shape(checkpoint)
    assert shape is not None
    beside = kv_bytes(shape, context) + workspace_bytes(shape, context)
    words = ["--memory", str(beside + 150_000), "--context", str(context), "-o", str(file)]
    assert main(["convert", str(source), *CALIBRATED, *words]) == 0
    assert 140_000 < file.stat().st_size <= 150_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rule", "ffn=Q8_0"], "so does --rule"),
        (["--keep-first", "1"], "so does --keep-first"),
        (["--method", "gptq"], "Sensitivities are not measured with GPTQ"),
        (["--method", "round-to-nearest"], "Sensitivities are not measured with round-to-nearest"),
        (["--memory", "1GB"], "Several budgets"),
        (["--to", "modelopt-nvfp4"], "There are no mixed recipes for 'modelopt'"),
        (["-o", "there.gguf"], "exists already"),
    ],
)
def test_what_goes_not_with_a_size_is_refused_before_anything_is_measured(
    words: list[str],
    said: str,
    tiny: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.gguf").write_bytes(b"something")
    assert main(["convert", str(tiny("llama2")), *CALIBRATED, "--size", "100kB", *words]) == 1
    assert said in capsys.readouterr().err
    assert not list(cache_folder().glob("budget-*"))


def test_a_mix_is_not_named_like_a_format(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.symlink_to(tiny("llama2"))
    assert main(["convert", str(source), *WORDS[:2], "--size", "100kB"]) == 0
    assert (tmp_path / "model-mix.gguf").is_file()
