"""Where the page's objects come from: the API server, or a file that `kubectl dra snapshot` wrote."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from dra_driver.config.status import node_status_of
from dra_driver.errors import ForbiddenError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.request_rights import missing_right
from dra_driver.kube.state import ClusterState, StateReader, read_cluster
from dra_driver.model.gpu_node import GpuNodeStatus

MAX_NODES: Final = 20_000


class ListsObjects(StateReader, Protocol):
    """The part of ``rest.RestClient`` that is needed here: reads alone."""


class LiveSource:
    """The cluster of a kubeconfig. Used by one thread."""

    def __init__(self, api: ListsObjects) -> None:
        self._api = api

    def state(self) -> ClusterState:
        return read_cluster(self._api)

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        """What GpuNodes say; a cluster without them (an older chart) is no failure."""
        try:
            items = self._api.list(paths.gpu_nodes())["items"]
        except NotFoundError:
            gaps.append("gpunodes: not served by this cluster, so health and policies are not known")
            return {}
        except ForbiddenError as error:
            gaps.append(f"gpunodes: {missing_right(error)}")
            return {}
        found = {str(item["metadata"]["name"]): node_status_of(item) for item in items[:MAX_NODES]}
        return {name: status for name, status in found.items() if status is not None}


class FileSource:
    """A state that was read once, from a file."""

    def __init__(self, read: Callable[[], ClusterState]) -> None:
        self._read = read

    def state(self) -> ClusterState:
        return self._read()

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        gaps.append("gpunodes: a file of the cluster's state has none, so health and policies are not known")
        return {}
