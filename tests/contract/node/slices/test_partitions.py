"""Partitions, shares and counters against the embedded API server, which validates as 1.36 does."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices import Publisher
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.sim.apiserver.server import ApiServer
from tests.unit.node.slices.gpus import ALL, doubly_offered, h100s, offered

NODE, DRIVER = "node-a", "gpu.nvidia.com"


class Node:
    """One node's publisher, and its slices in the API server."""

    def __init__(self, server: ApiServer, rest: RestClient) -> None:
        self.server, self.rest = server, rest
        self.api = RestSlicesApi(rest, DRIVER, NODE)
        self.publisher = Publisher.connect(rest, DRIVER, NODE)

    def wait(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not true():
            assert time.monotonic() < deadline, self.publisher.problem or "did not happen in time"
            time.sleep(0.01)

    def versions(self) -> dict[str, str]:
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in self.api.list()}

    def names(self) -> list[str]:
        objects = {item["metadata"]["name"]: item for item in self.api.list()}
        assert doubly_offered(objects) == []
        return [device["name"] for device in offered(objects)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    server = ApiServer(port=0)
    server.start()
    connection = Connection.load(str(server.kubeconfig(tmp_path / "kubeconfig")))
    rest = RestClient(connection)
    rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    one = Node(server, rest)
    try:
        yield one
    finally:
        one.publisher.stop()
        connection.close()
        server.stop()


def test_eight_h100_are_published_in_five_writes_and_a_restart_writes_nothing(node: Node) -> None:
    """The API server's version, four dry runs and five slices, each of which is sent once."""
    before = node.server.store.revision
    node.publisher.set_snapshot(h100s(8))
    node.publisher.start()
    node.wait(lambda: node.publisher.published)
    assert node.server.store.revision - before == 5
    assert node.publisher.features == ALL
    assert len(node.names()) == 208
    versions = node.versions()
    node.publisher.stop()
    again = Publisher.connect(node.rest, DRIVER, NODE)
    again.set_snapshot(h100s(8))
    again.step()
    assert again.published
    assert node.versions() == versions
