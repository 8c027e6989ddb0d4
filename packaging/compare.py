"""Build the program a second time and compare it with the first, file by file: `make installer-again`."""

from __future__ import annotations

import argparse
import fnmatch
import sys

import description as d

import build


def main(argv: list[str] | None = None) -> int:
    """0 when all files have the same bytes, but for the exceptions that description.py names with their reasons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=sorted(d.FLAVOURS), default="cpu")
    parser.add_argument("--keep-environment", action="store_true", help="freeze again from the same environment")
    arguments = parser.parse_args(argv)
    first = d.ROOT / "build" / "installer" / arguments.flavour / "FILES.sha256"
    if not first.exists():
        raise SystemExit("There is no first build to compare with. Run 'make installer' first.")
    before = first.read_text(encoding="utf-8")
    keep = ["--keep-environment"] if arguments.keep_environment else []
    build.main(["--flavour", arguments.flavour, "--program-only", *keep])
    after = first.read_text(encoding="utf-8")
    changed = differences(before, after)
    unexpected = [name for name in changed if not any(fnmatch.fnmatch(name, p) for p in d.NOT_REPRODUCIBLE)]
    build.say(f"{len(after.splitlines())} files; {len(changed)} differ, of which {len(unexpected)} are not expected to")
    for name in unexpected:
        build.say(f"  {name}")
    return 1 if unexpected else 0


def differences(before: str, after: str) -> list[str]:
    """Names that are in one list only, or with other hashes."""
    old, new = _read(before), _read(after)
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _read(listed: str) -> dict[str, str]:
    pairs = (line.partition("  ") for line in listed.splitlines())
    return {name: digest for digest, _, name in pairs}


if __name__ == "__main__":
    sys.exit(main())
