"""Takes out of a text whose computer it comes from: home folder, user name, host name, paths."""

from __future__ import annotations

import getpass
import os
import platform
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

_PATH = re.compile(r"""(["'])(?:/|\\\\|[A-Za-z]:[\\/]).*?\1|(?<![\w.~/])(?:/[\w.]|\\\\|[A-Za-z]:[\\/])\S*""")


def homes() -> tuple[str, ...]:
    """This user's home folder in each of the ways in which it is named, longest first; none that is a whole disk."""
    found = {os.environ.get("HOME", ""), os.environ.get("USERPROFILE", "")}
    with suppress(RuntimeError, OSError):  # an account without one, or one that is out of reach
        found |= {str(Path.home()), str(Path.home().resolve())}
    whole = (Path(name) for name in found if name)
    return tuple(sorted((str(path) for path in whole if path.is_absolute() and path.name), key=len, reverse=True))


def shorten_home(text: str) -> str:
    """The text with ~ in place of this user's home folder; other paths stay."""
    for home in homes():
        for form in _forms(home):
            text = re.sub(re.escape(form) + r"(?![\w-])", "~", text, flags=_case())
    return text


def anonymous(text: str, folders: Iterable[str] = ()) -> str:
    """The text without home folder (~), user name (user), host name (host). folders: paths to be left out (…) whole.

    Names count as whole words, in any case: who is called 'cpu' loses that word too.
    """
    text = shorten_home(text)
    for folder in sorted((shorten_home(f) for f in folders if len(f) > 1), key=len, reverse=True):
        text = text.replace(folder, "…")
    for names, instead in ((_users(), "user"), (_hosts(), "host")):
        for name in names:
            for form in _forms(name):
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", instead, text, flags=re.IGNORECASE)
    return text


def without_paths(text: str, folders: Iterable[str] = ()) -> str:
    """`anonymous`, and … in place of every absolute path; one with spaces is whole in quotes or as one of `folders`."""
    return re.sub(_PATH, "…", anonymous(text, folders))


def _case() -> re.RegexFlag:
    return re.IGNORECASE if os.name == "nt" else re.NOFLAG


def _forms(name: str) -> list[str]:
    """As it is, composed and decomposed, in an address, with doubled backslashes, with slashes."""
    unicode = {unicodedata.normalize(form, name) for form in ("NFC", "NFD")} | {name}
    forms = unicode | {quote(n, errors="surrogateescape") for n in unicode}
    forms |= {form.replace("\\", other) for form in forms for other in ("\\\\", "/")}
    forms |= {n.encode("unicode_escape").decode("ascii") for n in unicode}
    return sorted(filter(None, forms), key=len, reverse=True)


def _users() -> list[str]:
    names = {os.environ.get(key, "") for key in ("USER", "LOGNAME", "USERNAME")} | {Path(h).name for h in homes()}
    with suppress(ImportError, KeyError, OSError):  # an account that has no name, as in a container
        names.add(getpass.getuser())
    return sorted((name for name in names if name), key=len, reverse=True)


def _hosts() -> list[str]:
    full = platform.node()
    return sorted({n for n in (full, full.partition(".")[0]) if n and n != "localhost"}, key=len, reverse=True)
