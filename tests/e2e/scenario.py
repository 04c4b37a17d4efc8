"""One manifest file against the cluster: applied, held in the state that it must reach, deleted without a trace."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dra_driver.sim import expect
from dra_driver.sim.manifests import load
from tests.e2e.cluster import REACH_S, SETTLE_S, RealCluster, wait

# The scheduler has looked at a pod, and again, well within this time; a pod that is Pending after it is not just slow.
PENDING_S = 5.0


@contextmanager
def reached(
    cluster: RealCluster, path: Path, namespace: str, expectations: Sequence[expect.Expectation]
) -> Iterator[None]:
    """The body runs while the objects of ``path`` are as expected; after it they are deleted, and nothing is left."""
    objects = load(path)
    cluster.apply(objects, namespace)
    wait(lambda: _unmet(cluster, namespace, expectations), REACH_S)
    _hold(cluster, namespace, expectations)
    yield
    cluster.remove(objects, namespace)


def _hold(cluster: RealCluster, namespace: str, expectations: Sequence[expect.Expectation]) -> None:
    """It is still so a moment later."""
    time.sleep(PENDING_S if any(e.state == "Pending" for e in expectations) else SETTLE_S)
    assert expect.unmet(expectations, cluster.client, namespace) is None


def _unmet(cluster: RealCluster, namespace: str, expectations: Sequence[expect.Expectation]) -> str | None:
    complaint = expect.unmet(expectations, cluster.client, namespace)
    return None if complaint is None else f"{complaint}; warnings: {cluster.warnings(namespace)}"
