"""One manifest against the cluster: applied, checked twice, deleted without leftovers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dra_driver.kube.published.listing import observed_devices
from dra_driver.sim.demo.expectations import Expectation, unmet
from dra_driver.sim.loop import load
from tests.e2e.cluster import REACH_S, SETTLE_S, RealCluster, wait
from tests.e2e.hardware import Hardware

# The scheduler has looked at a pod, and again, well within this time; a pod that is Pending after it is not just slow.
PENDING_S = 5.0


@contextmanager
def reached(cluster: RealCluster, path: Path, namespace: str, expectations: Sequence[Expectation]) -> Iterator[str]:
    """The body runs while the expectations of ``path`` hold; after it the objects are deleted, and nothing is left.

    Yields their namespace: ``namespace``, or the one among the objects.
    """
    objects = load(path)
    home = cluster.home(objects, namespace)
    try:
        cluster.apply(objects, namespace)
        wait(lambda: _unmet(cluster, home, expectations), REACH_S)
        _hold(cluster, home, expectations)
        yield home
    finally:
        cluster.remove(objects, home)


def check_partitions(cluster: RealCluster, hardware: Hardware, namespace: str) -> None:
    """Each pod's logs list exactly the MIG devices of the hardware at the placements of its claims, and the hardware
    has no other."""
    everybody: set[str] = set()
    for pod in cluster.pods(namespace):
        granted = hardware.uuids_of(cluster.granted_devices(pod))
        logs = cluster.all_logs(pod) if granted else {}
        seen = {part.uuid for log in logs.values() for part in observed_devices(log).partitions}
        assert seen == granted, f"{pod['metadata']['name']} sees {seen}, was granted {granted}"
        everybody |= granted
    assert set(hardware.made().values()) == everybody


def _hold(cluster: RealCluster, namespace: str, expectations: Sequence[Expectation]) -> None:
    time.sleep(PENDING_S if any(e.state == "Pending" for e in expectations) else SETTLE_S)
    assert unmet(expectations, cluster.client, namespace) is None


def _unmet(cluster: RealCluster, namespace: str, expectations: Sequence[Expectation]) -> str | None:
    complaint = unmet(expectations, cluster.client, namespace)
    return None if complaint is None else f"{complaint}; warnings: {cluster.warnings(namespace)}"
