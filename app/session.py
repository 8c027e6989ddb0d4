"""What the window is working on: one frozen Session, replaced as a whole and never edited."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

if TYPE_CHECKING:
    from app.devices import DeviceChoice
    from core.checkpoint.base import Checkpoint
    from core.errors import UserError
    from core.models.shape import ModelShape
    from core.plan import Plan
    from core.recipe import Recipe


@dataclass(frozen=True)
class Session:
    """Everything that pages and memory bar show follows from this.

    opening: the path being read, with `checkpoint` already cleared, so that nothing of the previous model is left to
    show. problem: why the last opening failed. findings: what the input doctor says. target: a target's name, such as
    'Q4_K_M'. device: what the result shall run on. context: tokens; batch: sequences.
    cache: text of a `core.kv.scheme.CacheScheme` that keys and values are kept in; '': as the recipe has it.
    wanted_context: what was chosen, of which a model with a smaller context takes less; 0: `context` itself.
    plan: of this checkpoint, never of another; a newer one takes its place when it is ready, so that the memory bar
    does not fall back to the source's size at every move of a control.
    """

    checkpoint: Checkpoint | None = None
    shape: ModelShape | None = None
    findings: tuple[Any, ...] = ()
    opening: Path | None = None
    problem: UserError | None = None
    recipe: Recipe | None = None
    target: str = ""
    plan: Plan | None = None
    device: DeviceChoice | None = None
    context: int = 8192
    wanted_context: int = 0
    batch: int = 1
    cache: str = ""


class SessionStore(QObject):
    """Holds the present Session. `changed(old, new)` follows every replacement that differs. GUI thread only."""

    changed = Signal(object, object)

    def __init__(self, session: Session | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._session = session or Session()

    @property
    def current(self) -> Session:
        return self._session

    def replace(self, session: Session) -> None:
        """Put another session in place of the present one."""
        old = self._session
        if session is old or all(_same(getattr(session, name), getattr(old, name)) for name in _FIELDS):
            return
        self._session = session
        self.changed.emit(old, session)

    def update(self, **fields: Any) -> None:
        """Replace the session by one that differs in `fields`: `store.update(context=4096)`."""
        self.replace(replace(self._session, **fields))


_FIELDS = tuple(Session.__dataclass_fields__)


def _same(a: object, b: object) -> bool:
    # Checkpoints, plans and recipes compare by identity: an equality over a hundred thousand tensors would block.
    return a is b or (isinstance(a, (int, str, Path)) and type(a) is type(b) and a == b)
