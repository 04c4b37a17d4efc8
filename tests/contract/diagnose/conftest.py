"""An embedded cluster with the driver's DaemonSet and one node."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.pods_on_nodes import DEPLOYED, NAMESPACE


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> str:
    return str(api.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def cluster(kubeconfig: str) -> Iterator[RestClient]:
    connection = Connection.load(kubeconfig)
    client = RestClient(connection)
    client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    client.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", DEPLOYED)
    client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-7"}})
    yield client
    connection.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """For commands that set handlers of the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
