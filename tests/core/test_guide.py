"""The user's guide: its pages, links and pictures are there, and every error leads to a section of it."""

from __future__ import annotations

import ast
import io
import re
import sys
import tomllib
from pathlib import Path

import pytest

from core import guide
from core.cli import main
from core.errors import UserError
from core.hub.problems import HubError, Kind
from core.targets import find_target

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "guide"
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def test_every_page_is_listed_and_has_its_title() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(guide.PAGES)
    for name, title in guide.PAGES.items():
        assert guide.page(name).startswith(f"# {title}\n"), name


@pytest.mark.parametrize("name", guide.PAGES)
def test_links_and_pictures_lead_somewhere(name: str) -> None:
    for is_picture, target in LINK.findall(guide.page(name)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        if is_picture:
            assert guide.picture(path), target
            continue
        page = path.removesuffix(".md") or name
        assert page in guide.PAGES, target
        assert not anchor or anchor in guide.sections(guide.page(page)), target


def test_no_picture_lies_about_unused() -> None:
    shown = {path for name in guide.PAGES for mark, path in LINK.findall(guide.page(name)) if mark}
    kept = {f"images/{path.name}" for path in FOLDER.glob("images/*") if not path.stem.endswith("-dark")}
    assert kept == shown
    assert {f"images/{path.name.replace('-dark', '')}" for path in FOLDER.glob("images/*-dark.png")} == shown


def test_the_glossary_is_the_program_s_own() -> None:
    # Write it anew: python -c 'from core import guide; print(guide.glossary_page(), end="")' > docs/guide/glossary.md
    assert (FOLDER / "glossary.md").read_text(encoding="utf-8") == guide.glossary_page()


def _made_errors() -> list[tuple[str, str | None]]:
    """(module, topic given or None) of every place in the program that makes a UserError."""
    found = []
    for package in ("app", "core", "kernels"):
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UserError":
                    given = [k.value.value for k in node.keywords if k.arg == "topic" and _constant(k.value)]
                    found.append((module, given[0] if given else None))
    return found


def _constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def test_every_error_leads_to_a_section_about_trouble() -> None:
    made = _made_errors()
    assert len(made) > 400
    sections = guide.sections(guide.page(guide.TROUBLE))
    for module, topic in made:
        assert (topic or guide.topic_of(module)) in sections, f"{module}: {topic}"
    assert {*guide.TOPICS.values(), guide.INSIDE} <= set(sections)
    assert {HubError(kind, "a", "b").topic for kind in Kind} <= set(sections)


def test_no_topic_is_left_over() -> None:
    modules = {module for module, _ in _made_errors()}
    for name in guide.TOPICS:
        assert any(m == name or m.startswith((f"{name}.", f"{name}_")) for m in modules | {"core.hub"}), name


def test_an_error_takes_the_topic_of_its_module() -> None:
    with pytest.raises(UserError) as caught:
        find_target("no-such-target")
    assert caught.value.topic == "recipe"
    assert UserError("a", "b", topic="output").topic == "output"
    assert UserError("a").topic == ""  # this test is no part of the program
    assert guide.topic_of("core.runtime.tokenizer.text") == "tokenizer"
    assert guide.topic_of("core.run") == "output" != guide.topic_of("core.runtime.load")


def test_sections() -> None:
    text = "# A\n\nx\n\n## B c, d!\n\ny\n\n### e\n\nz\n\n## f\n\nw\n"
    assert guide.sections(text) == {"a": "A", "b-c-d": "B c, d!", "e": "e", "f": "f"}
    assert guide.section(text, "b-c-d") == "## B c, d!\n\ny\n\n### e\n\nz"
    assert guide.section(text, "none") == ""


def test_the_guide_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide"]) == 0
    assert "first-conversion  First conversion" in capsys.readouterr().out
    assert main(["guide", "trouble#output"]) == 0
    assert capsys.readouterr().out.startswith("## Output\n")
    assert main(["guide", "trouble#nothing"]) == 1
    assert "no section" in capsys.readouterr().err
    assert main(["guide", "nothing"]) == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_told_where_there_is_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal())
    assert main(["info", str(tmp_path / "none.gguf")]) == 1
    assert sys.stderr.getvalue().endswith("More: bitsmith guide trouble#opening\n")  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main(["info", str(tmp_path / "none.gguf")]) == 1
    assert "More:" not in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_the_guide_goes_into_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["scikit-build"]["wheel"]["packages"]["resources/guide"] == "docs/guide"
