"""Provides an embedded cluster for each set of requirements, one cluster at a time.

Only one runs at a time, so that two cores and a laptop's memory are enough for any number of examples.
"""

from collections.abc import Callable, Mapping
from types import TracebackType

from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.requirements import Requirements


class ClusterPool:
    """A context manager that provides running clusters.

    ``nodes`` are for examples without requirements. ``prepare`` is called once with each started cluster, for example
    to create device classes. Ask in the order of `requirements.group_examples`, so that each cluster starts once.
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
        """A running cluster that meets the requirements; stops the former one if it does not.

        Every node has published its GPUs. Raises ConfigurationError or RetryableError.
        """
        if self._cluster is None or self._requirements != requirements:
            self.stop()
            cluster = Cluster(dict(requirements.nodes) or self._nodes, policies=requirements.policies)
            self._cluster, self._requirements = cluster, requirements
            cluster.start()
            self._prepare(cluster)
        return self._cluster

    def stop(self) -> None:
        """Stop the running cluster, if any. Idempotent."""
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = self._requirements = None
