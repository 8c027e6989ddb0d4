"""Whether a kernel may be used on this card: before its first use with a class of shapes, it runs once against the
reference, on odd shapes. What fails is switched off, and said; the result is kept, so that it is asked once a card.

    reason = selftest.usable("attention token", 128, "float16", False)
    if reason is None: …

Imports neither torch nor Triton before a kernel has to be run. Kernels and classes: `kernels.gpu.selftest.checks`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import RLock

from kernels import gpu
from kernels.gpu import user_files

_TRIES = 2  # of a test that ended the program: once may have been the user
_BEGAN = "began: "
_FOREIGN_SECONDS = 600.0  # after which another program's mark is no longer that of a test under way


@dataclass(frozen=True)
class Result:
    """Of one self-test. reason: '' when it passed. seconds: that it took, 0 where it was known already."""

    kernel: str
    shape_class: str
    reason: str
    seconds: float = 0.0


@dataclass
class _Known:
    """Results by key, of this process. read: the disk's are among them. lost: why the device answers no more."""

    results: dict[str, Result] = field(default_factory=dict)
    read: bool = False
    lost: str = ""


_known = _Known()
_lock = RLock()
_device: list[str] = ["cuda"]


def usable(kernel: str, *shape_class: Hashable) -> str | None:
    """None where the kernel may be used for shapes of this class, else one clause that says why not.

    The first call for a class compiles and runs the kernel, which takes seconds; never call it while a graph is
    captured. Under Triton's interpreter nothing is tested: it is a test itself.
    """
    if interpreted() and _device[-1] == "cuda":
        return None
    state = gpu.state()
    if not state.ready and _device[-1] == "cuda":
        return state.reason
    key = _key(kernel, shape_class)
    with _lock:
        _read()
        found = _known.results.get(key)
        if _known.lost and (found is None or not found.reason):
            return _known.lost
        if found is None:
            found = _known.results[key] = _test(kernel, shape_class, key)
    return found.reason or None


def failing(kernel: str, begins: str = "") -> str:
    """Why some class of this kernel is switched off, by what is known already; '' otherwise. Runs nothing.

    begins: of the class, in the words of `Result.shape_class`.
    """
    if not gpu.state().ready and _device[-1] == "cuda":
        return ""
    with _lock:
        _read()
        own = [found for found in _known.results.values() if found.kernel == kernel]
    bad = [found for found in own if found.reason and found.shape_class.startswith(begins)]
    return "; ".join(f"{found.shape_class}: {found.reason}" if found.shape_class else found.reason for found in bad)


def all_failing(kernel: str) -> str:
    """Why every class of this kernel that was tested is switched off; '' where one is not, or none was tested."""
    if not gpu.state().ready and _device[-1] == "cuda":
        return ""
    with _lock:
        _read()
        own = [found.reason for found in _known.results.values() if found.kernel == kernel]
    return own[0] if own and all(own) else ""


def give_up(kernel: str, reason: str, *shape_class: Hashable) -> None:
    """A kernel that failed in use is switched off for this class, in this process; the next one tries it again."""
    with _lock:
        _known.results[_key(kernel, shape_class)] = Result(kernel, words(shape_class), reason)
        if _is_lost():
            _known.lost = f"the GPU answers no more since '{kernel}' failed"


def results() -> tuple[Result, ...]:
    """All that is known of this card, by this program's last runs and this one. Runs nothing."""
    with _lock:
        _read()
        return tuple(sorted(_known.results.values(), key=lambda found: (found.kernel, found.shape_class)))


def survey() -> Iterator[Result]:
    """Every kernel with a common class of shapes, tested now where it was not before. Minutes, the first time."""
    from kernels.gpu.selftest.checks import common

    for kernel, shape_class in common():
        start = time.monotonic()
        known = _key(kernel, shape_class) in _known.results
        reason = usable(kernel, *shape_class) or ""
        yield Result(kernel, words(shape_class), reason, 0.0 if known else time.monotonic() - start)


def forget() -> None:
    """What this process knows; the disk's stays."""
    with _lock:
        _known.results.clear()
        _known.read, _known.lost = False, ""
        file_name.cache_clear()


@contextmanager
def on(device: str) -> Iterator[None]:
    """Tests run on another device until it ends: 'cpu' under the interpreter, for the tests of this module."""
    _device.append(device)
    forget()
    try:
        yield
    finally:
        _device.pop()
        forget()


def interpreted() -> bool:
    """Whether Triton's interpreter is asked for."""
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on", "yes", "y")


def words(shape_class: tuple[Hashable, ...]) -> str:
    """A class as people read it: of what has a short name, that."""
    return ", ".join(str(getattr(part, "short", part)) for part in shape_class if not isinstance(part, bool) or part)


def _key(kernel: str, shape_class: tuple[Hashable, ...]) -> str:
    return f"{kernel} | {shape_class!r}"


def _test(kernel: str, shape_class: tuple[Hashable, ...], key: str) -> Result:
    """Runs it. A mark on the disk says that it began, so that a compiler that ends the program is found out."""
    named, start = words(shape_class), time.monotonic()
    tried = _begun(key)
    if tried >= _TRIES:
        return _keep(key, Result(kernel, named, f"its self-test ended the program {tried} times"))
    _mark(key, f"{_BEGAN}{tried + 1} {os.getpid()} {time.time():.0f}")
    try:
        from kernels.gpu.selftest import checks

        reason = checks.run(kernel, shape_class, _device[-1])
    except BaseException as error:
        _mark(key, "" if tried == 0 else f"{_BEGAN}{tried} 0 0")
        if not isinstance(error, Exception):  # the user's Ctrl-C is no result
            raise
        reason = f"its self-test failed: {_first_line(error)}"
        passing = _passing(error)
        if _is_lost():
            _known.lost = f"the GPU answers no more since the self-test of '{kernel}'"
        result = Result(kernel, named, reason, time.monotonic() - start)
        return result if passing else _keep(key, result)
    return _keep(key, Result(kernel, named, reason, time.monotonic() - start))


def _passing(error: Exception) -> bool:
    """Whether another time may be better: memory that ran out, or a file system that failed."""
    return "out of memory" in str(error).lower() or isinstance(error, (MemoryError, OSError))


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{type(error).__name__}, {text[:200]}" if text != type(error).__name__ else text


def _is_lost() -> bool:
    """Whether the device's context is beyond use, as after an access out of bounds."""
    if _device[-1] != "cuda":
        return False
    import torch

    try:
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return "out of memory" not in str(error).lower()
    return False


# ---- what is kept ----------------------------------------------------------------------------------------------------


@cache
def file_name() -> str:
    """Of the results for this card, driver, torch, Triton and these kernels."""
    return f"self-test-{hashlib.sha256(' | '.join(environment()).encode()).hexdigest()[:24]}.json"


def environment() -> tuple[str, ...]:
    """All that a result depends on."""
    if _device[-1] != "cuda":
        return _device[-1], sources()
    try:
        import torch
        import triton

        properties = torch.cuda.get_device_properties(0)
    except (ImportError, RuntimeError, AssertionError):  # what torch raises where the driver broke meanwhile
        return "a card that can not be asked", sources()
    chip = str(getattr(properties, "gcnArchName", "")) or f"{properties.major}.{properties.minor}"
    return (
        str(properties.name),
        chip,
        driver(),
        f"torch {torch.__version__} {torch.version.cuda or torch.version.hip}",
        f"triton {triton.__version__}",
        sources(),
    )


def driver() -> str:
    """The driver's version in its own words: a file's of the kernel's module, else the library's number."""
    for file in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        try:
            return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()
        except (OSError, IndexError):
            continue
    import torch

    number = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    return f"{platform.release()} {number}"


@cache
def sources() -> str:
    """Changes with any of the kernels, their launchers and their configurations."""
    found = hashlib.sha256()
    here = Path(__file__).parents[1]
    for file in sorted([*here.rglob("*.py"), *here.rglob("*.json")]):
        found.update(file.relative_to(here).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def _read() -> None:
    if _known.read:
        return
    _known.read = True
    for key, kept in user_files.read(file_name()).items():
        if isinstance(kept, list) and len(kept) == 3 and all(isinstance(part, str) for part in kept):
            _known.results.setdefault(key, Result(*kept))


def _keep(key: str, result: Result) -> Result:
    kept = user_files.read(file_name())  # another process may have written since
    user_files.write(file_name(), {**kept, key: [result.kernel, result.shape_class, result.reason]})
    return result


def _mark(key: str, text: str) -> None:
    kept = user_files.read(file_name())
    kept.pop(key, None)
    user_files.write(file_name(), {**kept, key: text} if text else kept)


def _begun(key: str) -> int:
    """How often the test began and did not come to an end, in programs that are gone."""
    text = user_files.read(file_name()).get(key, "")
    if not isinstance(text, str) or not text.startswith(_BEGAN):
        return 0
    try:
        tried, process, when = (int(part) for part in text.removeprefix(_BEGAN).split())
    except ValueError:
        return 0
    under_way = process and time.time() - when < _FOREIGN_SECONDS and process != os.getpid() and _alive(process)
    return tried - 1 if under_way else tried


def _alive(process: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(process))
