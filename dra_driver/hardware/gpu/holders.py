"""Name the processes that have a GPU open, for the error of a change that the GPU refuses because it is in use.

NVML names processes that compute, but open files keep a GPU from being changed. They are read from a proc file system:
below a mounted host root it shows the processes of the node's first PID namespace (proc(5); reading ``fd`` of another
user's process takes CAP_SYS_PTRACE). Only link texts are read: opening a file could hang on a network file system.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

log = logging.getLogger(__name__)

SCAN_S: Final = 1.0
MAX_PROCESSES: Final = 32768  # the kernel's default for pid_max
MAX_FILES: Final = 4096  # open files of one process
MAX_NAMED: Final = 4  # an event has room for 1024 characters
MAX_NAME: Final = 15  # TASK_COMM_LEN of the kernel, without the final zero

_DEVICE = re.compile(r"/nvidia(\d{1,10})( \(deleted\))?$")
_CAPABILITY = re.compile(r"/nvidia-caps/nvidia-cap\d+")

# What to do about a program, by its name in the kernel, which has at most 15 characters.
ADVICE: Final = {
    "nv-hostengine": "stop DCGM on this node, or detach it: dcgmi set --detach-driver (DCGM 4.5, driver 590)",
    "dcgm-exporter": "stop dcgm-exporter on this node, or keep it off nodes with MIG claims",
    "dra-hw-check": "the hardware check ends within ten minutes",
    "nvidia-persiste": "the persistence daemon has every GPU open and rarely is the cause",
    "nvidia-smi": "it closes the GPU when it ends; stop loops of it",
    "Xorg": "keep the display server off this GPU",
    "nvidia-mig-mana": "two managers of MIG exclude each other: keep it off this node",
    "nvidia-device-p": "NVIDIA's device plugin must not run beside this driver",
    "nvidia-cuda-mps": "an MPS daemon that this driver did not start has to end",
}

RELEASED_BY_SMI: Final = frozenset({"nvidia-persiste", "nv-fabricmanage"})
"""Programs that do not block a reset, by their names in the kernel: Fabric Manager must run for it, and the node
process switches persistence mode off (`reset.Persistence`)."""


class GpuHolder(Struct, frozen=True, kw_only=True):
    """``capabilities``: it has device nodes of MIG instances open, too."""

    pid: int
    name: str
    capabilities: bool = False

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}{', with MIG instances' if self.capabilities else ''})"


class Scan(Struct, frozen=True, kw_only=True):
    proc: Path
    holders: tuple[GpuHolder, ...] = ()
    processes: int = 0
    complete: bool = True


def scan(proc: Path, minor: int, *, clock: Callable[[], float] = time.monotonic, most: int = MAX_PROCESSES) -> Scan:
    """Other processes that have ``/dev/nvidia<minor>`` open, known ones first. Ends after `SCAN_S`. Raises OSError.
    It is incomplete as well if the open files of a process cannot be read, or are more than `MAX_FILES`."""
    deadline, looked, complete = clock() + SCAN_S, 0, True
    own = _own_pid(proc)
    found: list[GpuHolder] = []
    for pid in _pids(proc):
        if looked >= most or clock() > deadline:
            return Scan(proc=proc, holders=_ordered(found), processes=looked, complete=False)
        looked += 1
        if pid == own:
            continue
        holder, is_whole = _holder(proc / str(pid), pid, minor)
        complete = complete and is_whole
        if holder is not None:
            found.append(holder)
    return Scan(proc=proc, holders=_ordered(found), processes=looked, complete=complete)


def describe(found: Scan) -> str:
    limit = "" if found.complete else ", not all of them"
    if not found.holders:
        seen = f"{found.processes} processes were checked in {found.proc}{limit}"
        return f"no other process has it open ({seen}): one that has just ended may still be cleaned up"
    shown = [str(holder) for holder in found.holders[:MAX_NAMED]]
    more = len(found.holders) - len(shown)
    advice = dict.fromkeys(f"{one.name}: {ADVICE[one.name]}" for one in found.holders if one.name in ADVICE)
    text = f"open in {', '.join(shown)}{f' and {more} more' if more else ''}{limit}"
    return "; ".join((text, *list(advice)[:2]))


class GpuHolders:
    """Thread-safe; keeps nothing between calls."""

    def __init__(
        self,
        procs: Callable[[], Iterable[Path]],
        minor: Callable[[str], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``procs`` are candidates, best first: the first that lists a process is read. ``minor`` is that of a UUID."""
        self._procs = procs
        self._minor = minor
        self._clock = clock

    def __call__(self, gpu: str) -> str | None:
        """The processes that have it open, as part of a message; None when /proc cannot be read. Never raises."""
        try:
            found = self._scan(gpu)
            return None if found is None else describe(found)
        except Exception:  # the answer only completes the message of another error, which must not be lost
            log.exception("cannot find out who has the GPU open", extra={"gpu": gpu})
        return None

    def blocking(self, gpu: str) -> tuple[str, ...] | None:
        """The processes that must close the GPU before a reset, with advice, at most `MAX_NAMED` and their number; None
        when not all processes can be listed."""
        found = self._scan(gpu)
        if found is None or not found.complete:
            return None
        left = [holder for holder in found.holders if holder.name not in RELEASED_BY_SMI]
        shown = [f"{each}: {ADVICE[each.name]}" if each.name in ADVICE else str(each) for each in left[:MAX_NAMED]]
        return (*shown, *([f"{len(left) - MAX_NAMED} more"] if len(left) > MAX_NAMED else []))

    def is_running(self, name: str) -> bool | None:
        """Return whether a process of that name runs on the node; None when the processes cannot be listed."""
        for proc in self._procs():
            with suppress(OSError):
                names = {_name_or_none(proc / str(pid)) for pid in _pids(proc)}
                if names - {None}:
                    return name[:MAX_NAME] in names
        return None

    def _scan(self, gpu: str) -> Scan | None:
        minor = self._minor(gpu)
        if minor is None:
            return None
        for proc in self._procs():
            try:
                found = scan(proc, minor, clock=self._clock)
            except OSError as error:
                log.debug("processes cannot be listed", extra={"proc": str(proc), "reason": str(error)})
                continue
            if found.processes:
                return found
        return None


def _ordered(found: list[GpuHolder]) -> tuple[GpuHolder, ...]:
    return tuple(sorted(found, key=lambda holder: (holder.name not in ADVICE, holder.pid)))


def _pids(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name)


def _own_pid(proc: Path) -> int | None:
    """This process in the PID namespace of ``proc``: the kernel resolves ``self`` there."""
    try:
        return int((proc / "self").readlink().name)
    except (OSError, ValueError):
        return None


def _holder(process: Path, pid: int, minor: int) -> tuple[GpuHolder | None, bool]:
    """The process if it has the GPU open, and whether all its files were read."""
    holds = capabilities = False
    is_whole = True
    try:
        with os.scandir(process / "fd") as files:
            for count, file in enumerate(files):
                if count >= MAX_FILES:
                    is_whole = False
                    break
                target = link_target(file.path)
                device = _DEVICE.search(target)
                holds = holds or (device is not None and int(device[1]) == minor)
                capabilities = capabilities or bool(_CAPABILITY.search(target))
        return (GpuHolder(pid=pid, name=_name(process), capabilities=capabilities) if holds else None), is_whole
    except PermissionError:
        return None, False
    except OSError:  # it has ended
        return None, True


def link_target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - thousands of links on a node
    except OSError:  # closed since the listing
        return ""


def _name(process: Path) -> str:
    """The program's name. Any process may choose it, so other characters than printable ASCII are replaced."""
    with (process / "comm").open("rb") as file:
        text = file.read(64).decode("ascii", "replace").rstrip("\n")
    return re.sub(r"[^\x20-\x7e]", "?", text)[:MAX_NAME] or "?"


def _name_or_none(process: Path) -> str | None:
    try:
        return _name(process)
    except OSError:
        return None
