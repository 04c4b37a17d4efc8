"""One API server for all subjects, each with a driver name and a folder of its own."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.conformance.bench import Bench, TestedDriver
from dra_driver.conformance.cluster import ClusterObjects
from dra_driver.conformance.values import TimeLimits
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.subject.driver import SubjectDriver

NODE = "node-a"
# A driver without faults gets all the time that a busy machine may take.
GENEROUS = TimeLimits(get_info_s=15.0, notify_s=15.0, call_s=40.0, quiet_s=0.2, health_s=15.0, pause_s=0.01)
# One with a fault is waited for in vain.
SHORT = TimeLimits(
    dial_s=0.5, get_info_s=0.5, notify_s=0.5, call_s=0.6, publish_s=0.6, restart_s=0.6, health_s=0.3, quiet_s=0.4,
    check_s=5.0, pause_s=0.01,
)  # fmt: skip
_numbers = itertools.count()


@pytest.fixture(scope="session")
def api_kubeconfig() -> Iterator[str]:
    server = ApiServer()
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        yield str(server.kubeconfig(Path(folder, "kubeconfig")))
    server.stop()


@pytest.fixture(scope="session")
def api_rest(api_kubeconfig: str) -> Iterator[RestClient]:
    """A cluster with a node, and the suite's namespace, which no test deletes."""
    connection = Connection.load(api_kubeconfig)
    rest = RestClient(connection)
    rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    ClusterObjects(rest, node=NODE, driver="x").prepare()
    yield rest
    connection.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench_for(api_rest: RestClient) -> Iterator[MakeBench]:
    """Starts a driver with faults and returns the bench for it."""
    ended: list[Callable[[], None]] = []

    def make(*faults: str, limits: TimeLimits | None = None) -> Bench:
        name = f"s{next(_numbers)}.conformance.example.com"
        folder = Path(tempfile.mkdtemp(prefix="dra-"))
        driver = SubjectDriver(folder, api_rest, driver=name, node=NODE, faults=faults).start()
        subject = TestedDriver(
            driver=name,
            registrar_dir=driver.registrar_dir,
            cdi_dirs=(driver.cdi_dir,),
            control=driver,
            faults=driver,
            limits=limits or (SHORT if faults else GENEROUS),
        )
        cluster = ClusterObjects(api_rest, node=NODE, driver=name)
        cluster.prepare()
        bench = Bench(subject, cluster)
        ended.extend((driver.end, cluster.clean, bench.reconnect))
        return bench

    yield make
    for end in reversed(ended):
        end()
