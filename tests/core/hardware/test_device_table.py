"""The table of known devices and how a driver's name finds its entry."""

from __future__ import annotations

import pytest

from core.hardware.device import Device
from core.hardware.matrix import hardware_classes
from core.hardware.table import complete, find_known, known_devices

MIB, GB = 2**20, 10**9


def test_every_device_has_a_source_a_class_and_a_bandwidth() -> None:
    devices = known_devices()
    assert len(devices) == 80
    assert len({d.id for d in devices}) == 80
    for device in devices:
        assert device.source, device.name
        assert device.hardware_class in hardware_classes(), device.name
        assert device.bandwidth, device.name
        assert device.bandwidth > 1e10, device.name  # bytes/s, not GB/s
        assert device.memory_bytes is None or device.memory_bytes >= 6 * GB, device.name
        assert device.memory_bytes or device.vendor == "CPU", device.name
        assert not device.present


def test_every_device_finds_itself() -> None:
    for device in known_devices():
        assert find_known(device.name, device.memory_bytes, device.vendor) == device


@pytest.mark.parametrize(
    ("name", "mebibytes", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", 24564, "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 8188, "GeForce RTX 4060 Laptop"),
        ("NVIDIA GeForce RTX 4060", 8188, "GeForce RTX 4060"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100 80GB SXM"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe 80GB"),
        ("NVIDIA H200", 143771, "H200 SXM 141GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "RTX PRO 6000 Blackwell"),
        ("NVIDIA GB10", None, "DGX Spark GB10"),
        ("Apple M3 Max", None, "Apple M3 Max (40-core GPU)"),
        ("RTX 4090", None, "GeForce RTX 4090"),
        ("GeForce RTX 3080", 12288, None),  # another chip than the 10 GB one
        ("GeForce GTX 1080", 8192, None),
        ("", None, None),
    ],
)
def test_names_as_drivers_write_them(name: str, mebibytes: int | None, expected: str | None) -> None:
    found = find_known(name, mebibytes * MIB if mebibytes else None)
    assert (found.name if found else None) == expected


def test_the_table_fills_only_what_is_missing() -> None:
    plain = Device("nvidia-0", "NVIDIA L4", "NVIDIA", "gpu", "nvidia_sm89", 23034 * MIB)
    assert complete(plain).bandwidth == 300.1e9
    assert complete(plain).bandwidth_from == "table"
    assert complete(plain).memory_bytes == 23034 * MIB
    told = Device("nvidia-0", "NVIDIA L4", "NVIDIA", "gpu", "nvidia_sm89", 23034 * MIB, None, 299e9, "driver")
    assert (complete(told).bandwidth, complete(told).bandwidth_from) == (299e9, "driver")
    assert dict(complete(told).peak)["bf16"] == 121
