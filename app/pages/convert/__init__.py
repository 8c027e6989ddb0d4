"""The Convert page: the queue, each conversion's progress, and what came of it."""

from app.pages.convert.page import ConvertPage

__all__ = ["ConvertPage"]
