"""Where the page's objects come from: the API server, or a file that `kubectl dra snapshot` wrote."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec.structs import replace

from dra_driver.config.status import node_status_of
from dra_driver.core.errors import ForbiddenError, NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.core.request_rights import missing_right
from dra_driver.kube import paths
from dra_driver.kube.state import KINDS, ClusterState, StateReader, read_cluster, read_in_namespace

MAX_NODES: Final = 20_000


class ListsObjects(StateReader, Protocol):
    """The part of ``rest.RestClient`` that is needed here: reads alone."""


class LiveSource:
    """The cluster of a kubeconfig. Used by one thread.

    What the user may not list in all namespaces is read from ``namespace`` alone.
    """

    def __init__(self, api: ListsObjects, namespace: str = "") -> None:
        self._api = api
        self._namespace = namespace

    def state(self) -> ClusterState:
        found = read_cluster(self._api)
        own: dict[str, Any] = {}
        gaps = list(found.gaps)
        for kind in KINDS if self._namespace else ():
            at = next((at for at, gap in enumerate(gaps) if gap.startswith(f"{kind.resource}: ")), None)
            if at is None or not kind.namespaced:
                continue
            items = read_in_namespace(self._api, kind, self._namespace)
            if items is not None:
                own[kind.field] = items
                gaps[at] += f"; those of namespace {self._namespace} are shown"
        return replace(found, gaps=tuple(gaps), **own) if own else found

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
