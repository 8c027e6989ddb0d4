"""Print what the named extras of pyproject.toml ask for, one requirement a line: no rebuild is needed for them."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
sys.stdout.writelines(f"{line}\n" for name in sys.argv[1:] for line in project["optional-dependencies"][name])
