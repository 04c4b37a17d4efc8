"""The files through which the node process and the MPS host speak.

Owns names, modes, atomic writing and bounded reading. Refuses to know what follows from what they say.

    <root>/host.lock                      locked by the MPS host while it lives
    <root>/daemons/<id>/desired.json      what should run, written by the node process
    <root>/daemons/<id>/released.json     the same, after nobody needs it any more and until all is undone
    <root>/daemons/<id>/status.json       what runs, written by the host; gone when the daemon is
    <root>/daemons/<id>/pipe, log         the daemon's own folders

Files instead of a socket between the two, because either may be restarted at any time: what should run and what runs
are there for whoever comes back. Nothing is synced to disk: a power cut ends daemons and claims alike, and the files of
an earlier boot say nothing but what may be tidied up.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dra_driver.errors import StorageError
from dra_driver.files import lock_file, replace_file
from dra_driver.sharing.daemon import MpsDaemon, check_id
from dra_driver.sharing.safe_rmtree import REMOVE_S, remove_tree

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the host says about a daemon.

    ``generation`` is that of the desired daemon it speaks about, ``reason`` a sentence for a state that is not ready,
    ``restarts`` how often it came up again, ``shm`` the folder that is ``/dev/shm`` to daemon and clients.
    """

    generation: str
    state: DaemonState
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    shm: str = ""


class DaemonFolder:
    """One daemon's folder. Raises StorageError where something cannot be written or removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.desired = path / "desired.json"
        self.released = path / "released.json"
        self.status = path / "status.json"
        self.pipe = path / "pipe"
        self.log = path / "log"

    def make(self) -> None:
        """Make what is missing, with the right modes. Idempotent."""
        with storage(f"make the folder of an MPS daemon, {self.path}"):
            self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            for folder, mode in ((self.pipe, PIPE_MODE), (self.log, LOG_MODE)):
                folder.mkdir(exist_ok=True)
                folder.chmod(mode)

    def read_desired(self) -> MpsDaemon | None:
        """What should run; None when nothing should, or when the file does not hold a daemon of this folder's name."""
        return _daemon(self.desired)

    def read_any(self) -> MpsDaemon | None:
        """What should run or has been released and is not undone yet."""
        return _daemon(self.desired) or _daemon(self.released)

    def write_desired(self, daemon: MpsDaemon) -> None:
        """In one step."""
        _write(self.desired, daemon.to_wire())
        with storage(f"remove {self.released}"):
            self.released.unlink(missing_ok=True)

    def release(self) -> None:
        """Say that nothing should run. Idempotent."""
        with storage(f"release {self.desired}"), suppress(FileNotFoundError):
            self.desired.replace(self.released)

    def read_status(self) -> Status | None:
        """What the host said last; None when it said nothing, or nothing that can be read."""
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
        """In one step."""
        _write(self.status, asdict(status))

    def clear_status(self) -> None:
        """Say that nothing runs. Idempotent."""
        with storage(f"remove {self.status}"):
            self.status.unlink(missing_ok=True)

    def remove(self, *, within_s: float = REMOVE_S) -> None:
        """Remove the folder with all that is in it. Idempotent."""
        with storage(f"remove {self.path}"):
            remove_tree(self.path, within_s=within_s)


class MpsFolders:
    """All daemons' folders below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.daemons = root / "daemons"
        self.lock = root / "host.lock"

    def make(self) -> None:
        """Make the root, for root alone."""
        with storage(f"make the folder for MPS, {self.root}"):
            self.daemons.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self.root.chmod(_FOLDER_MODE)

    def of(self, daemon_id: str) -> DaemonFolder:
        """The daemon's folder, there or not. Raises ValueError for an id that cannot be one."""
        return DaemonFolder(self.daemons / check_id(daemon_id))

    def ids(self) -> tuple[str, ...]:
        """Ids that have a folder, in whatever state, ascending; none when nothing was ever made here."""
        with storage(f"list {self.daemons}"):
            try:
                found = [entry.name for entry in os.scandir(self.daemons) if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
        return tuple(sorted(name for name in found if _is_id(name)))

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """Id -> something that changes when `DaemonFolder.desired` is written, for those that have one; quickly."""
        found = {}
        with storage(f"list {self.daemons}"):
            for name in os.listdir(self.daemons):  # noqa: PTH208 - names, not paths: ten times a second
                with suppress(FileNotFoundError, NotADirectoryError):
                    status = os.stat(f"{self.daemons}/{name}/desired.json")  # noqa: PTH116 - same
                    found[name] = (status.st_mtime_ns, status.st_ino, status.st_size)
        return {name: stamp for name, stamp in found.items() if _is_id(name)}

    def host_lives(self) -> bool:
        """Whether an MPS host holds the lock."""
        try:
            os.close(lock_file(self.lock, shared=True, create_mode=None))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


@contextmanager
def storage(doing: str) -> Iterator[None]:
    """Translate what the file system says into a StorageError about ``doing``."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {doing}: {error.strerror or error}") from error


def make_own(folder: Path, mode: int) -> None:
    """Make the folder, or see that the one which is there is this user's. Raises OSError.

    Anybody may make files in /dev/shm. A link, or a folder of somebody else's, would have containers mount, and the MPS
    host remove, whatever its owner lays there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(descriptor).st_uid
        if owner != os.geteuid():
            raise PermissionError(f"user {owner} made it, and it has to be user {os.geteuid()}'s alone: remove it")
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
    """The JSON of a small plain file; None when there is none."""
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
