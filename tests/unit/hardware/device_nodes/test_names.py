"""Which paths are NVIDIA's nodes."""

import pytest

from dra_driver.hardware.device_nodes.numbers import (
    Majors,
    NodeKind,
    NodeNumbers,
    char_link,
    char_target,
    expected_numbers,
    kind_of,
)

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
    """Only known names are ever made or replaced."""
    assert kind_of(path) is None
    assert expected_numbers(path, MAJORS) is None


def test_links_are_those_of_nvidia_modprobe() -> None:
    assert char_link(NodeNumbers(major=237, minor=3)) == "/dev/char/237:3"
    assert char_target("/dev/nvidia-caps/nvidia-cap3") == "../nvidia-caps/nvidia-cap3"
