"""Runs `kubectl dra capacity` as a child process, so that the allocator's memory goes when it ends.

The survey loads expressions, the allocator and every device of the cluster: ten times the memory of the controller. The
child has a limit of its own (RLIMIT_DATA), so that a large cluster fails its survey and not the controller.
"""

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from dra_driver.core.errors import CommandError

MAX_OUTPUT: Final = 8 << 20
"""Bytes of a report without single nodes: some kilobytes for each model."""
SURVEY_S: Final = 300.0
_STEP_S: Final = 1.0


def survey_command(driver: str, kubeconfig: str | None) -> list[str]:
    """The program that prints the report of all nodes together."""
    where = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    flags = ["capacity", "-o", "json", "--totals", f"--driver={driver}", *where]
    return [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *flags]


def survey(
    command: list[str],
    *,
    memory_mib: int,
    beat: Callable[[], bool],
    limit_s: float = SURVEY_S,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """The output of the program. ``beat`` is called each second; the program is ended when it returns False.

    Raises CommandError when the program cannot run, fails, takes longer than ``limit_s`` or is ended.
    """
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise CommandError(f"the survey of free capacity cannot be started: {error}") from error
    try:
        _limit(child.pid, memory_mib)
        out, said = _waited(child, beat, clock() + limit_s, clock)
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode != 0:
        words = said.decode("utf-8", "replace").strip()[-300:]
        memory = f"; it may use {memory_mib} MiB (--capacity-memory)" if "MemoryError" in words or not words else ""
        raise CommandError(f"the survey of free capacity ended with status {child.returncode}{memory}: {words}")
    if len(out) > MAX_OUTPUT:
        raise CommandError(f"the survey of free capacity printed more than {MAX_OUTPUT >> 20} MiB")
    return out


def _limit(pid: int, memory_mib: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or this system forbids it
        resource.prlimit(pid, resource.RLIMIT_DATA, (memory_mib << 20, memory_mib << 20))


def _waited(
    child: "subprocess.Popen[bytes]", beat: Callable[[], bool], until: float, clock: Callable[[], float]
) -> tuple[bytes, bytes]:
    while True:
        try:
            return child.communicate(timeout=_STEP_S)
        except subprocess.TimeoutExpired as error:
            if not beat():
                raise CommandError(
                    "the survey of free capacity was given up: this replica stops or leads no more"
                ) from error
            if clock() > until:
                raise CommandError("the survey of free capacity did not end in time: the API server is slow") from error
