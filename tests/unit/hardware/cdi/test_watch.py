"""Folders that change, appear below missing ones and links, or are covered: each is seen at the next look."""

import gc
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.cdi.watch import FolderWatch, MountWatch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "lib" / "inner").mkdir(parents=True)
    (tmp_path / "lib" / "old").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "later" / "deep")
    return tmp_path


def armed(root: Path) -> FolderWatch:
    watch = FolderWatch([str(root / name) for name in ("lib", "missing/sub", "link")], [str(root)])
    assert not watch.is_quiet(), "nothing is known before the first look"
    watch.arm()
    assert watch.is_quiet()
    return watch


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is added": lambda root: (root / "lib" / "new").write_text("x"),
    "a file is removed": lambda root: (root / "lib" / "old").unlink(),
    "a file is replaced": lambda root: (root / "lib" / "inner").rename(root / "lib" / "outer"),
    "a missing folder's parent appears": lambda root: (root / "missing").mkdir(),
    "the target of a link appears": lambda root: (root / "later").mkdir(),
    "the folder is moved away": lambda root: (root / "lib").rename(root / "gone"),
}


@pytest.mark.usefixtures("inotify")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_the_next_look(root: Path, change: str) -> None:
    watch = armed(root)
    CHANGES[change](root)
    assert not watch.is_quiet()


@pytest.mark.usefixtures("inotify")
def test_after_a_look_the_same_change_is_not_reported_again(root: Path) -> None:
    watch = armed(root)
    (root / "missing").mkdir()
    watch.arm()
    assert watch.is_quiet()
    (root / "missing" / "sub").mkdir()
    watch.arm()
    (root / "missing" / "sub" / "file").write_text("x")
    assert not watch.is_quiet()


@pytest.mark.usefixtures("inotify")
def test_another_folder_in_place_of_an_anchor_is_seen(root: Path) -> None:
    """A mount that covers the root makes no event; a rename of a folder above shows the same."""
    inner = root / "lib" / "inner"
    watch = FolderWatch([], [str(inner)])
    watch.arm()
    assert watch.is_quiet()
    inner.rename(root / "kept")
    assert not watch.is_quiet()
    inner.mkdir()
    assert not watch.is_quiet()


# No instance is left; it cannot be read; the kernel refuses watches on a pipe, as at the limit of watches.
UNUSABLE: list[Callable[[Path], int]] = [
    lambda _: -1,
    lambda root: os.open(root, os.O_RDONLY),
    lambda _: os.pipe2(os.O_NONBLOCK)[0],
]


@pytest.mark.parametrize("start", UNUSABLE)
def test_without_a_usable_watch_every_look_is_a_thorough_one(root: Path, start: Callable[[Path], int]) -> None:
    watch = FolderWatch([str(root / "lib")], [], start=lambda: start(root))
    watch.arm()
    assert not watch.is_quiet()


@pytest.mark.usefixtures("inotify")
def test_a_watch_that_is_dropped_gives_its_descriptor_back(root: Path) -> None:
    watch = armed(root)
    gc.collect()  # descriptors of earlier tests would be counted
    before = set(Path("/proc/self/fd").iterdir())
    del watch
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before) - 1


@pytest.fixture
def table() -> Iterator[tuple[socket.socket, MountWatch, socket.socket]]:
    """The kernel's end, the watch, and the end that it watches."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as kernel:
        watched, _ = listener.accept()
        with watched:
            yield kernel, MountWatch(start=watched.dup().detach), watched


def test_a_mount_is_seen_once(table: tuple[socket.socket, MountWatch, socket.socket]) -> None:
    kernel, watch, watched = table
    kernel.send(b"content, which is readable at any time")
    assert not watch.changed()
    kernel.send(b"!", socket.MSG_OOB)
    assert watch.changed()
    watched.recv(1, socket.MSG_OOB)  # the mount table forgets it by itself
    assert not watch.changed()


def test_without_a_mount_table_everything_may_have_changed() -> None:
    assert MountWatch(start=lambda: -1).changed()


def test_the_own_mount_table_can_be_watched() -> None:
    watch = MountWatch()
    assert not all(watch.changed() for _ in range(10))
