"""Removing folders in which containers could write."""

import os
import sys
from itertools import count
from pathlib import Path

import pytest

from dra_driver.hardware.sharing.safe_rmtree import remove_tree


def nest(folder: Path, levels: int) -> None:
    inside = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("a", dir_fd=inside)
        deeper = os.open("a", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(inside)


def test_folders_nested_deeper_than_any_recursion_go(tmp_path: Path) -> None:
    """A container that nests folders must not end the process that runs every other pod's daemon."""
    tree = tmp_path / "pipe"
    tree.mkdir()
    nest(tree, sys.getrecursionlimit() + 100)
    remove_tree(tree)
    assert not tree.exists()


def test_no_more_than_a_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    """One for each level would end a node process that also has sockets to serve."""
    tree = tmp_path / "pipe"
    tree.mkdir()
    nest(tree, 30)
    (tree / "file").write_text("")
    most = 0

    def clock() -> float:
        nonlocal most
        most = max(most, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        return 0.0

    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    remove_tree(tree, clock=clock)
    assert not tree.exists()
    assert most - before <= 4  # two folders, and the two that read them


def test_what_takes_too_long_is_left_to_the_next_call(tmp_path: Path) -> None:
    """A GPU's lock is held meanwhile, and the kubelet waits."""
    tree = tmp_path / "pipe"
    tree.mkdir()
    for number in range(20):
        (tree / str(number)).write_text("")
    ticks = count()
    with pytest.raises(TimeoutError, match="the rest is removed later"):
        remove_tree(tree, within_s=10.0, clock=lambda: float(next(ticks)))
    assert 0 < len(list(tree.iterdir())) < 20
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists()
