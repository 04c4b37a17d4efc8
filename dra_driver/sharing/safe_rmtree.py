"""Removing a folder in which containers could write, whatever they put there.

Owns the bound on memory, open files and time. Refuses to know what the folder was for. Whoever could write in it may
have nested folders deeper than any recursion goes or any path can say, and made more files than a list should hold;
such a folder must neither end a process that serves everybody nor keep it. So no name is remembered, three descriptors
are open at most, and what is nested is moved up before it is emptied instead of being walked down to.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

REMOVE_S: Final = 10.0
"""A million files take about this long; what is left then is removed by the next call."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path, *, within_s: float = REMOVE_S, clock: Callable[[], float] = time.monotonic) -> None:
    """Remove a folder that others may write in: no link in it is followed. Missing is success.

    Raises OSError, above all TimeoutError after ``within_s``, when part of it is left; then it can be repeated.
    """
    deadline = clock() + within_s

    def check_time() -> None:
        if clock() >= deadline:
            raise TimeoutError(f"more is in it than can be removed in {within_s:.0f} s; the rest is removed later")

    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    try:
        while not _swept(top, check_time):
            check_time()
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        path.rmdir()


def _swept(top: int, check_time: Callable[[], None]) -> bool:
    """Remove what is in ``top``; folders with something in them lose their first level to it. True when none had."""
    empty = True
    with os.scandir(top) as entries:  # read while it changes: what is missed now is seen by the next sweep
        for entry in entries:
            check_time()
            if not _is_removed(entry, top):
                empty = False
                _move_up(entry.name, top, check_time)
    return empty


def _move_up(name: str, top: int, check_time: Callable[[], None]) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):  # somebody else's work, or it is a link by now
        inner = os.open(name, _FOLDER, dir_fd=top)
        try:
            with os.scandir(inner) as entries:
                for entry in entries:
                    check_time()
                    if not _is_removed(entry, inner):
                        os.rename(entry.name, f".{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=top)
        finally:
            os.close(inner)


def _is_removed(entry: "os.DirEntry[str]", parent: int) -> bool:
    """False for a folder that has something in it."""
    try:
        if entry.is_dir(follow_symlinks=False):
            os.rmdir(entry.name, dir_fd=parent)
        else:
            os.unlink(entry.name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in _NOT_EMPTY:
            return False
        raise
    return True


_NOT_EMPTY: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""ENOTDIR and EISDIR: it became the other kind since it was listed; the next sweep sees which."""
