"""Errors that a person can cause, and the signal that work was cancelled."""

from __future__ import annotations

import sys
from types import FrameType


class UserError(Exception):
    """One plain sentence that says what is wrong, and one next step.

    The command line prints both and exits with 1; the window shows both in place. Neither shows a traceback.
    topic: the section of the guide's page about trouble that says more; where none is given, that of the module which
    makes the error (core.guide.TOPICS).
    """

    def __init__(self, message: str, hint: str = "", topic: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.topic = topic or _topic(sys._getframe(1))

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


def _topic(frame: FrameType) -> str:
    from core.guide import topic_of

    return topic_of(str(frame.f_globals.get("__name__", "")))


class Cancelled(Exception):
    """Raised inside a job once its cancel token is set; the journal stays, so the job can go on later."""
