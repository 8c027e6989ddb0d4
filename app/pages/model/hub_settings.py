"""The token, and how the hub is reached: a row that takes a token, and the card under Advanced."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QGridLayout, QHBoxLayout, QLineEdit, QWidget

from app.jobs.hub import TOKEN_KEY, Reach, TokenState, token_work
from app.services import Services
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import Card, button, label, set_available
from app.widgets.text import term
from core.errors import UserError

LABELS_WIDTH = 96
NO_TEXT = "Paste a token first."


class TokenRow(QWidget):
    """A field whose text is shown as dots. `kept` follows when a token is taken, `told(sentence)` with the outcome."""

    kept = Signal()
    told = Signal(str)

    def __init__(self, services: Services, reach: Callable[[], Reach]) -> None:
        super().__init__()
        self._services, self._reach = services, reach
        self.field = QLineEdit()
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setPlaceholderText("hf_…")
        self.field.setAccessibleName("Access token")
        self.field.setToolTip(
            "Made on your account's page 'Access Tokens'; kept in the system's keyring, never in a file"
        )
        self.keep = button("Keep", self._keep, icon="shield-check", hint="Keep this token in the system's keyring")
        self.field.textChanged.connect(lambda text: set_available(self.keep, "" if text.strip() else NO_TEXT))
        self.field.returnPressed.connect(self._keep)
        set_available(self.keep, NO_TEXT)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        row.addWidget(self.field, 1)
        row.addWidget(self.keep)

    def _keep(self) -> None:
        text = self.field.text()
        if text.strip():
            self.told.emit("Keeping the token…")
            self._services.jobs.run(
                "Keep the token", token_work(self._reach(), keep=text), self._done, self._failed,
                latest_key=TOKEN_KEY, owner=self,
            )  # fmt: skip

    def _done(self, state: TokenState) -> None:
        self.field.clear()
        self.told.emit(state.sentence)
        self.kept.emit()

    def _failed(self, error: BaseException) -> None:
        self.told.emit(
            str(error) if isinstance(error, UserError) else f"The token could not be kept ({type(error).__name__})."
        )


class HubSettings(Card):
    """Mirror, offline mode, token. `changed` follows when the next question would be answered otherwise."""

    changed = Signal()

    def __init__(self, services: Services, reach: Callable[[], Reach]) -> None:
        super().__init__()
        self._services, self._reach = services, reach
        settings = services.settings
        self.endpoint = QLineEdit(settings.endpoint)
        self.endpoint.setPlaceholderText("https://huggingface.co")
        self.endpoint.setAccessibleName("Address of a mirror")
        self.endpoint.setToolTip(
            "Another server that has the hub's models; empty for huggingface.co. HF_ENDPOINT comes first"
        )
        self.endpoint.editingFinished.connect(self._set_endpoint)
        self.offline = QCheckBox("Offline: ask no server")
        self.offline.setToolTip("Nothing is searched or fetched; models on this computer can be opened")
        self.offline.setChecked(settings.offline)
        self.offline.toggled.connect(self._set_offline)
        self.token = TokenRow(services, reach)
        self.token.told.connect(self._tell)
        self.token.kept.connect(self.changed)
        self.forget = button(
            "Forget", self._forget, icon="trash-2", hint="Remove the token from the keyring and from memory"
        )
        self.state = label("", "muted", wrap=True, selectable=True)
        self.state.setAccessibleName("Where the token is")
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_3)
        grid.setVerticalSpacing(SPACE_2)
        grid.setColumnMinimumWidth(0, LABELS_WIDTH)
        grid.setColumnStretch(1, 1)
        grid.addWidget(term("mirror", "Mirror", "muted"), 0, 0)
        grid.addWidget(self.endpoint, 0, 1)
        grid.addWidget(self.offline, 0, 2, 1, 2)
        grid.addWidget(term("access token", "Token", "muted"), 1, 0)
        grid.addWidget(self.token, 1, 1)
        grid.addWidget(self.forget, 1, 2)
        grid.addWidget(self.state, 2, 1, 1, 3)
        self.add(grid)
        services.shell.settings_changed.connect(self._show_set)

    def _show_set(self) -> None:
        """The settings' own dialog may have changed them."""
        settings = self._services.settings
        if (settings.endpoint, settings.offline) != (self.endpoint.text(), self.offline.isChecked()):
            self.endpoint.setText(settings.endpoint)
            self.offline.setChecked(settings.offline)
            self.look()
            self.changed.emit()

    def look(self) -> None:
        """Ask where a token is."""
        self._services.jobs.run(
            "Look for a token",
            token_work(self._reach()),
            self._looked,
            lambda _e: None,
            latest_key=TOKEN_KEY,
            owner=self,
        )

    def _looked(self, state: TokenState) -> None:
        self._tell(
            f"A token is taken from {state.source}." if state.source else "There is no token; most models need none."
        )

    def _tell(self, sentence: str) -> None:
        self.state.setText(sentence)

    def _forget(self) -> None:
        self._services.jobs.run(
            "Forget the token", token_work(self._reach(), forget=True), lambda state: self._tell(state.sentence),
            lambda _e: None, latest_key=TOKEN_KEY, owner=self,
        )  # fmt: skip
        self.changed.emit()

    def _set_endpoint(self) -> None:
        from core.hub.access import DEFAULT_ENDPOINT, checked_endpoint

        try:
            address = checked_endpoint(self.endpoint.text())
        except UserError as error:
            self._tell(str(error))
            return
        address = "" if address == DEFAULT_ENDPOINT else address
        self.endpoint.setText(address)
        if address != self._services.settings.endpoint:
            self._services.settings.endpoint = address
            self.look()  # each hub has a token of its own
            self.changed.emit()

    def _set_offline(self, on: bool) -> None:
        self._services.settings.offline = on
        self.changed.emit()
