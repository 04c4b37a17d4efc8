"""Real servers on real unix sockets, in a directory short enough for their paths."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.process import service
from dra_driver.node.process.endpoints import Endpoints, Registration
from dra_driver.node.process.health_report import HealthStreams
from dra_driver.node.process.sockets import SocketPaths
from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.node.process.processes import NODE, SLICES, Node
from tests.fakes.claims import FakePreparer

DRIVER = "gpu.nvidia.com"


class Plugin:
    """Everything the kubelet can call, over a fake preparer."""

    def __init__(self, folder: Path, *, pod_uid: str | None = None) -> None:
        registrar_dir, plugin_dir = folder / "reg", folder / "plugins"
        registrar_dir.mkdir(exist_ok=True)
        plugin_dir.mkdir(exist_ok=True)
        self.paths = SocketPaths.choose(
            driver=DRIVER, registrar_dir=registrar_dir, plugin_dir=plugin_dir, pod_uid=pod_uid
        )
        self.preparer = FakePreparer()
        self.streams = HealthStreams()
        self.registration = Registration(driver=DRIVER, endpoint=self.paths.dra)
        self.prepares = service.prepare_threads()
        handlers = [*service.handlers(self.preparer, DRIVER, self.prepares), *self.streams.handlers()]
        self.endpoints = Endpoints(self.paths, self.registration, handlers)

    def stop(self, grace_s: float = 1.0) -> None:
        self.streams.stop()
        self.endpoints.stop(grace_s)
        self.prepares.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dra-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def plugin(folder: Path) -> Iterator[Plugin]:
    made = Plugin(folder)
    made.endpoints.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def kubeconfig(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(api.kubeconfig(tmp_path_factory.mktemp("api") / "kubeconfig"))


@pytest.fixture
def rest(kubeconfig: str) -> Iterator[RestClient]:
    connection = Connection.load(kubeconfig)
    client = RestClient(connection)
    client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    yield client
    client.delete(f"/api/v1/nodes/{NODE}")
    for item in client.list(SLICES)["items"]:
        client.delete(f"{SLICES}/{item['metadata']['name']}")
    connection.close()


@pytest.fixture
def node(folder: Path, kubeconfig: str) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(**flags: str | None) -> Node:
        settings: dict[str, Any] = {"kubeconfig": kubeconfig} | flags
        made.append(Node(folder, **settings))
        return made[-1]

    yield make
    for process in made:
        process.kill()
