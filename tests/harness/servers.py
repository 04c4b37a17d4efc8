"""An API server for measurements: that of $KUBECONFIG, or the embedded one; and the Node of a node process."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.server import ApiServer


@contextlib.contextmanager
def api_server() -> Iterator[tuple[str, str]]:
    """A kubeconfig, and what the server is."""
    if kubeconfig := os.environ.get("KUBECONFIG"):
        version = RestClient(Connection.load(kubeconfig)).get("/version")["gitVersion"]
        yield kubeconfig, f"the cluster in KUBECONFIG, {version}"
        return
    server = ApiServer(port=0)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield str(server.kubeconfig(Path(folder) / "kubeconfig")), "embedded"
    finally:
        server.stop()


@contextlib.contextmanager
def node_object(rest: RestClient, name: str) -> Iterator[None]:
    """A fresh Node of that name, until the end of the block."""
    with contextlib.suppress(NotFoundError):
        rest.delete(f"/api/v1/nodes/{name}")
    rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        yield
    finally:
        rest.delete(f"/api/v1/nodes/{name}")


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
