"""Load kernel modules and make device nodes with the driver's own ``nvidia-modprobe``, else ``modprobe``.

They run with the driver root as ``/``, because a driver container has its own ``/lib/modules``. Source:
NVIDIA/nvidia-modprobe a9556df9, ``nvidia-modprobe.c``: ``-u`` is nvidia-uvm, ``-c <minor>`` a GPU's node (255:
nvidiactl), ``-f <file>`` a capability's. It also makes links in ``/dev/char`` and prints next to nothing.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DraError, DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Ended, enter_root, shown
from dra_driver.hardware.driver_root.root import DriverRoot, resolve
from dra_driver.hardware.driver_root.search import PROGRAM_FOLDERS

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
"""Loading a module takes 0.1 to 2 s; a call of the kubelet has some 40 s."""
NVIDIA_MODPROBE: Final = "nvidia-modprobe"
MODPROBE: Final = "modprobe"
_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})
RETRY_S: Final = 30.0
"""Seconds between two attempts to load nvidia-uvm."""
UNLOADED_S: Final = 60.0
"""Seconds before an unloaded module is loaded again: an administrator may be replacing the driver."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Result of a tool; ``said`` is a part of a sentence. ``late``: killed at its limit."""

    worked: bool
    said: str
    late: bool = False


class DriverTools:
    """The tools of the driver root that ``root`` finds. Stateless; each tool ends within ``within_s`` and a second."""

    def __init__(
        self, root: Callable[[], DriverRoot], *, run: Callable[..., Ended] = process.run, within_s: float = TIMEOUT_S
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
        """Return whether the tools make nodes in ``dev``, a directory as this process sees it."""
        try:
            return Path(f"{self._root().here('')}/dev").samefile(dev)
        except (DraError, OSError):
            return False

    def _run(self, name: str, arguments: Sequence[str]) -> Outcome | None:
        """Return the result; None when the driver root lacks the tool or cannot run it."""
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


class UvmModule:
    """Returns the kernel's device numbers, and loads nvidia-uvm if it is missing. Thread-safe. ``tools`` is None where
    nothing may be loaded; ``may_load`` is False while an administrator replaces the driver.

    Most installations do not load nvidia-uvm at boot: CUDA loads it through ``nvidia-modprobe``, which an unprivileged
    container cannot. NVML does not need it.
    """

    def __init__(
        self,
        read: Callable[[], Majors],
        tools: DriverTools | None,
        *,
        may_load: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._tools = tools
        self._may_load = may_load
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below; one try at a time
        self._next_try = clock()
        self._was_loaded = False
        self._said: str | None = None
        self.problem: str | None = None
        """The reason why CUDA cannot work on this node, by the last call of `majors`; None when it can."""
        self.last: Majors | None = None
        """The last result of `majors`; None before."""

    def majors(self) -> Majors:
        """The kernel's numbers. Raises `DriverUnavailableError` when the list cannot be read, and while nvidia is
        loaded without nvidia-uvm; the next attempt comes after `RETRY_S`."""
        with self._lock:
            majors = self._read()
            if _lacks_uvm(majors):
                majors = self._load(majors)
            if not _lacks_uvm(majors):
                self._was_loaded = majors.uvm is not None
                self._said = self.problem = None
                self._next_try = self._clock()
                self.last = majors if majors != self.last else self.last  # the same object while nothing changes
                return majors
            self.problem = _sentence(self._said)
            raise DriverUnavailableError(self.problem, reason="UvmMissing")

    def _load(self, majors: Majors) -> Majors:
        now = self._clock()
        if self._was_loaded:  # seen missing for the first time
            self._was_loaded, self._next_try = False, now + UNLOADED_S
            self._said = f"it was unloaded a moment ago, so this driver does not load it for {UNLOADED_S:g} s"
        if self._tools is None or now < self._next_try or not self._may_load():
            return majors
        outcome = self._tools.load_uvm()
        self._said, self._next_try = outcome.said, self._clock() + RETRY_S
        found = self._read()
        log.log(
            logging.WARNING if _lacks_uvm(found) else logging.INFO,
            "nvidia-uvm was not loaded; tried to load it",
            extra={"loaded": not _lacks_uvm(found), "said": outcome.said},
        )
        return found


def _lacks_uvm(majors: Majors) -> bool:
    return majors.nvidia is not None and majors.uvm is None


def _sentence(said: str | None) -> str:
    tried = f", and {said}" if said else ""
    return (
        "CUDA cannot work in containers of this node: /proc/devices lists nvidia but not nvidia-uvm, the module behind"
        f" /dev/nvidia-uvm{tried}; run `nvidia-modprobe -u -c0` or `modprobe nvidia-uvm` on the node, and have the"
        " module loaded at boot (/etc/modules-load.d); claims are prepared as soon as it is loaded"
    )
