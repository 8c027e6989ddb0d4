"""What can go wrong between here and a hub: one sentence, one next step, and a kind that the window knows."""

from __future__ import annotations

from enum import Enum

from core.errors import UserError


class Kind(Enum):
    """What the window shows for a problem beside its two sentences."""

    OFFLINE = "offline"  # by choice
    UNREACHABLE = "unreachable"  # no answer from the server
    GATED = "gated"  # conditions to accept, or a token to give
    TOKEN = "token"  # the token is not taken
    MISSING = "missing"  # no such repository, revision or file
    BUSY = "busy"  # asked to wait
    SERVER = "server"  # an answer that is of no use
    DAMAGED = "damaged"  # what came is not what was announced
    DISK = "disk"  # it can not be written
    TAKEN = "taken"  # another program writes there
    UNUSABLE = "unusable"  # nothing in it that can be converted
    NAME = "name"  # this is no repository


# Sections of the guide about trouble, where it is not the one about hubs.
_TOPICS = {
    Kind.OFFLINE: "network",
    Kind.UNREACHABLE: "network",
    Kind.BUSY: "network",
    Kind.GATED: "gated",
    Kind.TOKEN: "gated",
    Kind.DISK: "output",
    Kind.TAKEN: "output",
}


class HubError(UserError):
    """page: an address that the next step speaks of, else ''."""

    def __init__(self, kind: Kind, message: str, hint: str, page: str = "") -> None:
        super().__init__(message, hint, topic=_TOPICS.get(kind, "hub"))
        self.kind = kind
        self.page = page
