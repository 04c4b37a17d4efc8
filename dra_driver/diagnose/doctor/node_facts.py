"""All that was read of a node, and reading it."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from dra_driver.diagnose.doctor.finding import LayerFinding
from dra_driver.diagnose.doctor.node_container_facts import Containers, PodFacts, read_pod
from dra_driver.diagnose.doctor.node_cri import CriClient
from dra_driver.diagnose.doctor.node_device_facts import DeviceNodeFacts, read_devices
from dra_driver.diagnose.doctor.node_driver_facts import AskNvml, DriverFacts, ask_nvml, read_driver
from dra_driver.diagnose.doctor.node_files_facts import FileFacts, read_files
from dra_driver.diagnose.doctor.node_kubelet_facts import AskVersion, KubeletFacts, kubelet_version, read_kubelet
from dra_driver.diagnose.doctor.node_runtime_facts import Runtime, RuntimeFacts, read_runtime
from dra_driver.diagnose.doctor.node_sockets import GetInfo, SocketFacts, get_info, read_sockets
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.hardware.device_nodes.folder import DevFolder, RealDev


class NodeRuntime(Runtime, Containers, Protocol):
    """All questions to a container runtime."""


class LocalFacts(Struct, frozen=True, kw_only=True):
    """``node`` is the node's name. ``state`` are findings about the driver's own records, which another reader made."""

    node: str
    view: HostView
    driver: DriverFacts = field(default_factory=DriverFacts)
    devices: DeviceNodeFacts = field(default_factory=DeviceNodeFacts)
    files: FileFacts = field(default_factory=FileFacts)
    runtime: RuntimeFacts = field(default_factory=RuntimeFacts)
    kubelet: KubeletFacts = field(default_factory=KubeletFacts)
    sockets: SocketFacts = field(default_factory=SocketFacts)
    pods: tuple[PodFacts, ...] = ()
    state: tuple[LayerFinding, ...] = ()


class NodeReaders(Struct, frozen=True, kw_only=True):
    """How to reach what is not a file; tests hand in others."""

    ask_nvml: AskNvml = ask_nvml
    dial: Callable[[str], NodeRuntime] = CriClient
    dev: Callable[[str], DevFolder] = RealDev
    get_info: GetInfo = get_info
    kubelet_version: AskVersion = kubelet_version


def read_node(
    node: str,
    view: HostView,
    *,
    pods: tuple[str, ...] = (),
    state: tuple[LayerFinding, ...] = (),
    readers: NodeReaders | None = None,
) -> LocalFacts:
    """Read everything; ``pods`` as ``namespace/name``. Changes nothing, and every wait has an end."""
    use = readers or NodeReaders()
    kubelet = read_kubelet(view, use.kubelet_version)
    runtime = read_runtime(view, kubelet.runtime_socket, use.dial)
    driver = read_driver(view, use.ask_nvml)
    reachable = view.here(runtime.socket) if runtime.socket and not runtime.problem else None
    return LocalFacts(
        node=node,
        view=view,
        driver=driver,
        devices=read_devices(view, use.dev(view.dev), driver.majors, driver.minors),
        files=read_files(view),
        runtime=runtime,
        kubelet=kubelet,
        sockets=read_sockets(view, use.get_info),
        pods=tuple(
            read_pod(reachable, pod, use.dial)
            if reachable
            else PodFacts(pod=pod, problem="no container runtime can be asked")
            for pod in pods
        ),
        state=state,
    )
