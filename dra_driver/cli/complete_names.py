"""Names of objects in the cluster of the kubeconfig, for completion at a prompt: quick, bounded, and silent."""

from typing import Final

from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.telemetry import logs

# A prompt waits no longer than this; the API server returns the first names of a larger collection.
_TIMEOUTS: Final = Timeouts(connect_s=1.0, read_s=2.0, total_s=2.5)
MOST: Final = 500


def names_in_cluster(kind: str, namespace: str, kubeconfig: str) -> list[str]:
    """Names of the nodes, namespaces, pods or claims, at most `MOST`; where both are "", as kubectl finds them.

    Raises DraError.
    """
    logs.configure("text", "error")
    rest = RestClient(Connection.load(kubeconfig or None), timeouts=_TIMEOUTS)
    page = rest.get(_path(kind, namespace or "default"), {"limit": str(MOST)})
    return [str(item["metadata"]["name"]) for item in page["items"]]


def _path(kind: str, namespace: str) -> str:
    every = {"node": paths.nodes(), "namespace": paths.namespaces(), "pod": paths.pods(namespace)}
    return every.get(kind) or paths.resource_claims(namespace)
