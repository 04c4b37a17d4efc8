"""Write and remove this driver's files in one directory, atomically.

A file is published by a rename within its directory: containerd's CDI library watches for renames, removals and writes,
and misses a file linked or moved in from another directory (``pkg/cdi/cache.go``).
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from dra_driver.core.errors import StorageError
from dra_driver.core.files import read_plain, sync_folder

FileIdentity = tuple[int, int, int, int, int, int]
"""Device, inode, mode, size, time of the last write, and of the last change of content or attributes."""


class Files:
    def make_folder(self, folder: str) -> None:
        """Create ``folder`` and its parents with mode 0755 whatever the umask, unless it exists."""
        if os.path.isdir(folder):  # noqa: PTH112
            return
        os.makedirs(folder, mode=0o755, exist_ok=True)  # noqa: PTH103
        os.chmod(folder, 0o755)  # noqa: PTH101, S103 - what /etc/cdi and /var/run/cdi have everywhere

    def create_temporary(self, folder: str, prefix: str) -> tuple[int, str]:
        """Create a file with mode 0600; returns descriptor and path. ``tempfile`` would load compression libraries."""
        path = f"{folder}/{prefix}{os.urandom(4).hex()}.tmp"
        # An existing name (one in four thousand million) is an error; the next call uses another name.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), path

    def write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def set_mode(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)  # noqa: PTH105

    def sync_folder(self, folder: str) -> None:
        sync_folder(folder)

    def read(self, path: str, limit: int) -> bytes | None:
        """At most ``limit`` bytes of a plain file; None for anything else."""
        try:
            return read_plain(path, limit)
        except OSError:
            return None

    def list(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder)  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def modified_s(self, path: str) -> float | None:
        """Return the modification time of a plain file; None for anything else. Links are not followed."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        return status.st_mtime if stat.S_ISREG(status.st_mode) else None

    def identity(self, path: str) -> FileIdentity | None:
        """Values that change with every write of the file; None when it is missing. Links are not followed."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def remove(self, path: str) -> bool:
        """Remove a file (a link itself, never its target); False when it is already missing."""
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        return True


STALE_AFTER_S = 600.0
"""A temporary file older than this was left by a crash: writing one takes milliseconds."""

_ADVICE = {
    errno.ENOSPC: "the file system is full: free space there",
    errno.EDQUOT: "the quota is used up: raise it or free space there",
    errno.EROFS: "the file system is read-only: mount the directory writable into the node process",
    errno.EACCES: "permission is denied: the node process must run as root, or own the directory",
    errno.EPERM: "the operation is not permitted: the node process must run as root, or own the directory",
    errno.ENOTDIR: "a part of the path is not a directory: check the directory's path",
    errno.EISDIR: "a directory has the name of the file: remove it",
    errno.ELOOP: "it, or its directory, is a symbolic link, which the driver does not follow: remove the link",
}


class OwnedFolder:
    """The files of this driver in one directory, which other programs may use too. Thread-safe without a lock, also
    between processes: the later of two renames wins. Methods raise `StorageError` and can be repeated. ``kind`` names
    the files in messages."""

    def __init__(self, path: str, kind: str, temporary_prefix: str, files: Files) -> None:
        self.path = str(path).rstrip("/") or "/"
        self.files = files
        self._kind = kind
        self._prefix = temporary_prefix

    def put(self, name: str, data: bytes, *, durable: bool = False, plain: bool = False) -> bool:
        """Write the file; False when it is equal already. A crash leaves the old file and at most a temporary one.

        ``plain``: fails where the directory or the file is a link, instead of following the first and replacing the
        second.
        """
        try:
            seen = self.files.identity(self.path_of(name))
            if plain:
                self._require_plain(seen)
            if seen is not None and self.files.read(self.path_of(name), len(data) + 1) == data:
                return False
            self._replace(name, data, durable=durable)
        except OSError as error:
            raise self._error("write", name, error) from error
        return True

    def remove(self, name: str) -> bool:
        try:
            return self.files.remove(self.path_of(name))
        except OSError as error:
            raise self._error("remove", name, error) from error

    def list(self) -> list[str]:
        try:
            return self.files.list(self.path)
        except OSError as error:
            raise StorageError(f"cannot list {self._kind}s in {self.path}: {_advice(error)}; retrying") from error

    def remove_stale(self, is_temporary: Callable[[str], bool], now: float) -> None:
        """Remove temporary files older than `STALE_AFTER_S`."""
        for name in self.list():
            if not is_temporary(name):
                continue
            try:
                modified_s = self.files.modified_s(self.path_of(name))
            except OSError as error:
                raise self._error("read the age of", name, error) from error
            if modified_s is not None and now - modified_s > STALE_AFTER_S:
                self.remove(name)

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    @property
    def is_link(self) -> bool:
        """Return whether the directory itself is a symbolic link."""
        seen = self.files.identity(self.path)
        return seen is not None and stat.S_ISLNK(seen[2])

    def _require_plain(self, seen: FileIdentity | None) -> None:
        if self.is_link or (seen is not None and stat.S_ISLNK(seen[2])):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _replace(self, name: str, data: bytes, *, durable: bool) -> None:
        files = self.files
        try:
            fd, temporary = files.create_temporary(self.path, self._prefix)
        except FileNotFoundError:  # created on demand: /var/run is empty after a reboot
            files.make_folder(self.path)
            fd, temporary = files.create_temporary(self.path, self._prefix)
        try:
            try:
                files.write(fd, data)
                files.set_mode(fd, 0o644)  # readable for debugging; it has no secrets
                if durable:
                    files.sync(fd)
            finally:
                files.close(fd)
            files.replace(temporary, self.path_of(name))
        except OSError:
            with suppress(OSError):  # the first failure is reported; `remove_orphans` removes the temporary file later
                files.remove(temporary)
            raise
        if durable:
            files.sync_folder(self.path)

    def _error(self, verb: str, name: str, error: OSError) -> StorageError:
        return StorageError(
            f"cannot {verb} {self._kind} {self.path_of(name)}: {_advice(error)}; retrying", errno=_code(error)
        )


def _code(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown")


def _advice(error: OSError) -> str:
    return _ADVICE.get(error.errno or 0, (error.strerror or str(error)).lower()) + f" ({_code(error)})"
