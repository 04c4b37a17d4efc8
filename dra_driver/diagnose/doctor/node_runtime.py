"""Check the container runtime of a node: whether it answers by CRI, injects CDI devices, and from which directories.

It reads with Version, Status, ListContainers and ContainerStatus of RuntimeService (kubernetes/kubernetes v1.36,
staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto). The kubelet names CDI devices in CreateContainer. containerd
reads them since 1.7.0 (`enable_cdi`: off, on since 2.0.0) and prints its configuration as JSON in
``Status(verbose).info["config"]`` (``pkg/cri/config`` of 1.6 and 1.7, ``internal/cri/config`` of 2.x). CRI-O always
reads them since 1.28.0; its socket returns the configuration as TOML for ``GET /config`` (cri-o, server/inspect.go).
"""

import http.client
import json
import os
import socket
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core._pb.cri_v1 import api_pb2 as pb
from dra_driver.core.errors import RetryableError
from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.core.text import listed
from dra_driver.core.unix_grpc import CallError, Peer, Service, shown
from dra_driver.core.unix_socket import is_served
from dra_driver.core.wire import from_wire
from dra_driver.diagnose.doctor.node_view import CRI_SOCKETS, HostView, is_socket, parse_version

if TYPE_CHECKING:
    from dra_driver.diagnose.doctor.node import LocalFacts


CALL_S: Final = 10.0
MAX_CONFIG: Final = 1 << 20
RUNTIME: Final = Service(pb, "RuntimeService")


class CriError(RetryableError):
    """The runtime did not answer; the message has the cause."""


class CriClient:
    """One runtime on one socket; every call takes at most ``call_s`` seconds. Close it."""

    def __init__(self, path: str, call_s: float = CALL_S) -> None:
        self._path, self._call_s = path, call_s
        self._peer = Peer(path)

    def close(self) -> None:
        self._peer.close()

    def version(self) -> tuple[str, str]:
        """Name and version of the runtime, such as ``containerd`` and ``1.7.27``. Raises CriError."""
        answer = self._call("Version", pb.VersionRequest(version="v1"))
        return shown(answer.runtime_name), shown(answer.runtime_version).removeprefix("v")

    def status(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Conditions that are false, as messages, and the verbose information. Raises CriError."""
        answer = self._call("Status", pb.StatusRequest(verbose=True))
        failed = (
            f"{shown(each.type)} is false ({shown(each.reason)}): {shown(each.message)}"
            for each in answer.status.conditions
            if not each.status
        )
        return tuple(failed), dict(answer.info)

    def containers(self, namespace: str, pod: str) -> tuple[tuple[str, str], ...]:
        """Name and id of each running container of a pod. Raises CriError."""
        labels = {"io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.name": pod}
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels))
        answer = self._call("ListContainers", request)
        running = (each for each in answer.containers if each.state == pb.CONTAINER_RUNNING)
        return tuple((shown(each.metadata.name), str(each.id)) for each in running)

    def container(self, container_id: str) -> Mapping[str, str]:
        """The verbose information about a container. Raises CriError."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        return dict(self._call("ContainerStatus", request).info)

    def crio_config(self) -> str:
        """CRI-O's configuration as TOML. Raises CriError."""
        connection = _UnixConnection(self._path, self._call_s)
        try:
            connection.request("GET", "/config", headers={"Host": "crio"})
            answer = connection.getresponse()
            body = answer.read(MAX_CONFIG)
        except (OSError, http.client.HTTPException) as error:
            raise CriError(
                f"CRI-O at {self._path} did not return its configuration: {error}", reason="ConfigUnanswered"
            ) from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise CriError(
                f"CRI-O at {self._path} did not return its configuration: HTTP status {answer.status}",
                reason="ConfigUnanswered",
            )
        return body.decode("utf-8", "replace")

    def _call(self, method: str, request: object) -> Any:
        try:
            return self._peer.call(RUNTIME, method, request, self._call_s)
        except CallError as error:
            raise CriError(f"the container runtime at {self._path}: {error}") from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


_MOST: Final = 16


class RuntimeFacts(Struct, frozen=True, kw_only=True):
    """``socket`` is the host's path, None if none of ``tried`` exists. ``denied``: this user may not use it.

    ``cdi`` and ``cdi_dirs`` are None if the runtime does not report them. ``not_ready`` are conditions that are
    false. ``default_handler`` is the runtime of pods without a runtime class.
    """

    tried: tuple[str, ...] = ()
    socket: str | None = None
    problem: str | None = None
    denied: bool = False
    name: str = ""
    version: str = ""
    not_ready: tuple[str, ...] = ()
    tells_config: bool = False
    cdi: bool | None = None
    cdi_dirs: tuple[str, ...] | None = None
    default_handler: str | None = None


Dial = Callable[[str], CriClient]


def read_runtime(view: HostView, named: str | None, dial: Dial = CriClient) -> RuntimeFacts:
    """Query the runtime on the socket that the view or the kubelet (``named``) names, else on the first usual one."""
    given = view.cri_socket or named
    tried = (given,) if given else CRI_SOCKETS
    found = [path for path in tried if is_socket(view.here(path))]
    served = next((path for path in found if is_served(view.here(path))), None)
    facts = RuntimeFacts(tried=tried, socket=served or next(iter(found), None))
    if served is None:
        return facts if not found else replace(facts, problem=f"no process accepts connections at {found[0]}")
    if not os.access(view.here(served), os.R_OK | os.W_OK):
        return replace(facts, problem="this user may not use it", denied=True)
    client = dial(view.here(served))
    try:
        return _asked(client, facts)
    except CriError as error:
        return replace(facts, problem=str(error))
    finally:
        client.close()


def _asked(client: CriClient, facts: RuntimeFacts) -> RuntimeFacts:
    name, version = client.version()
    not_ready, info = client.status()
    facts = replace(facts, name=name, version=version, not_ready=not_ready)
    if name != "cri-o":
        return with_config(facts, info.get("config", ""))
    try:
        return with_crio_config(facts, client.crio_config())
    except CriError:
        return facts


class _Handlers(Struct, frozen=True, rename="camel"):
    default_runtime_name: str | None = None


class _ContainerdConfig(Struct, frozen=True, rename={"cdi": "enableCDI", "cdi_dirs": "cdiSpecDirs"}):
    cdi: bool | None = None
    cdi_dirs: object = None
    containerd: _Handlers = _Handlers()


class _CrioRuntime(Struct, frozen=True):
    cdi_spec_dirs: object = None
    default_runtime: str | None = None


def with_config(facts: RuntimeFacts, config: str) -> RuntimeFacts:
    """The facts with containerd's configuration, from CRI. A text of another form adds nothing."""
    try:
        wire = json.loads(config)
        found = from_wire(_ContainerdConfig, wire)
    except (ValueError, RecursionError):
        return facts
    default = found.containerd.default_runtime_name
    folders = _texts(found.cdi_dirs)
    return replace(facts, tells_config=bool(wire), cdi=found.cdi, cdi_dirs=folders, default_handler=default)


def with_crio_config(facts: RuntimeFacts, config: str) -> RuntimeFacts:
    try:
        found = from_wire(_CrioRuntime, tomllib.loads(config).get("crio", {}).get("runtime", {}))
    except (ValueError, AttributeError, RecursionError):
        return facts
    folders = _texts(found.cdi_spec_dirs)
    return replace(facts, tells_config=True, cdi_dirs=folders, default_handler=found.default_runtime)


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(str(each) for each in value[:_MOST]) if isinstance(value, list) else None


CONTAINERD, CRIO, DOCKER = "containerd", "cri-o", "docker"
FIRST_CDI: Final = {CONTAINERD: (1, 7), CRIO: (1, 28)}
DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
"""Default directories of runtimes."""
_ON_17: Final = (
    'Set enable_cdi = true in [plugins."io.containerd.grpc.v1.cri"] of /etc/containerd/config.toml, and '
    "restart containerd; running containers keep running."
)
_ON_2: Final = (
    "Remove enable_cdi = false from [plugins.'io.containerd.cri.v1.runtime'] of /etc/containerd/config.toml, and "
    "restart containerd; running containers keep running."
)


@check("runtime-answers", Layer.RUNTIME, "the container runtime's answers by CRI")
def _answers(facts: "LocalFacts") -> Iterator[Finding]:
    runtime = facts.runtime
    expected = "a container runtime that answers by CRI"
    if runtime.socket is None and not (facts.kubelet.found or facts.kubelet.sees_processes):
        do = "Run it as root on the node, or use --on-node."
        yield unknown("cannot see a container runtime's socket", expected, do, reason="RuntimeHidden")
    elif runtime.socket is None:
        do = "Start the container runtime, or name its socket with --cri-socket."
        yield fail(f"none of these sockets exists: {listed(runtime.tried)}", expected, do, reason="NoRuntimeSocket")
    elif runtime.denied:
        yield unknown(f"{runtime.socket}: {runtime.problem}", expected, "Run it as root.", reason="RuntimeDenied")
    elif runtime.problem:
        do = "Read the runtime's log (journalctl -u containerd or -u crio)."
        yield fail(f"{runtime.socket}: {runtime.problem}", expected, do, reason="RuntimeFailed")
    else:
        yield ok(f"{runtime.name} {runtime.version} at {runtime.socket}")
    for condition in runtime.not_ready:
        do = "Read the runtime's log; pods do not start before it is ready."
        seen = f"{runtime.name} is not ready: {condition}"
        yield warn(seen, "every condition of the runtime is true", do, reason="RuntimeNotReady")


@check("cdi-switch", Layer.RUNTIME, "the container runtime injects CDI devices")
def _switch(facts: "LocalFacts") -> Iterator[Finding]:
    runtime = facts.runtime
    if not runtime.name:
        return
    version, first = parse_version(runtime.version), FIRST_CDI.get(runtime.name)
    if runtime.name == DOCKER:
        seen = f"{runtime.name} {runtime.version}, through cri-dockerd"
        do = "Use containerd 2 or CRI-O: cri-dockerd is not tested with CDI devices."
        yield warn(seen, "containerd or CRI-O", do, reason="CriDockerd")
    elif version is None or first is None:
        do = "Check its documentation: it must inject CDI devices that the kubelet names."
        seen = f"{runtime.name} {runtime.version}"
        yield unknown(seen, "containerd 1.7 or newer, or CRI-O 1.28 or newer", do, reason="UnknownRuntime")
    elif version < first:
        yield fail(
            f"{runtime.name} {runtime.version} does not inject CDI devices that the kubelet names: containers start "
            "without their GPU",
            f"{runtime.name} {first[0]}.{first[1]} or newer",
            "Upgrade containerd to 2.x (1.7 needs enable_cdi = true as well)."
            if runtime.name == CONTAINERD
            else "Upgrade CRI-O to the minor version of the kubelet.",
            reason="OldRuntime",
        )
    elif runtime.name == CONTAINERD:
        yield from _containerd_switch(runtime, version)
    else:
        yield ok(f"{runtime.name} {runtime.version} has CDI, which cannot be disabled")


def _containerd_switch(runtime: RuntimeFacts, version: tuple[int, int]) -> Iterator[Finding]:
    if runtime.cdi is True:
        yield ok(f"CDI is on in containerd {runtime.version}")
    elif runtime.cdi is False:
        is_old = version < (2, 0)
        seen = (
            f"CDI is off in containerd {runtime.version}{' (enable_cdi is false by default)' if is_old else ''}: "
            "containers start without their GPU"
        )
        yield fail(seen, "enable_cdi = true", _ON_17 if is_old else _ON_2, reason="CdiOff")
    else:
        seen = f"containerd {runtime.version} does not report whether CDI is on"
        yield unknown(
            seen, "enable_cdi = true", "Search the output of `crictl info` for enableCDI.", reason="CdiUnknown"
        )


@check("cdi-folders", Layer.RUNTIME, "the driver's CDI directory in the configuration of the container runtime")
def _folders(facts: "LocalFacts") -> Iterator[Finding]:
    runtime, own = facts.runtime, str(facts.view.cdi)
    has_cdi = runtime.cdi is True or runtime.name == CRIO
    if not has_cdi or not runtime.tells_config:
        return
    folders = runtime.cdi_dirs or DEFAULT_FOLDERS
    if _same(own) in {_same(folder) for folder in folders}:
        yield ok(f"{runtime.name} reads CDI files in {', '.join(folders)}")
        return
    yield fail(
        f"{runtime.name} reads CDI files in {', '.join(folders)}, but the driver writes them to {own}",
        f"{own} among the runtime's cdi_spec_dirs",
        f"Set cdiDir of the chart (--cdi-dir, CDI_DIR) to {folders[-1]}, or add {own} to cdi_spec_dirs of "
        f"{runtime.name}.",
    )


@check("default-runtime", Layer.RUNTIME, "a default runtime that gives GPUs only by claims")
def _default_runtime(facts: "LocalFacts") -> Iterator[Finding]:
    default = facts.runtime.default_handler
    if default and default.startswith("nvidia"):
        yield warn(
            f"the default runtime is {default}: a pod without a claim gets GPUs by setting NVIDIA_VISIBLE_DEVICES",
            "runc or crun as default runtime; the nvidia runtime for pods that name its RuntimeClass",
            "Set default_runtime_name to runc, or accept-nvidia-visible-devices-envvar-when-unprivileged to false in "
            "/etc/nvidia-container-runtime/config.toml (docs/security.md).",
        )


def _same(folder: str) -> str:
    """One spelling: /var/run is a link to /run on every node."""
    path = os.path.normpath(folder)
    return "/run" + path.removeprefix("/var/run") if path.startswith("/var/run/") else path
