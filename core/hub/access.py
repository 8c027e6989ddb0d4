"""How the hub is reached: which one, whether at all, and as whom. Environment before settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from core import preferences
from core.hub.problems import HubError, Kind
from core.hub.token import Token, find_token

DEFAULT_ENDPOINT = "https://huggingface.co"
OFF = ("", "0", "false", "no", "off")
_OFFLINE_KEYS = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds. tries: without a byte of progress, before giving up."""

    connect: float = 10.0
    read: float = 20.0
    tries: int = 8
    first: float = 1.0  # before the second try; doubled each time, up to `rest`
    rest: float = 30.0
    longest: float = 300.0  # that a server may ask to wait


@dataclass(frozen=True)
class Access:
    """endpoint: without a slash at its end. offline: '' or why nothing is asked of any server."""

    endpoint: str = DEFAULT_ENDPOINT
    offline: str = ""
    token: Token = field(default_factory=Token)
    patience: Patience = field(default_factory=Patience)

    def check(self) -> None:
        """Raise HubError when no server may be asked."""
        if self.offline:
            raise HubError(
                Kind.OFFLINE,
                f"Nothing is fetched: {self.offline}.",
                "Models on this computer can be opened; or go online again.",
            )


def find_access(
    endpoint: str = "",
    offline: bool = False,
    environ: Mapping[str, str] = os.environ,
    patience: Patience | None = None,
) -> Access:
    """From the environment (HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN), else from the settings given.

    Asks the system's keyring, which may take a while. Raises HubError for an endpoint that is no address.
    """
    address = checked_endpoint(environ.get("HF_ENDPOINT", "").strip() or endpoint)
    by_variable = next((k for k in _OFFLINE_KEYS if environ.get(k, "").strip().lower() not in OFF), "")
    reason = (
        f"the variable {by_variable} says so"
        if by_variable
        else "offline mode is on in the settings"
        if offline
        else ""
    )
    token = Token() if reason else find_token(address, environ)
    return Access(address, reason, token, patience or _patience(environ))


def _patience(environ: Mapping[str, str]) -> Patience:
    """On slow lines people raise the limits of the hub's own library; they mean these, too."""
    plain = Patience()
    read, connect = (environ.get(key, "") for key in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"))
    return replace(
        plain,
        read=float(read) if read.isdigit() and int(read) else plain.read,
        connect=float(connect) if connect.isdigit() and int(connect) else plain.connect,
    )


def checked_endpoint(text: str) -> str:
    """An address without slash at its end, the hub's own for ''. Raises HubError."""
    if not text.strip():
        return DEFAULT_ENDPOINT
    text = text.strip()
    if "://" not in text:
        text = f"https://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0 and " " not in text
    except ValueError:
        valid = False
    if not valid:
        raise HubError(
            Kind.NAME,
            f"{text} is no address of a hub.",
            "Write it as https://HOST, or leave it empty for huggingface.co.",
        )
    return text.rstrip("/")


def models_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where models go unless somebody says otherwise: BITSMITH_MODELS, else what is set, else ~/Models."""
    return Path(environ.get("BITSMITH_MODELS") or preferences.current().models or os.path.expanduser("~/Models"))  # noqa: PTH111 - never raises
