"""Says in one system call whether anything was mounted or unmounted where this process sees it.

A change of the mount table makes an open ``/proc/self/mountinfo`` report an exceptional condition once (Linux,
fs/proc_namespace.c, ``mounts_poll``). It counts for every mount of the process' namespace, also those of pods that
start; what they cover is for the caller to look at.
"""

import os
import select
import weakref
from collections.abc import Callable


def _start() -> int:
    """An open mount table; negative where there is none."""
    try:
        return os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class MountWatch:
    """For one thread at a time. Without a mount table, `changed` is always True."""

    def __init__(self, *, start: Callable[[], int] = _start) -> None:
        self._poll = select.poll()
        self._descriptor = start()
        if self._descriptor >= 0:
            self._poll.register(self._descriptor, select.POLLPRI)
            weakref.finalize(self, os.close, self._descriptor)

    def changed(self) -> bool:
        """Whether the mount table changed since the last call, or since the start."""
        return self._descriptor < 0 or bool(self._poll.poll(0))
