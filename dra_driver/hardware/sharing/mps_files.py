"""The files through which the node process and the MPS host communicate.

    <root>/host.lock                      locked by the MPS host while it runs
    <root>/daemons/<id>/desired.json      the wanted daemon, written by the node process
    <root>/daemons/<id>/released.json     the same file after the release, until the release is complete
    <root>/daemons/<id>/status.json       the running daemon, written by the host; removed with the daemon
    <root>/daemons/<id>/pipe, log         the daemon's own folders; pipe is a link where ``memory.py`` has the pipes

Files instead of a socket, because either process may be restarted at any time and then reads what is wanted and what
runs. Nothing is synced to disk: a power cut ends both daemons and claims, and files of an earlier boot only say what to
clean up.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict

from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file, replace_file
from dra_driver.hardware.sharing.daemon import MpsDaemon, check_id
from dra_driver.hardware.sharing.safe_rmtree import REMOVE_S, remove_tree

DaemonState = Literal["starting", "ready", "failed", "stopping"]
DAEMON_STATES: Final = ("starting", "ready", "failed", "stopping")
MAX_FILE: Final = 64 * 1024
MAX_DAEMONS: Final = 256
"""More than a node can use: every device has one at most, and a GPU has at most seven MIG devices."""

# Only root reads desired.json. Daemon, servers and clients of any user write into the pipe folder; the sticky bit keeps
# one user from replacing the sockets of another. Only root enters the folder above it: containers have pipe mounted.
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
PIPE_MODE: Final = 0o1777
LOG_MODE: Final = 0o755


class Status(Struct, frozen=True, kw_only=True):
    """A daemon's status, written by the MPS host.

    ``generation`` is that of the description it belongs to, ``reason`` a sentence for a state other than ready,
    ``restarts`` the number of restarts, ``shm`` the folder that daemon and clients see as ``/dev/shm``.
    """

    generation: str
    state: DaemonState
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    shm: str = ""


class DaemonFolder:
    """One daemon's folder. Methods raise StorageError when a file cannot be written or removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.desired = path / "desired.json"
        self.released = path / "released.json"
        self.status = path / "status.json"
        self.pipe = path / "pipe"
        self.log = path / "log"

    def make(self) -> None:
        """Create missing folders and set the modes of all. Idempotent. A link to the pipes stays as it is."""
        with storage(f"create the folder of an MPS daemon, {self.path}"):
            self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            for folder, mode in ((self.pipe, PIPE_MODE), (self.log, LOG_MODE)):
                if not folder.is_symlink():
                    folder.mkdir(exist_ok=True)
                    folder.chmod(mode)

    def link_pipe(self, target: Path) -> None:
        """Let ``pipe`` be a link to the folder with the pipes. Removes pipes that are there. Idempotent."""
        with storage(f"link {self.pipe} to {target}"):
            if self.pipe.is_symlink():
                if self.pipe.readlink() == target:
                    return
                self.pipe.unlink()
            remove_tree(self.pipe)
            self.pipe.symlink_to(target)

    @property
    def pipe_on_host(self) -> Path:
        """The folder with the pipes as the container runtime sees it. This process may not see it."""
        return self.pipe.readlink() if self.pipe.is_symlink() else self.pipe

    def read_desired(self) -> MpsDaemon | None:
        """The wanted daemon; None without one, or when the file does not describe a daemon of this folder's name."""
        return _daemon(self.desired)

    def read_any(self) -> MpsDaemon | None:
        """The wanted daemon, or the released one until its release is complete."""
        return _daemon(self.desired) or _daemon(self.released)

    def write_desired(self, daemon: MpsDaemon) -> None:
        """Want the daemon. Atomic."""
        _write(self.desired, daemon.to_wire())
        with storage(f"remove {self.released}"):
            self.released.unlink(missing_ok=True)

    def release(self) -> None:
        """Want no daemon any more. Idempotent."""
        with storage(f"release {self.desired}"), suppress(FileNotFoundError):
            self.desired.replace(self.released)

    def read_status(self) -> Status | None:
        """The last status of the host; None when it is missing or unreadable."""
        wire = _read(self.status)
        if not isinstance(wire, dict) or wire.get("state") not in DAEMON_STATES:
            return None
        generation, reason, shm = wire.get("generation"), wire.get("reason"), wire.get("shm")
        pid, restarts = wire.get("pid"), wire.get("restarts")
        if not isinstance(generation, str) or not isinstance(reason, str) or not isinstance(shm, str):
            return None
        return Status(
            generation=generation,
            state=wire["state"],
            reason=reason,
            pid=pid if isinstance(pid, int) else None,
            restarts=restarts if isinstance(restarts, int) else 0,
            shm=shm,
        )

    def write_status(self, status: Status) -> None:
        """Replace the status. Atomic."""
        _write(self.status, asdict(status))

    def clear_status(self) -> None:
        """Remove the status, because the daemon has ended. Idempotent."""
        with storage(f"remove {self.status}"):
            self.status.unlink(missing_ok=True)

    def remove(self, *, within_s: float = REMOVE_S) -> None:
        """Remove the folder and its content. Idempotent."""
        with storage(f"remove {self.path}"):
            remove_tree(self.path, within_s=within_s)


class MpsFolders:
    """All daemons' folders below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.daemons = root / "daemons"
        self.lock = root / "host.lock"

    def make(self) -> None:
        """Create the root, accessible only to root."""
        with storage(f"create the folder for MPS, {self.root}"):
            self.daemons.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self.root.chmod(_FOLDER_MODE)

    def of(self, daemon_id: str) -> DaemonFolder:
        """The daemon's folder, which need not exist. Raises ValueError for an invalid id."""
        return DaemonFolder(self.daemons / check_id(daemon_id))

    def ids(self) -> tuple[str, ...]:
        """Ids with a folder, in any state, ascending."""
        with storage(f"list {self.daemons}"):
            try:
                found = [entry.name for entry in os.scandir(self.daemons) if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
        return tuple(sorted(name for name in found if _is_id(name)))

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """For each wanted daemon, by id, a value that changes when `DaemonFolder.desired` is written."""
        found = {}
        with storage(f"list {self.daemons}"):
            for name in os.listdir(self.daemons):  # noqa: PTH208 - names, not paths: ten times a second
                with suppress(FileNotFoundError, NotADirectoryError):
                    status = os.stat(f"{self.daemons}/{name}/desired.json")  # noqa: PTH116 - same
                    found[name] = (status.st_mtime_ns, status.st_ino, status.st_size)
        return {name: stamp for name, stamp in found.items() if _is_id(name)}

    def host_lives(self) -> bool:
        """Whether an MPS host runs, that is, holds the lock."""
        try:
            os.close(lock_file(self.lock, shared=True, create_mode=None))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


@contextmanager
def storage(doing: str) -> Iterator[None]:
    """Translate an OSError of the block into a StorageError about ``doing``."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {doing}: {error.strerror or error}") from error


def make_own(folder: Path, mode: int, *, take: bool = False) -> None:
    """Create the folder, or check that the existing one belongs to this user. Raises OSError.

    Any user may create files in /dev/shm. Through a link or a folder of another user, that user would choose what
    containers mount and what the MPS host removes. ``take`` makes a folder of another user this user's: for one in a
    folder where only this user can make it, whose owner root in a container has changed.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(descriptor).st_uid
        if owner != os.geteuid():
            if not take:
                raise PermissionError(f"it belongs to user {owner}, expected user {os.geteuid()}: remove it")
            os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _is_id(name: str) -> bool:
    try:
        check_id(name)
    except ValueError:
        return False
    return True


def _daemon(path: Path) -> MpsDaemon | None:
    try:
        daemon = MpsDaemon.from_wire(_read(path))
    except ValueError:
        return None
    return daemon if daemon.id == path.parent.name else None


def _read(path: Path) -> Any:
    """The JSON of a small plain file; None when it is missing or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return json.loads(os.read(descriptor, MAX_FILE))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _write(path: Path, wire: dict[str, Any]) -> None:
    with storage(f"write {path}"):
        replace_file(path, json.dumps(wire, sort_keys=True).encode() + b"\n")
