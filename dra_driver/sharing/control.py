"""How ``nvidia-cuda-mps-control`` is called: as the daemon, and as the program that speaks to a daemon.

Owns command lines, environment and the reading of answers. Refuses to know when what is called (``supervise.py``).

The program is one and the same: ``-f`` makes it the daemon, in the foreground; without an argument it reads commands
from stdin and passes them to the daemon whose pipes CUDA_MPS_PIPE_DIRECTORY names. Commands are those of
nvidia-cuda-mps-control(1). Defaults of a daemon count for servers that it starts later, so they are set before anybody
can connect.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from dra_driver.errors import CommandError
from dra_driver.sharing import namespace, process, programs
from dra_driver.sharing.daemon import MpsDaemon
from dra_driver.sharing.mps_files import DaemonFolder
from dra_driver.sharing.process import Clock, Ended, Running

NAME: Final = "nvidia-cuda-mps-control"
MARK: Final = "DRA_DRIVER_MPS_DAEMON"
"""In the environment of everything that is started here: its value is the daemon's folder."""
PROBE: Final = "get_default_active_thread_percentage"
HEALTH: Final = "get_server_list"
QUIT: Final = "quit"

# The program ends with status 0 after many a refusal, too.
_REFUSED: Final = re.compile(
    r"\b(?:error|invalid|fail(?:ed|ure)?|cannot|can't|unable|unknown|unrecognized|not (?:supported|permitted|found))\b",
    re.IGNORECASE,
)

Users = Literal["one", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProgram:
    """The program below ``root``, the driver's root as this process sees it.

    ``private`` gives each daemon its own mount namespace (see ``namespace.py``); without it daemon and program run as
    they are, with the folders' own paths, which does for simulated drivers. ``users`` "all" lets clients of different
    users connect at a time (``-multiuser-server``).
    """

    root: str = "/"
    private: bool = True
    users: Users = "one"

    def start(self, daemon: MpsDaemon, folder: DaemonFolder, shm: Path, output: int) -> "subprocess.Popen[bytes]":
        """The daemon as a child, stdout and stderr to the descriptor ``output``. Raises CommandError."""
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

    def tell(self, command: str, folder: DaemonFolder, shm: Path, *, within_s: float, clock: Clock) -> Running:
        """One command to the folder's daemon, under way. Raises CommandError."""
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
        found = programs.find_program(self.root, NAME)
        if found is None:
            raise CommandError(
                f"{NAME} is not below {self.root} (looked in {', '.join(programs.PROGRAM_FOLDERS)}): install the"
                " driver's compute utilities on the node, or set --driver-root (DRIVER_ROOT)"
            )
        return [programs.inside(self.root, found) if self._moves_in else found]

    @property
    def _moves_in(self) -> bool:
        """Whether the driver's root becomes ``/`` to the child, with all libraries of one system."""
        return self.private and not programs.is_own(self.root) and programs.has_shell(self.root)

    def _environment(self, folder: DaemonFolder) -> dict[str, str]:
        pipe, log = (namespace.PIPE, namespace.LOG) if self.private else (str(folder.pipe), str(folder.log))
        environment = {
            "CUDA_MPS_PIPE_DIRECTORY": pipe,
            "CUDA_MPS_LOG_DIRECTORY": log,
            "LC_ALL": "C",
            MARK: str(folder.path),
        }
        if self._moves_in or programs.is_own(self.root):
            return environment | {"PATH": programs.OWN_PATH}
        # A folder with nothing but the driver's files: its programs run with this process' C library. A whole system's
        # libraries must not be searched like that: its C library does not fit the loader of this one.
        libraries = None if programs.has_shell(self.root) else programs.library_folder(self.root)
        return (
            environment
            | {"PATH": programs.search_path(self.root)}
            | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
        )

    def _entry(self, folder: DaemonFolder, shm: Path) -> process.Prepare:
        if not self.private:
            return partial(namespace.die_with_parent, os.getpid())
        root = self.root if self._moves_in else ""
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
    """Why the command did not do what it should, in a sentence; None when it did."""
    printed = process.shown(ended.output)
    if ended.status is None:
        return f"`{command}` was not answered in time; {NAME} printed: {printed}"
    if ended.status != 0:
        return f"`{command}` failed with status {ended.status}: {printed}"
    if _REFUSED.search(ended.output):
        return f"`{command}` was refused: {printed}"
    return None
