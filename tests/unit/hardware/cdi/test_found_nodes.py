"""Which two nodes open a MIG partition, and what is said where the kernel module does not tell."""

from pathlib import Path

import pytest

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError
from dra_driver.hardware.cdi.found_nodes import Capability, DrmNode, drm_nodes, partition_capabilities
from dra_driver.hardware.device_nodes.numbers import NodeNumbers

MINORS = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu1/gi1/access 147\n"


def write(folder: Path, inside: str, text: str) -> None:
    """One file below ``/proc/driver``."""
    path = folder / inside
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def access(folder: Path, instance: str, text: str) -> None:
    """What the kernel module says about one instance of GPU 0."""
    write(folder, f"nvidia/capabilities/gpu0/mig/{instance}/access", text)


def test_minor_and_mode_are_the_kernel_modules(tmp_path: Path) -> None:
    """An administrator may have given the nodes other modes; the file's number is decimal."""
    access(tmp_path, "gi1", "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    access(tmp_path, "gi1/ci0", "DeviceFileMinor: 31\nDeviceFileMode: 438\nDeviceFileModify: 1\n")
    found = partition_capabilities(str(tmp_path), 0, 1, 0)
    assert found == (Capability(minor=30, mode=0o444), Capability(minor=31, mode=0o666))
    assert found[0].path == "/dev/nvidia-caps/nvidia-cap30"


def test_the_list_of_minors_answers_where_the_access_files_are_not_seen(tmp_path: Path) -> None:
    """Its numbers hold whether the instance exists or not, and it has no mode."""
    write(tmp_path, "nvidia-caps/mig-minors", MINORS)
    assert partition_capabilities(str(tmp_path), 0, 1, 0) == (Capability(minor=12), Capability(minor=13))


def test_an_instance_that_is_gone_is_not_looked_up_in_the_list(tmp_path: Path) -> None:
    """Where the module lists existing instances, the number of another one would open the next instance with its id."""
    write(tmp_path, "nvidia-caps/mig-minors", MINORS)
    access(tmp_path, "gi1", "DeviceFileMinor: 12\n")
    with pytest.raises(DeviceLostError, match=r"instance gi1/ci0 of /dev/nvidia0: .*/gi1/ci0/access is missing"):
        partition_capabilities(str(tmp_path), 0, 1, 0)


@pytest.mark.parametrize("text", ["", "no such line\n", "DeviceFileMinor: many\n", "DeviceFileMinor: 9999999999\n"])
def test_an_access_file_that_makes_no_sense_is_not_guessed_from(tmp_path: Path, text: str) -> None:
    """A wrong number would open the partition of another claim."""
    access(tmp_path, "gi1", text)
    access(tmp_path, "gi1/ci0", "DeviceFileMinor: 31\n")
    with pytest.raises(DeviceLostError, match="has no DeviceFileMinor"):
        partition_capabilities(str(tmp_path), 0, 1, 0)


def test_a_module_that_tells_nothing_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Modules before 450.80.02, or a node process that does not see the node's /proc."""
    with pytest.raises(DriverUnavailableError, match=r"/dev/nvidia0: .*/proc/driver, and .* 450\.80\.02 or newer"):
        partition_capabilities(str(tmp_path), 0, 1, 0)


@pytest.mark.parametrize(("gpu", "instance", "compute"), [(0, 2, 0), (0, 1, 1), (1, 1, 0), (3, 1, 0)])
def test_an_unknown_instance_is_lost(tmp_path: Path, gpu: int, instance: int, compute: int) -> None:
    """The next instance may have its id; nothing is made up meanwhile."""
    write(tmp_path, "nvidia-caps/mig-minors", MINORS + "gpu3/gi1/access 1048576\n")
    with pytest.raises(DeviceLostError, match=rf"gi{instance}.* of /dev/nvidia{gpu}: .* does not list it"):
        partition_capabilities(str(tmp_path), gpu, instance, compute)


def test_lines_of_another_shape_are_skipped(tmp_path: Path) -> None:
    """Newer modules may add to the list."""
    write(tmp_path, "nvidia-caps/mig-minors", "\n# three\nfoo bar baz\ngpu0/gi9 many\n" + MINORS)
    assert partition_capabilities(str(tmp_path), 0, 1, 0)[1].minor == 13


def test_drm_nodes_come_from_sysfs(tmp_path: Path) -> None:
    """The GPU's own nodes only, with the numbers that sysfs gives; connectors and damaged files are left out."""
    folder = tmp_path / "bus/pci/devices/0000:65:00.0/drm"
    for name, content in {"card1": "226:1\n", "renderD129": "226:129\n", "card1-DP-1": "1:1\n", "card2": "x"}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "dev").write_text(content)
    assert drm_nodes("0000:65:00.0", str(tmp_path)) == (
        DrmNode(name="card1", numbers=NodeNumbers(major=226, minor=1)),
        DrmNode(name="renderD129", numbers=NodeNumbers(major=226, minor=129)),
    )


@pytest.mark.parametrize("bus_id", [None, "", "../../../etc", "0000:65:00.0/..", "0000:66:00.0"])
def test_no_drm_nodes_without_a_gpu_of_that_address(tmp_path: Path, bus_id: str | None) -> None:
    """Compute-only modules and hostile addresses alike."""
    assert drm_nodes(bus_id, str(tmp_path)) == ()
