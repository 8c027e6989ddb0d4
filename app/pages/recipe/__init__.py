"""The Recipe page."""

from app.pages.recipe.page import RecipePage

__all__ = ["RecipePage"]
