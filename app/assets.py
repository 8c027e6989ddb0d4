"""Where the window's shipped files are. `resources` stands beside `app`, in the tree and in an installed package."""

from __future__ import annotations

from pathlib import Path

RESOURCES = Path(__file__).resolve().parent.parent / "resources"
FONTS = RESOURCES / "fonts"
ICONS = RESOURCES / "icons"
