"""Answers of NVML and sysfs: every failure becomes None or an error; which open files are the driver's."""

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from dra_driver.core.errors import DeviceLostError, DraError, DriverUnavailableError
from dra_driver.hardware.gpu.nvml import errors as nvml
from dra_driver.hardware.gpu.nvml import properties
from dra_driver.hardware.gpu.nvml.backend import open_device_files


def failing(error: Exception) -> Callable[[], int]:
    def nvmlDeviceGetName() -> int:  # noqa: N802 - the messages have the name of NVML's function
        raise error

    return nvmlDeviceGetName


@pytest.mark.parametrize(
    ("error", "message"),
    [
        *((pynvml.NVMLError(code), rf"failed: .*\(NVML code {code}\)") for code in sorted(nvml.ABSENT)),
        (pynvml.NVMLLibraryMismatchError("old"), "upgrade the driver"),  # of an older form of the call; no NVMLError
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "its answer cannot be read"),
    ],
)
def test_what_nvml_does_not_offer_is_absent_but_not_when_a_gpu_cannot_do_without_it(
    error: Exception, message: str
) -> None:
    """A GPU without a name, or with a damaged one, can be used; one without a UUID cannot."""
    assert nvml.optional(failing(error)) is None
    with pytest.raises(DeviceLostError, match=f"^nvmlDeviceGetName .*{message}"):
        nvml.required(failing(error))


@pytest.mark.parametrize("code", sorted(nvml.DRIVER_TROUBLE))
@pytest.mark.parametrize("ask", [nvml.optional, nvml.required, nvml.driver_call])
def test_errors_of_the_whole_driver_are_not_reported_for_one_gpu(code: int, ask: Callable[..., object]) -> None:
    with pytest.raises(DriverUnavailableError) as caught:
        ask(failing(pynvml.NVMLError(code)))
    assert nvml.DRIVER_TROUBLE[code] in str(caught.value)
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


@pytest.mark.parametrize("code", [*range(1, 30), 999, 12345])
def test_every_code_of_nvml_becomes_none_or_an_error_of_this_project(code: int) -> None:
    """No pynvml exception leaves gpu/nvml: it is unhashable and cannot be compared."""
    answer: object
    try:
        answer = nvml.optional(failing(pynvml.NVMLError(code)))
    except DraError as error:
        answer = str(error)
    assert answer is None or f"(NVML code {code})" in str(answer)


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


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_device_that_sysfs_does_not_know_has_no_place(tmp_path: Path, is_loop: bool) -> None:
    """A container without /sys, a virtual GPU; for a loop Path.resolve raises RuntimeError or OSError."""
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    if is_loop:
        (links / BUS_ID).symlink_to(BUS_ID)
    assert properties.read_topology(BUS_ID, str(tmp_path)) == (None, None)


def test_sysfs_itself_may_be_behind_a_link(tmp_path: Path) -> None:
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
    assert open_device_files(tmp_path / "none") == ()
