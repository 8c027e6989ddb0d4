"""Where the hub is, whether it is asked, and the token: environment, keyring, memory; never a file or a log."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from core.errors import UserError
from core.hub import token as tokens
from core.hub.access import DEFAULT_ENDPOINT, checked_endpoint, find_access, models_folder
from core.hub.problems import HubError
from core.hub.token import Token, checked, find_token, forget_token, keep_token

SECRET = "hf_abcdefghijklmnop"
HUB = "https://huggingface.co"
MIRROR = "https://mirror.example:8443"


class Ring:
    """A keyring in memory, in place of the library's functions."""

    priority = 5

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_keyring(self) -> Ring:
        return self

    def get_password(self, service: str, name: str) -> str | None:
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.kept[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


@pytest.fixture(autouse=True)
def empty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_this_run", {})
    monkeypatch.setattr(tokens, "_from_login", lambda: "")


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    import keyring

    made = Ring()
    for name in ("get_keyring", "get_password", "set_password", "delete_password"):
        monkeypatch.setattr(keyring, name, getattr(made, name))
    return made


def test_a_token_is_kept_for_one_hub(ring: Ring, tmp_path: Path) -> None:
    kept = keep_token(HUB, f" {SECRET}\n")
    assert kept.in_keyring
    assert ring.kept == {("bitsmith", "huggingface.co"): SECRET}
    assert find_token(HUB, {}) == Token(SECRET, "the system's keyring")
    assert find_token(MIRROR, {}) == Token()
    written = "".join(p.read_text() for p in (tmp_path / "nobody").rglob("*") if p.is_file())
    assert "huggingface.co" in written
    assert SECRET not in written
    forget_token(HUB)
    assert find_token(HUB, {}) == Token()


def test_a_keyring_that_has_no_token_is_not_asked(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    def asks_for_a_password(_service: str, _name: str) -> None:
        raise AssertionError("the keyring was asked")

    monkeypatch.setattr("keyring.get_password", asks_for_a_password)
    monkeypatch.setattr(tokens, "_keyring", asks_for_a_password)
    assert find_token(HUB, {}) == Token()
    forget_token(HUB)


def test_the_environment_comes_first(ring: Ring) -> None:
    keep_token(HUB, SECRET)
    assert find_token(HUB, {"HF_TOKEN": " hf_env\n"}) == Token("hf_env", "the variable HF_TOKEN")
    assert find_token(HUB, {"HUGGING_FACE_HUB_TOKEN": "hf_env"}).value == "hf_env"
    assert find_token(HUB, {"HF_TOKEN": " "}).value == SECRET


def test_a_login_of_the_hub_s_own_tools_is_used_for_the_hub_only(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_from_login", lambda: "hf_login")
    assert find_token(HUB, {}) == Token("hf_login", "hf auth login")
    assert find_token(MIRROR, {}) == Token()


def test_a_login_is_left_alone_where_it_must_not_be_sent(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_from_login", lambda: "hf_login")
    assert find_token(HUB, {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}) == Token()


def test_limits_of_time_are_those_of_the_hub_s_own_library() -> None:
    found = find_access(environ={"HF_TOKEN": "x", "HF_HUB_DOWNLOAD_TIMEOUT": "90", "HF_HUB_ETAG_TIMEOUT": "nonsense"})
    assert (found.patience.read, found.patience.connect) == (90.0, 10.0)


def broken(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    import keyring
    from keyring.backends import fail, null

    class Locked(Ring):
        def set_password(self, service: str, name: str, value: str) -> None:
            raise RuntimeError(f"could not write {value}")

    class PlaintextKeyring(Ring):
        pass

    class Forgets(Ring):
        def set_password(self, service: str, name: str, value: str) -> None:
            pass

    class Hangs(Ring):
        def set_password(self, service: str, name: str, value: str) -> None:
            time.sleep(1)

    made = {"locked": Locked, "plain": PlaintextKeyring, "forgets": Forgets, "hangs": Hangs,
            "fail": fail.Keyring, "null": null.Keyring}[how]()  # fmt: skip
    monkeypatch.setattr(tokens, "LONGEST", 0.2)
    monkeypatch.setattr(keyring, "get_keyring", lambda: made)
    for name in ("get_password", "set_password"):
        monkeypatch.setattr(keyring, name, getattr(made, name))


@pytest.mark.parametrize("how", ["locked", "plain", "forgets", "hangs", "fail", "null"])
def test_without_a_keyring_it_stays_in_memory_and_is_said(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    broken(monkeypatch, how)
    kept = keep_token(HUB, SECRET)
    assert not kept.in_keyring
    assert "no longer" in kept.sentence
    assert SECRET not in kept.sentence
    assert find_token(HUB, {}) == Token(SECRET, "this run of the program")
    forget_token(HUB)
    assert find_token(HUB, {}).value == ""


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert not keep_token(HUB, SECRET).in_keyring
    assert find_token(HUB, {}).value == SECRET


@pytest.mark.parametrize(
    "text",
    [SECRET, f" {SECRET} \n", f'"{SECRET}"', f"Bearer {SECRET}", f"export HF_TOKEN={SECRET}", f"HF_TOKEN='{SECRET}'"],
)
def test_pasted_tokens(text: str) -> None:
    assert checked(text) == SECRET


@pytest.mark.parametrize("text", ["", "  ", "hf_", "hf_äöüäöüäöü", "x" * 600])
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(UserError) as caught:
        checked(text)
    assert caught.value.hint


def test_a_token_is_never_written_out() -> None:
    assert SECRET not in repr(Token(SECRET, "a test"))
    assert SECRET not in f"{find_access(environ={'HF_TOKEN': SECRET})}"


def test_endpoint_and_offline() -> None:
    assert find_access(environ={"HF_TOKEN": "x"}).endpoint == DEFAULT_ENDPOINT
    assert find_access("mirror.example/", environ={"HF_TOKEN": "x"}).endpoint == "https://mirror.example"
    assert find_access("https://a.b", environ={"HF_ENDPOINT": "http://c.d/", "HF_TOKEN": "x"}).endpoint == "http://c.d"
    for environ in ({"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "TRUE"}, {"TRANSFORMERS_OFFLINE": "yes"}):
        assert next(iter(environ)) in find_access(environ=environ).offline
    for environ in ({"HF_HUB_OFFLINE": "0"}, {"HF_HUB_OFFLINE": ""}, {"HF_HUB_OFFLINE": "false"}):
        assert not find_access(environ=environ | {"HF_TOKEN": "x"}).offline
    assert "settings" in find_access(offline=True, environ={}).offline


@pytest.mark.parametrize("text", ["ftp://a.b", "https://", "http://a b", "https://a:99999999", "https://[x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(HubError) as caught:
        checked_endpoint(text)
    assert caught.value.hint


def test_folder_of_models() -> None:
    assert models_folder({"BITSMITH_MODELS": "/a/b"}) == Path("/a/b")
    assert models_folder({}).name == "Models"


def test_nothing_is_imported_before_it_is_needed() -> None:
    import subprocess

    code = (
        "import sys, core.hub.download, core.hub.listing, core.hub.access; "
        "print(sorted({'huggingface_hub', 'httpx2', 'keyring', 'hf_xet'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
