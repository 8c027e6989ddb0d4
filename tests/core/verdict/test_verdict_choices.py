"""Answers judged by likelihood, hidden numbers and greedy texts, with a model whose next token is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from fake_model import NAMES, FakeModel, fake_text

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.verdict.choices import Item, likelihoods, make_item, read_tasks, score, task_result
from core.verdict.needle import DEPTHS, needle_items, needle_lengths, needle_result
from core.verdict.texts import continuations, text_pairs

RIGHT = 5 - math.log(math.exp(5) + len(NAMES) - 1)  # the model's logit is 5 for one token and 0 for the others
WRONG = RIGHT - 5


def run(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_sums_of_log_probabilities_by_hand() -> None:
    model = FakeModel(b"xyz")
    item = make_item(model.text, "x", ["yz", "zy", "y"], 0)
    assert item.ids == (256, ord("x"))
    found = likelihoods(model, item, CancelToken())
    np.testing.assert_allclose(found, [2 * RIGHT, 2 * WRONG, RIGHT], rtol=1e-6)


def test_a_prompt_longer_than_a_batch() -> None:
    model = FakeModel(b"xyz", capacity=1024)
    item = make_item(model.text, "xyz" * 200 + "x", ["y", "q"], 0)
    np.testing.assert_allclose(likelihoods(model, item, CancelToken()), [RIGHT, WRONG], rtol=1e-6)
    assert max(model.engine.batches) <= 256


def test_tokens_that_a_choice_changes_count_to_the_choices() -> None:
    """'a' and 'b' merge: what follows the shared start is 'ab' in one, 'a' and 'x' in the other."""
    item = make_item(fake_text(), "xa", ["b", "x"], 0)
    assert item.ids == (256, ord("x"))
    assert item.rest == ((258,), (ord("a"), ord("x")))


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="without tokens"):
        make_item(fake_text(start=False), "", ["b", "x"], 0)


def test_accuracies_of_two_models() -> None:
    items = [Item((1,), ((2,), (3, 4)), (1, 4), answer) for answer in (0, 1, 1, 1)]
    source = [np.array(v) for v in ([-1.0, -2.0], [-3.0, -2.0], [-3.0, -2.0], [-3.0, -2.0])]
    artifact = [np.array(v) for v in ([-1.0, -2.0], [-3.0, -2.0], [-1.0, -2.0], [-3.0, -2.0])]
    found = task_result(items, source, artifact)
    assert (found.source.value, found.artifact.value, found.change.value) == (1.0, 0.75, -0.25)
    assert found.differ == 1
    assert found.change.error == pytest.approx(0.25)  # of 0, 0, −1, 0
    assert found.source_normalized.value == 0.75  # −2 over 4 letters is likelier than −1 over one
    assert found.to_dict()["items"] == 4


def test_tasks_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"prompt": "x", "choices": ["y", "q"], "answer": 0}) + "\n\n", encoding="utf-8")
    items = read_tasks(path, fake_text())
    assert len(items) == 1
    scores = run(score(FakeModel(b"xyz"), items, CancelToken()))
    assert task_result(items, scores, scores).source.value == 1.0


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"prompt": "x"}', "Line 1"),
        ('{"prompt": "x", "choices": ["y"], "answer": 0}', "Line 1"),
        ('{"prompt": "x", "choices": ["y", ""], "answer": 0}', "Line 1"),
        ('{"prompt": "x", "choices": ["y", "z"], "answer": 2}', "Line 1"),
        ('{"prompt": "x", "choices": ["y", "z"], "answer": true}', "Line 1"),
        ("no", "Line 1"),
        ("[]", "Line 1"),
        ("", "no task"),
    ],
)
def test_bad_task_files_are_refused(tmp_path: Path, line: str, part: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(UserError, match=part):
        read_tasks(path, fake_text())


def test_a_missing_task_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can not be read"):
        read_tasks(tmp_path / "none.jsonl", fake_text())


def test_cancel_between_choices() -> None:
    model, token = FakeModel(b"xyz"), CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        likelihoods(model, make_item(model.text, "x", ["y", "q"], 0), token)


def test_needles_lie_at_their_depths() -> None:
    text = fake_text()
    items = needle_items(text, "some words of prose " * 5, (256,))
    assert [(length, depth) for length, depth, _ in items] == [(256, depth) for depth in DEPTHS]
    for _, depth, item in items:
        whole = text.decode(item.ids)
        number = text.decode(item.rest[item.answer]).strip()
        assert whole.count(number) == 1
        assert whole.index(number) / len(whole) == pytest.approx(depth, abs=0.25)
        assert whole.count("secret number") == 2
        assert item.length <= 400  # bytes here: the sentence takes more than it would in a real vocabulary
    assert needle_lengths((256, 1024), 600) == (256,)
    assert needle_lengths((256, 1024), 100) == (100,)


def test_lost_needles_are_counted() -> None:
    items = [(256, 0.1, Item((1,), ((2,), (3,)), (1, 1), 1))] * 2
    found = needle_result(items, [np.array([-5.0, -1.0])] * 2, [np.array([-5.0, -1.0]), np.array([-1.0, -5.0])])
    assert found.lost == 1
    assert [p.margin for p in found.places] == [4.0, -4.0]


def test_texts_side_by_side() -> None:
    token = CancelToken()
    a = run(continuations(FakeModel(b"xabcd"), ("x", "b"), 8, token))
    b = run(continuations(FakeModel(b"xabqd"), ("x", "b"), 8, token))
    first, second = text_pairs(("x", "b"), a, b)
    assert (first.source, first.artifact, first.difference, first.letter) == ("abcd", "abqd", 2, 2)
    assert second.difference == 0
    assert text_pairs(("x",), a[:1], a[:1])[0].difference is None
