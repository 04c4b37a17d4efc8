"""The file operations of the CDI writer, one method each, so that a test can make any of them fail.

Every method raises OSError, which the writer translates.
"""

import os
import stat

from msgspec import Struct

FileIdentity = tuple[int, int, int, int, int, int]
"""Device, inode, mode, size, time of the last write, and of the last change of content or attributes."""


class FileAge(Struct, frozen=True, kw_only=True):
    """A plain file's modification time, seconds since the epoch."""

    modified_s: float


class Files:
    """The real file system. Stateless and thread-safe."""

    def make_folder(self, folder: str) -> None:
        """Create ``folder`` with mode 0755 whatever the umask, parents included; a folder that exists is left alone."""
        if os.path.isdir(folder):  # noqa: PTH112
            return
        os.makedirs(folder, mode=0o755, exist_ok=True)  # noqa: PTH103
        os.chmod(folder, 0o755)  # noqa: PTH101, S103 - what /etc/cdi and /var/run/cdi have everywhere

    def create_temporary(self, folder: str, prefix: str) -> tuple[int, str]:
        """Create a new file in ``folder`` with mode 0600; returns its descriptor and path.

        Like ``tempfile.mkstemp``, which would load compression libraries into the node process.
        """
        path = f"{folder}/{prefix}{os.urandom(4).hex()}.tmp"
        # An existing name (one in four thousand million) is an error; the next call uses another name.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), path

    def write(self, fd: int, data: bytes) -> None:
        """Write all of ``data``."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def set_mode(self, fd: int, mode: int) -> None:
        """Set permission bits, whatever the umask."""
        os.fchmod(fd, mode)

    def sync(self, fd: int) -> None:
        """Wait until the file's content is on disk."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target`` atomically."""
        os.replace(source, target)  # noqa: PTH105

    def sync_folder(self, folder: str) -> None:
        """Wait until the folder's entries are on disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, path: str, limit: int) -> bytes | None:
        """At most ``limit`` bytes of a plain file; None when it is missing, a link, a folder or anything else."""
        try:
            # Follows no link out of the folder and does not wait for a writer of a FIFO.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, limit) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def list(self, folder: str) -> list[str]:
        """Names in ``folder``; none when it is missing."""
        try:
            return os.listdir(folder)  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []

    def age(self, path: str) -> FileAge | None:
        """When a plain file was last written; None for anything else. Links are not followed."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        return FileAge(modified_s=status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def identity(self, path: str) -> FileIdentity | None:
        """What changes with every write of the file; None when it is missing. Links are not followed."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def remove(self, path: str) -> bool:
        """Remove a file (a link itself, never its target); False when it was already gone."""
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        return True
