"""How the kernel module wants its nodes."""

from pathlib import Path

import pytest

from dra_driver.hardware.device_nodes.params import NodeParams, parse_params, read_params

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


def test_an_access_file_has_a_name_of_its_own_for_the_permission() -> None:
    """A capability node is read-only, and an administrator may forbid it alone."""
    text = "DeviceFileMinor: 3\nDeviceFileMode: 292\nDeviceFileModify: 0\n"
    assert parse_params(text) == NodeParams(mode=0o444, modify=False)


def test_nodes_that_not_everybody_may_open_are_recognised() -> None:
    assert not parse_params(REAL).open_to_all
    assert NodeParams().open_to_all


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


def test_without_a_file_nvidias_defaults_apply(tmp_path: Path) -> None:
    """As in nvidia-modprobe."""
    assert read_params(str(tmp_path / "params")) == NodeParams()
    assert read_params(str(tmp_path / "access"), mode=0o444) == NodeParams(mode=0o444)


def test_a_file_that_cannot_be_read_forbids_changes(tmp_path: Path) -> None:
    """A folder in its place stands for any other error."""
    params = read_params(str(tmp_path))
    assert not params.modify
    assert "cannot be read: Is a directory" in (params.problem or "")


def test_a_file_of_nonsense_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "params").write_bytes(b"\xff\0DeviceFileMode\n: 5\n" * 9000)
    assert read_params(str(tmp_path / "params")) == NodeParams()
