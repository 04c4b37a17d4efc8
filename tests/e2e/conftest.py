"""A cluster, GPUs published in it, and a namespace for each test that leaves nothing behind.

    KUBECONFIG=... python -m pytest tests/e2e -rs

Without KUBECONFIG every test is skipped with that reason. If no node publishes GPUs and this host is a node of the
cluster, a node process with simulated GPUs and an MPS host are started on it (as root: MPS daemons get their own mount
namespaces). Tests that kill them, or require other GPUs or policies than are published, need these processes.

A test that needs a feature gate of Kubernetes names it with the marker ``needs``, and is skipped where the API server
has it off (`gates`). Everything else has to pass on every version from 1.34 on.

Environment: E2E_NODE_NAME (this host's node, if it cannot be detected), E2E_KUBELET_ROOT, E2E_CDI_DIR and E2E_STATE_DIR
(folders of the node process, searched for leftovers), E2E_KUBELET_RESTART (a command that restarts this host's
kubelet), E2E_NVIDIA_SPECS (a folder with NVIDIA's public test specs), E2E_OLD_PYTHON (see ``test_upgrade.py``),
NVIDIA_MOCK_ROOTS (see ``test_nvidia_mock.py``), E2E_KUEUE and E2E_AUTOSCALER (binaries of the neighbours).
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import GONE_S, RealCluster, wait
from tests.e2e.forms import Forms
from tests.e2e.gates import read_gates, why_skipped
from tests.e2e.host import Folders, Host, driver_runs_here, folders, local_node
from tests.fakes.node_process import NodeProcess
from tests.rights.request import Figures

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 600


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run one test at a time: the cluster has few GPUs, and some tests kill its driver."""
    config.option.numprocesses = None
    config.option.dist = "no"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow more time for real pods, and an API server that is not verified, if the kubeconfig says so."""
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
def gates(kubeconfig: str) -> dict[str, bool]:
    return read_gates(RestClient(Connection.load(kubeconfig)).get_text("/metrics"))


@pytest.fixture(autouse=True)
def _its_gates_are_on(request: pytest.FixtureRequest) -> None:
    """Skips a test with the marker ``needs`` where one of the feature gates that it names is off."""
    needed = [name for marker in request.node.iter_markers("needs") for name in marker.args]
    if needed and (reason := why_skipped(needed, request.getfixturevalue("gates"))):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(kubeconfig: str) -> Iterator[RealCluster]:
    """The cluster with the project's DeviceClasses. A cluster that does not answer fails the tests."""
    rest = RestClient(Connection.load(kubeconfig), timeouts=Timeouts(read_s=30.0, total_s=60.0))
    found = RealCluster(rest)
    found.version()
    with found.classes():
        yield found
        found.dropped()


@pytest.fixture(scope="session")
def node(cluster: RealCluster) -> str | None:
    """The cluster's node that this host is, None if it is none."""
    return local_node(cluster.nodes())


@pytest.fixture
def node_name(node: str | None) -> str:
    assert node is not None
    return node


@pytest.fixture(scope="session")
def host(
    cluster: RealCluster, kubeconfig: str, node: str | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host | None]:
    """None if the cluster publishes GPUs already, else the processes started on this host."""
    if driver_runs_here() if node is not None else cluster.slices():
        yield None
        return
    if node is None:
        pytest.skip("no node of the cluster publishes GPUs, and this host is not one of its nodes (E2E_NODE_NAME)")
    made = Host(cluster, tmp_path_factory.mktemp("host"), node, kubeconfig)
    try:
        made.start()
        yield made
        cluster.dropped()  # the kubelet cannot end pods with claims while no driver is registered
    finally:
        made.stop()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    start = time.monotonic()

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n[{time.monotonic() - start:5.1f} s] {text}")
            sys.stdout.flush()

    return write


@pytest.fixture
def own_host(host: Host | None) -> Host:
    """Processes, GPUs and policies that the test may change."""
    if host is None:
        pytest.skip("a node process that these tests did not start publishes GPUs: stop it to run this test")
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
def requirements(request: pytest.FixtureRequest) -> Requirements:
    """GPUs and policies that a test requires: its parameter, or REQUIREMENTS of its file. Files may override this."""
    found: Requirements = getattr(request, "param", getattr(request.module, "REQUIREMENTS", Requirements()))
    return found


@pytest.fixture
def namespace(
    cluster: RealCluster,
    host: Host | None,
    node_folders: Folders | None,
    requirements: Requirements,
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    """A namespace of the test's own on a cluster that meets the test's requirements.

    After the test its claims are deleted, and nothing of them is left on this node and its GPUs.
    """
    if host is not None:
        host.provide(requirements)
    elif requirements != Requirements():
        pytest.skip(f"it needs {requirements}, and a node process that these tests did not start publishes GPUs")
    name = cluster.make_namespace(request.node.name)
    yield name
    cluster.drop_namespace(name)
    if node_folders is not None:
        kept = node_folders
        wait(lambda: kept.left_of_others(cluster.claim_uids()), GONE_S)
    if host is not None:
        wait(host.hardware.traces, GONE_S)


@pytest.fixture
def forms(cluster: RealCluster, own_host: Host, namespace: str) -> Iterator[Forms]:
    with Forms(cluster, namespace).cleared() as found:
        yield found


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="dra-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def figures(admin: RestClient, request: pytest.FixtureRequest) -> Iterator[Figures]:
    """The figures of a file about rights, with its VALUES of the chart, as the PART of docs/internals/rights.md."""
    found = Figures(version=str(admin.get("/version")["gitVersion"]))
    yield found
    print(found.table())  # noqa: T201 - for `pytest -s`
    if target := os.environ.get("E2E_RIGHTS_FILE"):
        found.write(Path(target), request.module.VALUES, request.module.PART)
