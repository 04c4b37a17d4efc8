"""Load kernel modules and make nodes with the driver's own tools: ``nvidia-modprobe``, else ``modprobe``.

They run with the driver root as ``/``, because the modules of a driver container are in its own ``/lib/modules``. No
shell is involved. Source: NVIDIA/nvidia-modprobe a9556df9, ``nvidia-modprobe.c``: ``-u`` stands for nvidia-uvm, of
which ``-c0`` makes both nodes; without it ``-c <minor>`` makes a GPU's node (255: nvidiactl), and ``-f <access
file>`` a capability's, which must be below ``/proc/driver/nvidia``. It links each node in ``/dev/char`` and ends with
status 0 only when all worked. It prints next to nothing: its status is all that is known.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Ended, enter_root, shown
from dra_driver.hardware.driver_root.root import DriverRoot, resolve
from dra_driver.hardware.driver_root.search import PROGRAM_FOLDERS

TIMEOUT_S: Final = 5.0
"""Loading a module takes 0.1 to 2 s; a call of the kubelet has some 40 s."""
NVIDIA_MODPROBE: Final = "nvidia-modprobe"
MODPROBE: Final = "modprobe"
_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})


class RunProgram(Protocol):
    """See `driver_root.process.run`. Raises OSError when the program cannot be started."""

    def __call__(self, arguments: Sequence[str], *, environment: Mapping[str, str], within_s: float) -> Ended: ...


class Outcome(Struct, frozen=True, kw_only=True):
    """How a tool ended; ``said`` is a part of a sentence. ``late``: it was killed at its limit."""

    worked: bool
    said: str
    late: bool = False


class DriverTools:
    """The tools of the driver root that ``root`` finds. Stateless; each tool ends within ``within_s`` and a second."""

    def __init__(
        self, root: Callable[[], DriverRoot], *, run: RunProgram = process.run, within_s: float = TIMEOUT_S
    ) -> None:
        self._root = root
        self._run_program = run
        self._within_s = within_s

    def load_uvm(self) -> Outcome:
        """Load nvidia-uvm, and make its nodes in the ``/dev`` of the driver root."""
        done = self.make_uvm()
        if done is not None and (done.worked or done.late):
            return done
        plain = self._run(MODPROBE, ["nvidia-uvm"])
        if plain is None:
            return done or Outcome(worked=False, said=f"neither {NVIDIA_MODPROBE} nor modprobe is in the driver root")
        return plain if done is None else Outcome(worked=plain.worked, said=f"{done.said}, and {plain.said}")

    def make_uvm(self) -> Outcome | None:
        """Make the nodes of nvidia-uvm; None without nvidia-modprobe."""
        return self._run(NVIDIA_MODPROBE, ["-u", "-c0"])

    def make(self, minors: Sequence[int], access_files: Sequence[str], *, modeset: bool) -> Outcome | None:
        """Make the nodes of GPUs (255: nvidiactl), of capabilities and of nvidia-modeset; None without the tool."""
        arguments = [f"-c{minor}" for minor in minors] + (["-m"] if modeset else [])
        return self._run(NVIDIA_MODPROBE, arguments + [word for path in access_files for word in ("-f", path)])

    def shares(self, dev: str) -> bool:
        """Whether ``dev``, a folder as this process sees it, is the ``/dev`` in which the tools make nodes."""
        try:
            return Path(f"{self._root().here('')}/dev").samefile(dev)
        except (DraError, OSError):
            return False

    def _run(self, name: str, arguments: Sequence[str]) -> Outcome | None:
        """Its end; None when the driver root has no such tool, or is no system in which it could run."""
        try:
            root = self._root().here("") or "/"
        except DraError as error:
            return Outcome(worked=False, said=f"{name} cannot be found: {error}")
        found = _find(root.rstrip("/"), name)
        if found is None:
            return None
        try:
            ended = self._run_program(
                [*enter_root(root), found, *arguments], environment=_ENVIRONMENT, within_s=self._within_s
            )
        except OSError as error:
            return Outcome(worked=False, said=f"{name} cannot be started: {error.strerror}")
        return _outcome(name, ended, self._within_s)


def _find(root: str, name: str) -> str | None:
    """The tool's path in the root, its last link kept: modprobe is a link to a program that reads its own name."""
    if not os.path.exists(f"{root}/proc/devices"):  # noqa: PTH110 - no system: its tools would find no modules
        return None
    for folder in PROGRAM_FOLDERS:
        try:
            found = resolve(root, f"{folder}/{name}")
        except OSError:
            continue
        if found and os.path.isfile(root + found) and os.access(root + found, os.X_OK):  # noqa: PTH113
            return f"{folder}/{name}"
    return None


def _outcome(name: str, ended: Ended, within_s: float) -> Outcome:
    if ended.status == 0:
        return Outcome(worked=True, said=f"{name} ended with status 0")
    printed = f" and printed: {shown(ended.output)}" if ended.output.strip() else ""
    if ended.status is None:
        stuck = " and does not end even when killed" if ended.stuck else " and was killed"
        return Outcome(worked=False, late=True, said=f"{name} did not end within {within_s:g} s{stuck}{printed}")
    how = f"signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
    return Outcome(worked=False, said=f"{name} ended with {how}{printed}")
