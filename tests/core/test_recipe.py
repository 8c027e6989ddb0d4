import json

import pytest

from core.errors import UserError
from core.formats import Method
from core.recipe import KeepGroup, Misfit, Recipe, Rule

FULL = Recipe(
    target="Q4_K_M",
    method=Method.ROUND,
    rules=(Rule("ffn_down", "Q6_K"), Rule(r"blk\.0\.", "keep")),
    keep=frozenset({KeepGroup.EMBEDDING, KeepGroup.HEAD}),
    keep_first=1,
    keep_last=2,
    misfit=Misfit.KEEP,
)


def test_json_gives_the_same_recipe_back():
    assert Recipe.from_json(FULL.to_json()) == FULL
    assert Recipe.from_json(Recipe().to_json()) == Recipe()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"schema": 2}', "schema 2"),
        ('{"target": "Q8_0"}', "no recipe"),
        ('{"schema": 1, "targt": "Q8_0"}', "unknown field 'targt'"),
        ('{"schema": 1, "keep_first": -1}', "wrong value"),
        ('{"schema": 1, "method": "magic"}', "wrong value"),
        ('{"schema": 1, "rules": [{"pattern": "("}]}', "wrong value"),
        ('{"schema": 1, "rules": [{"pattern": "(", "format": "keep"}]}', "not a valid pattern"),
        ('{"schema": 1, "rules": 5}', "wrong value"),
        ('{"schema": 1, "rules": [{"pattern": "a", "format": "keep", "reason": 5}]}', "wrong value"),
        ('{"schema": 1, "target": 5}', "wrong value"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_wrong_recipes_are_named(text, says):
    with pytest.raises(UserError) as e:
        Recipe.from_json(text)
    assert says in e.value.message
    assert e.value.hint


def test_schema_version_is_written():
    assert json.loads(FULL.to_json())["schema"] == 1


def test_a_reason_is_kept_and_recipes_without_one_are_as_they_were():
    told = Recipe(rules=(Rule("ffn_down", "keep", "kept: channel 1,247 is 38 × the median"), Rule("attn_v", "Q8_0")))
    assert Recipe.from_json(told.to_json()) == told
    assert json.loads(told.to_json())["rules"] == [
        {"pattern": "ffn_down", "format": "keep", "reason": "kept: channel 1,247 is 38 × the median"},
        {"pattern": "attn_v", "format": "Q8_0"},
    ]
    assert told.rules[0].why == "kept: channel 1,247 is 38 × the median"
    assert told.rules[1].why == "your rule 'attn_v'"
