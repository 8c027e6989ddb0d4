"""What breaks kernels on people's cards: nothing reads outside, offsets do not wrap, empty and odd tensors are taken or
refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernels.gpu.configurations import attention_configuration, configuration, scaled_configuration


@pytest.fixture(scope="session")
def told(interpreted: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return interpreted("odd_cases")


@pytest.mark.triton
def test_positions_that_are_not_there_read_nothing_and_are_seen(told) -> None:
    found = {line["case"]: line for line in told if "case" in line}
    assert len(found) == 5
    assert not [case for case, line in found.items() if line["outside"] or not line["same"]]
    assert found["rotate True"]["nan"] == found["rotate False"]["nan"] == [True, False, True, False]
    assert found["tokens 40"]["nan"] == found["tokens 5000"]["nan"] == [False, True, True, True, True, False]
    assert found["prompt"]["nan"] == [False, False, False, True, False, True]


@pytest.mark.triton
def test_offsets_past_two_to_the_31_do_not_wrap(told) -> None:
    found = {line["far"]: line["same"] for line in told if "far" in line}
    assert len(found) == 10
    assert all(found.values()), found


@pytest.mark.triton
def test_no_tokens_are_an_empty_result(told) -> None:
    found = {line["empty"]: line["shape"] for line in told if "empty" in line}
    assert len(found) == 8
    assert {shape[0] for shape in found.values()} == {0}


@pytest.mark.triton
def test_a_token_that_is_no_number_spoils_no_other(told) -> None:
    found = [line for line in told if "spoiled" in line]
    assert len(found) == 10
    assert not [line for line in found if not (line["same"] and line["seen"])]


@pytest.mark.triton
def test_what_does_not_lie_in_one_piece_is_taken_or_refused(told) -> None:
    assert all(line["same"] for line in told if "layout" in line)
    refused = {line["refused"]: line["reason"] for line in told if "refused" in line}
    assert len(refused) == 8
    assert all(refused.values()), refused
    assert "each row in one piece" in refused["norm"]


@pytest.mark.parametrize(
    ("card", "like"),
    [
        ("gfx90a", "gfx942"), ("gfx950", "gfx942"), ("gfx1030", "gfx1100"), ("gfx1151", "gfx1100"),
        ("gfx1200", "gfx1201"), ("sm_101", "sm_100"), ("sm_103", "sm_100"), ("sm_110", "sm_100"),
        ("sm_121", "sm_120"), ("sm_87", "sm_86"),
    ],
)  # fmt: skip
def test_a_card_that_is_not_in_the_table_is_treated_as_its_family(card, like) -> None:
    """Its shared memory is no less, so that what fits there fits here."""
    for tokens in (1, 4, 16, 64, 512):
        assert configuration(card, tokens, 4096, 32, 16, 8 << 20) == configuration(like, tokens, 4096, 32, 16, 8 << 20)
        work = ("upcast", tokens, 4096, 4096)
        assert scaled_configuration(card, *work) == scaled_configuration(like, *work)
    for kind in ("prompt", "token"):
        assert attention_configuration(card, kind, 128, 2) == attention_configuration(like, kind, 128, 2)
