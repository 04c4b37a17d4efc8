"""Device numbers from the kernel's list and from nodes; which paths are NVIDIA's nodes."""

from pathlib import Path

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import (
    Majors,
    NodeKind,
    NodeNumbers,
    expected_numbers,
    kind_of,
    node_numbers,
)


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
    with pytest.raises(DriverUnavailableError, match=r"No such file or directory.*ALT_PROC_DEVICES_PATH"):
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
        "/dev/sda",
        "/dev/nvidia",
        "/dev/nvidia0/../sda",
        "/dev/nvidia-caps/../sda",
        "/dev/nvidia-caps/nvidia-cap3\n",
        "/dev/nvidia0\n",
        "/dev/nvidia٣",
        "/dev/dri/card0",
        "/dev/nvidia-nvswitch0",
        "nvidia0",
    ],
)
def test_no_other_path_is_a_node(path: str) -> None:
    assert kind_of(path) is None
    assert expected_numbers(path, MAJORS) is None
