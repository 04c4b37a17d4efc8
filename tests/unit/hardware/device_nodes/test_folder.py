"""Files found in a ``/dev`` (the machine's own has nodes that every Linux has), and the module's parameters."""

from pathlib import Path

import pytest

from dra_driver.hardware.device_nodes.folder import (
    DevFolder,
    Found,
    LinkState,
    NodeParams,
    link_state,
    parse_params,
    read_params,
)
from dra_driver.hardware.device_nodes.numbers import NodeNumbers
from tests.fakes.dev_folder import MemoryDev

NULL = NodeNumbers(major=1, minor=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "char").mkdir()
    return tmp_path


def test_a_node_is_seen_with_its_numbers_and_permissions() -> None:
    seen = DevFolder().look("/dev/null")
    assert (seen.found, seen.numbers, seen.mode, seen.uid) == (Found.DEVICE, NULL, 0o666, 0)


def test_links_and_files_are_no_nodes(folder: Path) -> None:
    (folder / "nvidia0").symlink_to("/dev/null")
    (folder / "nvidia1").touch()
    dev = DevFolder(str(folder))
    found = [dev.look(f"/dev/{name}").found for name in ("nvidia0", "nvidia1", "char", "nvidia2", "nvidia1/x")]
    assert found == [Found.LINK, Found.OTHER, Found.OTHER, Found.MISSING, Found.MISSING]


def test_a_link_is_made_in_place_of_another(folder: Path) -> None:
    dev = DevFolder(str(folder))
    dev.make_link("/dev/char/195:0", "../nvidia7")
    dev.make_link("/dev/char/195:0", "../nvidia0")
    assert dev.read_link("/dev/char/195:0") == "../nvidia0"
    assert [path.name for path in (folder / "char").iterdir()] == ["195:0"]


def test_a_change_that_fails_leaves_nothing(folder: Path) -> None:
    (folder / "char" / "195:0").mkdir()
    with pytest.raises(OSError, match="directory"):
        DevFolder(str(folder)).make_link("/dev/char/195:0", "../nvidia0")
    assert [path.name for path in (folder / "char").iterdir()] == ["195:0"]


def test_a_folder_is_made_once_and_never_through_a_link(folder: Path) -> None:
    dev = DevFolder(str(folder))
    dev.make_folder("/dev/nvidia-caps")
    dev.make_folder("/dev/nvidia-caps")
    assert (folder / "nvidia-caps").stat().st_mode & 0o777 == 0o755
    (folder / "link").symlink_to("/tmp")
    with pytest.raises(FileExistsError):
        dev.make_folder("/dev/link")


def test_a_link_that_leads_to_the_node_is_right() -> None:
    """Through another link too."""
    dev = MemoryDev()
    dev.add("/dev/null", 1, 3)
    dev.links |= {"/dev/char/1:3": "../other", "/dev/other": "/dev/null"}
    assert link_state(dev, NULL) is LinkState.RIGHT


@pytest.mark.parametrize(
    ("target", "state"),
    [
        (None, LinkState.MISSING),
        ("../null", LinkState.WRONG),
        ("../../null", LinkState.UNSEEN),
        ("/run/nvidia/driver/dev/nvidia0", LinkState.UNSEEN),
        ("/dev/nvidia0", LinkState.WRONG),
        ("1:3", LinkState.WRONG),
    ],
)
def test_what_a_link_is_worth(folder: Path, target: str | None, state: LinkState) -> None:
    """A loop ends; a link out of /dev, as the GPU operator makes them, cannot be judged from a container."""
    if target is not None:
        (folder / "char" / "1:3").symlink_to(target)
    assert link_state(DevFolder(str(folder)), NULL) is state


REAL = """\
ResmanDebugLevel: 4294967295
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 44
DeviceFileMode: 432
RegistryDwords: "NVreg_X=1;DeviceFileMode"
RmMsg: ""
"""


def test_values_are_decimal() -> None:
    """Mode 432 is 0660: read as octal it would be another mode."""
    assert parse_params(REAL) == NodeParams(gid=44, mode=0o660)
    assert not parse_params(REAL).open_to_all


def test_an_access_file_has_a_name_of_its_own_for_the_permission() -> None:
    """A capability node is read-only, and an administrator may forbid it alone."""
    text = "DeviceFileMinor: 3\nDeviceFileMode: 292\nDeviceFileModify: 0\n"
    assert parse_params(text) == NodeParams(mode=0o444, modify=False)


@pytest.mark.parametrize(
    "line",
    [
        "ModifyDeviceFiles: yes",
        "ModifyDeviceFiles: 4294967295",
        "DeviceFileMode: 99999",
        "DeviceFileMode: -1",
        "DeviceFileUID: 4294967295",
        "DeviceFileGID: root",
    ],
)
def test_nonsense_forbids_changes_and_is_named(line: str) -> None:
    """The administrator may have restricted the nodes; a guess could open them."""
    params = parse_params(REAL + line + "\n")
    assert not params.modify
    assert params.problem is not None
    assert line.partition(":")[0] in params.problem


def test_without_a_file_or_sense_in_it_nvidias_defaults_apply(tmp_path: Path) -> None:
    assert read_params(str(tmp_path / "params")) == NodeParams()
    assert read_params(str(tmp_path / "access"), mode=0o444) == NodeParams(mode=0o444)
    (tmp_path / "params").write_bytes(b"\xff\0DeviceFileMode\n: 5\n" * 9000)
    assert read_params(str(tmp_path / "params")) == NodeParams()
    assert NodeParams().open_to_all


def test_a_file_that_cannot_be_read_forbids_changes(tmp_path: Path) -> None:
    params = read_params(str(tmp_path))
    assert not params.modify
    assert "cannot be read: Is a directory" in (params.problem or "")
