"""The scripts of packaging/ import each other by name; the folder is no package (see its README)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "packaging"))
