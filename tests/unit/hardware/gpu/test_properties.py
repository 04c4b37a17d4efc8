"""Reading PCIe roots and NUMA nodes from a sysfs that may be incomplete; which open files are the driver's."""

from pathlib import Path

import pytest

from dra_driver.hardware.gpu.nvml import properties
from dra_driver.hardware.gpu.nvml.backend import open_device_files

BUS_ID = "0000:65:00.0"


def sysfs(root: Path, target: str, numa: str | None) -> str:
    device = root / "devices" / target
    device.mkdir(parents=True)
    links = root / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / BUS_ID).symlink_to(f"../../../devices/{target}")
    if numa is not None:
        (device / "numa_node").write_text(numa)
    return str(root)


@pytest.mark.parametrize(
    ("target", "numa", "expected"),
    [
        (f"pci0000:64/0000:64:02.0/{BUS_ID}", "1\n", ("pci0000:64", 1)),
        (f"pci10000:e0/{BUS_ID}", "0\n", ("pci10000:e0", 0)),
        (f"pci0000:64/{BUS_ID}", "-1\n", ("pci0000:64", None)),
        (f"pci0000:64/{BUS_ID}", "many\n", ("pci0000:64", None)),
        (f"pci0000:64/{BUS_ID}", None, ("pci0000:64", None)),
        (f"LNXSYSTM:00/vmbus/{BUS_ID}", "0\n", (None, 0)),
    ],
)
def test_root_and_numa_node_are_read_independently(
    tmp_path: Path, target: str, numa: str | None, expected: tuple[str | None, int | None]
) -> None:
    """One missing fact does not cost the other; -1 is the kernel's word for unknown."""
    assert properties.read_topology(BUS_ID, sysfs(tmp_path, target, numa)) == expected


def test_a_device_that_sysfs_does_not_know_has_no_place(tmp_path: Path) -> None:
    """Containers without /sys and virtual GPUs must not cause an error."""
    assert properties.read_topology(BUS_ID, str(tmp_path)) == (None, None)


def test_a_loop_of_links_has_no_place(tmp_path: Path) -> None:
    """Path.resolve raises RuntimeError or OSError there, by Python version."""
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / BUS_ID).symlink_to(BUS_ID)
    assert properties.read_topology(BUS_ID, str(tmp_path)) == (None, None)


def test_sysfs_itself_may_be_behind_a_link(tmp_path: Path) -> None:
    """Host mounts are often reached through one."""
    sysfs(tmp_path / "real", f"pci0000:64/{BUS_ID}", "0")
    (tmp_path / "link").symlink_to("real")
    assert properties.read_topology(BUS_ID, str(tmp_path / "link")) == ("pci0000:64", 0)


def test_device_files_of_the_driver_are_found_below_any_root(tmp_path: Path) -> None:
    """A driver container has a /dev of its own; capabilities lie in a folder."""
    targets = [
        "/dev/nvidia0",
        "/dev/nvidia0",
        "/run/nvidia/driver/dev/nvidiactl",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/null",
        "/usr/lib/libnvidia-ml.so.1",
        "socket:[12]",
    ]
    for number, target in enumerate(targets):
        (tmp_path / str(number)).symlink_to(target)
    assert open_device_files(tmp_path) == (
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia0",
        "/run/nvidia/driver/dev/nvidiactl",
    )


def test_without_the_folder_nothing_is_known_to_be_open(tmp_path: Path) -> None:
    """A system without /proc."""
    assert open_device_files(tmp_path / "none") == ()
