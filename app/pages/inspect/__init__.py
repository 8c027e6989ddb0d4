"""The Inspect page: the whole model, one tensor, its activations, one group, and two files beside each other."""

from app.pages.inspect.page import InspectPage

__all__ = ["InspectPage"]
