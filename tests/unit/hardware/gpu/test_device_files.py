"""Which open files are the driver's."""

from pathlib import Path

from dra_driver.hardware.gpu.nvml.backend import open_device_files


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
