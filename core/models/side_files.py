"""Small text files beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.checkpoint import folder
from core.errors import UserError


def read_text(path: Path) -> str:
    """The file's text, '' when there is none. Raises UserError when it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} can not be read.", "Download the file again from the model's page.") from error


def read_json(path: Path) -> dict[str, Any]:
    """The file's object, {} when there is none. Raises UserError when it is not JSON or no object."""
    return folder.read_json(path, required=False)
