"""The Model page: open a model, see what it is and what is wrong with it."""

from app.pages.model.page import ModelPage

__all__ = ["ModelPage"]
