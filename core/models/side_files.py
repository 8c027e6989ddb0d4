"""Small text files beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    text = read_text(path)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is not valid JSON.", "Download the file again from the model's page.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path.name} does not hold a JSON object.", "Download the file again from the model's page.")
    return value
