"""Calibration settings in JSON, and what is said of wrong ones."""

from __future__ import annotations

import json

import pytest

from core.calibration.settings import CalibrationText, Domain
from core.errors import UserError


@pytest.mark.parametrize(
    "settings",
    [
        CalibrationText(),
        CalibrationText(path="notes.txt", samples=3, length=17, seed=9, chat=True),
        CalibrationText(domains=(Domain.CODE, Domain.CHAT)),
    ],
)
def test_json_gives_the_same_settings_back(settings: CalibrationText) -> None:
    assert CalibrationText.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_what_is_left_out_has_its_default() -> None:
    assert CalibrationText.from_dict({}) == CalibrationText("", (), 64, 512, 0, False)
    assert CalibrationText().tokens == 32768


def test_one_choice_of_domains_is_one_value() -> None:
    assert CalibrationText.from_dict({"domains": ["chat", "prose", "chat"]}).domains == (Domain.PROSE, Domain.CHAT)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "not a JSON object"),
        ({"sample": 3}, "unknown field 'sample'"),
        ({"samples": 0}, "samples is 0"),
        ({"samples": True}, "samples is True"),
        ({"length": 1}, "length is 1"),
        ({"length": 2.5}, "length is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"chat": 1}, "chat is 1"),
        ({"path": 3}, "path is 3"),
        ({"domains": "prose"}, "domains are 'prose'"),
        ({"domains": ["poems"]}, "no bundled text 'poems'"),
        ({"domains": [["prose"]]}, "no bundled text"),
        ({"path": "a.txt", "domains": ["prose"]}, "Leave one of the two out"),
    ],
)
def test_a_wrong_value_is_named(data: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        CalibrationText.from_dict(data)
