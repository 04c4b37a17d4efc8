"""What is found in a ``/dev``; the machine's own has nodes whose numbers every Linux knows."""

from pathlib import Path

import pytest

from dra_driver.hardware.device_nodes.folder import Found, LinkState, RealDev, link_state
from dra_driver.hardware.device_nodes.numbers import NodeNumbers
from tests.fakes.dev_folder import MemoryDev

NULL = NodeNumbers(major=1, minor=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "char").mkdir()
    return tmp_path


def test_a_node_is_seen_with_its_numbers_and_permissions() -> None:
    seen = RealDev().look("/dev/null")
    assert (seen.found, seen.numbers, seen.mode, seen.uid) == (Found.DEVICE, NULL, 0o666, 0)


def test_links_and_files_are_no_nodes(folder: Path) -> None:
    """A link is not followed: it may lead to anything."""
    (folder / "nvidia0").symlink_to("/dev/null")
    (folder / "nvidia1").touch()
    dev = RealDev(str(folder))
    found = [dev.look(f"/dev/{name}").found for name in ("nvidia0", "nvidia1", "char", "nvidia2", "nvidia1/x")]
    assert found == [Found.LINK, Found.OTHER, Found.OTHER, Found.MISSING, Found.MISSING]


def test_a_link_is_made_in_place_of_another(folder: Path) -> None:
    dev = RealDev(str(folder))
    dev.make_link("/dev/char/195:0", "../nvidia7")
    dev.make_link("/dev/char/195:0", "../nvidia0")
    assert dev.read_link("/dev/char/195:0") == "../nvidia0"
    assert [path.name for path in (folder / "char").iterdir()] == ["195:0"]


def test_a_change_that_fails_leaves_nothing(folder: Path) -> None:
    (folder / "char" / "195:0").mkdir()
    with pytest.raises(OSError, match="directory"):
        RealDev(str(folder)).make_link("/dev/char/195:0", "../nvidia0")
    assert [path.name for path in (folder / "char").iterdir()] == ["195:0"]


def test_a_folder_is_made_once_and_never_through_a_link(folder: Path) -> None:
    dev = RealDev(str(folder))
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
    assert link_state(RealDev(str(folder)), NULL) is state
