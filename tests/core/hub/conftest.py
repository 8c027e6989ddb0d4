"""A hub on the loopback interface, and an environment that knows no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hub_server
import pytest
from hub_server import Hub

from core.hub.access import Access, Patience
from core.hub.token import Token

VARIABLES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY",
    "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "HF_HOME", "HF_HUB_CACHE", "BITSMITH_MODELS",
)  # fmt: skip
QUICK = Patience(connect=2.0, read=2.0, tries=3, first=0.05, longest=3.0)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_CONFIG_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub() -> Iterator[Hub]:
    yield from hub_server.serve(Hub({"owner/model": hub_server.Repo(hub_server.model_files())}))


@pytest.fixture
def access(hub: Hub) -> Access:
    return Access(hub.endpoint, patience=QUICK)


@pytest.fixture
def with_token(hub: Hub) -> Access:
    return Access(hub.endpoint, token=Token(hub_server.TOKEN, "a test"), patience=QUICK)
