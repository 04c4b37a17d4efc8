"""Run ``nvidia-cuda-mps-control`` as a daemon, and send commands to a running daemon.

One program does both: with ``-f`` it is the daemon, in the foreground; without an argument it reads commands from stdin
and passes them to the daemon whose pipes CUDA_MPS_PIPE_DIRECTORY names. The commands are those of
nvidia-cuda-mps-control(1). Defaults of a daemon apply to servers that it starts later, so they are set before clients
can connect. ``supervise.py`` decides when to do what.
"""

import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from dra_driver.core.errors import CommandError, DriverUnavailableError
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Clock, Ended, Running
from dra_driver.hardware.sharing import namespace, programs
from dra_driver.hardware.sharing.daemon import MpsDaemon
from dra_driver.hardware.sharing.mps_files import DaemonFolder

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
    """The program below ``root``, the driver's root as this process sees it or a function that finds it.

    ``private`` gives each daemon its own mount namespace (see ``namespace.py``); without it, daemon and program use the
    folders' own paths, which is enough for simulated drivers. ``users`` "all" lets clients of several users connect at
    the same time (``-multiuser-server``).
    """

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
        found = programs.find_program(self._root, NAME)
        if found is None:
            raise CommandError(
                f"{NAME} is not below {self._root} (looked in {', '.join(programs.PROGRAM_FOLDERS)}): install the"
                " driver's compute utilities on the node, or set --driver-root (DRIVER_ROOT)"
            )
        return [programs.inside(self._root, found) if self._changes_root else found]

    @property
    def _root(self) -> str:
        try:
            return self.root if isinstance(self.root, str) else self.root()
        except DriverUnavailableError as error:
            raise CommandError(f"{NAME} cannot be found: {error}") from error

    @property
    def _changes_root(self) -> bool:
        """Whether the child runs with the driver's root as ``/``, with all libraries of one system."""
        return self.private and not programs.is_own(self._root) and programs.has_shell(self._root)

    def _environment(self, folder: DaemonFolder) -> dict[str, str]:
        pipe, log = (namespace.PIPE, namespace.LOG) if self.private else (str(folder.pipe), str(folder.log))
        environment = {
            "CUDA_MPS_PIPE_DIRECTORY": pipe,
            "CUDA_MPS_LOG_DIRECTORY": log,
            "LC_ALL": "C",
            MARK: str(folder.path),
        }
        if self._changes_root or programs.is_own(self._root):
            return environment | {"PATH": programs.OWN_PATH}
        # A root with only the driver's files: its programs run with this process' C library. The libraries of a whole
        # system must not be searched like this, because its C library does not match the loader of this process.
        libraries = None if programs.has_shell(self._root) else programs.library_folder(self._root)
        return (
            environment
            | {"PATH": programs.search_path(self._root)}
            | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
        )

    def _entry(self, folder: DaemonFolder, shm: Path) -> process.Prepare:
        if not self.private:
            return partial(namespace.die_with_parent, os.getpid())
        root = self._root if self._changes_root else ""
        return namespace.View(pipe=folder.pipe, log=folder.log, shm=shm, root=root).enter


def defaults(daemon: MpsDaemon) -> tuple[str, ...]:
    """The commands that set a daemon's limits, in order."""
    percentage = daemon.default_percentage
    limits = sorted(daemon.memory_limits.items())
    return (
        *((f"set_default_active_thread_percentage {percentage}",) if percentage is not None else ()),
        *(f"set_default_device_pinned_mem_limit {device} {limit}M" for device, limit in limits),
    )


def refusal(command: str, ended: Ended) -> str | None:
    """Why the command failed, in a sentence; None when it succeeded."""
    printed = process.shown(ended.output)
    if ended.status is None:
        return f"`{command}` was not answered in time; {NAME} printed: {printed}"
    if ended.status != 0:
        return f"`{command}` failed with status {ended.status}: {printed}"
    if _REFUSED.search(ended.output):
        return f"`{command}` was refused: {printed}"
    return None
