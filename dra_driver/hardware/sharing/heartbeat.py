"""Whether the MPS host works: it holds its lock file, and sets the file's time every ten seconds.

``dra-driver mps-host --check`` asks, for a readiness probe. There is no liveness probe on purpose: it would restart the
container, and the end of the host ends the work of every MPS client of the node. A host that hangs is better left alone
until a person has looked: its daemons and their clients go on.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dra_driver.hardware.sharing.mps_files import MpsFolders

EVERY_S: Final = 10.0
LATE_S: Final = 60.0
"""A host that ends a daemon waits up to `supervise.KILL_S` twice for it, others are delayed that long."""


def beat(lock: int) -> None:
    """Set the time of the lock file with this descriptor. Never raises."""
    with suppress(OSError):  # a file system that is read-only now; the check says so
        os.utime(lock)


def problem(folders: MpsFolders, *, now: Callable[[], float] = time.time) -> str | None:
    """A sentence about what is wrong with the host; None while it works."""
    try:
        silent_s = now() - folders.lock.stat().st_mtime
    except OSError as error:
        return f"no MPS host has run on this node: {folders.lock}: {error.strerror or error}"
    if not folders.host_lives():
        return f"no MPS host runs: {folders.lock} is not locked"
    if silent_s > LATE_S:
        return (
            f"the MPS host has not gone on for {silent_s:.0f} s, expected a sign every {EVERY_S:.0f} s: look at its "
            "log; daemons that run go on, and restarting the host would end their clients"
        )
    return None
