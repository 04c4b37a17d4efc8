"""Remove a folder in which containers could write, with bounds on memory, open files and time.

Nested folders may be deeper than recursion or the longest path allow, with more files than fit into memory. So no names
are collected, at most three descriptors are open, and nested folders are moved up to the top.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

REMOVE_S: Final = 10.0
"""A million files take about this long; the next call removes the rest."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path, *, within_s: float = REMOVE_S, clock: Callable[[], float] = time.monotonic) -> None:
    """Remove a folder in which others may write, following no link. OSError when a part remains: repeat the call."""
    deadline = clock() + within_s

    def check_time() -> None:
        if clock() >= deadline:
            raise TimeoutError(f"its content cannot be removed within {within_s:.0f} s; the rest is removed later")

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
    """Empty ``top`` by one level: the content of folders moves up into it. True when ``top`` is empty."""
    empty = True
    with os.scandir(top) as entries:  # it may change during the loop: the next sweep removes the rest
        for entry in entries:
            check_time()
            if not _is_removed(entry, top):
                empty = False
                _move_up(entry.name, top, check_time)
    return empty


def _move_up(name: str, top: int, check_time: Callable[[], None]) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):  # removed by another process, or replaced by a link
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
    """False for a folder that is not empty."""
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
"""ENOTDIR and EISDIR: file and directory were exchanged after the listing; the next sweep handles it."""
