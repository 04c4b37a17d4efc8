"""Read all facts of a node, run its checks, and report them."""

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from dra_driver.core.finding import checks_in, run_all
from dra_driver.diagnose.doctor import node_devices, node_driver, node_files, node_kubelet, node_runtime
from dra_driver.diagnose.doctor.node_devices import DeviceNodeFacts, read_devices
from dra_driver.diagnose.doctor.node_driver import AskNvml, DriverFacts, ask_nvml, read_driver, read_hardware
from dra_driver.diagnose.doctor.node_files import FileFacts, PodFacts, read_files, read_pod
from dra_driver.diagnose.doctor.node_kubelet import (
    AskVersion,
    GetInfo,
    KubeletFacts,
    SocketFacts,
    get_info,
    kubelet_version,
    read_kubelet,
    read_sockets,
)
from dra_driver.diagnose.doctor.node_runtime import CriClient, RuntimeFacts, read_runtime
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.diagnose.hardware.values import CheckRecord
from dra_driver.diagnose.node_state import NodeState, Places, read_state
from dra_driver.hardware.device_nodes.folder import DevFolder


class LocalFacts(Struct, frozen=True, kw_only=True):
    """``node`` is the node's name. ``records`` are the driver's, or the error that prevents reading them; None if not
    read. ``hardware`` is empty unless NVML answers."""

    node: str
    view: HostView
    driver: DriverFacts = field(default_factory=DriverFacts)
    devices: DeviceNodeFacts = field(default_factory=DeviceNodeFacts)
    files: FileFacts = field(default_factory=FileFacts)
    runtime: RuntimeFacts = field(default_factory=RuntimeFacts)
    kubelet: KubeletFacts = field(default_factory=KubeletFacts)
    sockets: SocketFacts = field(default_factory=SocketFacts)
    pods: tuple[PodFacts, ...] = ()
    records: NodeState | OSError | None = None
    hardware: tuple[CheckRecord, ...] = ()


class NodeReaders(Struct, frozen=True, kw_only=True):
    """Access to everything except files; tests replace it."""

    ask_nvml: AskNvml = ask_nvml
    dial: Callable[[str], CriClient] = CriClient
    dev: Callable[[str], DevFolder] = DevFolder
    get_info: GetInfo = get_info
    kubelet_version: AskVersion = kubelet_version
    hardware: Callable[[HostView], tuple[CheckRecord, ...]] = read_hardware


def _records(places: Places | None) -> NodeState | OSError | None:
    try:
        return read_state(places) if places is not None else None
    except OSError as error:
        return error


NODE_CHECKS: Final = checks_in(node_kubelet, node_driver, node_devices, node_runtime, node_files)


def examine(
    node: str,
    view: HostView,
    *,
    pods: tuple[str, ...] = (),
    places: Places | None = None,
    readers: NodeReaders | None = None,
) -> DoctorReport:
    """Read the node and run its checks; ``pods`` as ``namespace/name``. Changes nothing; every wait has a timeout.

    Does not raise errors of this project.
    """
    begin = time.monotonic()
    use = readers or NodeReaders()
    kubelet = read_kubelet(view, use.kubelet_version)
    runtime = read_runtime(view, kubelet.runtime_socket, use.dial)
    driver = read_driver(view, use.ask_nvml)
    works = driver.nvml is not None and driver.nvml.gpus > 0
    reachable = view.here(runtime.socket) if runtime.socket and not runtime.problem else None
    facts = LocalFacts(
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
            else PodFacts(pod=pod, problem="no container runtime answers")
            for pod in pods
        ),
        records=_records(places),
        hardware=use.hardware(view) if works and not view.simulated else (),
    )
    return DoctorReport(
        target=f"node/{node}",
        findings=run_all(NODE_CHECKS, facts, f"node/{node}"),
        source="the node itself",
        took_s=time.monotonic() - begin,
    )
