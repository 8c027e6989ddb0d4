"""From the start to a converted model that answers, by mouse alone: `python packaging/try_installer.py --clicks`.

Starting it from the menu is the first of six clicks; the others are below. The positions are those of the window at
1100 × 700, and change with it: the pictures tell, and so does the converted file, when it is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import try_installer as t
from screen import Screen, screen

# What is clicked, where, and how long its work may take.
STEPS = (
    ("sample", 780, 257, 60),
    ("choose-a-format", 995, 65, 15),
    ("convert", 995, 65, 120),
    ("test", 63, 218, 15),
    ("generate", 1017, 56, 90),
)


def use(trial: t.Trial) -> None:
    """Click, save a picture after each click and one when its work is over; ends the trial without a result."""
    if shutil.which("xdotool") is None:
        raise SystemExit("The clicks need xdotool.")
    with screen() as virtual:
        process = subprocess.Popen(
            trial.command(str(trial.program), DISPLAY=virtual.display), cwd="/", **trial.identity()
        )  # type: ignore[call-overload]
        try:
            if virtual.wait(60, process) is None:
                raise SystemExit("No window appeared.")
            settle(virtual, 20)
            virtual.save(trial.pictures / "click-1-start.png")
            for number, (name, x, y, seconds) in enumerate(STEPS, 2):
                words = ["xdotool", "mousemove", str(x), str(y), "click", "1"]
                subprocess.run(words, check=True, env={**os.environ, "DISPLAY": virtual.display})
                settle(virtual, seconds)
                virtual.save(trial.pictures / f"click-{number}-{name}.png")
            assert process.poll() is None, "The window closed by itself."
        finally:
            process.terminate()
            process.wait(30)
    made = [p for p in trial.outside(trial.home).glob("SmolLM2-135M-Instruct-*.gguf") if ".partial" not in p.name]
    if not made:
        raise SystemExit(f"The clicks made no file; look at the pictures in {trial.pictures} and renew STEPS.")
    trial.say(f"six clicks, from the start to an answer: {made[0].name}, {made[0].stat().st_size} bytes")


def settle(virtual: Screen, seconds: float) -> None:
    """Wait until the picture has not changed for six seconds, but for a cursor that blinks, or so long."""
    end, still, last = time.monotonic() + seconds, time.monotonic(), b""
    while time.monotonic() < end and time.monotonic() - still < 6:
        _, _, now = virtual.read()
        if len(last) != len(now) or sum(a != b for a, b in zip(last[::4], now[::4], strict=True)) > 60:
            still, last = time.monotonic(), now
        time.sleep(0.25)
