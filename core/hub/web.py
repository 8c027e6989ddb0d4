"""One way to ask a server, and what its refusals mean."""

from __future__ import annotations

import email.utils
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from urllib.request import getproxies

from core.errors import Cancelled, UserError
from core.hub.access import Access
from core.hub.problems import HubError, Kind
from core.hub.token import host_of
from core.progress import CancelToken
from core.units import format_duration

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
LOOK = 0.05  # seconds between two looks at the token while a server is waited for
RETRIED = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
LARGEST_ANSWER = 64 << 20  # bytes of JSON


def make_client(access: Access) -> httpx2.Client:
    """A client that heeds HTTPS_PROXY, ALL_PROXY and NO_PROXY and trusts what the system trusts. Raises HubError."""
    import httpx2

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would log signed addresses
    timeout = httpx2.Timeout(access.patience.read, connect=access.patience.connect)
    try:
        trusted = httpx2.create_ssl_context()
        for key in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # set for other programs, and meant for this one, too
            if os.environ.get(key):
                trusted.load_verify_locations(os.environ[key])
        mounts = {
            pattern: httpx2.HTTPTransport(verify=trusted, proxy=address) if address else None
            for pattern, address in proxies(getproxies()).items()
        }
        # Not by the client's own reading of the environment: a password in .netrc would take the token's place.
        return httpx2.Client(
            follow_redirects=True, timeout=timeout, headers={"user-agent": _agent()}, verify=trusted, mounts=mounts,
            trust_env=False,
        )  # fmt: skip
    except (ValueError, ImportError, OSError) as error:  # a proxy or a certificate file that is none
        raise HubError(
            Kind.UNREACHABLE, f"The proxy or certificate set in the environment can not be used: {_one_line(error)}.",
            "Correct HTTPS_PROXY, ALL_PROXY or SSL_CERT_FILE.",
        ) from error  # fmt: skip


def proxies(found: Mapping[str, str]) -> dict[str, str | None]:
    """What `urllib` finds of proxies → patterns of addresses with their proxy, None where none is to be used.

    'socks://', as some desktops write it, is SOCKS 5 with names looked up by the proxy. ALL_PROXY counts only where no
    other does, so that one of an unknown kind does no harm beside HTTPS_PROXY.
    """
    mounts: dict[str, str | None] = {}
    for scheme in ("http", "https"):
        address = (found.get(scheme) or found.get("all") or "").strip()
        if address:
            address = address if "://" in address else f"http://{address}"
            mounts[f"{scheme}://"] = re.sub(r"^socks5?://", "socks5h://", address, flags=re.IGNORECASE)
    direct = [host.strip().lower() for host in found.get("no", "").split(",")]
    if "*" in direct:
        return {}
    for host in direct if mounts else ():
        host = host.lstrip("*.")
        if not host or "/" in host:  # a range of addresses: no pattern says it
            continue
        is_name = not re.fullmatch(r"[\d.]+(?::\d+)?|\[.*|.*:.*:.*|localhost(?::\d+)?", host)
        host = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        mounts[f"all://*{host}" if is_name else f"all://{host}"] = None
    return mounts


def authorization(access: Access) -> dict[str, str]:
    """The header that says who asks; the client drops it where a redirect leads to another host."""
    return {"authorization": f"Bearer {access.token.value}"} if access.token.value else {}


def model_page(access: Access, repository: str) -> str:
    return f"{access.endpoint}/{repository}"


def file_address(access: Access, repository: str, revision: str, name: str) -> str:
    return f"{access.endpoint}/{quote(repository)}/resolve/{quote(revision, safe='')}/{quote(name)}"


def get_json(
    access: Access, client: httpx2.Client, address: str, params: Sequence[tuple[str, str]] = (), repository: str = ""
) -> tuple[Any, Mapping[str, str]]:
    """What a GET answers, and its headers; tried again a few times when the server is busy. Raises HubError."""
    tries = 0
    while True:
        tries += 1
        try:
            response = client.get(address, params=list(params) or None, headers=authorization(access))
        except Exception as error:
            if tries < 3 and is_passing(error):
                time.sleep(access.patience.first * tries / 4)
                continue
            raise explain(error, access) from error
        if response.status_code < 400:
            return _parsed(response), response.headers
        wait = asked_to_wait(response)
        if response.status_code in RETRIED and tries < 3 and (wait is None or wait <= 5):
            time.sleep(access.patience.first * tries / 4 if wait is None else wait)
            continue
        raise refusal(response, access, repository)


def _parsed(response: httpx2.Response) -> Any:
    try:
        if len(response.content) > LARGEST_ANSWER:
            raise ValueError
        return json.loads(response.content)
    except (ValueError, RecursionError):
        raise HubError(
            Kind.SERVER, f"{response.url.host} answered with something that is no list of models.",
            "A login page of the network may be in the way: open any page in a browser, then try again.",
        ) from None  # fmt: skip


def interruptible(work: Callable[[], T], token: CancelToken) -> T:
    """Run what may wait for a server, and stop waiting for it as soon as the token is set. Raises what it raises."""
    outcome: list[Any] = []
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome.append((None, error))
        ended.set()

    threading.Thread(target=run, name="bitsmith-hub", daemon=True).start()  # may outlive this call until its timeout
    while not ended.wait(LOOK):
        if token.cancelled:
            raise Cancelled
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def is_passing(error: BaseException) -> bool:
    """Whether the same question may be answered a moment later."""
    import httpx2

    lasting = (
        httpx2.ProxyError,
        httpx2.UnsupportedProtocol,
        httpx2.TooManyRedirects,
        httpx2.InvalidURL,
        httpx2.CookieConflict,
    )
    if isinstance(error, lasting) or "CERTIFICATE" in str(error).upper():
        return False
    return isinstance(error, (httpx2.TransportError, httpx2.StreamError, TimeoutError, ConnectionError))


def asked_to_wait(response: httpx2.Response) -> float | None:
    """Seconds that a busy server asks for: Retry-After (a number or a date) or the RateLimit header; None: not said."""
    value = response.headers.get("retry-after", "").strip()
    with suppress(ValueError):
        return max(float(value), 0.0)
    with suppress(ValueError, TypeError):
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    with suppress(ValueError):
        limit = parse_ratelimit_headers(response.headers)
        if limit is not None and not limit.remaining:
            return float(limit.reset_in_seconds)
    return None


def refusal(response: httpx2.Response, access: Access, repository: str = "", name: str = "") -> HubError:
    """What a status of 400 or above means, by `huggingface_hub`'s reading of its headers."""
    from huggingface_hub import errors
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    status, page = response.status_code, model_page(access, repository) if repository else access.endpoint
    said = response.headers.get("x-error-message", "")
    try:
        hf_raise_for_status(response)
        found: BaseException = UserError("")
    except Exception as error:  # noqa: BLE001 - sorted below
        found = error
    what = repository or "The hub"
    if isinstance(found, errors.GatedRepoError) or (status == 403 and "gated" in said.lower()):
        return gated(access, repository, said)
    if isinstance(found, errors.DisabledRepoError):
        return HubError(Kind.MISSING, f"{what} has been disabled by the hub.", "Choose another model.", page)
    if isinstance(found, errors.RevisionNotFoundError):
        return HubError(
            Kind.MISSING, f"{what} has no such revision.", "Leave out what follows @, or look at its page.", page
        )
    if isinstance(found, errors.RemoteEntryNotFoundError):
        gone = f"{name} is no longer in {what}." if name else f"{what} has no such file."
        return HubError(Kind.MISSING, gone, "Look at the list of files again.", page)
    if status == 401 and (access.token.value or "credentials" in said.lower()):
        if (
            access.token.value
            and isinstance(found, errors.RepositoryNotFoundError)
            and "credentials" not in said.lower()
        ):
            return _not_found(access, what, page)
        return HubError(
            Kind.TOKEN, f"The token from {access.token.source or 'your login'} is not accepted.",
            "It may have expired: make a new one on your account's page 'Access Tokens'.", _tokens_page(access),
        )  # fmt: skip
    if status in (401, 404) or isinstance(found, errors.RepositoryNotFoundError):
        return _not_found(access, what, page)
    if status == 403 and not access.token.value:
        return HubError(Kind.TOKEN, f"The hub does not let {what} be read.", "It may want an access token.", page)
    if status == 403:
        return HubError(
            Kind.TOKEN, f"The token may not read {what}.",
            "Give it the permission to read repositories, or use one of the type 'Read'.", _tokens_page(access),
        )  # fmt: skip
    if status == 429:
        wait = asked_to_wait(response)
        when = f"in {format_duration(wait)}" if wait else "in a few minutes"
        hint = f"Try again {when}." if access.token.value else f"Try again {when}; with a token more is allowed."
        return HubError(Kind.BUSY, "The hub asks for a pause: there were too many questions.", hint)
    if status == 407:
        return HubError(Kind.UNREACHABLE, "The proxy wants a name and a password.", "Put them into HTTPS_PROXY.")
    if status == 451:
        return HubError(Kind.MISSING, f"{what} may not be fetched from where you are.", "Choose another model.", page)
    if status >= 500:
        return HubError(
            Kind.SERVER, f"{host_of(access.endpoint)} has a problem ({status}).", "Try again in a few minutes."
        )
    return HubError(Kind.SERVER, f"{host_of(access.endpoint)} refused the question ({status}).", _elsewhere(access))


def _not_found(access: Access, what: str, page: str) -> HubError:
    hint = "Check the spelling; if it is private, " + (
        "the token must belong to it." if access.token.value else "give a token."
    )
    return HubError(Kind.MISSING, f"{what} is not on {host_of(access.endpoint)}.", hint, page)


def gated(access: Access, repository: str, said: str = "") -> HubError:
    """Conditions to accept, or a token that is missing or too narrow."""
    page = model_page(access, repository)
    if not access.token.value:
        return HubError(
            Kind.GATED, f"{repository} is gated: its makers want to know who uses it.",
            "Accept its conditions on its page, then give an access token here.", page,
        )  # fmt: skip
    if "fine-grained" in said.lower():
        return HubError(
            Kind.GATED, "The token may not read gated repositories.",
            "Allow it to, on your account's page 'Access Tokens', or use one of the type 'Read'.", _tokens_page(access),
        )  # fmt: skip
    if "awaiting" in said.lower() or "review" in said.lower():
        return HubError(
            Kind.GATED,
            f"Your request for {repository} waits for its makers.",
            "Try again when they have answered.",
            page,
        )
    return HubError(
        Kind.GATED,
        f"The account of your token has no access to {repository} yet.",
        "Accept its conditions on its page.",
        page,
    )


def explain(error: BaseException, access: Access) -> UserError:
    """Why no answer came, in one sentence; a UserError is returned as it is."""
    import httpx2

    if isinstance(error, UserError):
        return error
    host = host_of(access.endpoint)
    try:
        asked = getattr(error, "request", None)
        host = asked.url.host if asked is not None else host
    except RuntimeError:  # it knows no request
        pass
    text = _one_line(error)
    if "CERTIFICATE" in text.upper():
        return HubError(
            Kind.UNREACHABLE, f"The certificate of {host} is not trusted here.",
            "Set SSL_CERT_FILE to the certificate of your organisation's proxy, or correct this computer's clock.",
        )  # fmt: skip
    if isinstance(error, httpx2.ProxyError):
        return HubError(Kind.UNREACHABLE, f"The proxy refuses: {text}.", "Check HTTPS_PROXY.")
    if isinstance(error, httpx2.TooManyRedirects):
        return HubError(Kind.SERVER, f"{host} sends in circles.", _elsewhere(access))
    if isinstance(error, httpx2.TimeoutException):
        return HubError(Kind.UNREACHABLE, f"{host} does not answer in time.", "Try again; on a slow line, later.")
    if isinstance(error, (httpx2.ConnectError, OSError)):
        return HubError(
            Kind.UNREACHABLE, f"{host} can not be reached.", f"Check the network connection. {_elsewhere(access)}"
        )
    if isinstance(error, (httpx2.TransportError, httpx2.StreamError)):
        return HubError(Kind.UNREACHABLE, f"The connection to {host} broke off.", "Try again: it goes on where it was.")
    if isinstance(error, (httpx2.InvalidURL, ValueError)):
        return HubError(Kind.SERVER, f"{host} sent an address that is none.", _elsewhere(access))
    return HubError(Kind.SERVER, f"The answer of {host} could not be read: {text}.", _elsewhere(access))


def _tokens_page(access: Access) -> str:
    return f"{access.endpoint}/settings/tokens"


def _elsewhere(access: Access) -> str:
    from core.hub.access import DEFAULT_ENDPOINT

    if access.endpoint == DEFAULT_ENDPOINT:
        return "Where the hub is blocked, a mirror can be set (HF_ENDPOINT)."
    return "Check the address of the mirror (HF_ENDPOINT), or leave it empty."


def _one_line(error: BaseException) -> str:
    """Its text, without a proxy's password."""
    text = re.sub(r"//[^/@\s]*@", "//…@", " ".join(str(error).split()))
    return text.rstrip(".")[:160] or type(error).__name__


def _agent() -> str:
    try:
        return f"bitsmith/{version('bitsmith')}"
    except PackageNotFoundError:
        return "bitsmith"
