"""`bitsmith inspect` from its words to what it prints and writes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from job_help import convert
from read_png import read_png
from safetensors.torch import save_file
from tiny_models import write_llama

from core.cli import main
from core.inspect.figures import SHADES, palette
from core.units import format_signed

DOWN = "model.layers.1.mlp.down_proj.weight"
ROW, COLUMN = 37, 210  # where the planted outlier channel and its largest value are


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    def plant(tensors):
        tensors[DOWN][:, COLUMN] *= 12
        tensors[DOWN][ROW, COLUMN] = 6.5
        tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = torch.inf

    return write_llama(tmp_path_factory.mktemp("source") / "tiny", change=plant)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Without the infinite value, which no format takes."""

    def plant(tensors):
        tensors[DOWN][:, COLUMN] *= 12
        tensors[DOWN][ROW, COLUMN] = 6.5

    return write_llama(tmp_path_factory.mktemp("source") / "sound", change=plant)


def run(capsys, *words) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def as_json(capsys, *words) -> dict:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(out, parse_constant=refuse)


def test_a_planted_outlier_is_the_first_line(capsys, folder) -> None:
    code, out, _ = run(capsys, folder)
    assert code == 0
    lines = out.splitlines()
    start = lines.index("The largest outlier ratios")
    assert lines[start + 2].split()[0] == DOWN
    assert "q_proj.weight has 1 value that is NaN or infinite" in out


def test_one_tensor_closely(capsys, sound) -> None:
    code, out, _ = run(capsys, sound, "--tensor", DOWN)
    assert code == 0
    assert "256 × 512 of BF16" in out
    table = out.split("outlier channels\n")[1].splitlines()
    assert {tuple(line.split()[:2]) for line in table[1:3]} == {("input", str(COLUMN)), ("output", str(ROW))}


def test_the_facts_as_json(capsys, sound) -> None:
    data = as_json(capsys, sound, "--to", "Q4_K_M")
    assert {"path", "container", "architecture", "parameters", "bytes", "target", "bytes_planned"} <= set(data)
    assert data["target"] == "Q4_K_M"
    rows = {row["name"]: row for row in data["tensors"]}
    assert len(rows) == 20
    assert rows[DOWN]["statistics"]["amax"] == 6.5
    assert rows[DOWN]["statistics"]["outlier_ratio"] == max(
        r["statistics"]["outlier_ratio"] for r in rows.values() if len(r["shape"]) == 2
    )
    assert rows[DOWN]["predicted"]["snr_db"] > 0
    planned = json.loads(plan_json(capsys, sound, "Q4_K_M"))
    assert data["bytes_planned"] == planned["bytes_total"]


def plan_json(capsys, path: Path, target: str, *more: str) -> str:
    assert main(["plan", str(path), "--to", target, "--json", *more]) == 0
    return capsys.readouterr().out


def test_without_a_format_the_next_step_is_said(capsys, sound) -> None:
    assert "add --to" in run(capsys, sound)[1]
    assert "add --to" not in run(capsys, sound, "--to", "Q4_K_M")[1]


def test_findings_are_those_of_the_window(capsys, sound) -> None:
    from core.checkpoint import open_checkpoint
    from core.inspect.findings import FindingKind, findings
    from core.inspect.survey import survey
    from core.plan import make_plan
    from core.progress import CancelToken
    from core.recipe import Recipe

    with open_checkpoint(sound) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target="Q4_0"))
        rows = list(survey(checkpoint, plan, CancelToken()))
        wanted = findings(rows, plan, checkpoint)
    data = as_json(capsys, sound, "--to", "Q4_0", "--findings", "0")
    assert [f["text"] for f in data["findings"]] == [f.text for f in wanted]
    one = as_json(capsys, sound, "--to", "Q4_0", "--findings", "0", "--tensor", DOWN)
    mine = [f for f in wanted if any(s.name == DOWN for s in plan.tensors[f.index].source.sources)]
    assert any(f.kind is FindingKind.OUTLIER for f in mine)
    assert [f["text"] for f in one["findings"]] == [f.text for f in mine]


def test_findings_have_remedies_with_their_price(capsys, sound) -> None:
    data = as_json(capsys, sound, "--to", "Q4_K_M", "--findings", "2")
    finding = data["findings"][0]
    assert finding["tensor"] == "blk.1.ffn_down.weight"
    assert finding["kind"] == "outlier channel"
    assert finding["channel"] in (ROW, COLUMN)
    possible = [r for r in finding["remedies"] if r["possible"] and r["rules"]]
    assert possible
    before = json.loads(plan_json(capsys, sound, "Q4_K_M"))["bytes_total"]
    for remedy in possible[:2]:
        rules = [word for rule in remedy["rules"] for word in ("--rule", f"{rule['pattern']}={rule['format']}")]
        after = json.loads(plan_json(capsys, sound, "Q4_K_M", *rules))["bytes_total"]
        assert after - before == remedy["bytes_change"]
    assert all(f["remedies"] == [] for f in data["findings"][2:])
    code, out, _ = run(capsys, sound, "--to", "Q4_K_M", "--findings", "1")
    assert code == 0
    assert f"{format_signed(possible[0]['bytes_change'])} B" in out


def test_a_tensor_in_the_planned_format(capsys, sound) -> None:
    data = as_json(capsys, sound, "--tensor", "blk.1.ffn_down.weight", "--to", "Q4_K_M")  # the name in the plan
    detail = data["details"][0]
    assert detail["name"] == DOWN
    assert detail["format"] in ("Q4_K", "Q6_K")
    assert detail["error"]["snr_db"] > 15
    assert len(detail["channels"]["input"]["max"]) == len(detail["error"]["by_input_channel"]) == 512
    assert sum(detail["histogram"]["counts"]) + detail["histogram"]["below"] == detail["statistics"]["values"]
    assert 0 < detail["levels"]["used"] <= 1
    assert {(c["axis"], c["index"]) for c in detail["outlier_channels"][:2]} == {("input", COLUMN), ("output", ROW)}
    assert [row["name"] for row in data["tensors"]] == [DOWN]
    assert all("ffn_down" in finding["tensor"] for finding in data["findings"])


def test_activations(capsys, sound, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the tide, then the ebb. " * 8, encoding="utf-8")
    data = as_json(capsys, sound, "--text", text, "--tokens", "40", "--threshold", "0.5")["activations"]
    assert data["tokens"] == 40
    assert data["cut"] is True
    assert [i["place"] for i in data["inputs"][:4]] == [
        "attention input", "attention output", "feed-forward input", "feed-forward down",
    ]  # fmt: skip
    assert len(data["inputs"]) == 2 * 4 + 1
    first = data["inputs"][0]
    assert first["tensors"] == [f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    assert first["amax"] == pytest.approx(max(first["max"]), rel=1e-5)
    assert first["share_above"] == sum(m >= 0.5 for m in first["max"]) / 256
    assert set(data["breaking"]) == {i["name"] for i in data["inputs"] if i["breaks"]}
    code, out, _ = run(capsys, sound, "--activations")
    assert code == 0
    assert "Worst under one int8 scale" in out
    down = next(i for i in data["inputs"] if i["tensors"] == [DOWN])
    assert down["weight_max"][COLUMN] == 6.5


def test_two_files_compared(capsys, sound, tmp_path) -> None:
    convert(sound, "Q8_0", tmp_path / "eight.gguf")
    data = as_json(capsys, sound, "--compare", tmp_path / "eight.gguf")["compared"]
    rows = {row["name"]: row for row in data["tensors"]}
    assert rows[DOWN]["match"] == "compared"
    assert 30 < rows[DOWN]["error"]["snr_db"] < 60
    code, out, _ = run(capsys, sound, "--compare", tmp_path / "eight.gguf")
    assert code == 0
    assert "tensors compared" in out


class Page(HTMLParser):
    """Checks that elements nest; keeps what is looked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict] = []
        self.pictures: list[dict] = []
        self.heads: list[dict] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        kept = {"img": self.images, "svg": self.pictures, "th": self.heads}.get(tag)
        if kept is not None:
            kept.append(attributes)
        self.links += [attributes[k] for k in ("src", "href") if k in attributes]
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag not in ("meta", "img", "br", "line", "rect", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag) -> None:
        if tag in ("line", "rect", "polyline"):
            return
        assert self.open.pop() == tag


def test_a_page_needs_nothing_but_itself(capsys, sound, tmp_path) -> None:
    output = tmp_path / "report.html"
    convert(sound, "Q8_0", tmp_path / "eight.gguf")
    words = ("--to", "Q4_K_M", "--findings", "1", "--activations", "--compare", tmp_path / "eight.gguf")
    code, out, err = run(capsys, sound, *words, "-o", output)
    assert code == 0, err
    assert out == f"{output} written\n"
    text = output.read_text(encoding="utf-8")
    page = Page(text)
    assert {"script", "link", "iframe", "object"}.isdisjoint(page.tags)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")  # a name, not an address
    assert "url(" not in text
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert all(image.get("alt") for image in page.images)
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in page.pictures)
    assert all(head.get("scope") == "col" for head in page.heads)
    assert "prefers-color-scheme" in text
    for title in ("Map of the model", "Findings and remedies", "Activations", "Compared", "What the figures mean"):
        assert f">{title}</h2>" in text


def test_the_planted_value_is_the_brightest_pixel(capsys, sound, tmp_path) -> None:
    code, _, _ = run(capsys, sound, "--tensor", DOWN, "--html", "-o", tmp_path / "t.html")
    assert code == 0
    picture = next(
        i for i in Page((tmp_path / "t.html").read_text()).images if i["alt"].startswith("Heat map of the mag")
    )
    pixels = read_png(base64.b64decode(picture["src"].partition(",")[2]))
    assert pixels.shape == (256, 512, 3)  # a pixel a value
    bright = palette()[SHADES - 1]
    assert [tuple(at) for at in zip(*(pixels == bright).all(2).nonzero(), strict=True)] == [(ROW, COLUMN)]


def test_names_that_do_not_exist_bring_near_ones(capsys, sound) -> None:
    code, out, err = run(capsys, sound, "--tensor", "model.layers.1.mlp.down_proj", "--json")
    assert code == 1
    assert json.loads(out)["error"] == "The model has no tensor 'model.layers.1.mlp.down_proj'."
    assert DOWN in err
    code, _, err = run(capsys, sound, "--tensor", "zzz")
    assert code == 1
    assert "info --json" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--json", "--html"], "two different outputs"),
        (["-o", "facts.txt"], "is not said"),
        (["--threshold", "-1"], "threshold of -1"),
        (["--tokens", "0"], "Activations of 0 tokens"),
        (["--findings", "-2"], "can not be shown"),
        (["--text", "no/such.txt"], "can not be read"),
        (["--compare", "no/such.gguf"], "such.gguf is not there"),
        (["--tensor", DOWN, "--expert", "1"], "no stack of experts"),
        (["--rule", "down=Q6_K"], "No target"),
        (["--to", "Q9"], "Q9"),
    ],
)
def test_what_can_not_be_done_is_said(capsys, sound, words, sentence) -> None:
    code, _, err = run(capsys, sound, *words)
    assert code == 1
    assert sentence in err
    assert "failed where it should not" not in err


def test_nothing_is_overwritten_unasked(capsys, sound, tmp_path, monkeypatch) -> None:
    output = tmp_path / "facts.json"
    output.write_text("mine")
    words = ("--tensor", DOWN, "-o", output)
    code, _, err = run(capsys, sound, *words)
    assert code == 1
    assert "exists already" in err
    assert output.read_text() == "mine"
    code, out, _ = run(capsys, sound, *words, "--overwrite")
    assert code == 0
    assert json.loads(out) == {"output": str(output)}
    assert json.loads(output.read_text())["details"][0]["name"] == DOWN
    code, _, err = run(capsys, sound, "--tensor", DOWN, "--json", "-o", sound / "config.json", "--overwrite")
    assert code == 1
    assert "belongs to the model" in err
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, sound, "--tensor", DOWN, "--html")
    assert code == 0
    assert Path("sound-inspect.html").is_file()


def test_a_damaged_model_is_judged_without_the_damaged_tensor(capsys, folder) -> None:
    code, out, err = run(capsys, folder, "--to", "Q4_0")
    assert code == 0, err
    name = "model.layers.0.self_attn.q_proj.weight"
    assert f"warning: {name} has 1 value that is NaN or infinite" in out
    lowest = out[out.index("The lowest predicted SNRs") : out.index("Findings")]
    assert name not in lowest
    assert DOWN in lowest
    assert "layers.0.self_attn.q_proj (blk.0.attn_q) stops the conversion" in out
    rows = {t["name"]: t["predicted"] for t in as_json(capsys, folder, "--to", "Q4_0")["tensors"]}
    assert rows[name]["snr_db"] is None
    assert rows[DOWN]["snr_db"] > 10


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0,)])
def test_a_tensor_without_values(capsys, tmp_path, shape) -> None:
    path = tmp_path / "empty.safetensors"
    save_file({"empty": torch.zeros(shape), "other": torch.ones(4, 4)}, path)
    (found,) = as_json(capsys, path, "--tensor", "empty")["details"]
    assert (found["statistics"]["values"], found["statistics"]["amax"]) == (0, 0)
    assert run(capsys, path, "--tensor", "empty")[0] == 0
    code, _, err = run(capsys, path, "--tensor", "empty", "--html", "-o", tmp_path / "page.html")
    assert code == 0, err
    assert "<img" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_model_that_overflows_is_refused_without_noise(tmp_path) -> None:
    """In a process of its own: what numpy has warned of once it is silent about."""

    def enlarge(tensors):
        for weight in tensors.values():
            weight *= 1e30

    source = write_llama(tmp_path / "huge", change=enlarge)
    words = [sys.executable, "-m", "core.cli", "inspect", str(source), "--activations", "--tokens", "8"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("The input of blk.0.attn_output is not finite")
