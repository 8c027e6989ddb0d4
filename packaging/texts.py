"""Print every text of the window that can be translated, as a file of Qt Linguist (.ts).

python packaging/texts.py de > bitsmith_de.ts; translate it in Qt Linguist; pyside6-lrelease bitsmith_de.ts -qm
resources/languages/bitsmith_de.qm. Taken are the constant texts that are handed to the functions of app/widgets which
say them (app/language.py), the window's commands, and the glossary.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
# Functions that say what they are given, and their named arguments that are texts, too.
SAYING = ("say", "label", "button", "quiet_button", "PrimaryButton", "number_box", "Card", "EmptyState", "ActionSpec",
          "Way", "add_below")  # fmt: skip
NAMED = ("hint", "text", "title", "suffix")


def texts(root: Path = ROOT) -> list[str]:
    """All of them, in the order of the files, each once."""
    found: dict[str, None] = {}
    for path in sorted((root / "app").rglob("*.py")):
        found |= dict.fromkeys(_said(ast.parse(path.read_text(encoding="utf-8"))))
    terms = json.loads((root / "resources" / "glossary.json").read_text(encoding="utf-8"))["terms"]
    return [*found, *(text for text in terms.values() if text not in found)]


def _said(tree: ast.AST) -> Iterator[str]:
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in SAYING:
            for value in (*node.args, *(k.value for k in node.keywords if k.arg in NAMED)):
                value = constants.get(value.id, value) if isinstance(value, ast.Name) else value
                text = value.value if isinstance(value, ast.Constant) else None
                if isinstance(text, str) and (" " in text.strip() or text[:1].isupper()):
                    yield text


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def linguist(language: str, found: list[str]) -> str:
    """The texts as Qt Linguist reads them, none translated yet."""
    messages = "\n".join(
        f'    <message><source>{escape(text)}</source><translation type="unfinished"></translation></message>'
        for text in found
    )
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE TS>\n<TS version="2.1" language="{language}">\n'
        f"<context>\n    <name>Bitsmith</name>\n{messages}\n</context>\n</TS>\n"
    )


if __name__ == "__main__":
    sys.stdout.write(linguist(sys.argv[1] if len(sys.argv) > 1 else "en", texts()))
