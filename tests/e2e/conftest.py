"""A cluster, GPUs published in it, and a namespace for each test that leaves nothing behind.

    KUBECONFIG=... python -m pytest tests/e2e -rs

Without KUBECONFIG everything is skipped, and says so. Where no node publishes GPUs and this host is a node of the
cluster, a node process with simulated GPUs and an MPS host are started on it (as root: MPS daemons get mount namespaces
of their own). Tests that kill them, and those that need other GPUs or policies than are there, need these.

Environment: E2E_NODE_NAME (which node this host is, if it cannot be found out), E2E_KUBELET_ROOT, E2E_CDI_DIR and
E2E_STATE_DIR (folders of the node process, looked through for leftovers), E2E_KUBELET_RESTART (a command that restarts
this host's kubelet), E2E_NVIDIA_SPECS (a folder with NVIDIA's public test specs).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import GONE_S, RealCluster, wait
from tests.e2e.host import Host
from tests.e2e.node import Folders, driver_runs_here, folders, local_node
from tests.fakes.node_process import NodeProcess

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 600


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """One cluster with few GPUs, and tests that kill its driver: no two of them may run at the same time."""
    config.option.numprocesses = None
    config.option.dist = "no"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real pods take their time; whether the API server is verified is for the owner of KUBECONFIG to say."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
            item.add_marker(pytest.mark.filterwarnings("ignore:Unverified HTTPS request"))


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    path = os.environ.get("KUBECONFIG")
    if not path:
        pytest.skip("no cluster: KUBECONFIG is not set")
    return path


@pytest.fixture(scope="session")
def cluster(kubeconfig: str) -> Iterator[RealCluster]:
    """The cluster with the project's DeviceClasses. One that does not answer is an error, not a reason to skip."""
    rest = RestClient(Connection.load(kubeconfig), timeouts=Timeouts(read_s=30.0, total_s=60.0))
    found = RealCluster(rest)
    found.version()
    with found.classes():
        yield found
        found.dropped()


@pytest.fixture(scope="session")
def node(cluster: RealCluster) -> str | None:
    """The cluster's node that this host is; None when it is none."""
    return local_node(cluster.nodes())


@pytest.fixture(scope="session")
def host(
    cluster: RealCluster, kubeconfig: str, node: str | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host | None]:
    """GPUs are published: by whoever does it already (None), else by processes of our own."""
    if driver_runs_here() if node is not None else cluster.slices():
        yield None
        return
    if node is None:
        pytest.skip("no node of the cluster publishes GPUs, and this host is not one of its nodes (E2E_NODE_NAME)")
    made = Host(cluster, tmp_path_factory.mktemp("host"), node, kubeconfig)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def own_host(host: Host | None) -> Host:
    """Processes, GPUs and policies that the test may do with as it likes."""
    if host is None:
        pytest.skip("GPUs are published by a node process that is not ours: stop it to run this test")
    return host


@pytest.fixture
def driver(host: Host | None) -> NodeProcess | None:
    return host.process if host is not None else None


@pytest.fixture
def own_driver(own_host: Host) -> NodeProcess:
    """A node process that the test may kill."""
    return own_host.process


@pytest.fixture(scope="session")
def node_folders(node: str | None) -> Folders | None:
    return folders(node)


@pytest.fixture
def needs() -> Requirements:
    """GPUs and policies that a test needs; test files that need particular ones say so in a fixture of this name."""
    return Requirements()


@pytest.fixture
def namespace(
    cluster: RealCluster,
    host: Host | None,
    node_folders: Folders | None,
    needs: Requirements,
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    """A namespace of the test's own on a cluster with what the test needs.

    After the test its claims are gone, and with them all traces on this node and its GPUs.
    """
    if host is not None:
        host.provide(needs)
    elif needs != Requirements():
        pytest.skip(f"it needs {needs}, and GPUs are published by a node process that is not ours")
    name = cluster.make_namespace(request.node.name)
    yield name
    cluster.drop_namespace(name)
    if node_folders is not None:
        kept = node_folders
        wait(lambda: kept.left_of_others(cluster.claim_uids()), GONE_S)
    if host is not None:
        wait(host.hardware.traces, GONE_S)
