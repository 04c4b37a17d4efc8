"""Asks a node to give its NVIDIA driver up, and observes slices and events while it does and takes it again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dra_driver.kube import paths
from dra_driver.sim.apiserver.jsonvalue import dig, entries
from dra_driver.sim.apiserver.kinds import EVENTS
from tests.e2e.cluster import POLL_S, SETTLE_S, RealCluster, wait

ASKED: Final = "gpu.dra-driver.io/detach"
NOTICED_S: Final = 30.0


def mark(cluster: RealCluster, node: str, kind: str, name: str, value: str | None) -> None:
    cluster.rest.merge_patch(paths.node(node), {"metadata": {kind: {name: value}}})


@contextmanager
def marked(cluster: RealCluster, node: str, kind: str, name: str, value: str) -> Iterator[None]:
    mark(cluster, node, kind, name, value)
    try:
        yield
    finally:
        mark(cluster, node, kind, name, None)


def versions(cluster: RealCluster) -> set[str]:
    return {str(dig(one, "attributes", "driverVersion", "version")) for one in cluster.devices()}


def tainted(cluster: RealCluster) -> dict[str, bool]:
    """Device name -> whether no new claim may have it."""
    return {
        one["name"]: any(taint["effect"] == "NoSchedule" for taint in entries(one, "taints"))
        for one in cluster.devices()
    }


def events(cluster: RealCluster, node: str, reason: str) -> int:
    found = [one for one in cluster.client.list(EVENTS, "default") if one.get("reason") == reason]
    return sum(int(one.get("count") or 1) for one in found if dig(one, "involvedObject", "name") == node)


def holds(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(POLL_S)


def wait_given_up(cluster: RealCluster, node: str, before: int) -> None:
    wait(lambda: None if all(tainted(cluster).values()) else f"devices without a taint: {tainted(cluster)}", NOTICED_S)
    wait(lambda: None if events(cluster, node, "DriverDetached") > before else "no event DriverDetached", NOTICED_S)


def wait_taken(cluster: RealCluster, version: str) -> None:
    wait(lambda: None if versions(cluster) == {version} else f"published versions {versions(cluster)}", NOTICED_S)
    wait(lambda: None if not any(tainted(cluster).values()) else f"taints: {tainted(cluster)}", NOTICED_S)
