"""Node filters, pod statuses, events, tables, settings and node checks of the embedded cluster."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.scheduler.allocation import MAX_PODS, NodeUsage, unfit_reason
from dra_driver.sim import loop as manifests
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import EVENTS, PODS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.cluster import Cluster, incomplete
from dra_driver.sim.loop import StoreEventRecorder
from dra_driver.sim.node.node import NodeFolders
from dra_driver.sim.node.node_process import DRIVER, ClusterNode
from dra_driver.sim.node.pod_status import ContainerState, all_waiting, fill, phase, read_state
from dra_driver.sim.objects import condition, set_condition
from tests.fakes.dra_objects import node
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.raising import fails

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC)


def pod(*containers: str, restart: str = "Always", init: tuple[str, ...] = (), **spec: object) -> Obj:
    listed = [{"name": name, "image": "i"} for name in containers or ("main",)]
    full = {"containers": listed, "restartPolicy": restart, **spec}
    if init:
        full["initContainers"] = [{"name": name, "image": "i"} for name in init]
    return {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": full}


RUNNING = ContainerState(kind="running", since=NOW)
DONE = ContainerState(kind="terminated", reason="Completed", since=NOW, until=NOW)
BROKEN = ContainerState(kind="terminated", reason="Error", exit_code=6, since=NOW, until=NOW)
WAITING = ContainerState()


@pytest.mark.parametrize(
    ("states", "restart", "expected"),
    [
        ((WAITING, WAITING), "Always", "Pending"),
        ((RUNNING, WAITING), "Always", "Running"),
        ((RUNNING, RUNNING), "Always", "Running"),
        ((DONE, RUNNING), "Never", "Running"),
        ((DONE, DONE), "Never", "Succeeded"),
        ((DONE, BROKEN), "Never", "Failed"),
    ],
)
def test_phase_follows_the_containers(states: tuple[ContainerState, ...], restart: str, expected: str) -> None:
    assert phase(pod("a", "b", restart=restart), dict(zip("ab", states, strict=True))) == expected


def test_a_failed_init_container_fails_a_pod_that_is_not_restarted() -> None:
    states = {"init": BROKEN, "main": WAITING}
    assert phase(pod(init=("init",), restart="Never"), states) == "Failed"
    assert phase(pod(init=("init",), restart="Always"), states) == "Pending"


def test_status_says_what_is_not_ready() -> None:
    one = pod("a", "b")
    fill(one, {"a": RUNNING, "b": WAITING}, NOW, host_ip="10.0.0.1", pod_ip="10.244.0.2")
    assert condition(one, "Ready") == "False"
    messages = {item["type"]: item.get("message") for item in one["status"]["conditions"]}
    assert messages["ContainersReady"] == "containers with unready status: [b]"
    fill(one, {"a": RUNNING, "b": RUNNING}, LATER, host_ip="10.0.0.1", pod_ip="10.244.0.2")
    assert condition(one, "Ready") == "True"
    assert [status["ready"] for status in one["status"]["containerStatuses"]] == [True, True]
    assert one["status"]["startTime"] == "2026-01-02T03:04:05Z"
    assert all_waiting(pod("a", init=("i",))).keys() == {"a", "i"}


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    obj: Obj = {}
    assert set_condition(obj, "Ready", "False", NOW, message="a")
    assert not set_condition(obj, "Ready", "False", LATER, message="a")
    assert set_condition(obj, "Ready", "False", LATER, message="b")
    assert obj["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert set_condition(obj, "Ready", "True", LATER)
    assert obj["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:05:05Z"}
    ]


TAINTED: Obj = {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}


def requires_zone(zone: str) -> Obj:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("node_spec", "pod_spec", "pods_on_node", "said"),
    [
        ({}, {}, 0, ""),
        ({}, {}, MAX_PODS, "Too many pods"),
        ({"unschedulable": True}, {}, 0, "node(s) were unschedulable"),
        ({"unschedulable": True}, {"tolerations": [{"operator": "Exists"}]}, 0, ""),
        (TAINTED, {}, 0, "untolerated taint(s) {k: v}"),
        (TAINTED, {"tolerations": [{"key": "k", "value": "v"}]}, 0, ""),
        ({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, {}, 0, ""),
        ({}, {"nodeSelector": {"zone": "z1"}}, 0, ""),
        ({}, {"nodeSelector": {"zone": "z2"}}, 0, "didn't match Pod's node affinity/selector"),
        ({}, {"affinity": requires_zone("z1")}, 0, ""),
        ({}, {"affinity": requires_zone("z2")}, 0, "didn't match Pod's node affinity/selector"),
    ],
)
def test_nodes_take_or_refuse_pods(node_spec: Obj, pod_spec: Obj, pods_on_node: int, said: str) -> None:
    reason = unfit_reason({"spec": pod_spec}, {**node("a", zone="z1"), "spec": node_spec}, NodeUsage(pods=pods_on_node))
    assert said in reason
    assert bool(reason) == bool(said)


def test_repeated_events_count_up() -> None:
    store = Store()
    recorder = StoreEventRecorder(store, "kubelet", "a")
    subject = store.create(PODS, pod(), namespace="default")
    for _ in range(3):
        recorder.warning(subject, "Failed", "x" * 2000)
    recorder.warning(subject, "Failed", "something else")
    events = store.list(EVENTS).items
    assert [event["count"] for event in events] == [3, 1]
    assert len(events[0]["message"]) == 1024
    assert events[0]["involvedObject"]["uid"] == subject["metadata"]["uid"]


def test_a_cluster_has_nodes_and_one_source_of_policies(tmp_path: Path) -> None:
    policy = tmp_path / "a.yaml"
    policy.write_text("")
    with fails(ConfigurationError, "NoNodes"):
        Cluster({})
    with pytest.raises(ConfigurationError, match="both a policy folder"):
        Cluster({"a": "1xl4-24gb"}, policy_dir=tmp_path, policies=[policy])
    with pytest.raises(ConfigurationError, match="expected unique names"):
        Cluster({"a": "1xl4-24gb"}, policies=[policy, policy])


def test_policies_are_replaced_as_a_whole(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(name)
    cluster = Cluster({"a": "1xl4-24gb"}, policies=[tmp_path / "a.yaml"])
    assert [path.name for path in cluster.policies.iterdir()] == ["a.yaml"]
    cluster.set_policies([tmp_path / "b.yaml"])
    assert [path.read_text() for path in cluster.policies.iterdir()] == ["b.yaml"]
    cluster.set_policies([])
    assert not list(cluster.policies.iterdir())
    cluster.stop()
    assert not cluster.folder.exists()


def test_manifests_are_read_with_errors_that_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\n---\napiVersion: v1\nkind: Secret\n")
    assert [obj["kind"] for obj in manifests.load(path)] == ["Pod", "Secret"]
    assert [obj["kind"] for obj in manifests.deletion_order(manifests.load(path))] == ["Secret", "Pod"]
    for text, said in (("a: [", "cannot read"), ("- 1", "found a list"), ("kind: Pad", "does not serve kind Pad")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=said):
            manifests.load(path)


def test_a_restarted_kubelet_knows_what_the_former_one_wrote() -> None:
    states = {
        "i": ContainerState(kind="terminated", reason="Completed", since=NOW, until=LATER),
        "main": ContainerState(kind="running", restarts=2, since=NOW),
    }
    body = pod(init=("i",))
    fill(body, states, NOW, host_ip="h", pod_ip="p")
    found = [*body["status"]["initContainerStatuses"], *body["status"]["containerStatuses"]]
    assert {item["name"]: read_state(item) for item in found} == states


@pytest.fixture
def cluster_node(tmp_path: Path) -> ClusterNode:
    return ClusterNode(
        Store(),
        "gpu-a",
        "1xh100-sxm5-80gb",
        folders=NodeFolders(tmp_path / "n0"),
        kubeconfig=tmp_path / "kubeconfig",
        policies=tmp_path / "policies",
        number=0,
    )


def test_everything_that_claims_leave_is_named(cluster_node: ClusterNode) -> None:
    plugin_folder = cluster_node.folders.plugins / DRIVER
    plugin_folder.mkdir(parents=True)
    hardware = SimulatedBackend.from_spec(
        cluster_node.spec, cluster_node.name, state_file=plugin_folder / "simulated-gpus.json"
    )
    gpu = hardware.snapshot().gpus[0].uuid
    hardware.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    assert cluster_node.leftovers() == [f"{gpu} has 0 MIG instances, MIG mode off, compute mode EXCLUSIVE_PROCESS"]
    hardware.set_compute_mode(gpu, ComputeMode.DEFAULT)
    assert cluster_node.leftovers() == []
    (cluster_node.folders.cdi / f"k8s.{DRIVER}-claim_u.json").touch()
    (cluster_node.folders.views / "pod-uid").mkdir()
    (plugin_folder / "mps/daemons/GPU-1").mkdir(parents=True)
    hardware.set_mig_mode(gpu, True)
    hardware.create_gpu_instance(gpu, 19, 6)
    assert cluster_node.leftovers() == [
        f"CDI document k8s.{DRIVER}-claim_u.json",
        "container folder pod-uid",
        "MPS daemon GPU-1",
        f"{gpu} has 1 MIG instances, MIG mode on, compute mode DEFAULT",
    ]


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
    assert incomplete(slices) == said
