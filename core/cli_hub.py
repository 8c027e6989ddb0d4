"""`bitsmith download` and `bitsmith models`: models from a hub, and those that are here already."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import UserError
from core.preferences import current
from core.progress import CancelToken
from core.units import format_bytes, format_count, format_decimal, format_duration, format_percent, format_rate

if TYPE_CHECKING:
    from core.hub.download import DownloadProgress
    from core.hub.files import Choice
    from core.hub.listing import Repository
    from core.hub.reference import Reference

EVERY = 1.0  # seconds between two lines of progress


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Both commands and their options."""
    p = command("download", "Fetch a model from Hugging Face or its mirror; the same command goes on where it stopped.")
    p.add_argument(
        "repository",
        metavar="REPO",
        help="OWNER/NAME, OWNER/NAME:Q4_K_M, OWNER/NAME@REVISION, or its page's address",
    )
    p.add_argument("--file", default="", metavar="NAME", help="a GGUF, or a folder of it, where it has several")
    p.add_argument("--to", type=Path, metavar="FOLDER", help="folder to put it in; default: OWNER/NAME in ~/Models")
    p.add_argument("--revision", default="", metavar="R", help="branch, tag or commit")
    p.add_argument("--list", action="store_true", help="say what would be fetched and why, and fetch nothing")
    p = command("models", "List the models on this computer, or those on the hub with --search.")
    p.add_argument("--search", default="", metavar="WORDS", help="ask the hub instead")


def download(args: argparse.Namespace, token: CancelToken) -> int:
    """List, choose, fetch; prints the path that can be opened."""
    from core.cli_commands import show
    from core.hub.access import find_access, models_folder
    from core.hub.download import bytes_there, make_order
    from core.hub.download import download as fetch
    from core.hub.files import choices, choose
    from core.hub.listing import repository

    access = find_access(current().endpoint, current().offline)
    reference = _reference(args, access.endpoint)
    found = repository(reference, access, token)
    choice = choose(choices(found.files, found.shards), args.file or reference.path, reference.tag)
    order = make_order(found, choice, models_folder())
    if args.to is not None:
        order = type(order)(order.repository, order.revision, choice, args.to.expanduser().absolute())
    if args.list:
        return _list(found, choice, order.folder, args.json)
    if found.blocked is not None:
        page = f" ({found.blocked.page})" if found.blocked.page else ""
        raise UserError(found.blocked.message, f"{found.blocked.hint.rstrip('.')}{page}; HF_TOKEN holds a token.")
    if not args.json:
        there = bytes_there(order)
        begun = f", {format_bytes(there)} of it there already" if there else ""
        print(f"{found.name}, {choice.title}: {format_bytes(choice.bytes)}{begun}; to {order.folder}", file=sys.stderr)
    path = _followed(fetch(order, access, token), quiet=args.json)
    if args.json:
        show({"path": str(path), "repository": found.name, "revision": order.revision, "bytes": choice.bytes})
    else:
        print(path)
    return 0


def _followed(job: Generator[DownloadProgress, None, Path], quiet: bool) -> Path:
    told = 0.0
    while True:
        try:
            step = next(job)
        except StopIteration as stop:
            return stop.value
        if not quiet and time.monotonic() - told >= EVERY:
            told = time.monotonic()
            print(f"  {progress_text(step)}", file=sys.stderr, flush=True)


def _reference(args: argparse.Namespace, endpoint: str) -> Reference:
    from dataclasses import replace

    from core.hub.problems import HubError, Kind
    from core.hub.reference import parse_reference

    reference = parse_reference(args.repository, endpoint, bare=True)
    if reference is None:
        raise HubError(
            Kind.NAME, f"'{args.repository}' is no name of a repository.", "Write OWNER/NAME, as its page shows it."
        )
    return replace(reference, revision=args.revision) if args.revision else reference


def _list(found: Repository, choice: Choice, folder: Path, as_json: bool) -> int:
    from core.cli_commands import show
    from core.disk import free_bytes
    from core.hub.files import choices, fates

    told = fates(found.files, choice)
    titles = [c.title for c in choices(found.files, found.shards)]
    if as_json:
        files = [{"name": t.file.name, "bytes": t.file.bytes, "fetched": t.fetched, "reason": t.reason} for t in told]
        show({"repository": found.name, "revision": found.commit or found.revision, "licence": found.licence,
              "gated": found.gated, "choices": titles, "choice": choice.title, "bytes": choice.bytes,
              "free": free_bytes(folder), "folder": str(folder), "files": files})  # fmt: skip
        return 0
    gated = ", gated" if found.gated else ""
    print(f"{found.name} at {found.commit or found.revision}: licence {found.licence or 'not said'}{gated}")
    for t in told:
        size = format_decimal(t.file.bytes) if t.file.bytes >= 0 else "unknown"
        print(f"  {'fetch' if t.fetched else '  –  '}  {size:>10}  {t.file.name}  ({t.reason})")
    print(f"{choice.title}: {format_bytes(choice.bytes)}; {format_bytes(max(free_bytes(folder), 0))} free on {folder}")
    if len(titles) > 1:
        print(f"Also there: {', '.join(t for t in titles if t != choice.title)} (--file NAME, or OWNER/NAME:TAG)")
    return 0


def progress_text(step: DownloadProgress) -> str:
    """One line: '12 % · 3 of 7 files · 45.00 MB of 360.00 MB · 12.30 MB/s · 25.6 s left'."""
    if step.phase == "checking":
        return f"checking {step.file}, which is there already"
    parts = [
        format_percent(step.share, 0),
        f"{step.files_done} of {step.files} files",
        f"{format_decimal(step.bytes_done)} of {format_decimal(step.bytes_total)}",
    ]
    if step.note:
        parts.append(step.note)
    elif step.rate is not None:
        parts.append(format_rate(step.rate))
        if step.seconds_left is not None:
            parts.append(f"{format_duration(step.seconds_left)} left")
    return " · ".join(parts)


def models(args: argparse.Namespace, token: CancelToken) -> int:
    """What is here, with what has been begun; or what a hub finds."""
    from core.checkpoint.library import local_models
    from core.cli_commands import show
    from core.hub.access import models_folder
    from core.hub.download import unfinished

    if args.search:
        return _search(args, token)
    folder = models_folder()
    found, begun = local_models(folders=[folder]), unfinished(folder)
    if args.json:
        rows = [asdict(m) | {"path": str(m.path)} for m in found]
        show({"models": rows, "unfinished": [asdict(u) | {"folder": str(u.folder)} for u in begun]})
        return 0
    for m in found:
        lacking = f"  ({m.missing} of its weight files are missing)" if m.missing else ""
        print(f"{format_decimal(m.bytes):>10}  {m.name}  [{m.origin}]  {m.path}{lacking}")
    for u in begun:
        there = f"{format_decimal(u.bytes_done)} of {format_decimal(u.bytes_total)}"
        print(f"unfinished: {u.repository}, {u.title}, {there}: bitsmith download {u.repository} --file {u.file}")
    if not found and not begun:
        print(f"None in {folder}, nor in the folders of Hugging Face, LM Studio, Ollama and llama.cpp.")
    return 0


def _search(args: argparse.Namespace, token: CancelToken) -> int:
    from core.cli_commands import show
    from core.hub.access import find_access
    from core.hub.listing import search

    found = search(args.search, find_access(current().endpoint, current().offline), token)
    if args.json:
        show({"found": [asdict(f) for f in found]})
        return 0
    for f in found:
        gated = ", gated" if f.gated else ""
        print(f"{f.repository}  ({f.licence or 'licence not said'}, {format_count(f.downloads)} downloads{gated})")
    if not found:
        print(f"No model on the hub has '{args.search}' in its name.")
    return 0


COMMANDS = {"download": download, "models": models}
