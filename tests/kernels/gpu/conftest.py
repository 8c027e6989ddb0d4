"""Runs the programs beside this file, in which kernels run under Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def interpreted() -> Callable[..., list[dict[str, Any]]]:
    """The lines that a program of this folder tells."""

    @cache
    def run(name: str, *arguments: str) -> list[dict[str, Any]]:
        places = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr[-3000:]
        return [json.loads(line) for line in told.stdout.splitlines()]

    return run
