"""Whether the kernel gives this user one more inotify instance: all processes of a user share a limit, often of 128."""

import ctypes
import errno
import os

_libc = ctypes.CDLL(None, use_errno=True)


def instances_are_used_up() -> bool:
    """Raises OSError for any other reason (inotify_init1(2))."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC))
    if descriptor >= 0:
        os.close(descriptor)
        return False
    number = ctypes.get_errno()
    if number != errno.EMFILE:
        raise OSError(number, os.strerror(number))
    return True
