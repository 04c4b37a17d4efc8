"""Names of objects in the cluster of the kubeconfig, for completion at a prompt: quick, bounded, and silent."""

import os
from typing import Final

from dra_driver.core.telemetry import logs
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.kubeconfig import Kubeconfig
from dra_driver.kube.rest import RestClient, Timeouts, pages
from dra_driver.kubectl.commands.kubeconfig import SERVICE_ACCOUNT_DIR

# A prompt waits no longer than this; the API server returns the first names of a larger collection.
_TIMEOUTS: Final = Timeouts(connect_s=1.0, read_s=2.0, total_s=2.5)
MOST: Final = 500


def names_in_cluster(kind: str, namespace: str, kubeconfig: str, context: str = "") -> list[str]:
    """Names of the nodes, namespaces, pods, claims or contexts, at most `MOST`; what is "" is chosen as kubectl does.

    Raises DraError.
    """
    logs.configure("text", "error")
    chosen = Kubeconfig(path=kubeconfig or None, context=context or None)
    if kind == "context":
        return chosen.names(os.environ)
    rest = RestClient(Connection.load(chosen.path, context=chosen.context), timeouts=_TIMEOUTS)
    namespace = namespace or chosen.namespace(os.environ, SERVICE_ACCOUNT_DIR)
    page = next(pages(rest.get, _path(kind, namespace), limit=MOST))
    return [str(item["metadata"]["name"]) for item in page["items"]]


def _path(kind: str, namespace: str) -> str:
    every = {"node": paths.nodes(), "namespace": paths.namespaces(), "pod": paths.pods(namespace)}
    return every.get(kind) or paths.resource_claims(namespace)
