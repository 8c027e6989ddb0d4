"""A hundred thousand calls into Qt leave the interpreter alive, whatever PySide6 does with None."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import app
from PySide6.QtGui import QFont, QGuiApplication
application = QGuiApplication([])
font = QFont("Inter")
for _ in range(100_000):
    font.setPixelSize(13)
print("alive")
"""


def test_many_calls_without_a_result_do_not_end_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "alive", done.stderr
