"""The check for what claims leave on a node, and the commands of its processes."""

from pathlib import Path

import pytest

from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.cluster import incomplete
from dra_driver.sim.node.node import NodeFolders
from dra_driver.sim.node.node_process import DRIVER, ClusterNode
from tests.fakes.simulated_gpus import SimulatedBackend


@pytest.fixture
def node(tmp_path: Path) -> ClusterNode:
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


def test_everything_that_claims_leave_is_named(node: ClusterNode) -> None:
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
    hardware = SimulatedBackend.from_spec(node.spec, node.name, state_file=plugin_folder(node) / "simulated-gpus.json")
    gpu = hardware.snapshot().gpus[0].uuid
    hardware.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    assert node.leftovers() == [f"{gpu} has 0 MIG instances, MIG mode off, compute mode EXCLUSIVE_PROCESS"]
    hardware.set_compute_mode(gpu, ComputeMode.DEFAULT)
    assert node.leftovers() == []


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
