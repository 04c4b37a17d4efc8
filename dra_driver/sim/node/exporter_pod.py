"""The pod that stands for a node's usage exporter, as the chart's DaemonSet would make it: commands find it there."""

from contextlib import suppress
from typing import Final

from dra_driver.core.errors import AlreadyExistsError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.apiserver.store import Store

NAMESPACE: Final = "dra-driver"
PORT: Final = 8082
"""The port of the chart's exporter; what answers for it is the process' own port on loopback."""
_LABELS: Final = {"app.kubernetes.io/name": "dra-driver", "app.kubernetes.io/component": "exporter"}


def show_exporter(store: Store, node: str, number: int, local_port: int) -> str:
    """Create the pod on ``node`` and let the API server's proxy lead to ``local_port``; returns the pod's UID."""
    with suppress(AlreadyExistsError):
        store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    name = f"dra-driver-exporter-{number}"
    store.ports.serve(NAMESPACE, name, PORT, local_port)
    return str(store.create(PODS, _pod(name, node), namespace=NAMESPACE)["metadata"]["uid"])


def _pod(name: str, node: str) -> Obj:
    container = {"name": "exporter", "image": "dra-driver", "ports": [{"name": "metrics", "containerPort": PORT}]}
    return {
        "metadata": {"name": name, "labels": _LABELS},
        "spec": {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]},
    }
