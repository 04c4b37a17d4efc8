"""Judges the node's disks, the driver's CDI files, and what a container got of them. Pure."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.diagnose.doctor.node_container_facts import ContainerFacts
from dra_driver.diagnose.doctor.node_facts import LocalFacts
from dra_driver.diagnose.doctor.node_text import some
from dra_driver.hardware.cdi import CdiSpec

ENOUGH_BYTES: Final = 256 * 1024
LITTLE_BYTES: Final = 32 * 2**20
ENOUGH_FILES: Final = 4
"""As of the node process, which is not ready below these (kubelet/storage_health.py)."""


@check("disk", Layer.NODE, "space for what the driver writes")
def _disks(facts: LocalFacts) -> Iterator[Finding]:
    for disk in facts.files.disks:
        expected = f"space for {disk.what}"
        do = f"Free space on the file system of {disk.folder}: without it, no pod with a GPU starts or ends."
        if disk.free_bytes < ENOUGH_BYTES:
            yield fail(f"{disk.folder} has {disk.free_bytes // 1024} KiB free", expected, do)
        elif disk.free_files is not None and disk.free_files < ENOUGH_FILES:
            yield fail(f"{disk.folder} has {disk.free_files} inodes free", expected, do)
        elif disk.free_bytes < LITTLE_BYTES:
            yield warn(f"{disk.folder} has {disk.free_bytes >> 20} MiB free", expected, do)
        else:
            yield ok(f"{disk.folder} has {disk.free_bytes >> 20} MiB free for {disk.what}")


@check("cdi-files", Layer.CDI, "CDI files that a runtime loads")
def _cdi(facts: LocalFacts) -> Iterator[Finding]:
    cdi = facts.files.cdi
    if not cdi.exists:
        do = "The node process makes it at its start; look at the driver's pod on this node."
        yield warn(f"the folder {cdi.folder} does not exist", "a folder with the driver's CDI files", do)
        return
    for problem in cdi.problems:
        do = "Remove the file: the node process writes it again within seconds; without one, its next start does."
        yield fail(problem, "files that a container runtime loads", do)
    if cdi.documents and not cdi.base:
        do = "Look at the driver's pod: it writes the base document when it finds the NVIDIA driver."
        yield fail("the base document is missing: no container with a GPU starts", "one in the folder", do)
    if cdi.gone:
        yield fail(
            f"CDI files mount {some(cdi.gone)}, which {'does' if len(cdi.gone) == 1 else 'do'} not exist on the node",
            "files of the driver that is installed now",
            "Restart the driver's pod on this node: a driver was upgraded or removed, and it has not written its "
            "files since.",
        )
    if not cdi.problems and not cdi.gone and (cdi.base or not cdi.documents):
        count = len(cdi.documents)
        yield ok(f"{count} CDI file{'' if count == 1 else 's'} of the driver in {cdi.folder}")


@check("container", Layer.CONTAINER, "the container has what its claims give")
def _containers(facts: LocalFacts) -> Iterator[Finding]:
    for pod in facts.pods:
        subject = f"pod/{pod.pod}"
        if pod.problem:
            do = "Mend the container runtime first."
            yield unknown(pod.problem, "the runtime's view of the pod's containers", do, subject)
        elif not pod.containers:
            do = "Look at the pod's events (kubectl describe pod)."
            yield warn("no container of it runs on this node", "a running container", do, subject)
        for container in pod.containers:
            yield from _container(facts, subject, container)


def _container(facts: LocalFacts, subject: str, container: ContainerFacts) -> Iterator[Finding]:
    about = f"container {container.name}"
    expected = "the device nodes of its claims"
    if container.problem:
        yield unknown(f"{about}: {container.problem}", expected, "Look into the container by hand (ls /dev).", subject)
        return
    own = [name for name in container.asked or () if name.startswith(f"k8s.{facts.view.driver}/")]
    if not own:
        have = [node.path for node in container.nodes if node.path.startswith("/dev/nvidia")]
        seen = f"{about}: the runtime got no CDI name of {facts.view.driver}" + (
            f", it has {some(have)}" if have else ""
        )
        do = "Name the claim in resources.claims of the container; a runtime without CDI drops the names, too."
        yield warn(seen, expected, do, subject)
        return
    wanted, lost = _wanted(facts.files.cdi.documents, own)
    present = {node.path: node for node in container.nodes}
    missing = sorted(path for path in wanted if path not in present)
    refused = sorted(path for path in wanted if path in present and not present[path].allowed)
    if lost:
        do = "Delete the pod: the claim is not prepared any more, and the container could not start again."
        yield fail(f"{about}: no CDI file has {some(lost)}", "a CDI file for each name", do, subject)
    if missing:
        do = "The runtime did not inject CDI devices: see the layer runtime."
        yield fail(f"{about} lacks {some(missing)}", expected, do, subject)
    if refused:
        do = "Look at what changes the container's specification (NRI plugins, runtime wrappers)."
        yield fail(f"{about}: its device cgroup does not allow {some(refused)}", expected, do, subject)
    if not lost and not missing and not refused:
        yield ok(f"{about} has {some(sorted(wanted)) or 'no device nodes, and needs none'}", subject)


def _wanted(documents: tuple[CdiSpec, ...], asked: list[str]) -> tuple[set[str], list[str]]:
    """The device nodes that these names bring, and the names that no document has."""
    devices = {f"{spec.kind}={device.name}": (spec, device) for spec in documents for device in spec.devices}
    lost = [name for name in asked if name not in devices]
    nodes: set[str] = set()
    for name in set(asked) - set(lost):
        spec, device = devices[name]
        for edits in (spec.container_edits, device.container_edits):
            nodes |= {node.path for node in edits.device_nodes}
    return nodes, lost


@check("records", Layer.PREPARE, "the driver's own records agree")
def _state(facts: LocalFacts) -> Iterator[Finding]:
    return iter(facts.state)


CHECKS: Final = (_disks, _state, _cdi, _containers)
