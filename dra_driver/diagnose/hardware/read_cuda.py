"""Read whether CUDA works with exactly the device nodes and libraries that a container gets (check 1)."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.diagnose.hardware.cuda_probe import ClaimView
from dra_driver.diagnose.hardware.task import Task, own_module
from dra_driver.hardware.cdi import CdiNames, CdiProvider, CdiWriter, ContainerEdits
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import CUDA, find_library

PROBE_S: Final = 25.0
_LIBRARY: Final = ".so"
_MAX_PRINTED: Final = 400


def contexts(task: Task) -> Iterator[tuple[str, Any]]:
    """Topics ``edits`` (nodes and number of libraries), ``container``, and ``without uvm``: what the program saw."""
    if find_library(task.root, CUDA) is None:
        yield "skipped", f"no {CUDA} below the driver root {task.root}"
        return
    try:
        nodes, files = _edits(task)
    except DriverUnavailableError as error:  # the claim would be refused with the same words
        yield "skipped", f"no claim can be prepared here: {error}"
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


def run_probe(view: ClaimView, environment: Mapping[str, str] | None = None, prepare: Any = None) -> dict[str, Any]:
    """Run the CUDA program; its JSON, or ``error``. ``prepare`` runs in the child between fork and exec."""
    try:
        done = subprocess.run(
            own_module("cuda_probe"),
            input=view.to_json(),
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_S,
            check=False,
            preexec_fn=prepare,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {PROBE_S:.0f} s", "hangs": True}
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": f"cannot be started: {error}"}
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        printed = " ".join((done.stdout + done.stderr).split())
        return {"error": f"ended with status {done.returncode}: {printed[-_MAX_PRINTED:]}"}
    return answer if isinstance(answer, dict) else {"error": f"printed {answer!r}"}


def _edits(task: Task) -> tuple[tuple[tuple[str, int, int], ...], tuple[tuple[str, str], ...]]:
    """Nodes, and pairs of source and target of libraries, as the CDI documents of a claim for the GPU have them."""
    names = CdiNames("hardware-check.nvidia.com")
    folder = Path(task.folder, "cdi")
    folder.mkdir()
    # The program's mounts are made by this process, so host paths are those that this process sees.
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
