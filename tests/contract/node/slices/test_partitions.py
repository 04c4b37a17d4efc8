"""Partitions and counters against the embedded API server, which validates as 1.36 does."""

import time
from contextlib import closing
from pathlib import Path

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices import Publisher
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.sim.apiserver.server import ApiServer
from tests.unit.node.slices.gpus import ALL, doubly_offered, h100s, offered

NODE, DRIVER = "node-a", "gpu.nvidia.com"


def test_eight_h100_are_published_in_five_writes_and_a_restart_writes_nothing(tmp_path: Path) -> None:
    """The API server's version, four dry runs and five slices, each of which is sent once."""
    server = ApiServer(port=0)
    server.start()
    with closing(Connection.load(str(server.kubeconfig(tmp_path / "kubeconfig")))) as connection:
        rest = RestClient(connection)
        rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        before = server.store.revision
        publisher = Publisher.connect(rest, DRIVER, NODE)
        publisher.set_snapshot(h100s(8))
        publisher.start()
        deadline = time.monotonic() + 10
        while not publisher.published:
            assert time.monotonic() < deadline, publisher.problem
            time.sleep(0.01)
        publisher.stop()
        assert (server.store.revision - before, publisher.features) == (5, ALL)
        objects = {item["metadata"]["name"]: item for item in RestSlicesApi(rest, DRIVER, NODE).list()}
        assert (len(offered(objects)), doubly_offered(objects)) == (208, [])
        again = Publisher.connect(rest, DRIVER, NODE)
        again.set_snapshot(h100s(8))
        again.step()
        assert again.published
        assert server.store.revision - before == 5
    server.stop()
