"""Opens a bench for a driver: finds its name and node where they were not given, and its claim template."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from dra_driver.conformance import registry
from dra_driver.conformance.bench import Bench, Control, TestedDriver
from dra_driver.conformance.cluster import ClusterObjects
from dra_driver.conformance.template import ClaimTemplate
from dra_driver.conformance.values import TimeLimits
from dra_driver.core.errors import ConfigurationError
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
        asked = [registry.ask(path, what, target.limits) for path, what in registry.sockets(target.registrar_dir)]
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
