"""Questions to a hub, the token, and what has been begun: work for the background."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.jobs.runner import Work
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.hub.access import Access
    from core.hub.download import DownloadProgress, Order, Unfinished
    from core.hub.files import Choice
    from core.hub.listing import Found, Repository
    from core.hub.reference import Reference
    from core.hub.token import Kept

ASK_KEY = "hub-ask"
TOKEN_KEY = "hub-token"


@dataclass(frozen=True)
class Reach:
    """How the settings say the hub is reached; the environment may say otherwise."""

    endpoint: str = ""
    offline: bool = False

    def access(self) -> Access:
        from core.hub.access import find_access

        return find_access(self.endpoint, self.offline)


@dataclass(frozen=True)
class Results:
    """What a search found."""

    words: str
    found: tuple[Found, ...]


@dataclass(frozen=True)
class Listed:
    """A repository and the models in it. choice: which of them is meant."""

    repository: Repository
    choices: tuple[Choice, ...]
    choice: Choice


@dataclass(frozen=True)
class TokenState:
    """Where the token comes from, in words; '' when there is none. sentence: what has just become of one."""

    source: str
    sentence: str = ""


def ask_work(text: str, reach: Reach) -> Work:
    """The result is Listed for a pasted name or address, Results for words. Raises HubError."""

    def work(token: CancelToken) -> Results | Listed:
        from core.hub.listing import search
        from core.hub.reference import parse_reference

        access = reach.access()
        reference = parse_reference(text, access.endpoint)
        if reference is not None:
            return _listed(reference, access, token)
        return Results(text.strip(), search(text.strip(), access, token))

    return work


def list_work(reference: Reference, reach: Reach) -> Work:
    """The result is Listed."""

    def work(token: CancelToken) -> Listed:
        return _listed(reference, reach.access(), token)

    return work


def _listed(reference: Reference, access: Access, token: CancelToken) -> Listed:
    from core.hub.files import choices, choose
    from core.hub.listing import repository

    found = repository(reference, access, token)
    models = choices(found.files, found.shards)
    return Listed(found, models, choose(models, reference.path, reference.tag))


def download_work(order: Order, reach: Reach) -> Work:
    """Yields DownloadProgress; the result is the path that can be opened."""

    def work(token: CancelToken) -> Iterator[DownloadProgress]:
        from core.hub.download import download

        return (yield from download(order, reach.access(), token))

    return work


def unfinished_work(models: Path) -> Work:
    """The result is a tuple of Unfinished."""

    def work(_token: CancelToken) -> tuple[Unfinished, ...]:
        from core.hub.download import unfinished

        return unfinished(models)

    return work


def discard_work(folder: Path) -> Work:
    """Deletes what an unfinished download has of files that are not whole."""

    def work(_token: CancelToken) -> None:
        from core.hub.download import discard

        discard(folder)

    return work


def token_work(reach: Reach, keep: str | None = None, forget: bool = False) -> Work:
    """Look up, keep or forget the token; the result is a TokenState, never the token itself."""

    def work(_token: CancelToken) -> TokenState:
        from core.hub.access import checked_endpoint, find_access
        from core.hub.token import find_token, forget_token, keep_token

        endpoint = find_access(reach.endpoint, offline=True).endpoint
        kept: Kept | None = None
        if keep is not None:
            kept = keep_token(checked_endpoint(endpoint), keep)
        if forget:
            forget_token(endpoint)
        source = find_token(endpoint).source
        if forget and source:
            return TokenState(source, f"A token remains: it comes from {source}.")
        return TokenState(source, kept.sentence if kept else "The token is forgotten." if forget else "")

    return work
