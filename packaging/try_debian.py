"""The .deb on a fresh Debian 12 with nothing else: a minimal system of its own, made with debootstrap. Needs root.

Without root the package is unpacked below a folder and used from there, and the report says so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import description as d
import try_installer as t

RELEASE = "bookworm"
# In a mount namespace of the command's own, so that nothing stays mounted, whatever happens.
_INSIDE = "mount -t proc proc {root}/proc && mount -t tmpfs tmpfs {root}/dev/shm && exec chroot {user} {root} {words}"


def try_deb(deb: Path, pictures: Path, job: t.Job) -> list[str]:
    """Install with apt, use as a new user, purge, and compare the system with what it was."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        return unpacked(deb, pictures, job)
    base = Path(tempfile.mkdtemp(prefix="debian-"))
    base.chmod(0o755)
    root = base / "root"
    report = [f"{deb.name} on Debian {RELEASE}, minimal, with what its dependencies bring and no more"]
    try:
        bootstrap(root)
        shutil.copy2("/etc/resolv.conf", root / "etc" / "resolv.conf")
        keep_apt_settings(root)
        inside(root, "apt-get", "update", "-qq")
        before = listing(root)
        shutil.copy2(deb, root / "tmp" / deb.name)
        inside(root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", f"/tmp/{deb.name}")
        packages = inside(root, "dpkg-query", "-W", "-f", "${Package}\n").split()
        report.append(f"installed with apt: {len(packages)} packages in all")
        inside(root, "useradd", "--create-home", "--shell", "/bin/sh", "tester")
        trial = Guest(root, pictures / "debian")
        job(trial)
        report += trial.report
        inside(root, "apt-get", "purge", "-y", "-qq", deb.name.split("_")[0])
        inside(root, "apt-get", "autoremove", "--purge", "-y", "-qq")
        inside(root, "apt-get", "clean")
        left = sorted(p for p in listing(root) - before if not p.startswith(_APTS_OWN) and not p.startswith("/home/"))
        if [p for p in left if d.NAME in p]:
            raise SystemExit(f"Purging left {left}.")
        report.append(f"purged: nothing of it is left outside /home; of its dependencies: {left or 'nothing'}")
        return report
    finally:
        shutil.rmtree(base, ignore_errors=True)


def bootstrap(root: Path) -> None:
    """A minimal system; kept as an archive below build/, since it takes minutes to make."""
    kept = d.ROOT / "build" / "installer" / f"debian-{RELEASE}.tar"
    if not kept.exists():
        subprocess.run(["debootstrap", "--variant=minbase", RELEASE, str(root)], check=True, stdout=subprocess.DEVNULL)
        kept.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", str(root), "-cf", f"{kept}.partial", "."], check=True)
        Path(f"{kept}.partial").replace(kept)
    else:
        root.mkdir()
        subprocess.run(["tar", "-C", str(root), "-xpf", str(kept)], check=True)


# Logs, caches and lists that apt, dpkg and adduser write for any package, and backups of the lists of users.
_APTS_OWN = (
    "/var/lib/apt",
    "/var/cache",
    "/var/log",
    "/var/lib/dpkg",
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/subuid",
    "/etc/subgid",
    "/etc/ld.so.cache",
    "/tmp/",
    "/var/lib/systemd",
    "/var/mail",
)


class Guest(t.Trial):
    """The installed program, run as user `tester` inside the other root; paths are those inside."""

    def __init__(self, root: Path, pictures: Path) -> None:
        super().__init__(Path("/usr/bin") / d.NAME, Path("/home/tester"), pictures)
        self.root = root

    def outside(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def command(self, *words: str, **environment: str) -> list[str]:
        settings = [f"{key}={value}" for key, value in self.environment(**environment).items()]
        return wrapped(self.root, ["/usr/bin/env", "-i", "-C", str(self.home), *settings, *words], user="tester")

    def identity(self) -> dict[str, object]:
        return {}  # chroot changes the user


def inside(root: Path, *words: str) -> str:
    """A command of the other system as its root; its output."""
    done = subprocess.run(
        wrapped(root, list(words)), capture_output=True, text=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **proxies()},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed in the other system:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def wrapped(root: Path, words: list[str], user: str = "") -> list[str]:
    script = _INSIDE.format(
        root=shlex.quote(str(root)), user=f"--userspec={user}:{user}" if user else "", words=shlex.join(words)
    )
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def proxies() -> dict[str, str]:
    """How this machine reaches Debian's archive, if it is told so by the environment."""
    return {key: value for key, value in os.environ.items() if key.lower() in ("http_proxy", "https_proxy", "no_proxy")}


def keep_apt_settings(root: Path) -> None:
    """The other system asks the same archive in the same way as this one."""
    for path in Path("/etc/apt/apt.conf.d").iterdir():
        if "proxy" in path.read_text(errors="replace").lower() or "Acquire" in path.read_text(errors="replace"):
            shutil.copy2(path, root / "etc" / "apt" / "apt.conf.d" / path.name)


def listing(root: Path) -> set[str]:
    found = subprocess.run(
        ["find", str(root), "-xdev", "-printf", "/%P\n"], capture_output=True, text=True, check=True, errors="replace"
    )
    return set(found.stdout.splitlines())


def unpacked(deb: Path, pictures: Path, job: t.Job) -> list[str]:
    """`dpkg -x` into a folder, and use from there."""
    with tempfile.TemporaryDirectory(prefix="deb-") as folder:
        root = Path(folder)
        subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
        root.chmod(0o755)
        home = root / "home"
        home.mkdir()
        if os.geteuid() == 0:
            os.chown(home, t.NOBODY, t.NOBODY)
        trial = t.Trial(root / "usr" / "bin" / d.NAME, home, pictures / "deb")
        trial.say(f"{deb.name}, unpacked into a folder (not root, or no debootstrap: not installed with dpkg)")
        job(trial)
        return trial.report
