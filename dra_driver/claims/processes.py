"""Which runs of the node process are alive, seen from any of them.

Owns one small locked file per run. Refuses to know what a run does. A claim that another run has begun is left alone
while that run lives and cleaned up when it is dead; guessing by age or by process id would be wrong in both directions
(a slow disk; two containers with the same pid). The kernel drops a ``flock`` when its holder dies, however it dies, and
shows it across containers that share the directory.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.claims.entry import OwnerId
from dra_driver.errors import StorageError
from dra_driver.files import lock_file

_PREFIX = "owner-"
_SUFFIX = ".lock"
_TRIES = 100


class ProcessRegistry:
    """This run's lock and the question about others'. Thread-safe.

    Files of dead runs are removed when a new run starts, so their number is bounded by the crashes in between.
    """

    def __init__(self, directory: Path, own: OwnerId, fd: int) -> None:
        self._directory = directory
        self.own = own
        self._fd = fd

    @classmethod
    def register(cls, directory: Path | str, own: str) -> "ProcessRegistry":
        """Announce this run under ``own``, an id never used before. Raises StorageError when no file can be made."""
        directory = Path(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(directory)
            fd = _take(directory / f"{_PREFIX}{own}{_SUFFIX}")
        except OSError as error:
            raise StorageError(
                f"cannot announce this process in {directory}: {(error.strerror or str(error)).lower()}; "
                "check the plugin directory's path, permissions and free space"
            ) from error
        return cls(directory, OwnerId(own), fd)

    def is_alive(self, owner: OwnerId) -> bool:
        """Whether the run is alive. In doubt (its file cannot be looked at) it is."""
        if owner == self.own:
            return True
        try:
            return not _is_free(self._directory / f"{_PREFIX}{owner}{_SUFFIX}")
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Stop being alive for others. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                (self._directory / f"{_PREFIX}{self.own}{_SUFFIX}").unlink()
            os.close(fd)


def _take(path: Path) -> int:
    """The locked file at ``path``, made; made again when another run's sweep removed it before it was locked."""
    for _ in range(_TRIES):
        try:
            fd = lock_file(path)
        except BlockingIOError:
            time.sleep(0.01)  # another run is checking whether it is free
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        os.close(fd)
    raise TimeoutError(errno.ETIMEDOUT, "another process keeps locking or removing this process' file")


def _sweep(directory: Path) -> None:
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError), _locked(path, shared=False):
            path.unlink()  # under the lock, so that `_take` either sees the lock or the missing file


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock. Asked with a shared lock, so that askers do not take each other for owners."""
    try:
        with _locked(path, shared=True):
            return True
    except BlockingIOError:
        return False


@contextlib.contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[None]:
    """Raises BlockingIOError at once when somebody else has the lock."""
    fd = lock_file(path, shared=shared, create_mode=None)
    try:
        yield
    finally:
        os.close(fd)
