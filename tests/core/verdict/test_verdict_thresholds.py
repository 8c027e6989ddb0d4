"""Limits set before, and what follows from them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from verdict_example import example

from core.errors import UserError
from core.metrics.windows import Figure
from core.verdict.layers import LayerError, LayerErrors
from core.verdict.thresholds import _LIMITS, PRESETS, REASONS, Thresholds, find_thresholds, judge


def test_every_limit_is_judged() -> None:
    assert {f.name for f in fields(Thresholds)} - {"name"} == set(_LIMITS)


def test_pass_and_fail_with_the_reason() -> None:
    evaluation = example()  # mean KL 0.04 ± 0.001
    good = judge(evaluation, Thresholds(kl_mean=0.05))
    assert good.passed
    assert good.lines[0].reason == "0.04 nats ± 0.001 nats is within the limit of at most 0.05 nats."
    bad = judge(evaluation, Thresholds(kl_mean=0.03, flips=0.5))
    assert [line.passed for line in bad.lines] == [False, True]
    assert not bad.passed
    assert "is above the limit of at most 0.03 nats" in bad.lines[0].reason


def test_near_the_limit_is_said() -> None:
    assert "more windows would tell" in judge(example(), Thresholds(kl_mean=0.0415)).lines[0].reason
    assert "more windows" not in judge(example(), Thresholds(kl_mean=0.05)).lines[0].reason


def test_what_was_not_measured_does_not_pass() -> None:
    verdict = judge(example(), Thresholds(decode_ratio=1.0, accuracy_drop=0.01, needles_lost=0))
    assert [line.passed for line in verdict.lines] == [False, False, False]
    assert all("Not measured" in line.reason and line.figure is None for line in verdict.lines)
    assert "--speed" in judge(example(), Thresholds(decode_rate=1)).lines[0].reason


def test_size_and_layers() -> None:
    layers = LayerErrors((LayerError(None, 0.01, 0.02), LayerError(0, 0.05, 0.2)), 8)
    evaluation = replace(example(), layers=layers)
    verdict = judge(evaluation, Thresholds(size_ratio=0.5, size_bytes=100, layer_error=0.05))
    assert [(line.key, line.passed) for line in verdict.lines] == [
        ("layer_error", True),
        ("size_ratio", True),
        ("size_bytes", False),
    ]


def test_not_a_number_does_not_pass() -> None:
    evaluation = example()
    broken = replace(evaluation, quality=replace(evaluation.quality, kl_mean=Figure(float("nan"))))
    assert not judge(broken, Thresholds(kl_mean=1.0)).passed


def test_presets_become_looser_and_have_reasons() -> None:
    assert list(PRESETS) == list(REASONS) == ["strict", "balanced", "loose"]
    for name in ("kl_mean", "kl_p99", "flips", "perplexity_ratio"):
        values = [getattr(preset, name) for preset in PRESETS.values()]
        assert values == sorted(values)
    assert find_thresholds("strict") is PRESETS["strict"]


def test_a_file_of_thresholds(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"kl_mean": 0.02, "decode_ratio": 1.2}))
    found = find_thresholds(str(path))
    assert found == Thresholds("ours", kl_mean=0.02, decode_ratio=1.2)
    assert Thresholds.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"kl": 1}', "no threshold 'kl'"),
        ('{"flips": "few"}', "'flips' is 'few'"),
        ('{"flips": -1}', "'flips' is -1"),
        ('{"flips": true}', "'flips' is True"),
        ('{"flips": NaN}', "'flips' is nan"),
        ('{"name": 3}', "'name' is 3"),
        ("[1]", "not a JSON object"),
        ("flips", "is no JSON"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError, match=part):
        find_thresholds(str(path))


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no thresholds 'tight'"):
        find_thresholds("tight")
    with pytest.raises(UserError, match="can not be read"):
        find_thresholds(str(tmp_path / "none.json"))
