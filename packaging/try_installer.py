"""Test what was built, not the tree: `python packaging/try_installer.py dist` (Linux; Xvfb must be at hand).

The archive is unpacked and installed by another user (as root; else by oneself) in a folder whose name has spaces,
Cyrillic and Chinese letters, with an empty environment. As root and with debootstrap, the .deb is installed in a
minimal Debian of its own (try_debian.py). Pictures of the window and a report go to build/installer/tried.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import description as d
from screen import screen

FOLDER = "Bitsmith test, проба и 试验"
FIRST_PAINT_SECONDS = 3.0
NOBODY = 65534
SAMPLE = "SmolLM2-135M-Instruct-Q4_1.gguf"


class Trial:
    """Runs the installed program as a user with nothing in the environment, and keeps a report."""

    def __init__(self, program: Path, home: Path, pictures: Path) -> None:
        self.program, self.home, self.pictures = program, home, pictures
        self.report: list[str] = []

    def say(self, line: str) -> None:
        self.report.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def environment(self, **more: str) -> dict[str, str]:
        return {"HOME": str(self.home), **more}

    def command(self, *words: str, **environment: str) -> list[str]:
        """What is run: the words with an environment of HOME and the given ones only."""
        settings = [f"{key}={value}" for key, value in self.environment(**environment).items()]
        return ["/usr/bin/env", "-i", "-C", str(self.home), *settings, *words]

    def outside(self, path: Path) -> Path:
        """Where a path of the trial's system is on this one."""
        return path

    def identity(self) -> dict[str, object]:
        return user()

    def installed(self) -> Path:
        """The program's folder, as the trial's system names it."""
        link = self.outside(self.program)
        return self.program.parent / link.readlink().parent

    def run(self, *words: str | Path, before: tuple[str, ...] = (), program: Path | None = None, **more: str) -> str:
        """A command of the program; its output. Ends the trial when it fails."""
        command = self.command(*before, str(program or self.program), *map(str, words), **more)
        done = subprocess.run(command, cwd="/", capture_output=True, timeout=1800, check=False, **self.identity())  # type: ignore[call-overload]
        output = done.stdout.decode("utf-8")
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{output}\n{done.stderr.decode()}")
        return output


Job = Callable[[Trial], None]


def user() -> dict[str, object]:
    """As root: another user, who owns nothing here."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, nargs="?", default=d.ROOT / "dist")
    parser.add_argument("--flavour", choices=sorted(d.FLAVOURS), default="cpu")
    parser.add_argument("--only", choices=("archive", "deb"), help="one of the two")
    parser.add_argument("--clicks", action="store_true", help="only click through the window, with xdotool")
    parser.add_argument("--pictures", type=Path, default=d.ROOT / "build" / "installer" / "tried")
    arguments = parser.parse_args(argv)
    package = d.FLAVOURS[arguments.flavour].package
    check_sums(arguments.dist)
    report: list[str] = []
    job: Job = use
    if arguments.clicks:
        import clicks

        job = clicks.use
    if arguments.only != "deb":
        (archive,) = arguments.dist.glob(f"{package}-{d.VERSION}-linux-*.tar.gz")
        report += try_archive(archive, arguments.pictures, job)
    if arguments.only != "archive":
        import try_debian

        (deb,) = arguments.dist.glob(f"{package}_{d.VERSION}_*.deb")
        report += try_debian.try_deb(deb, arguments.pictures, job)
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    (arguments.pictures / "report.txt").write_text("\n".join(report) + "\n", encoding="utf-8")
    return 0


def check_sums(dist: Path) -> None:
    """What a user would do first."""
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)


def try_archive(archive: Path, pictures: Path, job: Job) -> list[str]:
    """Unpack, install, use, uninstall, and look at what is left."""
    base = Path(tempfile.mkdtemp(prefix="installer-"))
    try:
        base.chmod(0o755)
        place = base / FOLDER
        place.mkdir()
        home = place / "home"
        home.mkdir()
        if os.geteuid() == 0:
            os.chown(place, NOBODY, NOBODY)
            os.chown(home, NOBODY, NOBODY)
        plain = {"env": {"HOME": str(home), "PATH": "/usr/bin:/bin"}, "check": True, **user()}
        subprocess.run(["tar", "-xf", str(archive.resolve()), "-C", str(place)], **plain)  # type: ignore[call-overload]
        unpacked = place / archive.name.removesuffix(".tar.gz")
        prefix = place / "my programs"
        # Installing twice is an update.
        for _ in range(2):
            subprocess.run(["sh", str(unpacked / "install.sh"), "--prefix", str(prefix)], **plain)  # type: ignore[call-overload]
        shutil.rmtree(unpacked)
        trial = Trial(prefix / "bin" / d.NAME, home, pictures / "archive")
        trial.say(f"{archive.name}, installed in '{FOLDER}', as {'user nobody' if user() else 'this user'}")
        job(trial)
        entry = (prefix / "share" / "applications" / f"{d.NAME}.desktop").read_text(encoding="utf-8")
        assert f'Exec="{prefix.resolve()}/lib/{d.NAME}/{d.NAME}" %f' in entry, entry
        subprocess.run(["sh", str(prefix / "lib" / d.NAME / "uninstall.sh")], **plain)  # type: ignore[call-overload]
        left = sorted(str(p.relative_to(place)) for p in place.rglob("*") if home not in p.parents and p != home)
        if [name for name in left if name != "my programs"]:
            raise SystemExit(f"Uninstalling left {left}.")
        own = sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file())
        trial.say(f"uninstalled: nothing is left of the program; the user's own files stay: {', '.join(own)}")
        return trial.report
    finally:
        shutil.rmtree(base, ignore_errors=True)


def use(trial: Trial) -> None:
    """The program's main jobs, without and with a window."""
    version = trial.run("--version").strip()
    assert version == f"{d.NAME} {d.VERSION}", version
    locales = {"C": {"LC_ALL": "C"}, "tr_TR.UTF-8": turkish(trial)}
    for name, settings in locales.items():
        answer = json.loads(trial.run("check", "--json", **settings))
        states = {c["name"]: c["state"] for c in reversed(answer["checks"])}  # the first of a name is the best
        assert states["Compiled kernels"] == states["Instruction sets"] == "green", answer
        trial.say(f"check --json with {name}: {len(json.dumps(answer))} characters")
    sample = trial.installed() / "_internal" / "resources" / "sample" / SAMPLE
    models = trial.home / "модели 模型"
    make_folder(trial.outside(models))
    for name, settings in locales.items():
        made = models / f"{name}.gguf"
        trial.run("convert", sample, "--to", "Q4_K_M", "-o", made, **settings)
        trial.say(f"convert to Q4_K_M with {name}: {trial.outside(made).stat().st_size} bytes")
    first, second = (trial.outside(models / f"{name}.gguf").read_bytes() for name in locales)
    assert first == second, "The two locales gave different files."
    trial.run("verify", made, "--source", sample, "--to", "Q4_K_M")
    answer = trial.run("generate", made, "--prompt", "The capital of France is", "--max-tokens", "16").strip()
    assert len(answer.split()) > 3, answer
    trial.say(f"generate: The capital of France is {answer.splitlines()[0]}")
    with_torch(trial, sample, models)
    without_avx512(trial, sample)
    window(trial, sample)


def turkish(trial: Trial) -> dict[str, str]:
    """Settings for Turkish, whose i has no dot when it is small; the locale is made where there is none."""
    place = trial.home / ".locales"
    make_folder(trial.outside(place))
    if shutil.which("localedef") and Path("/usr/share/i18n/locales/tr_TR").exists():
        target = trial.outside(place) / "tr_TR.UTF-8"
        # 1: made, with warnings.
        subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", str(target)], check=False, capture_output=True)
    else:
        trial.say("not tried: Turkish letters (no localedef here); only the name of the locale is given")
    return {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "LOCPATH": str(place)}


def make_folder(folder: Path) -> None:
    """A folder that belongs to whom its parent does."""
    folder.mkdir()
    owner = folder.parent.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)


def with_torch(trial: Trial, sample: Path, models: Path) -> None:
    """A text through the model, block by block, which is torch's work."""
    out = models / "importance.gguf"
    trial.run("imatrix", sample, "-o", out, "--samples", "2", "--length", "64")
    trial.say(f"imatrix (through torch): {trial.outside(out).stat().st_size} bytes")


def without_avx512(trial: Trial, sample: Path) -> None:
    """Under qemu's model of a Haswell: AVX2, no AVX-512. qemu stands outside, so only the archive is tried so."""
    if type(trial) is not Trial:
        return
    if shutil.which("qemu-x86_64") is None or os.uname().machine != "x86_64":
        trial.say("not tried: a processor without AVX-512 (qemu-user is not installed)")
        return
    home = trial.installed().resolve()
    # The starter would run itself again, outside qemu; this tells it that it has.
    started = {
        "_PYI_PARENT_PROCESS_LEVEL": "0",
        "_PYI_ARCHIVE_FILE": str(home / d.NAME),
        "_PYI_APPLICATION_HOME_DIR": str(home / "_internal"),
        "LD_LIBRARY_PATH": str(home / "_internal"),
    }
    qemu = ("qemu-x86_64", "-cpu", "Haswell")
    # The instruction sets that the kernels found usable; qemu shows the real processor's list in /proc/cpuinfo.
    checks = json.loads(trial.run("check", "--json", before=qemu, program=home / d.NAME, **started))["checks"]
    kernels = " ".join(c["sentence"] for c in checks if "compiled kernels" in c["name"].lower())
    assert "avx2" in kernels, kernels
    assert "avx512" not in kernels, kernels
    out = trial.home / "haswell.gguf"
    # One block only: each instruction takes some fifty times as long.
    words = ["convert", sample, "--to", "Q8_0", "-o", out, "--keep", r"blk\.([1-9]|..)\.", "--keep", "token_embd"]
    trial.run(*words, before=qemu, program=home / d.NAME, **started)
    trial.say(f"on qemu's Haswell (AVX2, no AVX-512): check; convert of a block to Q8_0, {out.stat().st_size} bytes")


def window(trial: Trial, sample: Path) -> None:
    """Start it on an empty screen; measure the first picture, the second time also with warm caches; look at it."""
    times, work = [], []
    with screen() as virtual:
        for number in range(3):
            words = [str(trial.program), *([str(sample)] if number == 2 else [])]
            command = trial.command(*words, DISPLAY=virtual.display)
            process = subprocess.Popen(command, cwd="/", **trial.identity())  # type: ignore[call-overload]
            try:
                seconds = virtual.wait(60, process)
                if seconds is None:
                    raise SystemExit(f"No window appeared; the program ended with {process.poll()}.")
                times.append(seconds)
                work.append(processor_seconds(process.pid))
                time.sleep(8)
                assert process.poll() is None, "The window closed by itself."
                name = "model" if number == 2 else f"start-{number + 1}"
                picture = virtual.save(trial.pictures / f"{name}.png")
                trial.say(f"window: first picture after {seconds:.2f} s, {work[-1]:.2f} s of work; {picture}")
            finally:
                process.terminate()
                process.wait(30)
            time.sleep(0.5)
    if min(times) > FIRST_PAINT_SECONDS:
        raise SystemExit(
            f"The first picture took {min(times):.2f} s at best, {min(work):.2f} s of them work; it may take "
            f"{FIRST_PAINT_SECONDS} s. With other programs at work, try again without them."
        )


def processor_seconds(pid: int) -> float:
    """What a process has had of the processors, all threads together (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
