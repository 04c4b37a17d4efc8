"""Write and remove this driver's files in the CDI directory, atomically.

A file is published by a rename within its directory: containerd's CDI library watches for renames, removals and writes,
and misses a file linked or moved in from another directory (``pkg/cdi/cache.go``).
"""

import errno
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from dra_driver.core.errors import InvalidSpecError, StorageError
from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import CdiSpec, validate

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
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, path: str, limit: int) -> bytes | None:
        """At most ``limit`` bytes of a plain file; None for anything else."""
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


log = logging.getLogger(__name__)

STALE_AFTER_S = 600.0
"""A temporary file older than this was left by a crash: writing one takes milliseconds."""

_ADVICE = {
    errno.ENOSPC: "the file system is full: free space there",
    errno.EDQUOT: "the quota is used up: raise it or free space there",
    errno.EROFS: "the file system is read-only: mount the CDI directory writable into the node process",
    errno.EACCES: "permission is denied: the node process must run as root, or own the CDI directory",
    errno.EPERM: "the operation is not permitted: the node process must run as root, or own the CDI directory",
    errno.ENOTDIR: "a part of the path is not a directory: check the CDI directory's path",
    errno.EISDIR: "a directory has the name of the file: remove it",
}


def render(spec: CdiSpec, source: str) -> bytes:
    """The file's bytes: indented JSON with a final newline. Raises `InvalidSpecError` naming ``source``."""
    validate(spec, source)
    return json.dumps(spec.to_wire(), indent=1).encode() + b"\n"


def _code(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown")


class CdiWriter:
    """Writes and removes this driver's files in one CDI directory. Thread-safe without a lock, also between processes:
    the later of two renames wins. Methods raise `StorageError` and can be repeated."""

    def __init__(
        self, directory: str, names: CdiNames, *, files: Files | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._directory = str(directory).rstrip("/") or "/"
        self._names = names
        self._files = files or Files()
        self._now = now
        # The base document is compared in every prepare and seldom changes, so its bytes are cached, and the identity
        # of the file that had them. A tuple, so that threads see what belongs together.
        self._rendered_base: tuple[CdiSpec, bytes, FileIdentity | None] | None = None

    @property
    def directory(self) -> str:
        return self._directory

    def write_base(self, spec: CdiSpec) -> bool:
        """Write ``spec`` to the base file, durably; False when it is equal. An unchanged file is not read again."""
        name, kept = self._names.base_file_name, self._rendered_base
        if kept is None or kept[0] is not spec:
            kept = (spec, self._render(spec, name, self._names.device_kind), None)
        seen = self._files.identity(self._path(name))  # before the file is read
        if seen is not None and seen == kept[2]:
            return False
        changed = self._put(name, kept[1], durable=True)
        self._rendered_base = (spec, kept[1], None if changed else seen)
        return changed

    def write_claim(self, uid: str, spec: CdiSpec) -> bool:
        """Write ``spec`` to the claim's file; False when it is equal already. A crash leaves the old file and at most a
        temporary one. Not synced: a power cut changes the boot id, so the journal drops the claim
        (docs/decisions/0008). Raises `ClaimError` unless ``uid`` is a UID, `InvalidSpecError` for a document that would
        not load; nothing is touched then."""
        name = self._names.claim_file_name(uid)
        return self._put(name, self._render(spec, name, self._names.claim_kind), durable=False)

    def remove_claim(self, uid: str) -> bool:
        """Remove the claim's file; False without one. Not synced: a file that reappears is an orphan. Raises
        `ClaimError`."""
        return self._remove(self._names.claim_file_name(uid))

    def claim_uids(self) -> frozenset[ClaimUid]:
        return frozenset(uid for name in self._list() if (uid := self._names.uid_of(name)) is not None)

    def remove_orphans(self, keep: Collection[str]) -> tuple[ClaimUid, ...]:
        """Remove claim files whose claim is not in ``keep``, and temporary files older than `STALE_AFTER_S`; returns
        the removed claims. Other programs' files are never touched."""
        kept = frozenset(keep)
        orphans = sorted(uid for uid in self.claim_uids() if uid not in kept)
        removed = tuple(uid for uid in orphans if self.remove_claim(uid))
        if removed:
            log.info("orphaned CDI files removed", extra={"count": len(removed), "directory": self._directory})
        self._remove_stale_temporaries()
        return removed

    def _remove_stale_temporaries(self) -> None:
        for name in self._list():
            if not self._names.is_temporary(name):
                continue
            try:
                modified_s = self._files.modified_s(self._path(name))
            except OSError as error:
                raise self._storage_error("read the age of", name, error) from error
            if modified_s is not None and self._now() - modified_s > STALE_AFTER_S:
                self._remove(name)

    def _render(self, spec: CdiSpec, name: str, kind: str) -> bytes:
        if spec.kind != kind:
            raise InvalidSpecError(f"CDI document {self._path(name)} would be of kind {spec.kind!r}, expected {kind!r}")
        return render(spec, self._path(name))

    def _put(self, name: str, data: bytes, *, durable: bool) -> bool:
        if self._files.read(self._path(name), len(data) + 1) == data:
            return False
        try:
            self._replace(name, data, durable=durable)
        except OSError as error:
            raise self._storage_error("write", name, error) from error
        return True

    def _replace(self, name: str, data: bytes, *, durable: bool) -> None:
        files = self._files
        try:
            fd, temporary = files.create_temporary(self._directory, self._names.temporary_prefix)
        except FileNotFoundError:  # created on demand: /var/run is empty after a reboot
            files.make_folder(self._directory)
            fd, temporary = files.create_temporary(self._directory, self._names.temporary_prefix)
        try:
            try:
                files.write(fd, data)
                files.set_mode(fd, 0o644)  # readable for debugging; it has no secrets
                if durable:
                    files.sync(fd)
            finally:
                files.close(fd)
            files.replace(temporary, self._path(name))
        except OSError:
            with suppress(OSError):  # the first failure is reported; `remove_orphans` removes the temporary file later
                files.remove(temporary)
            raise
        if durable:
            files.sync_folder(self._directory)

    def _remove(self, name: str) -> bool:
        try:
            return self._files.remove(self._path(name))
        except OSError as error:
            raise self._storage_error("remove", name, error) from error

    def _list(self) -> list[str]:
        try:
            return self._files.list(self._directory)
        except OSError as error:
            raise StorageError(
                f"cannot list the CDI directory {self._directory}: {self._advice(error)}; retrying"
            ) from error

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _storage_error(self, verb: str, name: str, error: OSError) -> StorageError:
        return StorageError(
            f"cannot {verb} CDI file {self._path(name)}: {self._advice(error)}; retrying", errno=_code(error)
        )

    @staticmethod
    def _advice(error: OSError) -> str:
        return _ADVICE.get(error.errno or 0, (error.strerror or str(error)).lower()) + f" ({_code(error)})"
