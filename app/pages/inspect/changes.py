"""What was put into the recipe from the findings, so that it can be taken out again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from core.recipe import Recipe

Key = tuple[Any, ...]


def key_of(finding: Any) -> Key:
    """What a finding is about; the same after another look at the model."""
    return finding.kind, finding.tensor, finding.axis, finding.channel


@dataclass(frozen=True)
class Change:
    """finding: `key_of` the one that it was done about."""

    before: Recipe
    after: Recipe
    words: str
    finding: Key = ()

    def undone(self, recipe: Recipe) -> Recipe:
        """The recipe without it; changes that were made since stay."""
        if recipe == self.after:
            return self.before
        added = [r for r in self.after.rules if r not in self.before.rules]
        gone = tuple(r for r in self.before.rules if r not in self.after.rules)
        rules = (*gone, *(r for r in recipe.rules if r not in added))
        method = self.before.method if recipe.method is self.after.method else recipe.method
        return replace(recipe, rules=rules, method=method)
