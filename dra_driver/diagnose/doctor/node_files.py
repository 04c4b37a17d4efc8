"""Check the files of a node: disks, the driver's CDI files, NVIDIA's CDI hook, and the devices in containers.

The source for containers is their runtime specification, which containerd and CRI-O return by
``ContainerStatus(verbose).info["info"]`` as JSON: ``runtimeSpec.linux.devices`` are the device nodes in the container,
``runtimeSpec.linux.resources.devices`` the rules of its device cgroup, ``config.CDI_devices`` (containerd) the CDI
names that the kubelet requested."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, ValidationError, field
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError, InvalidSpecError
from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.core.text import counted, listed
from dra_driver.diagnose.doctor.node_runtime import CriClient, CriError
from dra_driver.diagnose.doctor.node_view import HostView, names
from dra_driver.diagnose.node_state import NodeState, find_disagreements
from dra_driver.hardware.cdi import CdiNames, CdiSpec, DriverRoot, HookVersions, choose_hook, decode
from dra_driver.node.process.preflight import ENOUGH_BYTES, ENOUGH_FILES  # below them, the node process is not ready

if TYPE_CHECKING:
    from dra_driver.diagnose.doctor.node import LocalFacts


MAX_BYTES: Final = 4 << 20
_MOST_FILES: Final = 4096


class CdiFacts(Struct, frozen=True, kw_only=True):
    """The driver's documents by file name. ``problems`` are messages about its files that no runtime would load,
    ``gone`` the missing files of the host that its documents mount."""

    folder: str = ""
    exists: bool = False
    base: bool = False
    documents: tuple[CdiSpec, ...] = ()
    problems: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class DiskFacts(Struct, frozen=True, kw_only=True):
    """Free space of the file system with ``folder``: bytes, and inodes (None: no such limit)."""

    folder: str
    what: str
    free_bytes: int
    free_files: int | None


class HookFacts(Struct, frozen=True, kw_only=True):
    """``hook`` is path and version of the hook that containers get, None for none. ``note`` is the reason for not
    using one, ``problem`` the reason why the configured hook is unusable."""

    hook: str | None = None
    note: str | None = None
    problem: str | None = None


class FileFacts(Struct, frozen=True, kw_only=True):
    cdi: CdiFacts = field(default_factory=CdiFacts)
    disks: tuple[DiskFacts, ...] = ()
    hook: HookFacts = field(default_factory=HookFacts)


def read_files(view: HostView) -> FileFacts:
    return FileFacts(cdi=_read_cdi(view), disks=tuple(_read_disks(view)), hook=_hook(view))


def _read_cdi(view: HostView) -> CdiFacts:
    known = CdiNames(view.driver)
    found = names(str(view.cdi))
    own = [
        name
        for name in (found or [])[:_MOST_FILES]
        if not known.is_temporary(name) and (name == known.base_file_name or known.uid_of(name) is not None)
    ]
    documents, problems = [], []
    for name in own:
        try:
            documents.append(_document(view.cdi / name))
        except InvalidSpecError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"cannot read {view.cdi / name}: {error.strerror}")
    return CdiFacts(
        folder=str(view.cdi),
        exists=os.path.lexists(view.cdi),
        base=known.base_file_name in own,
        documents=tuple(documents),
        problems=tuple(problems),
        gone=tuple(sorted({path for document in documents for path in _mounted(document) if _is_gone(view, path)})),
    )


def _document(path: Path) -> CdiSpec:
    with path.open("rb") as file:
        return decode(file.read(MAX_BYTES), str(path))


def _mounted(document: CdiSpec) -> Iterator[str]:
    for edits in (document.container_edits, *(device.container_edits for device in document.devices)):
        for mount in edits.mounts:
            yield mount.host_path


def _is_gone(view: HostView, path: str) -> bool:
    """Return whether the file is missing on the host. A link, or any file in an unreadable directory, exists."""
    try:
        os.lstat(view.here(path))
    except (FileNotFoundError, NotADirectoryError):
        return path.startswith("/")
    except OSError:
        return False
    return False


def _read_disks(view: HostView) -> Iterator[DiskFacts]:
    for folder, what in ((view.own_folder, "the journal"), (view.cdi, "CDI files")):
        try:
            space = os.statvfs(folder)
        except OSError:
            continue
        files = space.f_favail if space.f_files else None
        yield DiskFacts(folder=str(folder), what=what, free_bytes=space.f_bavail * space.f_frsize, free_files=files)


def _hook(view: HostView) -> HookFacts:
    try:
        choice = choose_hook(
            DriverRoot(root=view.host, host_root="/"), view.settings.nvidia_cdi_hook_path, HookVersions()
        )
    except ConfigurationError as error:
        return HookFacts(problem=str(error))
    found = f"{choice.hook.path} {choice.hook.version}" if choice.hook else None
    return HookFacts(hook=found, note=choice.note)


_MOST: Final = 256


class ContainerNode(Struct, frozen=True, kw_only=True):
    """A device node in a container; ``allowed``: a rule of the device cgroup names its numbers."""

    path: str
    major: int
    minor: int
    allowed: bool


class ContainerFacts(Struct, frozen=True, kw_only=True):
    """One container. ``asked`` are the CDI names that the kubelet requested, None if not reported."""

    name: str
    asked: tuple[str, ...] | None = None
    nodes: tuple[ContainerNode, ...] = ()
    problem: str | None = None


class PodFacts(Struct, frozen=True, kw_only=True):
    """The running containers of a pod, as ``namespace/name``."""

    pod: str
    containers: tuple[ContainerFacts, ...] = ()
    problem: str | None = None


def read_pod(socket: str, pod: str, dial: Callable[[str], CriClient] = CriClient) -> PodFacts:
    """Query the runtime on ``socket`` for the containers of ``pod``, as ``namespace/name``."""
    namespace, _, name = pod.partition("/")
    client = dial(socket)
    try:
        found = client.containers(namespace, name)
        return PodFacts(pod=pod, containers=tuple(_read_container(client, *each) for each in found[:_MOST]))
    except CriError as error:
        return PodFacts(pod=pod, problem=str(error))
    finally:
        client.close()


def _read_container(client: CriClient, name: str, container_id: str) -> ContainerFacts:
    try:
        return parsed(name, client.container(container_id).get("info", ""))
    except CriError as error:
        return ContainerFacts(name=name, problem=str(error))


class _Rule(Struct, frozen=True):
    type: object = None
    major: int | None = None
    minor: int | None = None

    def covers(self, node: "_Device") -> bool:
        """An absent or negative number covers all (OCI runtime specification, config-linux.md, "Allowed Device
        list")."""
        pairs = ((self.major, node.major), (self.minor, node.minor))
        fits = all(number is None or number < 0 or number == own for number, own in pairs)
        return self.type in (None, "a", "c") and fits


class _Device(Struct, frozen=True):
    path: str
    major: int
    minor: int


class _Resources(Struct, frozen=True):
    devices: list[dict[str, object]] | None = None


class _Linux(Struct, frozen=True):
    devices: list[dict[str, object]] | None = None
    resources: _Resources = _Resources()


class _RuntimeSpec(Struct, frozen=True):
    linux: _Linux


class _ContainerInfo(Struct, frozen=True, rename={"spec": "runtimeSpec"}):
    spec: _RuntimeSpec
    config: object = None


def parsed(name: str, info: str) -> ContainerFacts:
    """The container in the runtime's information about it.

    An unreadable character device, or an unreadable rule that allows one, is a problem; other odd fields are not."""
    try:
        found = convert(json.loads(info), _ContainerInfo)
        linux = found.spec.linux
        devices = [each for each in (linux.devices or [])[:_MOST] if each.get("type") == "c"]
        allowing = [each for each in linux.resources.devices or [] if each.get("allow")] if devices else []
        nodes = convert(devices, list[_Device], strict=False)  # numbers may be texts
        rules = convert(allowing, list[_Rule], strict=False)
    except (ValueError, ValidationError, RecursionError):
        return ContainerFacts(name=name, problem="the runtime does not report how it created the container")
    return ContainerFacts(
        name=name,
        asked=_asked(found.config),
        nodes=tuple(
            ContainerNode(
                path=node.path, major=node.major, minor=node.minor, allowed=any(rule.covers(node) for rule in rules)
            )
            for node in nodes
        ),
    )


def _asked(config: object) -> tuple[str, ...] | None:
    listed = config.get("CDI_devices", config.get("cdi_devices")) if isinstance(config, dict) else None
    if not isinstance(listed, list):
        return None
    return tuple(str(each.get("name")) for each in listed[:_MOST] if isinstance(each, dict))


LITTLE_BYTES: Final = 32 * 2**20


@check("disk", Layer.NODE, "space for the driver's files")
def _disks(facts: "LocalFacts") -> Iterator[Finding]:
    for disk in facts.files.disks:
        expected = f"space for {disk.what}"
        do = f"Free space on the file system of {disk.folder}: without it, no pod with a GPU starts or ends."
        if disk.free_bytes < ENOUGH_BYTES:
            yield fail(f"{disk.folder} has {disk.free_bytes // 1024} KiB free", expected, do, reason="DiskFull")
        elif disk.free_files is not None and disk.free_files < ENOUGH_FILES:
            yield fail(f"{disk.folder} has {disk.free_files} inodes free", expected, do, reason="NoInodesLeft")
        elif disk.free_bytes < LITTLE_BYTES:
            yield warn(f"{disk.folder} has {disk.free_bytes >> 20} MiB free", expected, do, reason="DiskAlmostFull")
        else:
            yield ok(f"{disk.folder} has {disk.free_bytes >> 20} MiB free for {disk.what}")


@check("records", Layer.PREPARE, "the consistency of the driver's records")
def _records(facts: "LocalFacts") -> Iterator[Finding]:
    """Check the records. GPUs work despite their problems; other checks cover sockets and CDI files."""
    state = facts.records
    if isinstance(state, OSError):
        seen = f"cannot read {state.filename}: {state.strerror}"
        yield unknown(seen, "the driver's journal and files", "Run it as root.", reason="RecordsUnreadable")
    if not isinstance(state, NodeState) or not state.exists:
        return
    elsewhere = {*(str(each.path) for each in state.sockets), "sockets", str(state.cdi.folder)}
    disagreements = [each for each in find_disagreements(state) if each.object not in elsewhere]
    for each in disagreements:
        fix = f"{each.fix[:1].upper()}{each.fix[1:]}."
        yield replace(each, object="", seen=f"{each.object}: {each.seen}", fix=fix)
    if not disagreements:
        claims = len(state.journal.content.entries) if state.journal.content else 0
        yield ok(f"journal, backups and daemons agree, {counted(claims, 'claim')} in the journal")


@check("cdi-files", Layer.CDI, "CDI files that a runtime can load")
def _cdi(facts: "LocalFacts") -> Iterator[Finding]:
    cdi = facts.files.cdi
    if not cdi.exists:
        do = "The node process creates it when it starts; check the driver's pod on this node."
        seen = f"the directory {cdi.folder} does not exist"
        yield warn(seen, "a directory with the driver's CDI files", do, reason="NoCdiDirectory")
        return
    for problem in cdi.problems:
        do = "Remove the file. A running node process writes it again within seconds, otherwise at its next start."
        yield fail(problem, "files that a container runtime loads", do, reason="CdiFileUnusable")
    if cdi.documents and not cdi.base:
        do = "Check the driver's pod: it writes the base document when it finds the NVIDIA driver."
        seen = "the base document is missing: no container with a GPU starts"
        yield fail(seen, "one in the directory", do, reason="NoBaseDocument")
    if cdi.gone:
        yield fail(
            f"CDI files mount {listed(cdi.gone)}, which {'does' if len(cdi.gone) == 1 else 'do'} not exist on the node",
            "files of the driver that is installed now",
            "Restart the driver's pod on this node: it has not written its files since the NVIDIA driver was upgraded "
            "or removed.",
            reason="MountedFilesMissing",
        )
    if not cdi.problems and not cdi.gone and (cdi.base or not cdi.documents):
        count = len(cdi.documents)
        yield ok(f"{count} CDI file{'' if count == 1 else 's'} of the driver in {cdi.folder}")


@check("container", Layer.CONTAINER, "the devices of its claims in the container")
def _containers(facts: "LocalFacts") -> Iterator[Finding]:
    for pod in facts.pods:
        subject = f"pod/{pod.pod}"
        if pod.problem:
            do = "Repair the container runtime first."
            yield unknown(
                pod.problem, "the runtime's view of the pod's containers", do, subject, reason="RuntimeUnanswered"
            )
        elif not pod.containers:
            do = "Read the pod's events (kubectl describe pod)."
            seen = "none of its containers runs on this node"
            yield warn(seen, "a running container", do, subject, reason="NoContainerRunning")
        for container in pod.containers:
            yield from _container(facts, subject, container)


def _container(facts: "LocalFacts", subject: str, container: ContainerFacts) -> Iterator[Finding]:
    about = f"container {container.name}"
    expected = "the device nodes of its claims"
    if container.problem:
        seen = f"{about}: {container.problem}"
        yield unknown(seen, expected, "Run ls /dev in the container.", subject, reason="ContainerUnreadable")
        return
    own = [name for name in container.asked or () if name.startswith(f"k8s.{facts.view.driver}/")]
    if not own:
        have = [node.path for node in container.nodes if node.path.startswith("/dev/nvidia")]
        seen = f"{about}: the runtime received no CDI name of {facts.view.driver}" + (
            f", it has {listed(have)}" if have else ""
        )
        do = "Name the claim in resources.claims of the container. A runtime without CDI drops the names, too."
        yield warn(seen, expected, do, subject, reason="NoCdiName")
        return
    wanted, lost = _wanted(facts.files.cdi.documents, own)
    present = {node.path: node for node in container.nodes}
    missing = sorted(path for path in wanted if path not in present)
    refused = sorted(path for path in wanted if path in present and not present[path].allowed)
    if lost:
        do = "Delete the pod: the claim is no longer prepared, and the container could not start again."
        seen = f"{about}: no CDI file has {listed(lost)}"
        yield fail(seen, "a CDI file for each name", do, subject, reason="CdiDeviceMissing")
    if missing:
        do = "The runtime did not inject CDI devices: see the layer runtime."
        yield fail(f"{about} lacks {listed(missing)}", expected, do, subject, reason="DeviceNodesMissing")
    if refused:
        do = "Find out what changes the container's specification (NRI plugins, runtime wrappers)."
        seen = f"{about}: its device cgroup does not allow {listed(refused)}"
        yield fail(seen, expected, do, subject, reason="DeviceNodesDenied")
    if not lost and not missing and not refused:
        yield ok(f"{about} has {listed(sorted(wanted)) or 'no device nodes, and needs none'}", subject)


def _wanted(documents: tuple[CdiSpec, ...], asked: list[str]) -> tuple[set[str], list[str]]:
    """The device nodes of these names, and the names that no document has."""
    devices = {f"{spec.kind}={device.name}": (spec, device) for spec in documents for device in spec.devices}
    lost = [name for name in asked if name not in devices]
    nodes: set[str] = set()
    for name in set(asked) - set(lost):
        spec, device = devices[name]
        for edits in (spec.container_edits, device.container_edits):
            nodes |= {node.path for node in edits.device_nodes}
    return nodes, lost
