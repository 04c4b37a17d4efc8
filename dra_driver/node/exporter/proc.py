"""What the host's /proc tells of processes: program, cgroup, and when they began (proc(5)).

``/proc/PID/stat`` and ``/proc/PID/cgroup`` are open to every user, unless /proc is mounted with hidepid. The /proc of a
PID namespace that is bound into a container shows that namespace's PIDs, so no hostPID is needed for it.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.model.usage_findings import MAX_COMMAND
from dra_driver.core.text import printable
from dra_driver.node.usage.containers import place_of
from dra_driver.node.usage.sources import ProcessFacts, Unread

MAX_BYTES: Final = 16 * 1024
FRESH_S: Final = 60.0
"""A process keeps its facts for this time: its program may change with exec, its PID and start do not."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SLACK_S: Final = 2 / _TICKS


class _Known(Struct, frozen=True):
    """Facts of one process, which is the same one as long as it began at the same tick."""

    start: int
    facts: ProcessFacts
    until_s: float


def since_boot_s() -> float:
    """The clock of ``starttime`` in /proc/PID/stat."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcReader:
    """Of one thread. ``root`` is a /proc; ``clock`` does not jump."""

    def __init__(self, root: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._known: dict[int, _Known] = {}

    def read(self, pids: Collection[int], listed_s: float) -> Mapping[int, ProcessFacts] | Unread:
        """The facts of those processes that live and began before ``listed_s`` (of `since_boot_s`), when the driver was
        asked: one that began later has the PID of a process that ended."""
        if not Path(self._root, "self").is_symlink() and not Path(self._root, "1").is_dir():
            return Unread(reason=f"{self._root} is no /proc: mount the host's and set --proc-dir (PROC_DIR)")
        now_s = self._clock()
        found = {pid: known for pid in sorted(set(pids)) if (known := self._process(pid, listed_s, now_s)) is not None}
        self._known = found
        return {pid: known.facts for pid, known in found.items()}

    def _process(self, pid: int, listed_s: float, now_s: float) -> _Known | None:
        stat = self._stat(pid)
        if stat is None or stat[0] / _TICKS > listed_s + _SLACK_S:
            return None
        start, command = stat
        known = self._known.get(pid)
        if known is not None and known.start == start and now_s < known.until_s:
            return known
        cgroup = self._content(pid, "cgroup")
        again = self._stat(pid)
        if cgroup is None or again is None or again[0] != start:
            return None
        return _Known(start, ProcessFacts(command=command, place=place_of(cgroup)), now_s + FRESH_S)

    def _stat(self, pid: int) -> tuple[int, str] | None:
        """When it began, in ticks since boot, and its program."""
        content = self._content(pid, "stat")
        if content is None:
            return None
        # PID (COMM) STATE ...: the program's name may have spaces and brackets.
        head, _, tail = content.rpartition(")")
        fields = tail.split()
        if len(fields) < 20 or not fields[19].isdigit():
            return None
        return int(fields[19]), printable(head.partition("(")[2][:MAX_COMMAND])

    def _content(self, pid: int, name: str) -> str | None:
        try:
            with open(f"{self._root}/{pid}/{name}", "rb") as file:  # noqa: PTH123 - thousands of them at each look
                return file.read(MAX_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):  # it ended, or its files may not be read
            return None
