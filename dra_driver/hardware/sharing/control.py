"""Run ``nvidia-cuda-mps-control`` as a daemon in its own mount namespace, and send commands to a running daemon.

With ``-f`` the program is the daemon; without an argument it passes commands from stdin to the daemon whose pipes
CUDA_MPS_PIPE_DIRECTORY names (nvidia-cuda-mps-control(1)). Defaults apply to servers that start later, so they are set
before clients can connect. Daemon, servers and control program see, without following links there,

    /tmp/nvidia-mps      the daemon's pipes; containers see them under the same path
    /tmp/nvidia-log      the daemon's logs
    /dev/shm             the daemon's own shared memory, mounted in its clients' containers too

So paths fit the 107 characters of a unix socket's, all users can reach them (servers run as their client's user), and
claims do not see each other's shared memory. A driver's root that is a whole system becomes ``/``. Nothing is mounted
outside the namespace (``unshare(2)``, ``mount_namespaces(7)``): raw system calls, which Python lacks before 3.12.
"""

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from dra_driver.core.errors import CommandError
from dra_driver.hardware.driver_root import process, search
from dra_driver.hardware.driver_root.process import Clock, Ended, Running
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon

_TMP: Final = "/tmp"  # noqa: S108 - of the namespace, with a file system of its own
PIPE: Final = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's default
LOG: Final = "/tmp/nvidia-log"  # noqa: S108 - beside it, on the same private tmpfs
SHM: Final = "/dev/shm"  # noqa: S108 - the folder of shm_open

# linux/sched.h, linux/mount.h, linux/prctl.h
_CLONE_NEWNS: Final = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_NOSYMFOLLOW, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 32, 256, 4096, 16384, 1 << 19
# Containers also write into these folders, and daemons run as root and would follow links to any file that is mounted
# here. Kernels before 5.10 ignore the flag for links.
_OF_CONTAINERS: Final = _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _MS_NODEV | _MS_NOSYMFOLLOW
_PR_SET_PDEATHSIG: Final = 1

libc = ctypes.CDLL(None, use_errno=True)


class View(Struct, frozen=True, kw_only=True):
    """The child's view of the file system. ``root`` is the driver's root, or '' for this process's own."""

    pipe: Path
    log: Path
    shm: Path
    root: str = ""
    parent: int = field(default_factory=os.getpid)

    def enter(self) -> None:
        """Mount everything, in the child. A failure ends it with status 126 and a sentence on its stderr."""
        try:
            die_with_parent(self.parent)
            self._mount()
        except OSError as error:
            hint = "; the MPS host must be privileged" if isinstance(error, PermissionError) else ""
            os.write(2, f"cannot set up the mount namespace for MPS: {error}{hint}\n".encode())
            os._exit(126)

    def _mount(self) -> None:
        checked(libc.unshare(_CLONE_NEWNS), "unshare")
        _bind(None, "/", None, _MS_REC | _MS_SLAVE)  # later mounts of the host still propagate
        # Opened before the tmpfs, which may cover them, and after unshare: only mounts of the new namespace can be
        # bound.
        sources = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (self.pipe, self.log, self.shm)]
        _bind("tmpfs", self.root + _TMP, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777,size=1m")
        for path in (PIPE, LOG):
            os.mkdir(self.root + path)  # noqa: PTH102 - short and without imports, after a fork
        for source, path in zip(sources, (PIPE, LOG, SHM), strict=True):
            _bind(f"/proc/self/fd/{source}", self.root + path, None, _MS_BIND)
            _bind(None, self.root + path, None, _OF_CONTAINERS)
            os.close(source)
        if self.root:
            os.chroot(self.root)
        os.chdir("/")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, its parent process, ends in any way."""
    checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(126)  # the parent ended before the call


def _bind(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    result = libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode())
    checked(result, f"mount {target}")


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


NAME: Final = "nvidia-cuda-mps-control"
MARK: Final = "DRA_DRIVER_MPS_DAEMON"
"""Environment variable of every process that is started here; its value is the daemon's folder."""
PROBE: Final = "get_default_active_thread_percentage"
HEALTH: Final = "get_server_list"
QUIT: Final = "quit"

# The program also exits with status 0 after many refused commands.
_REFUSED: Final = re.compile(
    r"\b(?:error|invalid|fail(?:ed|ure)?|cannot|can't|unable|unknown|unrecognized|not (?:supported|permitted|found))\b",
    re.IGNORECASE,
)

Users = Literal["one", "all"]


class ControlProgram(Struct, frozen=True, kw_only=True):
    """The program below the driver's ``root``, a path or a function that finds it. ``private`` gives each daemon its
    own mount namespace; without it paths are the folders', enough for simulated drivers. ``users`` "all" is
    ``-multiuser-server``."""

    root: str | Callable[[], str] = "/"
    private: bool = True
    users: Users = "one"

    def start(self, daemon: MpsDaemon, folder: DaemonFolder, shm: Path, output: int) -> "subprocess.Popen[bytes]":
        """Start the daemon as a child that prints to the descriptor ``output``. Raises CommandError."""
        arguments = [*self._command(), "-f", *(["-multiuser-server"] if self.users == "all" else [])]
        environment = self._environment(folder) | {"CUDA_VISIBLE_DEVICES": ",".join(daemon.devices)}
        try:
            return subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=self._entry(folder, shm),  # noqa: PLW1509 - the MPS host has one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CommandError(f"{NAME} cannot be started: {error}") from error

    def send(self, command: str, folder: DaemonFolder, shm: Path, *, within_s: float, clock: Clock) -> Running:
        """Send one command to the folder's daemon; returns the running program. Raises CommandError."""
        try:
            return Running(
                self._command(),
                environment=self._environment(folder),
                within_s=within_s,
                stdin=f"{command}\n",
                prepare=self._entry(folder, shm),
                clock=clock,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CommandError(f"{NAME} cannot be started: {error}") from error

    def _command(self) -> list[str]:
        found = search.require_program(self._root, NAME, "compute utilities")
        return [search.inside(self._root, found) if self._changes_root else found]

    @property
    def _root(self) -> str:
        return search.root_of(self.root, NAME)

    @property
    def _changes_root(self) -> bool:
        return self.private and not search.is_own(self._root) and search.has_shell(self._root)

    def _environment(self, folder: DaemonFolder) -> dict[str, str]:
        pipe, log = (PIPE, LOG) if self.private else (str(folder.pipe), str(folder.log))
        environment = {
            "CUDA_MPS_PIPE_DIRECTORY": pipe,
            "CUDA_MPS_LOG_DIRECTORY": log,
            "LC_ALL": "C",
            MARK: str(folder.path),
        }
        if self._changes_root or search.is_own(self._root):
            return environment | {"PATH": search.OWN_PATH}
        # A root with only the driver's files: its programs run with this process' C library. The libraries of a whole
        # system must not be searched like this, because its C library does not match the loader of this process.
        libcuda = None if search.has_shell(self._root) else search.find_library(self._root, search.CUDA)
        return (
            environment
            | {"PATH": search.search_path(self._root)}
            | ({"LD_LIBRARY_PATH": libcuda.rpartition("/")[0]} if libcuda else {})
        )

    def _entry(self, folder: DaemonFolder, shm: Path) -> process.Prepare:
        if not self.private:
            return partial(die_with_parent, os.getpid())
        root = self._root if self._changes_root else ""
        return View(pipe=folder.pipe, log=folder.log, shm=shm, root=root).enter


def defaults(daemon: MpsDaemon) -> tuple[str, ...]:
    percentage = daemon.default_percentage
    limits = sorted(daemon.memory_limits.items())
    return (
        *((f"set_default_active_thread_percentage {percentage}",) if percentage is not None else ()),
        *(f"set_default_device_pinned_mem_limit {device} {limit}M" for device, limit in limits),
    )


def refusal(command: str, ended: Ended) -> str | None:
    """Return why the command failed, in a sentence; None when it succeeded."""
    printed = process.shown(ended.output)
    if ended.status is None:
        return f"`{command}` was not answered in time; {NAME} printed: {printed}"
    if ended.status != 0:
        return f"`{command}` failed with status {ended.status}: {printed}"
    if _REFUSED.search(ended.output):
        return f"`{command}` was refused: {printed}"
    return None
