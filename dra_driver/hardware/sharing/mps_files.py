"""The files through which the node process and the MPS host communicate.

    <root>/host.lock                      locked by the MPS host while it runs; its time is set every `EVERY_S`
    <root>/daemons/<id>/desired.json      the wanted daemon, written by the node process
    <root>/daemons/<id>/released.json     the same file after the release, until the release is complete
    <root>/daemons/<id>/status.json       the running daemon, written by the host; removed with the daemon
    <root>/daemons/<id>/pipe, log         the daemon's own folders; pipe is a link where ``memory.py`` has the pipes

Files instead of a socket, because either process may restart at any time. Nothing is synced to disk: a power cut ends
daemons and claims. Ids become folder names and UUIDs arguments of commands, so only the characters of real ones are
accepted. ``dra-driver mps-host --check`` serves a readiness probe, not a liveness probe, which would end the work of
every MPS client of the node.
"""

import json
import os
import re
import time
from binascii import crc32
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from dra_driver.core.convert import decode_json
from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file, read_plain, replace_file
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.text import quoted
from dra_driver.hardware.sharing.safe_rmtree import REMOVE_S, remove_tree

Content = TypeVar("Content")

MAX_DEVICES: Final = 64
MAX_LIMIT_MIB: Final = 2**24
"""16 TiB: above any GPU, and small enough not to overflow in any program that reads it."""
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
# MIG-GPU-<uuid>/<gi>/<ci> is how drivers before R470 name MIG devices.
_DEVICE: Final = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,96}")


_WIRE: Final = {"default_percentage": "defaultPercentage", "memory_limits": "memoryLimitsMiB"}


class MpsDaemon(Struct, frozen=True, kw_only=True, rename=_WIRE):
    """One daemon and the limits of its clients. Raises ValueError for values out of bounds. ``devices`` are the UUIDs
    that clients see, ascending; ``gpus`` the whole GPUs among them, whose compute mode becomes EXCLUSIVE_PROCESS.
    ``default_percentage`` is 0 to 100 of the multiprocessors, ``memory_limits`` MiB per client by device."""

    id: str
    devices: tuple[str, ...]
    gpus: tuple[GpuUuid, ...] = ()
    default_percentage: int | None = None
    memory_limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id(self.id)
        if not 1 <= len(self.devices) <= MAX_DEVICES or len(set(self.devices)) != len(self.devices):
            raise ValueError(f"an MPS daemon has 1 to {MAX_DEVICES} different devices, not {len(self.devices)}")
        for device in self.devices:
            if not _DEVICE.fullmatch(device):
                raise ValueError(f"{quoted(device)} is not the UUID of a GPU or MIG device")
        if not set(self.gpus) <= set(self.devices) or not all(gpu.startswith("GPU-") for gpu in self.gpus):
            raise ValueError("the whole GPUs of an MPS daemon must be among its devices")
        if self.default_percentage is not None and not 0 <= self.default_percentage <= 100:
            raise ValueError(f"a thread percentage must be 0 to 100, not {quoted(self.default_percentage)}")
        for device, limit in self.memory_limits.items():
            if device not in self.devices:
                raise ValueError(f"a memory limit names {quoted(device)}, which is not a device of the daemon")
            if not 1 <= limit <= MAX_LIMIT_MIB:
                raise ValueError(f"a memory limit must be 1 to {MAX_LIMIT_MIB} MiB, not {quoted(limit)}")

    @property
    def generation(self) -> str:
        """A checksum of all fields, by which a status names its description."""
        # Enough for the few descriptions that one id ever has; hashlib would cost the MPS host 20 % of its memory.
        text = json.dumps(msgspec.to_builtins(self), sort_keys=True).encode()
        return f"{crc32(text):08x}{len(text):x}"


def check_id(daemon_id: str) -> str:
    if not _ID.fullmatch(daemon_id):
        raise ValueError(
            f"{quoted(daemon_id)} cannot name an MPS daemon: expected at most 128 letters, digits, dots and dashes"
        )
    return daemon_id


DaemonState = Literal["starting", "ready", "failed", "stopping"]
MAX_FILE: Final = 64 * 1024
MAX_DAEMONS: Final = 256
"""More than a node can use: every device has one at most, and a GPU has at most seven MIG devices."""

# Only root reads desired.json. Daemon, servers and clients of any user write into the pipe folder; the sticky bit keeps
# one user from replacing the sockets of another. Only root enters the folder above it: containers have pipe mounted.
_FOLDER_MODE: Final = 0o700
PIPE_MODE: Final = 0o1777
LOG_MODE: Final = 0o755


class DaemonStatus(Struct, frozen=True, kw_only=True):
    """A daemon's status, written by the MPS host. ``generation`` is that of its description, ``reason`` a sentence for
    a state other than ready, ``shm`` the folder that daemon and clients see as ``/dev/shm``."""

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
        """Create missing folders and set the modes of all. Idempotent. Keeps a link to the pipes."""
        with storage(f"create the folder of an MPS daemon, {self.path}"):
            self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            for folder, mode in ((self.pipe, PIPE_MODE), (self.log, LOG_MODE)):
                if not folder.is_symlink():
                    folder.mkdir(exist_ok=True)
                    folder.chmod(mode)

    def link_pipe(self, target: Path) -> None:
        """Make ``pipe`` a link to the folder with the pipes. Removes other pipes. Idempotent."""
        with storage(f"link {self.pipe} to {target}"):
            if self.pipe.is_symlink():
                if self.pipe.readlink() == target:
                    return
                self.pipe.unlink()
            remove_tree(self.pipe)
            self.pipe.symlink_to(target)

    @property
    def pipe_on_host(self) -> Path:
        """The folder with the pipes as the container runtime sees it; this process may not see it."""
        return self.pipe.readlink() if self.pipe.is_symlink() else self.pipe

    def read_desired(self) -> MpsDaemon | None:
        """The wanted daemon; None without one, or when the file does not describe a daemon of this folder's name."""
        return _daemon(self.desired)

    def read_any(self) -> MpsDaemon | None:
        """The wanted daemon, or the released one until its release is complete."""
        return _daemon(self.desired) or _daemon(self.released)

    def write_desired(self, daemon: MpsDaemon) -> None:
        _write(self.desired, daemon)
        with storage(f"remove {self.released}"):
            self.released.unlink(missing_ok=True)

    def release(self) -> None:
        with storage(f"release {self.desired}"), suppress(FileNotFoundError):
            self.desired.replace(self.released)

    def read_status(self) -> DaemonStatus | None:
        """The last status of the host; None when it is missing or unreadable."""
        return _read(self.status, DaemonStatus)

    def write_status(self, status: DaemonStatus) -> None:
        _write(self.status, status)

    def clear_status(self) -> None:
        with storage(f"remove {self.status}"):
            self.status.unlink(missing_ok=True)

    def remove(self, *, within_s: float = REMOVE_S) -> None:
        with storage(f"remove {self.path}"):
            remove_tree(self.path, within_s=within_s)


class MpsFolders:
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
        """Return whether an MPS host runs, that is, holds the lock."""
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
        raise StorageError(f"cannot {doing}: {error.strerror or error}", reason="MountFailed") from error


def make_own(folder: Path, mode: int, *, take: bool = False) -> None:
    """Create the folder, or check that this user owns it: any user may create folders and links in /dev/shm, which
    containers would mount and the host remove. ``take`` takes over a folder whose owner root in a container has
    changed. Raises OSError."""
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
    daemon = _read(path, MpsDaemon)
    return daemon if daemon is not None and daemon.id == path.parent.name else None


def _read(path: Path, kind: type[Content]) -> Content | None:
    """The content of a small plain file; None when it is missing, unreadable or of another form."""
    try:
        return decode_json(read_plain(path, MAX_FILE), kind)
    except (OSError, ValueError, RecursionError):
        return None


def _write(path: Path, content: Struct) -> None:
    with storage(f"write {path}"):
        replace_file(path, json.dumps(msgspec.to_builtins(content), sort_keys=True).encode() + b"\n")


EVERY_S: Final = 10.0
LATE_S: Final = 60.0
"""A host that ends a daemon waits up to `supervise.KILL_S` twice for it, others are delayed that long."""


def beat(lock: int) -> None:
    """Set the time of the lock file with this descriptor. Never raises."""
    with suppress(OSError):  # a file system that is read-only now; the check says so
        os.utime(lock)


def host_problem(folders: MpsFolders, *, now: Callable[[], float] = time.time) -> str | None:
    """A sentence about a fault of the host; None while it works."""
    try:
        silent_s = now() - folders.lock.stat().st_mtime
    except OSError as error:
        return f"no MPS host has run on this node: {folders.lock}: {error.strerror or error}"
    if not folders.host_lives():
        return f"no MPS host runs: {folders.lock} is not locked"
    if silent_s > LATE_S:
        return (
            f"the MPS host has not gone on for {silent_s:.0f} s, expected a sign every {EVERY_S:.0f} s: look at its "
            "log; running daemons continue; a restart of the host ends their clients"
        )
    return None
