"""Run CUDA with the device nodes and libraries of a container, and a private MPS daemon (checks 1 and 10).

The daemon's pipes, logs and shared memory are in the check's directory and mount namespace. The judges do no I/O.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Final

from dra_driver.core.errors import CommandError, DriverUnavailableError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.diagnose.hardware.child import Task, ask
from dra_driver.diagnose.hardware.cuda_probe import ClaimView
from dra_driver.diagnose.hardware.values import ON_FREE_GPU, Facts, Topics, few, hardware_check, judgement
from dra_driver.hardware.cdi import CdiNames, CdiProvider, CdiWriter, ContainerEdits
from dra_driver.hardware.driver_root import search
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import CUDA, find_library
from dra_driver.hardware.sharing import control
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon

PROBE_S: Final = 25.0
_LIBRARY: Final = ".so"


def read_contexts(task: Task) -> Topics:
    """Topics ``edits`` (nodes and number of libraries), ``container``, and ``without uvm``: the program's results."""
    if find_library(task.root, CUDA) is None:
        yield "skipped", f"no {CUDA} below the driver root {task.root}"
        return
    try:
        nodes, files = _edits(task)
    except DriverUnavailableError as error:  # a claim would fail with the same message
        yield "skipped", f"no claim can be prepared on this node: {error}"
        return
    yield "edits", {"nodes": [path for path, _, _ in nodes], "files": [path for _, path in files]}
    yield "gpu", {"uuid": task.chosen.uuid}
    for topic, kept in (
        ("container", nodes),
        ("without uvm", tuple(node for node in nodes if not node[0].startswith("/dev/nvidia-uvm"))),
    ):
        folder = Path(task.folder, topic.replace(" ", "-"))
        folder.mkdir()
        seen = run_probe(ClaimView(folder=str(folder), files=files, nodes=kept))
        yield topic, seen
        if seen.get("hangs"):
            yield "without uvm", {"error": "not tried"}
            return


def run_probe(
    view: ClaimView, environment: Mapping[str, str] | None = None, prepare: Callable[[], object] | None = None
) -> dict[str, object]:
    """Run the CUDA program; return its JSON, or ``error``. ``prepare`` runs in the child between fork and exec."""
    return ask("cuda_probe", view, PROBE_S, env=environment, preexec_fn=prepare)


def _edits(task: Task) -> tuple[tuple[tuple[str, int, int], ...], tuple[tuple[str, str], ...]]:
    """Nodes, and pairs of source and target of libraries, from the CDI documents of a claim for the GPU."""
    names = CdiNames("hardware-check.nvidia.com")
    folder = Path(task.folder, "cdi")
    folder.mkdir()
    # This process makes the program's mounts, so host paths are as this process sees them.
    root = DriverRoot(root=task.root, dev_root=task.dev_root)
    provider = CdiProvider(
        root,
        names,
        CdiWriter(str(folder), names),
        proc_devices=task.proc_devices,
        hook_path="none",
        proc_driver=task.proc_driver,
    )
    provider.refresh()
    base = json.loads((folder / names.base_file_name).read_text())["containerEdits"]
    own: ContainerEdits = provider.edits_for(Gpu(uuid=GpuUuid(task.chosen.uuid), minor=task.chosen.minor))
    nodes = [*base["deviceNodes"], *(node.to_wire() for node in own.device_nodes)]
    files = [(mount["hostPath"], mount["containerPath"]) for mount in base["mounts"]]
    return (
        tuple((node["path"], node["major"], node["minor"]) for node in nodes),
        tuple((source, target) for source, target in files if _LIBRARY in target),
    )


PERCENT: Final = 50
LIMIT_MIB: Final = 1024
UNDER_MIB, OVER_MIB = 64, 2048
"""A size that a client with the limit must get, and one that must fail."""
READY_S: Final = 10.0
_COMMAND_S: Final = 5.0
_STEP_S: Final = 0.2
_MAX_LOG: Final = 2000


Talk = Callable[[ControlProgram, MpsDaemon, DaemonFolder, Path, Task], Topics]


def with_daemon(talk: Talk) -> Callable[[Task], Topics]:
    """Make a reader of ``talk``: its topics with a private MPS daemon for the chosen GPU; then ``end`` and ``logs``."""

    @wraps(talk)
    def read(task: Task) -> Topics:
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
            yield from talk(program, wanted, folder, shm, task)
            yield "end", _ended(running)
        finally:
            with suppress(ProcessLookupError):
                running.kill()
            running.wait(_COMMAND_S)
            yield "logs", _logs(folder, Path(task.folder, "daemon.log"))

    return read


@with_daemon
def read_daemon(program: ControlProgram, wanted: MpsDaemon, folder: DaemonFolder, shm: Path, task: Task) -> Topics:
    """Topics ``commands`` (one per command, in order), ``client`` (the CUDA program), ``end`` and ``logs``."""
    tell = partial(send, program, folder, shm)
    answers = [ready(tell)]
    yield "commands", answers
    if answers[0]["refused"]:
        return
    answers += [tell(command) for command in (*control.defaults(wanted), control.HEALTH)]
    yield "commands", answers
    yield "client", _client(folder, shm, task)
    answers += [tell(control.HEALTH), tell(control.QUIT)]
    yield "commands", answers


def ready(send: Callable[[str], dict[str, object]]) -> dict[str, object]:
    """The answer to the first probe that succeeds, or to the last one."""
    begin = time.monotonic()
    while True:
        answer: dict[str, object] = send(control.PROBE)
        waited_s = time.monotonic() - begin
        if not answer["refused"] or waited_s > READY_S:
            return answer | {"after_s": round(waited_s, 2)}
        time.sleep(_STEP_S)


def send(program: ControlProgram, folder: DaemonFolder, shm: Path, command: str) -> dict[str, object]:
    try:
        ended = program.send(command, folder, shm, within_s=_COMMAND_S, clock=time.monotonic).wait()
    except CommandError as error:
        return {"command": command, "refused": str(error)}
    refused = control.refusal(command, ended)
    return {"command": command, "status": ended.status, "output": ended.output[:_MAX_LOG], "refused": refused or ""}


def _client(folder: DaemonFolder, shm: Path, task: Task) -> dict[str, object]:
    """Run a CUDA program in the daemon's view, with this process' root, because it is Python."""
    library = find_library(task.root, CUDA)
    if library is None:
        return {"error": f"no {CUDA} below {task.root}"}
    view = ClaimView(library=library, allocate_mib=(UNDER_MIB, OVER_MIB))
    enter = control.View(pipe=folder.pipe, log=folder.log, shm=shm).enter
    return run_probe(view, client_environment(folder, task.root, library), enter)


def client_environment(folder: DaemonFolder, root: str, library: str) -> dict[str, str]:
    limit = f"0={LIMIT_MIB}M"
    more = {"CUDA_MPS_PIPE_DIRECTORY": control.PIPE, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}
    return program_environment(root, library, {**more, control.MARK: str(folder.path)})


def program_environment(root: str, library: str, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a CUDA program with this process' C library: a driver root may contain another one."""
    environment = {**os.environ, **more}
    if not search.is_own(root) and not search.has_shell(root):
        environment["LD_LIBRARY_PATH"] = str(Path(library).parent)
    return environment


def _ended(running: "subprocess.Popen[bytes]") -> dict[str, object]:
    deadline = time.monotonic() + _COMMAND_S
    while running.poll() is None and time.monotonic() < deadline:
        time.sleep(_STEP_S / 4)
    return {"status": running.poll()}


def _logs(folder: DaemonFolder, printed: Path) -> dict[str, str]:
    found = {}
    for path in (*sorted(folder.log.glob("*.log")), printed):
        with suppress(OSError):
            found[path.name] = path.read_text("utf-8", "replace")[-_MAX_LOG:]
    return found


_OUT_OF_MEMORY: Final = 2
_NEEDED: Final = ("cuInit", "cuDeviceGet", "cuCtxCreate_v2")


@hardware_check(1, "CUDA in a container's view", read_contexts, 60.0, ON_FREE_GPU)
def contexts(facts: Facts, _survey: Facts) -> Finding:
    """CUDA works with the device nodes and libraries of a claim, and fails without UVM."""
    seen, without = facts["container"], facts["without uvm"]
    if "error" in seen:
        return Finding(
            status=Status.UNKNOWN if seen.get("permission") else Status.FAIL,
            seen=seen["error"],
            meaning="the check needs a privileged process" if seen.get("permission") else _NO_CUDA,
        )
    uuid = facts["gpu"]["uuid"].removeprefix("GPU-")
    differences = [f"{name}: {code}" for name, code in _failed(seen)]
    if not differences and seen.get("count") != 1:
        differences.append(f"{seen.get('count')} devices are visible, expected 1")
    if not differences and seen.get("uuid") != uuid:
        differences.append(f"the visible device is {seen.get('uuid')}, expected {uuid}")
    strict = not differences and not list(_failed(without)) and "error" not in without
    if strict:
        differences.append("CUDA works without /dev/nvidia-uvm too")
    text = without.get("error") or few(f"{name} {code}" for name, code in _failed(without)) or "works"
    return judgement(
        differences,
        f"CUDA {seen.get('version')} made a context with {len(facts['edits']['nodes'])} nodes and "
        f"{len(facts['edits']['files'])} files; without UVM's nodes: {text}",
        right="a pod with a whole GPU can run CUDA, but only with UVM loaded",
        wrong="the driver refuses a claim without UVM needlessly" if strict else _NO_CUDA,
    )


_NO_CUDA: Final = "a pod would get its GPU and could not run CUDA"


def _failed(seen: Facts) -> Iterator[tuple[str, int]]:
    """Calls with another code than success, and calls that the program did not reach."""
    for name, code in seen.items():
        if name.startswith("cu") and code != 0:
            yield name, code
    for name in _NEEDED:
        if name not in seen and "error" not in seen and all(code == 0 for key, code in seen.items() if key[:2] == "cu"):
            yield f"{name} (not reached)", -1


@hardware_check(10, "an MPS daemon", read_daemon, 75.0, ON_FREE_GPU)
def daemon(facts: Facts, _survey: Facts) -> Finding:
    """The daemon accepts this driver's commands, and a client keeps its limit."""
    commands, client = facts["commands"], facts.get("client", {})
    differences = [f"`{one['command']}`: {one['refused']}" for one in commands if one["refused"]]
    under, over = f"cuMemAlloc {UNDER_MIB} MiB", f"cuMemAlloc {OVER_MIB} MiB"
    if not differences:
        differences += _client_differences(client, under, over)
        if facts.get("end", {}).get("status") is None:
            differences.append("the daemon did not end after `quit`")
    outputs = "; ".join(
        f"{one['command'].split()[0]} -> {one['output'].strip()!r}" for one in commands if "output" in one
    )
    return judgement(
        differences,
        f"{outputs}; a client with a limit of {LIMIT_MIB} MiB: {under} {client.get(under)}, {over} {client.get(over)}",
        right="shares by MPS get a daemon that accepts their limits",
        wrong="shares by MPS would not start, or would exceed their limits",
    )


def _client_differences(client: Facts, under: str, over: str) -> Iterator[str]:
    if "error" in client:
        yield f"CUDA program: {client['error']}"
        return
    failed = [(name, code) for name, code in _failed(client) if name != over]
    yield from (f"CUDA program: {name}: {code}" for name, code in failed)
    if not failed and client.get(under) == 0 and client.get(over) != _OUT_OF_MEMORY:
        yield f"a client with {LIMIT_MIB} MiB got code {client.get(over)} for {OVER_MIB} MiB, expected {_OUT_OF_MEMORY}"
