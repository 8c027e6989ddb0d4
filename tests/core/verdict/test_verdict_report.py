"""The report in JSON, Markdown and HTML."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

from verdict_example import LAYERS, NEEDLE, TASKS, TEXTS, example

from core.cli_commands import json_text
from core.verdict.report import headline, markdown, marked, report_data, sections
from core.verdict.report_html import page
from core.verdict.thresholds import PRESETS, Thresholds, judge

FULL = replace(example(), layers=LAYERS, tasks=TASKS, needle=NEEDLE, texts=TEXTS)


def test_headlines() -> None:
    e = example()
    assert headline(e, judge(e, PRESETS["loose"])) == "small|<b>.gguf passes the thresholds 'loose'."
    failed = headline(e, judge(e, Thresholds(kl_mean=0.01, flips=0.5)))
    assert failed == "small|<b>.gguf fails the thresholds 'custom': 1 of 2 limits are not met."
    assert "no threshold was set" in headline(e, judge(e, Thresholds()))


def test_json_has_everything() -> None:
    data = json.loads(json_text(report_data(FULL, judge(FULL, PRESETS["balanced"]))))
    assert data["verdict"]["thresholds"]["name"] == "balanced"
    assert data["quality"]["kl_mean"] == {"value": 0.04, "error": 0.001}
    assert data["quality"]["kl_max"]["error"] is None
    assert data["size_ratio"] == 0.5
    assert data["method"] == "GPTQ"
    assert data["layers"]["errors"][0] == {"layer": None, "mean": 0.001, "worst": 0.002}
    assert data["needle"]["lost"] == 1
    assert data["texts"][0]["first_different_token"] == 1
    assert data["artifact"]["contract"][0]["bits_per_value"] == 8.0
    assert data["serving"][0]["text"].startswith("llama-server")


def test_what_a_team_files_is_there() -> None:
    verdict = judge(FULL, PRESETS["strict"])
    titles = [section.title for section in sections(FULL, verdict)]
    assert titles[:2] == ["Verdict", "Quality"]
    assert titles[-4:] == ["Files and contract", "Serving", "Rollback", "How it was measured"]
    text = markdown(FULL, verdict)
    for part in (
        "FAIL",
        "one scale for 32 values, symmetric",
        "Method: GPTQ. Calibration: prose, 64 × 512.",
        "llama-server -m small.gguf",
        "serve the source again",
        "not found (−0.50)",
        "± standard error",
    ):
        assert part in text


def test_markdown_is_well_formed() -> None:
    lines = markdown(FULL, judge(FULL, PRESETS["strict"])).splitlines()
    assert lines[0] == "# small|<b>.gguf against big.gguf"
    for i, line in enumerate(lines):
        if line.startswith("| ---"):
            cells = lines[i - 1].replace("\\|", "").count("|")
            rows = [row for row in lines[i : i + 3] if row.startswith("|")]
            assert all(row.replace("\\|", "").count("|") == cells for row in rows)
    assert "````text" in lines  # a text with three marks of its own


class _Checker(HTMLParser):
    void = frozenset({"meta", "img", "br", "path", "polyline", "circle", "line", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert not any(name in ("src", "href") and not str(value).startswith(("#", "data:")) for name, value in attrs)
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def test_html_is_well_formed_and_fetches_nothing() -> None:
    text = page(FULL, judge(FULL, PRESETS["strict"]))
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    assert "small|&lt;b&gt;.gguf" in text
    assert "<b>" not in text
    assert "<svg" in text
    assert text.count('class="fail"') >= 2


def test_where_texts_part_is_marked() -> None:
    assert marked(" yes", 3) == " ye▸s"
