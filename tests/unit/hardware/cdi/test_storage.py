"""The few calls of the CDI writer to the file system that protect other files of the node."""

import os
from pathlib import Path

import pytest

from dra_driver.hardware.cdi.writer import Files

NAME = ".gpu.nvidia.com-00000000.tmp"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CDI directory in which the name of the next temporary file is known."""
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    folder = tmp_path / "cdi"
    folder.mkdir()
    return folder


def test_a_temporary_file_is_new_and_for_its_owner_alone(folder: Path) -> None:
    """Nothing of the content is readable before it is complete and gets its mode."""
    descriptor, path = Files().create_temporary(str(folder), ".gpu.nvidia.com-")
    os.close(descriptor)
    assert path == str(folder / NAME)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_not_taken_for_a_temporary_one(folder: Path) -> None:
    """Another process may still write into it; two writers in one file make a document that nothing can read."""
    (folder / NAME).write_text("of another process")
    with pytest.raises(FileExistsError):
        Files().create_temporary(str(folder), ".gpu.nvidia.com-")
    assert (folder / NAME).read_text() == "of another process"


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_at_the_temporary_name_is_not_followed(folder: Path, exists: bool) -> None:
    """The node process is root: following the link would create or overwrite any file of the node."""
    target = folder.parent / "target"
    if exists:
        target.write_text("precious")
    (folder / NAME).symlink_to(target)
    with pytest.raises(OSError, match=r"."):
        Files().create_temporary(str(folder), ".gpu.nvidia.com-")
    assert target.exists() is exists


def test_a_link_in_place_of_a_document_is_not_read(folder: Path) -> None:
    """Otherwise the driver would take a file outside of the folder for its own document."""
    (folder.parent / "target").write_text("elsewhere")
    (folder / "claim.json").symlink_to(folder.parent / "target")
    assert Files().read(str(folder / "claim.json"), 100) is None


def test_a_fifo_in_place_of_a_document_is_not_waited_for(folder: Path) -> None:
    """Opening it would block a prepare until a writer comes."""
    os.mkfifo(folder / "claim.json")
    assert Files().read(str(folder / "claim.json"), 100) is None
