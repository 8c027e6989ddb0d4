"""A model's name as people paste it: addresses, names with a tag or a revision, whole commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from core.hub.problems import HubError, Kind

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "hf-mirror.com", "www.hf-mirror.com")
_OWNER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}"
_REPOSITORY = re.compile(rf"^{_OWNER}/{_NAME}$")
_PLAIN = re.compile(
    rf"^(?P<repository>(?:{_OWNER}/)?{_NAME})(?::(?P<tag>[\w.-]+))?(?:@(?P<revision>[^\s@:]+))?(?::(?P<late>[\w.-]+))?$"
)
_SCHEME = re.compile(r"^(?:https?|hf)://", re.IGNORECASE)
_MARKDOWN = re.compile(r"^\[[^\]]*\]\((?P<link>[^)\s]+)\)$")
# Programs whose commands name a repository, and the options whose value is none.
_COMMANDS = re.compile(
    r"^(?:\$\s*|sudo\s+)*(?:ollama|llama(?:-[\w-]+)?|\./llama-[\w-]+|hf|huggingface-cli|git|vllm|python3?|lms|mlx_lm[\w.]*|"
    r"bitsmith|\w*\s*=?\s*\w+\.from_pretrained)\b",
    re.IGNORECASE,
)
_NO_REPOSITORY = (
    "--local-dir",
    "--cache-dir",
    "--token",
    "--revision",
    "--include",
    "--exclude",
    "-o",
    "--output",
    "--to",
)
_SECTIONS = ("tree", "blob", "resolve", "raw", "commit", "commits", "blame", "edit")
_NO_MODELS = {"datasets": "a data set", "spaces": "an app (Space)", "collections": "a collection", "papers": "a paper"}
_PAGES = ("models", "docs", "blog", "settings", "join", "login", "pricing", "tasks", "api", "posts", "search")


@dataclass(frozen=True)
class Reference:
    """repository: 'owner/name', or a name alone for the oldest ones. path: a file or folder in it, '' for all.

    tag: a quantization as 'owner/name:Q4_K_M' names it. host: where the address led, '' when none was given.
    """

    repository: str
    revision: str = "main"
    path: str = ""
    tag: str = ""
    host: str = ""


def parse_reference(text: str, endpoint: str = "", bare: bool = False) -> Reference | None:
    """What a pasted text names, or None when it is words to search for.

    endpoint: the mirror in use, whose addresses count too. bare: a single word is a repository (such as 'gpt2').
    Raises HubError for an address that leads to something else than a model.
    """
    text = _clean(text)
    if not text:
        return None
    if _COMMANDS.match(text) and re.search(r"\s|\(", text):
        return _from_command(text, endpoint)
    if " " in text:
        return None
    if _SCHEME.match(text):
        return _from_address(text, endpoint)
    host = text.split("/", 1)[0].lower()
    if host in (*HOSTS, _host(endpoint)) and "/" in text:
        return _from_address("https://" + text, endpoint)
    if text.lower().startswith("hf:"):
        text = text[3:]
    return _from_name(text, bare)


def _clean(text: str) -> str:
    text = re.sub(r"[\u200b-\u200f\u2060\ufeff]", "", text).replace("\u00a0", " ").strip()
    found = _MARKDOWN.match(text)
    text = found["link"] if found else text
    return re.sub(r"\s+", " ", text).strip(" \t\"'`<>“”‘’«»,;")


def _host(address: str) -> str:
    try:
        return urlsplit(address).netloc.lower()
    except ValueError:
        return ""


def _from_name(text: str, bare: bool) -> Reference | None:
    found = _PLAIN.match(text.rstrip("/"))
    if not found or ("/" not in found["repository"] and not bare):
        return None
    tag = found["tag"] or found["late"] or ""
    revision = unquote(found["revision"] or "main")
    return Reference(found["repository"], revision, tag="" if tag.lower() == "latest" else tag)


def _from_command(text: str, endpoint: str) -> Reference | None:
    """The first word of a command that names a repository; a file or a revision after it counts too."""
    words = [word for word in re.split(r"[\s()=,]+", text)[1:] if word]
    found: Reference | None = None
    skip = ""
    for word in words:
        word = word.strip("\"'`")
        if skip == "--revision" and found is not None:
            found = Reference(found.repository, word, found.path, found.tag, found.host)
        if skip:
            skip = ""
            continue
        if word in _NO_REPOSITORY:
            skip = word
        elif found is None and "/" in word and not word.startswith(("-", ".", "/", "~")):
            found = parse_reference(word.removesuffix(".git"), endpoint)
        elif found is not None and not found.path and re.search(r"\.(?:gguf|safetensors)$", word, re.IGNORECASE):
            found = Reference(found.repository, found.revision, word, found.tag, found.host)
    return found


def _from_address(address: str, endpoint: str) -> Reference:
    scheme = address.split(":", 1)[0].lower()
    try:
        parts = urlsplit(address)
        host = parts.netloc.lower().rpartition("@")[2]
    except ValueError:
        raise _no_model(f"{address} is no valid address.") from None
    if scheme == "hf":  # hf://owner/name[@revision]/path
        segments = [parts.netloc, *parts.path.strip("/").split("/")]
        host = ""
    else:
        if host not in (*HOSTS, _host(endpoint)):
            raise _no_model(f"{host or address} is not a hub that can be searched here.")
        below = urlsplit(endpoint).path.strip("/") if host == _host(endpoint) else ""
        segments = parts.path.strip("/").removeprefix(below).strip("/").split("/")
    segments = [unquote(s) for s in segments if s]
    if segments[:1] == ["models"] and len(segments) >= 3:
        segments = segments[1:]
    if segments and segments[0] in _NO_MODELS:
        raise _no_model(f"This address leads to {_NO_MODELS[segments[0]]}, not to a model.")
    if not segments or segments[0] in _PAGES:
        raise _no_model("This address leads to no model.")
    if len(segments) == 1:
        raise _no_model(f"{segments[0]} is an account; its models have names such as {segments[0]}/NAME.")
    if segments[1] in _SECTIONS:  # the oldest models have no owner
        segments = ["", *segments]
    name = segments[1].removesuffix(".git")
    plain = _from_name(f"{segments[0]}/{name}" if segments[0] else name, bare=True)
    if plain is None or ("/" in plain.repository and not _REPOSITORY.match(plain.repository)):
        raise _no_model("This address leads to no model.")
    rest = segments[2:]
    revision, path = plain.revision, "/".join(rest) if scheme == "hf" else ""
    if rest and rest[0] in _SECTIONS and scheme != "hf":
        revision, path = _revision_and_path(rest[1:])
    asked = parse_qs(parts.query)
    path = path or next(iter(asked.get("show_file_info", [])), "")
    return Reference(plain.repository, revision, path, plain.tag, host)


def _revision_and_path(segments: list[str]) -> tuple[str, str]:
    count = 3 if segments[:1] == ["refs"] else 1  # refs/pr/1, refs/convert/gguf
    if segments and "/" in segments[0]:  # written refs%2Fpr%2F1
        count = 1
    return "/".join(segments[:count]) or "main", "/".join(segments[count:])


def _no_model(message: str) -> HubError:
    return HubError(Kind.NAME, message, "Paste the address of a model's page, or its name as OWNER/NAME.")
