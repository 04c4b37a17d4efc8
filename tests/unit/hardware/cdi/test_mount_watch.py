"""A change of the mount table is reported once.

The kernel reports it as it reports urgent data on a socket, which needs no right to mount.
"""

import socket
from collections.abc import Iterator

import pytest

from dra_driver.hardware.cdi.watch import MountWatch


@pytest.fixture
def table() -> Iterator[tuple[socket.socket, MountWatch, socket.socket]]:
    """The kernel's end, the watch, and the end that it watches."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as kernel:
        watched, _ = listener.accept()
        with watched:
            yield kernel, MountWatch(start=watched.dup().detach), watched


def test_a_mount_is_seen_once(table: tuple[socket.socket, MountWatch, socket.socket]) -> None:
    kernel, watch, watched = table
    assert not watch.changed()
    kernel.send(b"!", socket.MSG_OOB)
    assert watch.changed()
    watched.recv(1, socket.MSG_OOB)  # the mount table forgets it by itself
    assert not watch.changed()


def test_ordinary_content_is_no_change(table: tuple[socket.socket, MountWatch, socket.socket]) -> None:
    """The mount table can be read at any time."""
    kernel, watch, _ = table
    kernel.send(b"content")
    assert not watch.changed()


def test_without_a_mount_table_everything_may_have_changed() -> None:
    assert MountWatch(start=lambda: -1).changed()


def test_the_own_mount_table_can_be_watched() -> None:
    """It may change at any time on a machine that runs containers, but not at every look."""
    watch = MountWatch()
    assert not all(watch.changed() for _ in range(10))
