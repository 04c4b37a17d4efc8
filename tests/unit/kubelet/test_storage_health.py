"""What is said about directories, free space and claims' files before a pod finds out."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dra_driver.errors import StorageError
from dra_driver.kubelet.storage_health import Folder, Space, StorageHealth, space

PLENTY = Space(bytes=2**30, files=None)


class Node:
    """A directory that is all right until a test changes something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cdi"
        self.folder.mkdir()
        self.left: Space | OSError = PLENTY
        self.missing: Sequence[str] | StorageError = ()
        self.looks = 0
        watched = Folder(path=self.folder, what="the CDI directory", setting="--cdi-dir")
        self.disk = StorageHealth([watched], self.bring_back, self.space)

    def bring_back(self) -> Sequence[str]:
        self.looks += 1
        if isinstance(self.missing, StorageError):
            raise self.missing
        return self.missing

    def space(self, _: Path) -> Space:
        if isinstance(self.left, OSError):
            raise self.left
        return self.left

    def problem(self) -> str | None:
        self.disk.check()
        return self.disk.problem


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_directory_that_is_all_right_is_no_problem_and_stays_untouched(node: Node) -> None:
    """A runtime reads all CDI files again when something changes there."""
    before = node.folder.stat().st_mtime_ns
    assert node.problem() is None
    assert (node.looks, node.folder.stat().st_mtime_ns) == (1, before)


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        (Space(bytes=4096, files=None), "is on a full file system (4 KiB free)"),
        (Space(bytes=2**30, files=0), "is on a file system without free inodes"),
        (OSError(5, "Input/output error"), "cannot be looked at: Input/output error; see --cdi-dir"),
    ],
)
def test_file_system_that_takes_nothing_more_is_a_problem_until_it_does(
    node: Node, left: Space | OSError, sentence: str
) -> None:
    node.left = left
    problem = node.problem()
    assert problem is not None
    assert f"the CDI directory {node.folder} {sentence}" in problem
    node.left = PLENTY
    assert node.problem() is None


def test_directory_that_is_gone_or_something_else_is_a_problem(node: Node) -> None:
    node.folder.rmdir()
    assert node.problem() == f"the CDI directory {node.folder} is not writable: it is gone; see --cdi-dir"
    node.folder.write_text("")
    assert node.problem() == f"the CDI directory {node.folder} is not writable: it is no directory; see --cdi-dir"


def test_claims_file_that_stays_missing_is_a_problem(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Its container would not start again; said once in the log, however often it is looked at."""
    node.missing = ["the CDI file of claim a/b is missing and cannot be written"]
    assert node.problem() == node.missing[0]
    node.missing = StorageError("the journal cannot be read")
    assert (node.problem(), node.problem()) == ("the journal cannot be read",) * 2
    assert len(caplog.records) == 2


def test_space_is_what_this_process_may_use(tmp_path: Path) -> None:
    """On a file system of this machine there is some, or the test could not run."""
    assert space(tmp_path).bytes > 0
