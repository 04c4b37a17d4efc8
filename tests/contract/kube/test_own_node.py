"""The watch of one Node object against the embedded API server."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.recording_proxy import RecordingProxy

NODES = "/api/v1/nodes"
DETACH = "gpu.dra-driver.io/detach"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    server = ApiServer()
    server.start()
    yield server.kubeconfig(tmp_path_factory.mktemp("api") / "kubeconfig")
    server.stop()


@pytest.fixture
def rest(kubeconfig: Path) -> Iterator[RestClient]:
    client = RestClient(Connection.load(str(kubeconfig)))
    for name in ("node-a", "node-b"):
        client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield client
    for name in ("node-a", "node-b"):
        client.delete(f"{NODES}/{name}")


def test_an_annotation_is_seen_at_once_and_only_of_the_own_node(
    kubeconfig: Path, rest: RestClient, tmp_path: Path
) -> None:
    changed = threading.Event()
    with RecordingProxy(kubeconfig) as proxy:
        watch = OwnNodeWatch(RestClient(Connection.load(str(proxy.kubeconfig(tmp_path / "proxied")))), "node-a")
        watch.subscribe(changed.set)
        watch.start()
        try:
            assert watch.wait_first(5.0)
            assert changed.wait(5.0)
            changed.clear()
            rest.merge_patch(f"{NODES}/node-b", {"metadata": {"annotations": {DETACH: "not for this node"}}})
            rest.merge_patch(f"{NODES}/node-a", {"metadata": {"annotations": {DETACH: "upgrade"}}})
            assert changed.wait(5.0)
            node = watch.current()
            assert node is not None
            assert (node.name, dict(node.annotations)) == ("node-a", {DETACH: "upgrade"})
            assert node.uid
        finally:
            watch.stop()
        assert len(proxy.requests) == 2
        assert all("fieldSelector=metadata.name%3Dnode-a" in path for _, path in proxy.requests)
