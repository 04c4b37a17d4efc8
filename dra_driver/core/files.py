"""Replace a file atomically, read a file that another process replaces, and lock a file between processes. CDI files
are written by ``hardware/cdi/writer.py``: everyone may read them, and its tests make each step fail."""

import errno
import fcntl
import glob
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

UNFINISHED: Final = ".tmp"  # the suffix of temporary files. A process that dies while it writes leaves at most one.

UNFINISHED_S: Final = 3600.0  # seconds after which no process still writes a temporary file

_LOCK_PAUSE_S: Final = 0.01


def replace_file(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = False) -> os.stat_result:
    """Replace the content of ``path`` by a rename and return the status of the new file; readers see the old or the new
    content.

    Follows no link; ``mode`` is set whatever the umask. With ``durable``, syncs the file before the rename and the
    directory after it. Raises OSError; then ``path`` is unchanged, except when only syncing the directory failed. A
    crash leaves at most a temporary file with the suffix `UNFINISHED`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)
    return status


def read_plain(path: Path | str, most: int) -> bytes:
    """At most ``most`` bytes of a regular file. Raises OSError for anything else; follows no link, does not wait for a
    FIFO's writer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read(most)


def read_start(path: Path | str, limit: int) -> str | None:
    """At most ``limit`` characters of a file of the kernel; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - twice as fast as Path
            return file.read(limit)
    except OSError:
        return None


class ChangedFile:
    """Reads a small file that another process replaces, when it has changed. Of one thread."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._seen: tuple[int, int, int] | None = None
        self.modified = 0.0
        """Modification time of the last file read, in seconds of the Unix epoch."""

    def read(self) -> bytes | None:
        """The content, at most one byte more than ``max_bytes``; None for a file that was read before. Raises OSError,
        also for a link, a pipe and a device."""
        found = os.lstat(self._path)
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return None
        content = read_plain(self._path, self._max_bytes + 1)
        self._seen, self.modified = seen, found.st_mtime
        return content


def remove_unfinished(path: Path, *, older_than_s: float = UNFINISHED_S) -> None:
    """Remove temporary files that processes left which died in `replace_file` of ``path``. Raises OSError."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        with suppress(FileNotFoundError):  # another process removed it
            if time.time() - left.lstat().st_mtime > older_than_s:
                left.unlink()


def lock_file(
    path: Path,
    *,
    timeout_s: float = 0.0,
    shared: bool = False,
    create_mode: int | None = 0o600,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Lock ``path`` with ``flock`` and return the descriptor that holds the lock until it is closed or the process
    dies.

    The lock counts between any two descriptors, in one process too; ``shared`` locks exclude exclusive locks only.
    Creates a missing file with ``create_mode``; with None it must exist. Tries at least once, then every 10 ms for
    ``timeout_s``, then raises BlockingIOError. Raises OSError when the file cannot be opened. Follows no link. Never
    remove a lock file that another process may wait for: the two would then lock different files.
    """
    descriptor = _open_lock(path, create_mode)
    try:
        deadline = clock() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock() >= deadline:
                    raise
            else:
                return descriptor
            sleep(_LOCK_PAUSE_S)
    except BaseException:
        os.close(descriptor)
        raise


def _open_lock(path: Path, create_mode: int | None) -> int:
    common = os.O_CLOEXEC | os.O_NOFOLLOW
    if create_mode is not None:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | common, create_mode)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
    # A lock that exists can be taken on a file system that the kernel made read-only: claims are still served.
    return os.open(path, os.O_RDONLY | common)


def name_holder(descriptor: int) -> None:
    """Write this process' id into its lock file, for the message of the next process. Never raises: a full disk must
    not keep the holder from running."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)


def holder_of(path: Path) -> str:
    """Return the text that the lock's holder wrote with `name_holder`, or "unknown". Never raises."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MAX_HOLDER).decode(errors="replace").strip() or "unknown"
    return "unknown"


_MAX_HOLDER: Final = 100


def sync_folder(folder: Path | str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
