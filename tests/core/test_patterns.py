"""Regular expressions that take forever are refused before they are tried; those that people write are not."""

from __future__ import annotations

import re
import time

import pytest

from core.errors import UserError
from core.patterns import why_slow
from core.recipe import Rule

NAME = "model.layers.10.self_attn.q_proj.weight_" + "a" * 24


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a*)*$b", "(a|aa)+b", "(.*a){20}b", "((a?)+)+b", "(?:[a-z_]+[.]?)+!", ".*.*.*.*.*b", "(?=(a+)+b)x"],
)
def test_slow_patterns_are_refused(pattern: str) -> None:
    assert why_slow(pattern)
    with pytest.raises(UserError, match="forever"):
        Rule(pattern, "Q8_0")


@pytest.mark.parametrize(
    "pattern",
    [
        "down",
        r"blk\.(0|1|2)\.ffn_.*weight",
        r"layers\.\d+\.(q|k|v)_proj",
        r"^blk\.[0-9]{1,2}\.",
        r"(?i)EXPERTS\..*\.w[123]",
        "(attn|ffn)_.*down.*weight$",
        "(?:norm)?",
        ".*a.*b.*c.*!",
    ],
)
def test_usual_patterns_are_taken_and_quick(pattern: str) -> None:
    assert why_slow(pattern) == ""
    Rule(pattern, "Q8_0")
    begin = time.thread_time()
    re.search(pattern, NAME)
    assert time.thread_time() - begin < 0.5
