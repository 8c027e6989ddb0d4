"""`bitsmith guide`: the user's guide as text, a page or a section of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from core.errors import UserError
from core.guide import PAGES, page, section, sections
from core.progress import CancelToken


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add `guide`."""
    guide = command("guide", "Show a page of the user's guide; without a name, list them.")
    guide.add_argument("page", nargs="?", default="", metavar="PAGE[#SECTION]", help="such as first-conversion")


def _guide(args: argparse.Namespace, _token: CancelToken) -> int:
    name, _, anchor = args.page.partition("#")
    if not name:
        if args.json:
            print(json.dumps({"pages": PAGES}))
            return 0
        width = max(map(len, PAGES))
        print("\n".join(f"  {key:<{width}}  {title}" for key, title in PAGES.items()))
        return 0
    if name not in PAGES:
        raise UserError(f"The guide has no page '{name}'.", "bitsmith guide lists its pages.")
    text = page(name)
    if anchor:
        found = section(text, anchor)
        if not found:
            raise UserError(f"The page {name} has no section '{anchor}'.", f"It has: {', '.join(sections(text))}.")
        text = found
    print(json.dumps({"page": name, "markdown": text}) if args.json else text.rstrip())
    return 0


COMMANDS = {"guide": _guide}
