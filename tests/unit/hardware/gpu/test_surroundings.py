"""When an NVML session is outdated."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.hardware.gpu.nvml.session import DriverEnvironment

BOUND = frozenset({("0000:01:00.0", 7), ("0000:02:00.0", 8)})
BEGAN = DriverEnvironment(
    bound=BOUND,
    library=(1, 2, 3, 4),
    release="580.65.06",
    module="580.65.06",
)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (BEGAN, None),
        (replace(BEGAN, bound=frozenset({("0000:01:00.0", 7)})), r"bound \(none\) or unbound \(0000:02:00.0\)"),
        (replace(BEGAN, bound=BOUND | {("0000:03:00.0", 9)}), r"bound \(0000:03:00.0\) or unbound \(none\)"),
        (replace(BEGAN, bound=frozenset({("0000:01:00.0", 7), ("0000:02:00.0", 9)})), "0000:02:00.0"),
        (replace(BEGAN, bound=None), None),
        (replace(BEGAN, module="610.43.02"), "kernel module is now 610.43.02, it was 580.65.06"),
        (replace(BEGAN, module=None), None),
        (replace(BEGAN, library=(1, 9, 3, 4)), "library was replaced by 580.65.06"),
        (replace(BEGAN, library=(1, 9, 3, 4), release="610.43.02"), None),
        (replace(BEGAN, library=(1, 9, 3, 4), release=None), None),
        (replace(BEGAN, library=None, release=None), None),
    ],
    ids=[
        "nothing changed",
        "unbound",
        "bound",
        "bound again",
        "sysfs is not readable",
        "another module",
        "no module",
        "the same release installed again",
        "a library without its module",
        "a library of unknown release",
        "the library was removed",
    ],
)
def test_a_session_is_outdated_when_a_new_one_shows_more_and_would_work(
    now: DriverEnvironment, reason: str | None
) -> None:
    """Otherwise it is kept: a session that works is worth more than a new one that fails."""
    found = BEGAN.outdated(now)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)


def test_a_session_that_began_without_the_driver_folder_is_outdated_when_it_is_there() -> None:
    """The kernel module was loaded later."""
    assert DriverEnvironment().outdated(BEGAN) is not None
    assert DriverEnvironment().outdated(DriverEnvironment()) is None


def test_it_reads_links_of_gpus_and_versions(tmp_path: Path) -> None:
    """The driver's folder also has files of the kernel, and a link to the module."""
    folder = tmp_path / "bus/pci/drivers/nvidia"
    folder.mkdir(parents=True)
    for name in ("0000:01:00.0", "10000:ff:1f.7", "module", "new_id", "uevent"):
        (folder / name).symlink_to("anywhere")
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("580.65.06\n")
    library = tmp_path / "libnvidia-ml.so.580.65.06"
    library.touch()
    link = tmp_path / "libnvidia-ml.so.1"
    link.symlink_to(library.name)
    found = DriverEnvironment.read(str(tmp_path), str(link))
    assert {address for address, _ in found.bound or ()} == {"0000:01:00.0", "10000:ff:1f.7"}
    assert (found.release, found.module) == ("580.65.06", "580.65.06")
    assert found.library is not None
    assert found.library[1] == library.stat().st_ino


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """Also a version that is no text, which must not end the look."""
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_bytes(b"")
    assert DriverEnvironment.read(str(tmp_path), str(tmp_path / "none")) == DriverEnvironment()
    assert DriverEnvironment.read(str(tmp_path), None) == DriverEnvironment()
