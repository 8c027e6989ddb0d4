"""The access token: from the environment, the system's keyring, this run, or Hugging Face's own login.

It is never written to a settings file or a log. A file remembers only for which hubs the keyring has one: to ask a
locked keyring in vain would ask the person for a password. A token in the keyring belongs to one hub, so that a mirror
is never sent the one of another.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from core.errors import UserError

SERVICE = "bitsmith"
DEFAULT_HOST = "huggingface.co"
LONGEST = 30.0  # seconds for a keyring, which may ask a person for a password
T = TypeVar("T")
_this_run: dict[str, str] = {}  # host → token, where no keyring keeps it


@dataclass(frozen=True)
class Token:
    """value: '' when there is none. source: where it is from, in words, for a person who wonders which one is sent."""

    value: str = ""
    source: str = ""

    def __repr__(self) -> str:  # never in a log
        return f"Token({'set' if self.value else 'none'}, {self.source!r})"


@dataclass(frozen=True)
class Kept:
    """What came of keeping a token. sentence: for the person."""

    in_keyring: bool
    sentence: str


def find_token(endpoint: str, environ: Mapping[str, str] = os.environ) -> Token:
    """The token to send to this hub: HF_TOKEN, then the keyring, then this run's, then `hf auth login`'s."""
    for key in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(key, "").strip():
            return Token(environ[key].strip(), f"the variable {key}")
    host = host_of(endpoint)
    if host in _this_run:
        return Token(_this_run[host], "this run of the program")
    stored = _from_keyring(host)
    if stored:
        return Token(stored, "the system's keyring")
    implicit = environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").strip().lower() in ("", "0", "false", "no", "off")
    if host == DEFAULT_HOST and implicit:
        logged_in = _from_login()
        if logged_in:
            return Token(logged_in, "hf auth login")
    return Token()


def keep_token(endpoint: str, text: str) -> Kept:
    """Put a token into the keyring, or keep it in memory where there is none. Raises UserError for what is no token."""
    value = checked(text)
    host = host_of(endpoint)
    problem = ""
    try:
        if _within(lambda: _store(host, value)):
            _this_run.pop(host, None)
            if not _remember(host, True):
                _this_run[host] = value
            return Kept(True, "The token is kept in the system's keyring.")
    except Exception as error:  # noqa: BLE001 - each keyring has errors of its own
        problem = f" ({_plain(error, value)})"
    _this_run[host] = value
    return Kept(
        False,
        f"This system has no keyring that works{problem}, so the token is kept until the program ends and no longer.",
    )


def forget_token(endpoint: str) -> None:
    """Remove what `keep_token` kept."""
    host = host_of(endpoint)
    _this_run.pop(host, None)
    if host not in _remembered():
        return
    _remember(host, False)
    try:
        _within(lambda: _keyring().delete_password(SERVICE, host))
    except Exception:  # noqa: BLE001 - there was none, or no keyring
        return


def checked(text: str) -> str:
    """A pasted token without what is around it. Raises UserError for what can not be one."""
    value = re.sub(r"[\s\u200b-\u200f\u2060\ufeff]", "", text).strip("\"'`")
    value = re.sub(r"^(?:export)?HF_TOKEN=|^Bearer", "", value).strip("\"'")
    if not re.fullmatch(r"[\x21-\x7e]{8,512}", value):
        raise UserError(
            "This is no access token.", "Copy it from your account's page 'Access Tokens'; it begins with hf_."
        )
    return value


def host_of(endpoint: str) -> str:
    """'huggingface.co' of 'https://huggingface.co/'; with the port, if there is one."""
    return urlsplit(endpoint).netloc.lower().rpartition("@")[2] or DEFAULT_HOST


def _plain(error: Exception, secret: str) -> str:
    text = " ".join(str(error).split()).replace(secret, "…") or type(error).__name__
    return text.rstrip(".")[:120]


def _store(host: str, value: str) -> bool:
    ring = _keyring()
    ring.set_password(SERVICE, host, value)
    return bool(ring.get_password(SERVICE, host) == value)


def _within(ask: Callable[[], T]) -> T:
    """What the keyring answers. Raises RuntimeError when it does not: some wait for a desktop that is not there."""
    answers: queue.Queue[tuple[T | None, Exception | None]] = queue.Queue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            answers.put((None, error))

    threading.Thread(target=run, name="bitsmith-keyring", daemon=True).start()
    try:
        found, error = answers.get(timeout=LONGEST)
    except queue.Empty:
        raise RuntimeError("it does not answer") from None
    if error is not None:
        raise error
    return found  # type: ignore[return-value]


def _keyring() -> Any:
    """The library, when it has a backend that keeps something. Raises RuntimeError without one."""
    import keyring
    from keyring.backends import fail, null

    backend = keyring.get_keyring()
    if isinstance(backend, (fail.Keyring, null.Keyring)) or backend.priority <= 0:
        raise RuntimeError("no service of the desktop keeps passwords")
    if "plaintext" in type(backend).__name__.lower():
        raise RuntimeError("the one there would write it as plain text")
    return keyring


def _from_keyring(host: str) -> str:
    if host not in _remembered():
        return ""
    try:
        return _within(lambda: _keyring().get_password(SERVICE, host)) or ""
    except Exception:  # noqa: BLE001 - locked, not there, not allowed: as if there were none
        return ""


def _hosts_file() -> Path:
    """Beside the window's settings."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Preferences"
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return base / "bitsmith" / "hubs-with-token.json"


def _remembered() -> set[str]:
    """Hubs for which the keyring has a token."""
    try:
        found = json.loads(_hosts_file().read_bytes()[:65536])
    except (OSError, ValueError):
        return set()
    return {host for host in found if isinstance(host, str)} if isinstance(found, list) else set()


def _remember(host: str, there: bool) -> bool:
    """False when it can not be written down."""
    hosts = _remembered() | {host} if there else _remembered() - {host}
    path = _hosts_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sorted(hosts)), encoding="utf-8")
    except OSError:
        return False
    return True


def _from_login() -> str:
    try:
        from huggingface_hub import get_token

        return (get_token() or "").strip()
    except Exception:  # noqa: BLE001 - a broken login file is no reason to stop
        return ""
