"""The Test page: two files answer one prompt side by side, and what that took; sweeps over the batch; history."""

from app.pages.test.page import TestPage

__all__ = ["TestPage"]
