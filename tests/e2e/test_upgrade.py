"""An older version's pods run on while this version takes over the node, and are deleted by it without a trace.

E2E_OLD_PYTHON names the Python of a virtual environment in which the older version is installed, for example of a
checkout of 6bf8a09. The MPS host stays the older one while its daemons have clients, as its DaemonSet does (OnDelete).
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import GONE_S, RealCluster, containers, wait
from tests.e2e.forms import PODS, Forms, share, slice_of
from tests.e2e.gates import PARTITIONS, SHARES
from tests.e2e.host import MPS_READY, REGISTERED, START_S, Folders, Host
from tests.fakes.node_process import DriverProcess

OLD_PYTHON = os.environ.get("E2E_OLD_PYTHON", "")
THREE_H100 = (("gpu-a", "3xh100-sxm5-80gb"),)
POLICIES = Path(__file__).parent / "policies"
PODS_1_34 = {name: PODS[name] for name in ("whole", "ten", "twenty")}
"""What the older version can place on Kubernetes 1.34. It does not know how that takes counters, so it has no
partitions, and all GPUs in one resource slice; that scheduler compares requests with what its first one has left."""

pytestmark = [
    pytest.mark.needs(PARTITIONS, SHARES),
    pytest.mark.skipif(not OLD_PYTHON, reason="E2E_OLD_PYTHON names no Python with an older version installed"),
]


class OldProcess(DriverProcess):
    def __init__(self, like: DriverProcess, folder: Path) -> None:
        folder.mkdir()
        super().__init__(like.subcommand, folder, like.flags, like.environ)

    def command(self) -> list[str]:
        command = super().command()
        # The installed program, not its module: that has had another name in each version.
        return [str(Path(OLD_PYTHON).with_name("dra-driver")), *command[command.index(self.subcommand) :]]


def is_1_34(cluster: RealCluster) -> bool:
    return cluster.version().startswith("v1.34.")


@pytest.fixture
def requirements(cluster: RealCluster) -> Requirements:
    """The last GPU is shared, so that 1.35 places no partitions of the older version on it; on 1.34 the first."""
    shared = POLICIES / ("mps-minor-0.yaml" if is_1_34(cluster) else "mps-minor-2.yaml")
    return Requirements(nodes=THREE_H100, policies=(shared,))


@pytest.fixture
def pods(cluster: RealCluster) -> dict[str, Obj]:
    return PODS_1_34 if is_1_34(cluster) else PODS


def beside(pods: dict[str, Obj]) -> Obj:
    return slice_of("1g.10gb") if "small" in pods else share("10Gi", 10)


@pytest.fixture
def old(own_host: Host, cluster: RealCluster, namespace: str, tmp_path: Path) -> Iterator[OldProcess]:
    """The node process of the older version, in place of this one's; its MPS host too, until the test is over."""
    node, mps = OldProcess(own_host.process, tmp_path / "node"), OldProcess(own_host.mps, tmp_path / "mps")
    own_host.process.end()
    own_host.mps.end()
    node.start()
    node.wait_for(lambda: REGISTERED in node.text, START_S)
    mps.start()
    mps.wait_for(lambda: MPS_READY in mps.text)
    yield node
    node.kill()
    if not own_host.process.lives:
        own_host.restart()
    for pod in cluster.pods(namespace):
        Forms(cluster, namespace).delete(pod["metadata"]["name"])
    mps.end()
    own_host.mps.start()


def test_pods_of_the_older_version_do_not_notice_the_new_one(  # noqa: PLR0917 - fixtures
    own_host: Host, cluster: RealCluster, namespace: str, pods: dict[str, Obj], old: OldProcess, node_folders: Folders
) -> None:
    assert version(OLD_PYTHON, "-P") != version(own_host.process.command()[0])
    forms = Forms(cluster, namespace)
    for name, request in pods.items():
        forms.run(name, request)
    logs = {name: forms.log(name) for name in pods}
    before = {name: containers(forms.get(name)) for name in pods}
    claims, files = node_folders.claims_in_journal(), contents(node_folders)
    daemons = own_host.hardware.daemons()
    assert len(claims) == len(pods)
    assert len(daemons) == 1
    old.end()

    own_host.restart()
    forms.run("next", beside(pods))
    assert {name: containers(forms.get(name)) for name in pods} == before
    assert {name: forms.log(name) for name in pods} == logs
    assert claims <= node_folders.claims_in_journal()
    assert files.items() <= contents(node_folders).items()
    assert own_host.hardware.daemons() == daemons
    for name in pods:
        forms.sees(name)

    forms.delete("next", *pods)
    wait(own_host.hardware.traces, GONE_S)
    assert node_folders.claims_in_journal() == node_folders.claims_with_files() == set()


def test_pods_survive_a_rollback_to_the_older_version_and_back(  # noqa: PLR0917 - fixtures
    own_host: Host, cluster: RealCluster, namespace: str, pods: dict[str, Obj], tmp_path: Path, node_folders: Folders
) -> None:
    forms = Forms(cluster, namespace)
    for name, request in pods.items():
        forms.run(name, request)
    before = {name: containers(forms.get(name)) for name in pods}
    claims = node_folders.claims_in_journal()
    gone = [name for name in ("small", "ten") if name in pods]
    older = OldProcess(own_host.process, tmp_path / "older")
    own_host.process.end()
    older.start()
    try:
        older.wait_for(lambda: REGISTERED in older.text, START_S)
        assert node_folders.claims_in_journal() == claims
        forms.run("next", beside(pods))
        forms.delete(*gone)
    finally:
        older.end()
        own_host.restart()
    rest = [name for name in pods if name not in gone]
    assert {name: containers(forms.get(name)) for name in rest} == {name: before[name] for name in rest}
    assert not list(node_folders.state.glob("state.db.damaged-*"))
    forms.delete("next", *rest)
    wait(own_host.hardware.traces, GONE_S)
    assert node_folders.claims_in_journal() == node_folders.claims_with_files() == set()


def contents(node: Folders) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in node.cdi.glob("*-claim_*.json")}


def version(python: str, *flags: str) -> str:
    """Where the package of that Python lies: two versions of one number differ in it."""
    command = [python, *flags, "-c", "import dra_driver; print(dra_driver.__file__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
