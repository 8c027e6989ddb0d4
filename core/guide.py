"""The user's guide: where its pages are, what they are called, and which section says more about an error."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from resources import glossary

TROUBLE = "trouble"  # the page with a section for each kind of error
# Page (a file NAME.md) → its title in lists, in reading order.
PAGES = {
    "index": "What this is",
    "install": "Install",
    "first-conversion": "First conversion",
    "formats": "Reading the matrix",
    "runtimes": "Which program will run it",
    "histogram": "Reading the histogram",
    "outliers": "Outliers and remedies",
    "methods": "Methods from data",
    "budget": "Mixed sizes by budget",
    "converting": "Converting, pausing, resuming",
    "quality": "The quality verdict",
    "speed": "Speed and batch sweep",
    "cache": "The KV cache",
    "hub": "Models from a hub",
    "settings": "Settings and privacy",
    "reliability": "When things go wrong midway",
    "trouble": "Trouble",
    "glossary": "Glossary",
}
# Beginning of a module's name → the section of the page about trouble; the longest beginning decides.
TOPICS = {
    "core.checkpoint": "opening",
    "core.checkpoint.pytorch": "pytorch",
    "core.checkpoint.safetensors": "damaged",
    "core.checkpoint.gguf": "damaged",
    "core.checkpoint.gguf_header": "damaged",
    "core.packed": "already-quantized",
    "core.models": "architecture",
    "core.models.tokenizer": "tokenizer",
    "core.models.pre_tokenizer": "tokenizer",
    "core.runtime.tokenizer": "tokenizer",
    "core.recipe": "recipe",
    "core.targets": "recipe",
    "core.formats": "recipe",
    "core.hardware": "recipe",
    "core.assign": "blocks",
    "core.plan": "blocks",
    "core.placement": "blocks",
    "core.export": "export",
    "core.blocks": "values",
    "core.calibrate": "values",
    "core.run": "output",
    "core.disk": "output",
    "core.output": "output",
    "core.journal": "resume",
    "core.verify": "verify",
    "core.calibration": "calibration",
    "core.methods": "calibration",
    "core.methods.choice": "recipe",
    "core.methods.scratch": "output",
    "core.budget": "budget",
    "core.inspect": "inspect",
    "core.kv": "running",
    "core.runtime": "running",
    "core.runtime.device": "gpu",
    "core.runtime.speed": "speed",
    "core.runtime.sweep": "speed",
    "core.runtime.results": "speed",
    "core.verdict": "verdict",
    "core.hub": "hub",
    "core.sample": "hub",
    "core.cli": "command",
    "app.ahead": "inside",
    "app.jobs.opening": "opening",
    "app.jobs.inspect_more": "inspect",
    "app.jobs.budget": "budget",
    "app.jobs.testing_core": "running",
    "app.jobs.testing_cache": "running",
    "app.jobs.testing_quality": "verdict",
    "app.pages.convert": "output",
    "app.pages.recipe": "recipe",
    "app.pages.test": "verdict",
    "app.pages.test.sweep": "speed",
}
INSIDE = "inside"  # errors that nobody foresaw
# What quantities are measured in; the glossary's first section.
UNITS = (
    ("kB, MB, GB", "Powers of 1000 bytes: 1 GB is 10⁹ bytes. Disks are sold in these."),
    ("KiB, MiB, GiB", "Powers of 1024 bytes: 1 GiB is 2³⁰ bytes, 7 % more. Memory is built in these."),
    ("bits per weight", "All bytes of the file × 8 ÷ the number of weights. 16 before, 4 to 6 after is usual."),
    ("dB", "20 dB of SNR is an error of a tenth of the weights' size, 30 dB a thirtieth, 40 dB a hundredth."),
    ("tokens/s", "Pieces of words a second. A person reads 5 to 7; 15 feels quick."),
    ("nats", "What KL divergence is counted in; 1 nat is 1.44 bits. 0.01 is hard to notice, 0.5 is another model."),
    ("weight units", "The numbers of the model themselves have no unit; an error of 0.01 is 0.01 of such a number."),
    ("GB/s", "How many GB a device reads from its memory in a second. It decides how quickly answers come."),
)


def topic_of(module: str) -> str:
    """The section about trouble for errors that a module makes; '' for a module of which nothing is said."""
    known = (name for name in TOPICS if module == name or module.startswith((f"{name}.", f"{name}_")))
    return TOPICS.get(max(known, key=len, default=""), "")


def folder() -> Traversable:
    """Where the pages are: in the installed program, or in the source's docs/."""
    packed = files("resources") / "guide"
    return packed if packed.is_dir() else Path(__file__).resolve().parents[1] / "docs" / "guide"


def page(name: str) -> str:
    """The Markdown of a page. Raises KeyError for a name that is none."""
    if name not in PAGES:
        raise KeyError(name)
    return (folder() / f"{name}.md").read_text(encoding="utf-8")


def picture(name: str) -> bytes | None:
    """A picture of the guide by its path from the pages' folder, such as 'images/matrix.png'; None without one."""
    path = folder().joinpath(*name.split("/"))
    return path.read_bytes() if path.is_file() else None


def slug(heading: str) -> str:
    """A heading as the part of an address behind '#', as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().casefold())
    return kept.replace(" ", "-")


def sections(markdown: str) -> dict[str, str]:
    """Slug → the heading's text, for every heading of a page."""
    found = re.findall(r"^#{1,6} +(.+?) *$", markdown, flags=re.MULTILINE)  # code is indented and has no such lines
    return {slug(text): text for text in found}


def section(markdown: str, anchor: str) -> str:
    """A heading and what stands under it, up to the next heading of its level or above; '' without such a heading."""
    lines = markdown.splitlines()
    level, taken = 0, []
    for text in lines:
        heading = re.match(r"(#{1,6}) +(.+?) *$", text)
        if heading and not level and slug(heading[2]) == anchor:
            level = len(heading[1])
        elif heading and level and len(heading[1]) <= level:
            break
        if level:
            taken.append(text)
    return "\n".join(taken).strip()


def address(topic: str) -> str:
    """Page and section for an error's topic: 'output' → 'trouble#output'; the page itself for none."""
    return f"{TROUBLE}#{topic}" if topic else TROUBLE


@cache
def glossary_page() -> str:
    """The page of all terms, from resources/glossary.json. docs/guide/glossary.md is this text."""
    lines = [
        f"# {PAGES['glossary']}",
        "",
        "Every technical term that the program shows. In the window the same words appear where the pointer rests.",
        "",
        "## Units",
        "",
        *(f"**{name}**: {text}\n" for name, text in UNITS),
        "Decimal and binary units are both shown and never mixed. A point is the decimal mark everywhere.",
    ]
    letter = ""
    for term, text in sorted(glossary().items(), key=lambda entry: entry[0].casefold()):
        first = term[0].upper() if term[0].isalpha() else "0–9"
        if first != letter:
            letter = first
            lines += ["", f"## {letter}"]
        lines += ["", f"**{term}**: {text}"]
    return "\n".join(lines) + "\n"
