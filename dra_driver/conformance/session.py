"""Opens a bench for a driver: its directory, name and node, its claim template, and the objects that a run needs.

A registrar directory in which a kubelet works is refused: the suite must not compete with it. A kubelet serves its own
sockets beside the registrar directory, below its root directory: pod-resources/kubelet.sock
(pkg/kubelet/apis/podresources) and device-plugins/kubelet.sock (pkg/kubelet/cm/devicemanager). A socket that a dead
kubelet left accepts no connections.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.conformance.bench import Bench, Control, TestedDriver
from dra_driver.conformance.claims import ClaimTemplate
from dra_driver.conformance.cluster import ClusterObjects
from dra_driver.conformance.plugin import ask, sockets
from dra_driver.conformance.values import TimeLimits
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.unix_grpc import is_served
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient


class SuiteTarget(Struct, frozen=True, kw_only=True):
    """The driver to test. ``driver`` and ``node`` are found if they are empty."""

    registrar_dir: Path
    cdi_dirs: tuple[Path, ...]
    driver: str = ""
    node: str = ""
    control: Control | None = None
    template: ClaimTemplate | None = None
    limits: TimeLimits


@contextmanager
def open_bench(target: SuiteTarget, rest: RestClient) -> Iterator[Bench]:
    """The bench, and the removal of what it created. Raises ConfigurationError and KubernetesApiError."""
    driver = target.driver or _find_driver(target)
    node = target.node or _find_node(rest, driver, target.limits)
    subject = TestedDriver(
        driver=driver,
        registrar_dir=target.registrar_dir,
        cdi_dirs=target.cdi_dirs,
        control=target.control,
        limits=target.limits,
    )
    cluster = ClusterObjects(rest, node=node, driver=driver)
    bench = Bench(subject, cluster, target.template)
    try:
        cluster.prepare(target.template.classes if target.template else ())
        yield bench
    finally:
        bench.close()
        cluster.clean()


def _find_driver(target: SuiteTarget) -> str:
    """The name of the only driver in the folder."""
    until = time.monotonic() + target.limits.restart_s
    while True:
        asked = [ask(path, what, target.limits) for path, what in sockets(target.registrar_dir)]
        names = {one.info.name for one in asked if one.info is not None}
        if len(names) == 1:
            return names.pop()
        if names or time.monotonic() > until:
            break
        time.sleep(target.limits.pause_s)
    seen = ", ".join(sorted(names)) or "; ".join(one.problem for one in asked[:4]) or "no socket"
    raise ConfigurationError(f"{target.registrar_dir} has {seen}: expected one driver; choose one with --driver")


def _find_node(rest: RestClient, driver: str, limits: TimeLimits) -> str:
    """The only node for which the driver publishes slices."""
    until = time.monotonic() + limits.publish_s
    while True:
        found = rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={driver}"})["items"]
        nodes = {item["spec"].get("nodeName") for item in found} - {None}
        if len(nodes) == 1:
            return str(nodes.pop())
        if nodes or time.monotonic() > until:
            listed = ", ".join(sorted(nodes)[:4]) or "no node"
            raise ConfigurationError(f"driver {driver} publishes for {listed}: choose the node with --node-name")
        time.sleep(limits.pause_s)


KUBELET_SOCKETS: Final = ("pod-resources/kubelet.sock", "device-plugins/kubelet.sock")
_PROBE_S: Final = 1.0


def kubelet_beside(registrar_dir: Path) -> str:
    """Why a kubelet seems to work in this folder, as a sentence; empty if none does."""
    root = registrar_dir.resolve().parent
    for name in KUBELET_SOCKETS:
        if is_served(root / name, _PROBE_S):
            return f"a kubelet serves {root / name}, so it also works in {registrar_dir}"
    return ""


def check_folder(registrar_dir: Path, *, owned: bool) -> None:
    """Raise ConfigurationError for a folder that the suite must not use."""
    if not registrar_dir.is_dir():
        raise ConfigurationError(f"--registrar-dir {registrar_dir} is not a folder")
    why = kubelet_beside(registrar_dir)
    if why and not owned:
        raise ConfigurationError(
            f"{why}. The checks restart the driver, delete its ResourceSlices and prepare claims, which disturbs pods; "
            "use a folder without a kubelet, or --i-own-this-node on a node without pods that need the driver"
        )
