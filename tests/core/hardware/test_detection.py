"""Detection against systems that are made up here: what drivers, kernel files and commands may answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.hardware import amd, apple, classes, cpu, intel, nvidia
from core.hardware.detect import detect
from core.hardware.device import Device, Found

MIB = 2**20
CPUINFO = "processor\t: 0\nmodel name\t: Some  CPU\nflags\t\t: fpu sse4_2 avx avx2 fma avx512f {more}\n"


# Processor


def test_instruction_sets_are_those_that_linux_lists() -> None:
    sets = cpu.linux_sets(CPUINFO.format(more="avx512_vnni"), cpu._LINUX_X86, lambda: True)
    assert sets == ("sse4.2", "avx", "fma", "avx2", "avx512f", "avx512_vnni")
    assert cpu.linux_sets("", cpu._LINUX_X86) == ()
    arm = "processor : 0\nFeatures : fp asimd asimddp i8mm\n"
    assert cpu.linux_sets(arm, cpu._LINUX_ARM) == ("neon", "dotprod", "i8mm")


@pytest.mark.parametrize("granted", [True, False])
def test_amx_counts_only_when_the_system_grants_it(granted: bool) -> None:
    flags = CPUINFO.format(more="avx512_vnni amx_tile amx_int8 amx_bf16")
    sets = cpu.linux_sets(flags, cpu._LINUX_X86, lambda: granted)
    assert ("amx_int8" in sets) is granted
    assert cpu.cpu_class("x86-64", sets) == ("x86_amx" if granted else "x86_avx512_vnni", "")


def test_compiled_kernels_add_what_the_system_does_not_tell() -> None:
    assert cpu.with_compiled((), ("avx512", "avx2", "baseline")) == ("avx2", "fma", "avx512f", "avx512bw")
    assert cpu.with_compiled(("avx2",), ("avx2",)) == ("avx2", "fma")


def test_a_container_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(cpu, "CGROUP_LIMIT", limit)
    limit.write_text("123456\n")
    assert cpu.memory() == (123456, 123456)
    (tmp_path / "memory.current").write_text("23456\n")
    assert cpu.memory() == (123456, 100000)
    limit.write_text("max\n")
    assert cpu.memory()[0] > 123456


def test_this_processor() -> None:
    device = cpu.detect_cpu(measure=False)
    assert device.name
    assert device.bandwidth is None
    assert device.cores <= device.threads
    assert 0 < (device.free_bytes or 0) <= (device.memory_bytes or 0)


# Classes


@pytest.mark.parametrize(
    ("capability", "expected", "noted"),
    [
        ("7.5", "nvidia_sm75", False),
        ("8.0", "nvidia_sm80_86", False),
        ("8.6", "nvidia_sm80_86", False),
        ("8.9", "nvidia_sm89", False),
        ("9.0", "nvidia_sm90", False),
        ("10.0", "nvidia_sm100", False),
        ("12.1", "nvidia_sm120", False),
        ("6.1", "nvidia_sm75", True),
        ("11.0", "nvidia_sm100", True),
        ("15.0", "nvidia_sm120", True),
        ("", "nvidia_sm80_86", True),
    ],
)
def test_nvidia_classes(capability: str, expected: str, noted: bool) -> None:
    found, note = classes.nvidia_class(capability)
    assert (found, bool(note)) == (expected, noted)


@pytest.mark.parametrize(
    ("gfx", "expected", "noted"),
    [
        ("gfx942", "amd_cdna3", False),
        ("gfx950", "amd_cdna4", False),
        ("gfx1030", "amd_rdna2", False),
        ("gfx1151", "amd_rdna3", False),
        ("gfx1201", "amd_rdna4", False),
        ("gfx90a", "amd_cdna3", True),
        ("gfx1010", "amd_rdna2", True),
        ("gfx1300", "amd_rdna4", True),
        ("", "amd_rdna3", True),
    ],
)
def test_amd_classes(gfx: str, expected: str, noted: bool) -> None:
    found, note = classes.amd_class(gfx)
    assert (found, bool(note)) == (expected, noted)


def test_processor_classes() -> None:
    assert classes.cpu_class("x86-64", ("avx2", "fma")) == ("x86_avx2", "")
    assert classes.cpu_class("x86-64", ())[1]
    assert classes.cpu_class("arm64", ("neon", "dotprod", "i8mm")) == ("arm_neon_dotprod_i8mm", "")
    assert classes.cpu_class("arm64", ("neon",))[0] == "arm_neon"
    assert classes.cpu_class("riscv64", ())[0] == "unknown"


# NVIDIA


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801  (pynvml names it so)
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801
    pass


class FakeNvml:
    """As much of pynvml as detection uses, with one RTX 4090 by default."""

    NVMLError = NVMLError
    NVML_CLOCK_MEM = 2

    def __init__(self, name: object = b"NVIDIA GeForce RTX 4090", capability=(8, 9), memory=24564, width=384) -> None:
        self.name, self.capability, self.memory, self.width = name, capability, memory, width
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"595.10"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> object:
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.capability

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.memory is None:
            raise NVMLError_NotSupported
        return SimpleNamespace(total=self.memory * MIB, free=(self.memory - 500) * MIB)

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        if not self.width:
            raise NVMLError_NotSupported
        return self.width

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return 10501


def test_an_nvidia_device() -> None:
    nvml = FakeNvml()
    (device,) = nvidia.detect_nvidia(nvml).devices
    assert nvml.open == 0
    assert (device.id, device.name, device.hardware_class) == ("nvidia-0", "NVIDIA GeForce RTX 4090", "nvidia_sm89")
    assert (device.memory_bytes, device.free_bytes) == (24564 * MIB, 24064 * MIB)
    assert device.bandwidth == pytest.approx(1008e9, rel=1e-3)
    assert (device.bandwidth_from, device.driver, device.compute_capability) == ("driver", "595.10", "8.9")
    assert dict(device.peak)


def test_bandwidth_comes_from_the_table_when_the_driver_is_silent() -> None:
    (device,) = nvidia.detect_nvidia(FakeNvml("NVIDIA L4", memory=23034, width=0)).devices
    assert (device.bandwidth, device.bandwidth_from) == (300.1e9, "table")


def test_an_nvidia_chip_without_memory_of_its_own() -> None:
    (device,) = nvidia.detect_nvidia(FakeNvml("NVIDIA GB10", (12, 1), None, 0)).devices
    assert device.unified_memory
    assert device.memory_bytes
    assert any("shares" in note for note in device.notes)


def test_no_nvidia_driver_is_a_state() -> None:
    class Absent(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError_LibraryNotFound

    assert nvidia.detect_nvidia(Absent()) == Found(state=nvidia.NO_DRIVER)

    class Broken(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:
            raise NVMLError("GPU is lost")

    assert "GPU is lost" in nvidia.detect_nvidia(Broken()).state


# AMD, Intel, Apple


def card(root: Path, number: int, **files: object) -> Path:
    device = root / f"card{number}" / "device"
    device.mkdir(parents=True)
    for name, value in files.items():
        (device / name).write_text(f"{value}\n")
    return device


def node(root: Path, number: int, version: int) -> None:
    folder = root / str(number)
    folder.mkdir(parents=True)
    (folder / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")


def test_an_amd_card(tmp_path: Path) -> None:
    drm, kfd = tmp_path / "drm", tmp_path / "kfd"
    card(drm, 0, vendor="0x8086")
    card(drm, 1, vendor="0x1002", mem_info_vram_total=24 * 2**30, mem_info_vram_used=2**30)
    (drm / "card1-DP-1").mkdir()
    node(kfd, 0, 0)
    node(kfd, 1, 110000)
    answer = json.dumps({"card0": {"Card Series": "Radeon RX 7900 XTX"}})
    (device,) = amd.detect_amd(drm, kfd, lambda _: answer).devices
    assert (device.name, device.compute_capability, device.hardware_class) == (
        "Radeon RX 7900 XTX",
        "gfx1100",
        "amd_rdna3",
    )
    assert (device.memory_bytes, device.free_bytes) == (24 * 2**30, 23 * 2**30)
    assert (device.bandwidth, device.bandwidth_from) == (960e9, "table")


def test_an_amd_processor_with_graphics_counts_the_memory_it_borrows(tmp_path: Path) -> None:
    sizes = {"mem_info_vram_total": 2**29, "mem_info_vram_used": 0, "mem_info_gtt_total": 2**36, "mem_info_gtt_used": 5}
    card(tmp_path / "drm", 0, vendor="0x1002", product_name="Radeon 8060S", **sizes)
    found = amd.detect_amd(tmp_path / "drm", tmp_path / "kfd", lambda _: "")
    assert found.devices[0].memory_bytes == 2**36 + 2**29
    assert found.devices[0].unified_memory
    assert "amdkfd" in found.state


def test_gfx_versions_are_read_as_the_driver_packs_them(tmp_path: Path) -> None:
    for number, version in enumerate((90402, 90010, 100300, 120001)):
        node(tmp_path, number, version)
    assert amd.gfx_names(tmp_path) == ["gfx942", "gfx90a", "gfx1030", "gfx1201"]
    assert amd.product_names("no json") == []


def test_intel_cards(tmp_path: Path) -> None:
    card(tmp_path, 0, vendor="0x8086", device="0xe20b")
    (device,) = intel.detect_intel(tmp_path).devices
    assert (device.name, device.memory_bytes, device.bandwidth) == ("Arc B580", 12 * 10**9, 456e9)
    inside = tmp_path / "other"
    card(inside, 0, vendor="0x8086", device="0x46a6")
    assert "inside the processor" in intel.detect_intel(inside).state
    assert intel.detect_intel(tmp_path / "nothing").devices == ()


def test_an_apple_chip() -> None:
    answers = {"machdep.cpu.brand_string": "Apple M2 Max", "hw.memsize": str(64 * 2**30)}
    (device,) = apple.detect_apple(lambda key: answers.get(key, ""), "darwin").devices
    assert device.memory_bytes == 48 * 2**30
    assert (device.bandwidth, device.hardware_class) == (400e9, "apple_m")
    raised = {**answers, "iogpu.wired_limit_mb": "57344"}
    assert apple.detect_apple(lambda key: raised.get(key, ""), "darwin").devices[0].memory_bytes == 56 * 2**30
    assert apple.detect_apple(lambda key: "Intel(R) Core(TM)", "darwin").state
    assert apple.detect_apple(system="linux") == Found()


# All together


def test_detection_never_raises() -> None:
    def broken(*_: object) -> Found:
        raise RuntimeError("firmware said no")

    machine = detect(vendors=(("NVIDIA", broken), ("AMD", lambda: Found(state="nothing"))), processor=broken)
    assert machine.cpu.hardware_class == "unknown"
    assert machine.cpu.memory_bytes
    assert len(machine.notes) == 3


def test_the_processor_stands_first_and_the_fastest_is_best() -> None:
    slow = Device("cpu", "cpu", "", "cpu", "x86_avx2", bandwidth=5e10)
    fast = Device("nvidia-0", "gpu", "NVIDIA", "gpu", "nvidia_sm89", bandwidth=1e12)
    machine = detect(vendors=(("NVIDIA", lambda: Found((fast,))),), processor=lambda _: slow)
    assert machine.devices == (slow, fast)
    assert machine.cpu is slow
    assert machine.best is fast
