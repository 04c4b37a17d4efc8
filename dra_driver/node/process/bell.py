"""Wakes a thread that does periodic work, so that it need not look every second: by another thread, or by a change in
a folder that the kernel reports (inotify).

What inotify does not see, a mount that covers a folder, is found by the looks that go on at longer intervals.
"""

import os
import select
import weakref
from collections.abc import Sequence

from dra_driver.hardware.cdi import FolderWatch


class Bell:
    """``ring`` from any thread; ``wait`` and ``hears_folders`` for one thread."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """Raises OSError when the process has no file descriptor left."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._folders = FolderWatch(folders, folders)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        if self._folders.descriptor >= 0:
            self._poll.register(self._folders.descriptor, select.POLLIN)
        self._folders.arm()

    @property
    def hears_folders(self) -> bool:
        """Whether a change in each of the folders ends a wait; not where the kernel refuses to watch."""
        return self._folders.is_complete

    def ring(self) -> None:
        """End the present wait, or the next one."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; whether it was rung, or a folder changed. Look at the folders after this call."""
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s * 1000)]
        if self._descriptor in ready:
            os.eventfd_read(self._descriptor)
        if self._folders.descriptor in ready:
            self._folders.arm()
        return bool(ready)
