"""Detect changes of many folders, and of the mount table, with one system call each.

The kernel queues an inotify event before the call that makes the change returns (inotify(7)), so a later check sees it.
inotify does not report a mount over a folder: `FolderWatch` compares the inodes of two folders, and `provider` all
inodes after a mount. An open ``/proc/self/mountinfo`` reports each mount of the process's namespace once (Linux,
fs/proc_namespace.c, ``mounts_poll``).
"""

import ctypes
import os
import select
import weakref
from collections.abc import Callable, Iterable, Iterator

# Linux, sys/inotify.h: an entry created, deleted, moved away or moved in; the folder itself deleted or moved.
_MASK = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800 | 0x01000000  # the last: folders only
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_MOST_EVENTS = 64 * 1024
_MOST_READS = 100  # the kernel queues 16384 events by default, of 16 bytes and a name: some 20 reads
_libc = ctypes.CDLL(None, use_errno=True)


def _start_inotify() -> int:
    return int(_libc.inotify_init1(_NONBLOCK_CLOEXEC))


class FolderWatch:
    """Watches folders, a missing folder through its nearest existing parent. For one thread at a time. Compares the
    inodes of ``anchors``. Without inotify `is_quiet` is always False."""

    def __init__(
        self, folders: Iterable[str], anchors: Iterable[str], *, start: Callable[[], int] = _start_inotify
    ) -> None:
        self._folders = tuple(folders)
        self._anchors = tuple((path, _identity(path)) for path in anchors)
        self.descriptor = start()
        self.is_complete = False
        """Every folder is watched since the last `arm`."""
        if self.descriptor >= 0:
            weakref.finalize(self, os.close, self.descriptor)

    def is_quiet(self) -> bool:
        return self.is_complete and not self._events() and all(_identity(path) == was for path, was in self._anchors)

    def arm(self) -> None:
        """Watch all folders from now on. Check them after this call, and rely on `is_quiet` then."""
        if self.descriptor < 0:
            return
        drained = any(not self._events() for _ in range(_MOST_READS))  # not if it cannot be read, or fills up again
        # Adding a watch for a folder that has one changes nothing.
        added = [self._add(path) for path in dict.fromkeys(self._existing())]
        self.is_complete = drained and all(added)

    def _events(self) -> bytes:
        try:
            return os.read(self.descriptor, _MOST_EVENTS)
        except BlockingIOError:
            return b""
        except OSError:
            return b"?"

    def _existing(self) -> Iterator[str]:
        for folder in self._folders:
            yield _nearest(folder)
            if not os.path.isdir(folder):  # noqa: PTH112 - perhaps below a link to what does not exist yet
                yield _nearest(os.path.realpath(folder))

    def _add(self, folder: str) -> bool:
        return bool(_libc.inotify_add_watch(self.descriptor, os.fsencode(folder), ctypes.c_uint32(_MASK)) >= 0)


def _nearest(folder: str) -> str:
    while not os.path.isdir(folder) and folder != "/":  # noqa: PTH112
        folder = os.path.dirname(folder)  # noqa: PTH120
    return folder


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - on the path of every prepare
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _open_mounts() -> int:
    try:
        return os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class MountWatch:
    """For one thread at a time. Without a mount table, `changed` is always True."""

    def __init__(self, *, start: Callable[[], int] = _open_mounts) -> None:
        self._poll = select.poll()
        self._descriptor = start()
        if self._descriptor >= 0:
            self._poll.register(self._descriptor, select.POLLPRI)
            weakref.finalize(self, os.close, self._descriptor)

    def changed(self) -> bool:
        """Return whether the mount table changed since the last call, or since the start."""
        return self._descriptor < 0 or bool(self._poll.poll(0))
