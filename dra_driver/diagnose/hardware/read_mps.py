"""Read whether an MPS daemon takes the commands that this driver sends, in default compute mode (check 10).

The daemon is private: its pipes, logs and shared memory are in the check's folder and its own mount namespace.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import CommandError
from dra_driver.diagnose.hardware.cuda_probe import ClaimView
from dra_driver.diagnose.hardware.read_cuda import run_probe
from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.driver_root.search import CUDA, find_library
from dra_driver.hardware.sharing import control, namespace, programs
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.daemon import MpsDaemon
from dra_driver.hardware.sharing.mps_files import DaemonFolder

PERCENT: Final = 50
LIMIT_MIB: Final = 1024
UNDER_MIB, OVER_MIB = 64, 2048
"""Sizes that a client with the limit must get, and must not get."""
READY_S: Final = 10.0
_COMMAND_S: Final = 5.0
_STEP_S: Final = 0.2
_MAX_LOG: Final = 2000


def daemon(task: Task) -> Iterator[tuple[str, Any]]:
    """Topics ``commands`` (one per command, in order), ``client`` (the CUDA program), ``end`` and ``logs``."""
    wanted = MpsDaemon(
        id="hardware-check",
        devices=(task.chosen.uuid,),
        default_percentage=PERCENT,
        memory_limits={task.chosen.uuid: LIMIT_MIB},
    )
    folder, shm = DaemonFolder(Path(task.folder, "daemon")), Path(task.folder, "shm")
    folder.make()
    shm.mkdir()
    shm.chmod(0o1777)
    program = ControlProgram(root=task.root, private=True)
    output = os.open(Path(task.folder, "daemon.log"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        running = program.start(wanted, folder, shm, output)
    except CommandError as error:
        yield "skipped", f"no MPS daemon: {error}"
        return
    finally:
        os.close(output)
    try:
        yield from _talk(program, wanted, folder, shm, task)
        yield "end", _ended(running)
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        running.wait(_COMMAND_S)
        yield "logs", _logs(folder, Path(task.folder, "daemon.log"))


def _talk(
    program: ControlProgram, wanted: MpsDaemon, folder: DaemonFolder, shm: Path, task: Task
) -> Iterator[tuple[str, Any]]:
    send = partial(_send, program, folder, shm)
    answers = [_ready(send)]
    yield "commands", answers
    if answers[0]["refused"]:
        return
    answers += [send(command) for command in (*control.defaults(wanted), control.HEALTH)]
    yield "commands", answers
    yield "client", _client(folder, shm, task)
    answers += [send(control.HEALTH), send(control.QUIT)]
    yield "commands", answers


def _ready(send: Any) -> dict[str, Any]:
    """The answer to the first probe that succeeds, or the last one."""
    begin = time.monotonic()
    while True:
        answer: dict[str, Any] = send(control.PROBE)
        waited_s = time.monotonic() - begin
        if not answer["refused"] or waited_s > READY_S:
            return answer | {"after_s": round(waited_s, 2)}
        time.sleep(_STEP_S)


def _send(program: ControlProgram, folder: DaemonFolder, shm: Path, command: str) -> dict[str, Any]:
    try:
        ended = program.send(command, folder, shm, within_s=_COMMAND_S, clock=time.monotonic).wait()
    except CommandError as error:
        return {"command": command, "refused": str(error)}
    refused = control.refusal(command, ended)
    return {"command": command, "status": ended.status, "output": ended.output[:_MAX_LOG], "refused": refused or ""}


def _client(folder: DaemonFolder, shm: Path, task: Task) -> dict[str, Any]:
    """A CUDA program in the daemon's view, with this process' own root, because it is Python."""
    library = find_library(task.root, CUDA)
    if library is None:
        return {"error": f"no {CUDA} below {task.root}"}
    view = ClaimView(library=library, allocate_mib=(UNDER_MIB, OVER_MIB))
    enter = namespace.View(pipe=folder.pipe, log=folder.log, shm=shm).enter
    return run_probe(view, client_environment(folder, task.root, library), enter)


def client_environment(folder: DaemonFolder, root: str, library: str) -> dict[str, str]:
    """Of a CUDA program with this process' C library: that of a driver root that is a whole system is another one."""
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": namespace.PIPE,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_MIB}M",
        control.MARK: str(folder.path),
    }
    if not programs.is_own(root) and not programs.has_shell(root):
        environment["LD_LIBRARY_PATH"] = str(Path(library).parent)
    return environment


def _ended(running: Any) -> dict[str, Any]:
    """How the daemon ended after ``quit``."""
    deadline = time.monotonic() + _COMMAND_S
    while running.poll() is None and time.monotonic() < deadline:
        time.sleep(_STEP_S / 4)
    return {"status": running.poll()}


def _logs(folder: DaemonFolder, printed: Path) -> dict[str, str]:
    """The last lines of each log."""
    found = {}
    for path in (*sorted(folder.log.glob("*.log")), printed):
        with suppress(OSError):
            found[path.name] = path.read_text("utf-8", "replace")[-_MAX_LOG:]
    return found
