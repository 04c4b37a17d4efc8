"""Device numbers, files found in ``/dev`` (every Linux has nodes there), and the parameters of the module."""

from pathlib import Path

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.folder import (
    DevFolder,
    Found,
    LinkState,
    NodeParams,
    link_state,
    parse_params,
    read_params,
)
from dra_driver.hardware.device_nodes.numbers import (
    Majors,
    NodeKind,
    NodeNumbers,
    expected_numbers,
    kind_of,
    node_numbers,
)
from tests.fakes.dev_folder import MemoryDev
from tests.harness.raising import fails

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


def test_majors_of_all_modules() -> None:
    """Dynamic majors differ from boot to boot; drivers before series 550 register a frontend."""
    text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n237 nvidia-caps\n510 nvidia-uvm\n"
    assert Majors.parse(text) == Majors(nvidia=195, modeset=195, uvm=510, caps=237)
    assert Majors.parse("Character devices:\n195 nvidia-frontend\n") == Majors(nvidia=195)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Character devices:\n  1 mem\n\nBlock devices:\n195 nvidia\n",
        "195 nvidia\n",
        "Character devices:\nabc nvidia\n-1 nvidia-uvm\n195\n195 nvidia-uvm extra\n99999999999 nvidia-caps\n",
        "\0\0\0Character devices:\n\0195 nvidia\n",
    ],
)
def test_what_is_not_registered_is_none(text: str) -> None:
    assert Majors.parse(text) == Majors()


def test_an_unreadable_list_says_what_to_do(tmp_path: Path) -> None:
    with fails(DriverUnavailableError, "DeviceNumbersUnreadable", match="ALT_PROC_DEVICES_PATH"):
        Majors.read(tmp_path / "devices")


def test_only_a_device_node_counts(tmp_path: Path) -> None:
    """The runtimes do not follow links either. /dev/null is 1:3 on every Linux."""
    assert node_numbers("/dev/null") == NodeNumbers(major=1, minor=3)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (tmp_path / "file", tmp_path / "link", tmp_path, tmp_path / "missing", tmp_path / "file/below"):
        assert node_numbers(str(path)) is None


MAJORS = Majors(nvidia=195, modeset=195, uvm=510, caps=237)


@pytest.mark.parametrize(
    ("path", "kind", "numbers"),
    [
        ("/dev/nvidia0", NodeKind.GPU, (195, 0)),
        ("/dev/nvidia12", NodeKind.GPU, (195, 12)),
        ("/dev/nvidiactl", NodeKind.CONTROL, (195, 255)),
        ("/dev/nvidia-modeset", NodeKind.MODESET, (195, 254)),
        ("/dev/nvidia-uvm", NodeKind.UVM, (510, 0)),
        ("/dev/nvidia-uvm-tools", NodeKind.UVM, (510, 1)),
        ("/dev/nvidia-caps/nvidia-cap30", NodeKind.CAPABILITY, (237, 30)),
    ],
)
def test_each_node_has_its_modules_major(path: str, kind: NodeKind, numbers: tuple[int, int]) -> None:
    assert kind_of(path) is kind
    assert expected_numbers(path, MAJORS) == NodeNumbers(major=numbers[0], minor=numbers[1])
    assert expected_numbers(path, Majors()) is None


@pytest.mark.parametrize(
    "path",
    [
        "/dev/sda", "/dev/nvidia", "/dev/nvidia0/../sda", "/dev/nvidia-caps/../sda",
        "/dev/nvidia-caps/nvidia-cap3\n", "/dev/nvidia0\n", "/dev/nvidia٣", "/dev/dri/card0",
        "/dev/nvidia-nvswitch0", "nvidia0",
    ],
)  # fmt: skip
def test_no_other_path_is_a_node(path: str) -> None:
    assert kind_of(path) is None
    assert expected_numbers(path, MAJORS) is None
