"""One embedded cluster after the other, each for the examples that need it.

Owns which cluster runs now. At most one does: two cores and a laptop's memory are enough for any number of examples.
"""

from collections.abc import Callable, Mapping
from types import TracebackType

from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.requirements import Requirements


class ClusterPool:
    """A context manager that hands out a running cluster for `needs.Needs` and ends it when others are needed.

    ``nodes`` is what runs where an example does not say; ``prepare`` is called once with each cluster that has come
    up, to create the classes. Ask in the order of `needs.group`, so that each cluster is started once.
    """

    def __init__(self, nodes: Mapping[str, str], prepare: Callable[[Cluster], object] = lambda _cluster: None) -> None:
        self._nodes = dict(nodes)
        self._prepare = prepare
        self._requirements: Requirements | None = None
        self._cluster: Cluster | None = None

    def __enter__(self) -> "ClusterPool":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def cluster(self, requirements: Requirements) -> Cluster:
        """A cluster with what is needed, every node published. Raises ConfigurationError or RetryableError."""
        if self._cluster is None or self._requirements != requirements:
            self.stop()
            cluster = Cluster(dict(requirements.nodes) or self._nodes, policies=requirements.policies)
            self._cluster, self._requirements = cluster, requirements
            cluster.start()
            self._prepare(cluster)
        return self._cluster

    def stop(self) -> None:
        """End the cluster that runs, if any. Idempotent."""
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = self._requirements = None
