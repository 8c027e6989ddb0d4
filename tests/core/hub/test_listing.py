"""Search and lists against a hub on the loopback interface, well and ill."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import hub_server
import pytest
from hub_server import COMMIT, TOKEN, Hub, Repo, login_page, model_files, silent, status
from stopwatch import Stopwatch

from core.errors import Cancelled
from core.hub.access import Access, Patience
from core.hub.files import choices
from core.hub.listing import is_plain, repository, search
from core.hub.problems import HubError, Kind
from core.hub.reference import Reference
from core.hub.token import Token
from core.hub.web import proxies
from core.progress import CancelToken

MODEL = Reference("owner/model")
QUICK = Patience(connect=2.0, read=2.0, tries=3, first=0.05, longest=3.0)


def failing(access: Access, reference: Reference = MODEL) -> HubError:
    with pytest.raises(HubError) as caught:
        repository(reference, access, CancelToken())
    error = caught.value
    assert error.message.endswith(".")
    assert error.hint.endswith(".")
    assert error.message.count(". ") == 0
    return error


def test_search(hub: Hub, access: Access) -> None:
    hub.repos["other/Model-chat"] = Repo({}, "llama3", 99_000, gated="manual")
    hub.repos["other/secret-model"] = Repo({}, private=True)
    found = search("model", access, CancelToken())
    assert [(f.repository, f.downloads, f.licence, f.gated) for f in found] == [
        ("other/Model-chat", 99_000, "llama3", True), ("owner/model", 1234, "apache-2.0", False),
    ]  # fmt: skip
    assert (found[0].parameters, found[0].bytes) == (135_000_000, 270_000_000)
    hub.fail("expand", status(400))
    assert search("model", access, CancelToken()) == found
    assert search("model chat", access, CancelToken())[0].repository == "other/Model-chat"
    assert search("nothing of the kind", access, CancelToken()) == ()


def test_a_repository_is_listed_at_one_commit_with_checksums(hub: Hub, access: Access) -> None:
    found = repository(MODEL, access, CancelToken())
    assert (found.name, found.commit, found.licence, found.gated, found.blocked) == (
        "owner/model", COMMIT, "apache-2.0", False, None,
    )  # fmt: skip
    contents = hub.repos["owner/model"].files
    assert {f.name: f.bytes for f in found.files} == {name: len(content) for name, content in contents.items()}
    assert all(bool(f.sha256) != bool(f.git_sha1) for f in found.files)
    assert "pytorch_model.bin" not in {f.name for f in choices(found.files, found.shards)[0].files}


def test_long_lists_come_in_pages(hub: Hub, access: Access) -> None:
    hub.page = 3
    found = repository(MODEL, access, CancelToken())
    assert len(found.files) == len(hub.repos["owner/model"].files)
    assert len(hub.asked("/tree/")) == 4 - (len(found.files) % 3 == 0)


def test_a_mirror_without_lists_of_files(hub: Hub, access: Access) -> None:
    before = repository(MODEL, access, CancelToken()).files
    hub.repos["owner/model"].has_tree = False
    assert repository(MODEL, access, CancelToken()).files == before


def test_a_renamed_repository_is_followed(hub: Hub, access: Access) -> None:
    hub.repos["old/name"] = Repo({}, renamed_to="owner/model")
    assert repository(Reference("old/name"), access, CancelToken()).name == "owner/model"


def test_revisions(hub: Hub, access: Access) -> None:
    assert repository(Reference("owner/model", "refs/pr/1"), access, CancelToken()).revision == "refs/pr/1"
    assert failing(access, Reference("owner/model", "nope")).kind is Kind.MISSING


def test_names_that_leave_their_folder_are_ignored(hub: Hub, access: Access) -> None:
    hub.repos["owner/model"].files |= {
        "../evil": b"x",
        "a/../../evil": b"x",
        "c:evil": b"x",
        "a\\b": b"x",
        "aux.json": b"x",
    }
    found = repository(MODEL, access, CancelToken())
    assert found.ignored == 5
    assert all(is_plain(f.name) for f in found.files)
    assert not is_plain("/etc/passwd")
    assert is_plain("Q4_K_M/name 7b-ü.gguf")


def test_not_there(access: Access, with_token: Access) -> None:
    assert "token" in failing(access, Reference("owner/none")).hint
    assert failing(with_token, Reference("owner/none")).kind is Kind.MISSING


def test_private(hub: Hub, access: Access, with_token: Access) -> None:
    hub.repos["owner/model"].private = True
    assert failing(access).kind is Kind.MISSING
    assert repository(MODEL, with_token, CancelToken()).files


def test_gated(hub: Hub, access: Access, with_token: Access) -> None:
    hub.repos["owner/model"].gated = "auto"
    found = repository(MODEL, access, CancelToken())
    assert found.gated
    assert found.blocked is not None
    assert (found.blocked.kind, found.blocked.page) == (Kind.GATED, f"{hub.endpoint}/owner/model")
    assert repository(MODEL, with_token, CancelToken()).blocked is None
    hub.repos["owner/model"].pending = True
    waiting = repository(MODEL, with_token, CancelToken()).blocked
    assert waiting is not None
    assert "waits" in waiting.message


def test_a_wrong_token_is_named_by_its_source(hub: Hub) -> None:
    error = failing(Access(hub.endpoint, token=Token("hf_wrong", "the variable HF_TOKEN"), patience=QUICK))
    assert error.kind is Kind.TOKEN
    assert "HF_TOKEN" in error.message
    assert "hf_wrong" not in str(error)


@pytest.mark.parametrize(
    ("code", "headers", "kind", "asked"),
    [
        (429, {"retry-after": "90"}, Kind.BUSY, 1),
        (429, {}, Kind.BUSY, 3),
        (429, {"ratelimit": '"api";r=0;t=77'}, Kind.BUSY, 1),
        (500, {}, Kind.SERVER, 3),
        (503, {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}, Kind.SERVER, 1),
        (403, {}, Kind.TOKEN, 1),
        (403, {"x-error-message": "Access to this resource is disabled."}, Kind.MISSING, 1),
        (451, {}, Kind.MISSING, 1),
        (418, {}, Kind.SERVER, 1),
        (407, {}, Kind.UNREACHABLE, 1),
    ],
)
def test_refusals(hub: Hub, access: Access, code: int, headers: dict[str, str], kind: Kind, asked: int) -> None:
    hub.fail("/revision/", status(code, headers), times=9)
    assert failing(access).kind is kind
    assert len(hub.asked("/revision/")) == asked


def test_a_short_pause_is_waited_for(hub: Hub, access: Access) -> None:
    hub.fail("/revision/", status(429, {"retry-after": "0"}), times=2)
    hub.fail("/tree/", status(502))
    assert repository(MODEL, access, CancelToken()).files


def test_pages_in_place_of_answers(hub: Hub, access: Access) -> None:
    hub.fail("/revision/", login_page)
    assert "browser" in failing(access).hint
    hub.fail("/revision/", status(200, body=b"[]"))
    assert failing(access).kind is Kind.SERVER
    hub.fail("/revision/", status(302, {"location": "/api/models/owner/model/revision/main"}), times=99)
    assert "circles" in failing(access).message


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = failing(Access(f"http://127.0.0.1:{port}", patience=QUICK))
    assert error.kind is Kind.UNREACHABLE
    assert "HF_ENDPOINT" in error.hint


def test_offline_asks_nobody(hub: Hub) -> None:
    error = failing(Access(hub.endpoint, offline="offline mode is on in the settings"))
    assert error.kind is Kind.OFFLINE
    assert hub.seen == []


def test_a_server_that_says_nothing_is_not_waited_for_when_cancelled(hub: Hub, access: Access) -> None:
    hub.fail("/api/models", silent, times=9)
    token = CancelToken()
    threading.Timer(0.2, token.cancel).start()
    with Stopwatch() as watch, pytest.raises(Cancelled):
        search("model", access, token)
    assert watch.seconds < 0.2 + 0.3


def test_a_server_that_says_nothing_times_out(hub: Hub) -> None:
    hub.fail("/api/models", silent, times=9)
    with pytest.raises(HubError) as caught:
        search("model", Access(hub.endpoint, patience=Patience(1.0, 0.2, 2, 0.05)), CancelToken())
    assert caught.value.kind is Kind.UNREACHABLE


def test_a_proxy_that_is_none(hub: Hub, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "nonsense://127.0.0.1:1")
    error = failing(access)
    assert "HTTPS_PROXY" in error.hint


@pytest.mark.parametrize(
    ("found", "mounts"),
    [
        ({}, {}),
        ({"https": "proxy:3128"}, {"https://": "http://proxy:3128"}),
        ({"all": "socks://127.0.0.1:7890/"}, dict.fromkeys(("http://", "https://"), "socks5h://127.0.0.1:7890/")),
        ({"all": "socks4://x", "http": "http://a", "https": "http://b"}, {"http://": "http://a", "https://": "http://b"}),
        ({"https": "http://b", "no": "localhost, .corp.example,10.0.0.0/8,10.1.2.3,::1"}, {
            "https://": "http://b", "all://localhost": None, "all://*corp.example": None, "all://10.1.2.3": None,
            "all://[::1]": None,
        }),
        ({"https": "http://b", "no": "*"}, {}),
        ({"https": "http://b", "no": ""}, {"https://": "http://b"}),
    ],
)  # fmt: skip
def test_proxies_as_they_are_found(found: dict[str, str], mounts: dict[str, str | None]) -> None:
    assert proxies(found) == mounts


def test_a_socks_proxy_is_used(hub: Hub, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_server.socks_proxy(hub) as (address, asked):
        monkeypatch.setenv("ALL_PROXY", f"socks://{address}")
        assert search("model", Access("http://hub.invalid", patience=QUICK), CancelToken())
        assert asked == ["hub.invalid"]


def test_a_proxy_s_password_is_not_shown(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "nonsense://me:secret@127.0.0.1:1")
    assert "secret" not in str(failing(access))


def test_a_proxy_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub plays the proxy: it is asked by the whole address of a host that does not exist."""
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    hub.fail("http://hub.invalid/", status(200, body=b"[]"))
    assert search("model", Access("http://hub.invalid", patience=QUICK), CancelToken()) == ()
    assert hub.seen[0].path.startswith("http://hub.invalid/api/models?search=model")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert search("model", Access(hub.endpoint, patience=QUICK), CancelToken())


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub, with_token: Access, tmp_path: Path) -> None:
    from core.hub.download import download, make_order

    found = repository(MODEL, with_token, CancelToken())
    list(download(make_order(found, choices(found.files)[0], tmp_path), with_token, CancelToken()))
    assert all(s.headers["authorization"] == f"Bearer {TOKEN}" for s in hub.asked("/resolve/"))
    assert hub.asked("/cdn/")
    assert not any("authorization" in s.headers for s in hub.asked("/cdn/"))


def test_shards_are_those_that_the_index_names(hub: Hub, access: Access) -> None:
    hub.repos["owner/model"].files["model-00001-of-00001.safetensors"] = b"old" * 1000
    found = repository(MODEL, access, CancelToken())
    weights = {f.name for f in choices(found.files, found.shards)[0].weights}
    assert weights == {n for n in model_files() if n.endswith("00002.safetensors")}
