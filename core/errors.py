"""Errors that a person can cause, and the signal that work was cancelled."""

from __future__ import annotations


class UserError(Exception):
    """One plain sentence that says what is wrong, and one next step.

    The command line prints both and exits with 1; the window shows both in place. Neither shows a traceback.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class Cancelled(Exception):
    """Raised inside a job once its cancel token is set; the journal stays, so the job can go on later."""
