"""From the start to a converted model that answers, by mouse alone: `python packaging/try_installer.py --clicks`.

Starting it from the menu is the first of six clicks; the others are below. The window is asked where each control is
(BITSMITH_CONTROLS, app/controls.py), so that a change of the layout does not matter.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import try_installer as t
from screen import Screen, screen

READY_SECONDS = 180  # until a control can be used: models are opened and files are made meanwhile


@dataclass(frozen=True)
class Click:
    """picture: its name. control: what a screen reader calls it. role: 'primary', 'nav' or 'QPushButton'. seconds: how
    long its work may take.
    """

    picture: str
    control: str
    role: str
    seconds: float


STEPS = (
    Click("sample", "Try the sample model", "QPushButton", 60),
    Click("choose-a-format", "Choose a format", "primary", 30),
    Click("convert", "Convert", "primary", 180),
    Click("test", "Test", "nav", 30),
    Click("generate", "Generate", "primary", 180),
)


def use(trial: t.Trial) -> None:
    """Click, save a picture after each click and one when its work is over; ends the trial without a result."""
    if shutil.which("xdotool") is None:
        raise SystemExit("The clicks need xdotool.")
    told = trial.home / ".controls.json"
    places = trial.outside(told)
    with screen() as virtual:
        process = subprocess.Popen(
            trial.command(str(trial.program), DISPLAY=virtual.display, BITSMITH_CONTROLS=str(told)),
            cwd="/",
            **trial.identity(),
        )  # type: ignore[call-overload]
        try:
            if virtual.wait(60, process) is None:
                raise SystemExit("No window appeared.")
            settle(virtual, 20)
            virtual.save(trial.pictures / "click-1-start.png")
            for number, step in enumerate(STEPS, 2):
                x, y = wait_for(places, step, process)
                words = ["xdotool", "mousemove", str(x), str(y), "click", "1"]
                subprocess.run(words, check=True, env={**os.environ, "DISPLAY": virtual.display})
                settle(virtual, step.seconds)
                virtual.save(trial.pictures / f"click-{number}-{step.picture}.png")
            assert process.poll() is None, "The window closed by itself."
        except SystemExit:
            virtual.save(trial.pictures / "click-failed.png")
            raise
        finally:
            process.terminate()
            process.wait(30)
            places.unlink(missing_ok=True)
    made = [p for p in trial.outside(trial.home).glob("SmolLM2-135M-Instruct-*.gguf") if ".partial" not in p.name]
    if not made:
        raise SystemExit(f"The clicks made no file; look at the pictures in {trial.pictures}.")
    trial.say(f"six clicks, from the start to an answer: {made[0].name}, {made[0].stat().st_size} bytes")


def find(controls: Sequence[dict[str, Any]], step: Click) -> tuple[int, int] | None:
    """Where a step's control is, once it can be used. What its name says behind, such as a format, may be any."""
    for c in controls:
        if c["role"] == step.role and c["enabled"] and re.match(re.escape(step.control) + r"\b", c["name"]):
            return c["x"], c["y"]
    return None


def wait_for(places: Path, step: Click, process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Where to click; ends the trial when there is nothing of that name."""
    end, controls = time.monotonic() + READY_SECONDS, []
    while time.monotonic() < end and process.poll() is None:
        if places.exists():
            controls = json.loads(places.read_text(encoding="utf-8"))
            if place := find(controls, step):
                return place
        time.sleep(0.2)
    names = ", ".join(
        sorted({f"{c['name']} ({c['role']})" for c in controls if c["role"] in ("primary", "QPushButton", "nav")})
    )
    raise SystemExit(f"There is no '{step.control}' ({step.role}) to click; there are: {names or 'none'}.")


def settle(virtual: Screen, seconds: float) -> None:
    """Wait until the picture has not changed for six seconds, but for a cursor that blinks, or so long."""
    end, still, last = time.monotonic() + seconds, time.monotonic(), b""
    while time.monotonic() < end and time.monotonic() - still < 6:
        _, _, now = virtual.read()
        if len(last) != len(now) or sum(a != b for a, b in zip(last[::4], now[::4], strict=True)) > 60:
            still, last = time.monotonic(), now
        time.sleep(0.25)
