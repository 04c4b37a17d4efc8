"""The check for what claims leave on a node, and the commands of its processes."""

import sys
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.cluster import incomplete
from dra_driver.sim.node.cluster_node import DRIVER, ClusterNode, show_exporter
from dra_driver.sim.node.node import NodeFolders


@pytest.fixture
def node(tmp_path: Path) -> ClusterNode:
    """A node that was never started."""
    folders = NodeFolders(tmp_path / "n0")
    return ClusterNode(
        Store(),
        "gpu-a",
        "1xh100-sxm5-80gb",
        folders=folders,
        kubeconfig=tmp_path / "kubeconfig",
        policies=tmp_path / "policies",
        number=0,
    )


def plugin_folder(node: ClusterNode) -> Path:
    folder = node.folders.plugins / DRIVER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_clean_node_has_nothing_left(node: ClusterNode) -> None:
    """Folders that do not exist count as empty."""
    assert node.leftovers() == []


def test_everything_that_claims_leave_is_named(node: ClusterNode) -> None:
    """Each kind of leftover has a sentence of its own."""
    (node.folders.cdi / f"k8s.{DRIVER}-claim_u.json").touch()
    (node.folders.views / "pod-uid").mkdir()
    (plugin_folder(node) / "mps/daemons/GPU-1").mkdir(parents=True)
    hardware = SimulatedBackend.from_spec(node.spec, node.name, state_file=plugin_folder(node) / "simulated-gpus.json")
    gpu = hardware.snapshot().gpus[0].uuid
    hardware.set_mig_mode(gpu, True)
    hardware.create_gpu_instance(gpu, 19, 6)
    assert node.leftovers() == [
        f"CDI document k8s.{DRIVER}-claim_u.json",
        "container folder pod-uid",
        "MPS daemon GPU-1",
        f"{gpu} has 1 MIG instances, MIG mode on, compute mode DEFAULT",
    ]


def test_a_restored_gpu_is_no_leftover(node: ClusterNode) -> None:
    """A GPU that was changed and restored is not listed."""
    hardware = SimulatedBackend.from_spec(node.spec, node.name, state_file=plugin_folder(node) / "simulated-gpus.json")
    gpu = hardware.snapshot().gpus[0].uuid
    hardware.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    assert node.leftovers() == [f"{gpu} has 0 MIG instances, MIG mode off, compute mode EXCLUSIVE_PROCESS"]
    hardware.set_compute_mode(gpu, ComputeMode.DEFAULT)
    assert node.leftovers() == []


def test_both_processes_share_the_nodes_folders(node: ClusterNode, tmp_path: Path) -> None:
    """The MPS host reads the requests of the node process, and runs the simulated driver's programs."""
    plugins = str(node.folders.plugins)
    for process in (node.process, node.mps_host):
        assert process.command[:3] == [sys.executable, "-m", "dra_driver.core.command_line.main"]
        assert process.command[process.command.index("--kubelet-plugins-dir") + 1] == plugins
    given = node.process.command
    assert given[given.index("--policy-dir") + 1] == str(tmp_path / "policies")
    given = node.mps_host.command
    assert given[given.index("--driver-root") + 1] == f"{plugins}/{DRIVER}/simulated-root"
    assert given[given.index("--namespaces") + 1] == "none"


def test_the_exporters_pod_is_found_by_its_label_and_its_port_is_reached() -> None:
    """Its pod is found by the chart's label, each node's by its own name."""
    store = Store()
    uid = show_exporter(store, "gpu-a", 0, 40000)
    (pod,) = store.list(PODS, labels="app.kubernetes.io/component=exporter").items
    assert (pod["spec"]["nodeName"], pod["metadata"]["namespace"]) == ("gpu-a", "dra-driver")
    assert store.ports.find("dra-driver", pod["metadata"]["name"], 8082) == 40000
    assert pod["metadata"]["uid"] == uid
    show_exporter(store, "gpu-b", 1, 40001)
    assert len(store.list(PODS, "dra-driver").items) == 2


def _slice(generation: int, count: int, driver: str = DRIVER) -> Obj:
    return {"spec": {"driver": driver, "pool": {"generation": generation, "resourceSliceCount": count}}}


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ([], "it has no ResourceSlice"),
        ([_slice(1, 1, "other")], "it has no ResourceSlice"),
        ([_slice(1, 2)], "it has 1 of 2 ResourceSlices"),
        ([_slice(1, 2), _slice(2, 2)], "it has 1 of 2 ResourceSlices"),
        ([_slice(1, 2), _slice(1, 2)], None),
        ([_slice(1, 2), _slice(2, 1)], None),
    ],
)
def test_a_node_has_published_when_its_pool_is_complete(slices: list[Obj], said: str | None) -> None:
    """Counters are in a separate slice: the first slice alone is not usable."""
    assert incomplete(slices) == said
