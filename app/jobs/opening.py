"""Open a model: read its headers in the background, then put it into the session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.services import Services
from app.session import Session
from core.errors import UserError
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.models.shape import ModelShape

KEY = "open"


@dataclass(frozen=True)
class Opened:
    """What reading a model's headers gives."""

    checkpoint: Checkpoint
    shape: ModelShape | None
    findings: tuple[Any, ...]


def open_model(path: Path, token: CancelToken) -> Opened:
    """Headers, sizes and the input doctor's findings. Raises UserError when it can not be opened."""
    from core.checkpoint import open_checkpoint
    from core.checkpoint.doctor import examine
    from core.models.read_shape import model_shape

    checkpoint = open_checkpoint(path)
    token.check()
    return Opened(checkpoint, model_shape(checkpoint), examine(checkpoint))


def open_in_background(services: Services, path: Path) -> None:
    """Replace the session by one that reads `path`, and then by one that has it or says why not."""
    store = services.session

    def done(opened: Opened) -> None:
        services.settings.add_recent(opened.checkpoint.path)
        session = store.current
        context = wanted = session.wanted_context or session.context
        if opened.shape is not None and opened.shape.context:
            context = min(context, opened.shape.context)
        store.update(
            checkpoint=opened.checkpoint,
            shape=opened.shape,
            findings=opened.findings,
            opening=None,
            problem=None,
            context=context,
            wanted_context=wanted,
        )

    def failed(error: BaseException) -> None:
        if not isinstance(error, UserError):
            services.shell.problem.emit(error)
            error = UserError(f"{path.name} could not be read.", "The details stand above; another copy may work.")
        store.update(opening=None, problem=error)

    old = store.current
    store.replace(
        Session(
            opening=path,
            recipe=old.recipe,
            target=old.target,
            device=old.device,
            context=old.wanted_context or old.context,
            wanted_context=old.wanted_context,
            batch=old.batch,
        )
    )
    services.jobs.run(
        f"Open {path.name}",
        lambda token: open_model(path, token),
        done,
        failed,
        latest_key=KEY,
    )
