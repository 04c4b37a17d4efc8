"""GPUs with a NoExecute taint: Kubernetes evicts pods with claims and forgets those with an extended resource.

The controller evicts these as PodDisruptionBudgets allow, with its own account's rights; a second replica takes over.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.kube import paths
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import EVENTS, LEASES, POD_DISRUPTION_BUDGETS, PODS
from dra_driver.sim.demo.health import POLICY
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.loop import kind_of, load
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import REACH_S, ROOT, SETTLE_S, RealCluster, wait
from tests.e2e.forms import budget
from tests.e2e.gates import EXTENDED, TAINTS
from tests.e2e.host import Host, controllers
from tests.fakes import chart
from tests.fakes.node_process import DriverProcess
from tests.rights.accounts import Account, token

RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
ACCOUNT = LEASE = "dra-driver-controller"
EVICTED_S = 60.0
LEASE_S = 5
# One, two and three ill GPUs are less than 20 % of these.
GPUS = "8xh100-sxm5-80gb,8xa100-sxm4-40gb"
REQUIREMENTS = Requirements(nodes=(("host", GPUS),), policies=(ROOT / POLICY,))


@pytest.fixture
def account(cluster: RealCluster, namespace: str, kubeconfig: str, tmp_path: Path) -> Iterator[Path]:
    rendered = chart.objects({"eviction": {"enabled": True}})
    own = [obj for obj in rendered if obj["kind"] in RIGHTS and obj["metadata"]["name"] == ACCOUNT]
    objects = [moved(obj, namespace) for obj in own]
    for obj in objects:
        cluster.client.create(obj, namespace)
    account = Account(name=ACCOUNT, namespace=namespace, token=token(cluster.rest, ACCOUNT, namespace))
    yield account.kubeconfig(Path(kubeconfig), tmp_path / "kubeconfig")
    for obj in objects:
        cluster.client.delete(kind_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace", ""))


def moved(obj: Obj, namespace: str) -> Obj:
    for subject in obj.get("subjects", ()):
        subject["namespace"] = namespace
    if "namespace" in obj["metadata"]:
        obj["metadata"]["namespace"] = namespace
    else:
        obj["metadata"]["name"] = namespace
    if dig(obj, "roleRef", "kind") == "ClusterRole":
        obj["roleRef"]["name"] = namespace
    return obj


@pytest.fixture
def replica(account: Path, namespace: str, tmp_path: Path) -> Iterator[Callable[[str], DriverProcess]]:
    flags = {"kubeconfig": str(account), "namespace": namespace, "lease_duration": str(LEASE_S)}
    flags |= {"max_evictions_per_minute": "600", "evict_extended_resource_pods": "true"}
    with controllers(tmp_path, flags) as start:
        yield start


class World:
    def __init__(self, cluster: RealCluster, namespace: str, node: str) -> None:
        self.cluster, self.namespace, self._node = cluster, namespace, node

    def run_pod(self, name: str, *, claim: bool = False) -> None:
        objects = load(ROOT / "examples" / "one-gpu.yaml") if claim else load_extended()
        *others, pod = objects
        pod["metadata"] = {"name": name, "labels": {"app": name}}
        pod["spec"]["terminationGracePeriodSeconds"] = 1
        self.cluster.apply([*others, pod], self.namespace)

    def wait_ready(self, *names: str) -> None:
        wait(lambda: ", ".join(n for n in names if not is_ready(self.cluster.pod(n, self.namespace))), REACH_S)

    def devices(self, *names: str) -> list[str]:
        return [next(iter(self.cluster.granted_devices(self.cluster.pod(name, self.namespace)))) for name in names]

    def inject(self, devices: list[str]) -> None:
        """XID 79 on these GPUs; [] is the repair of all."""
        text = ", ".join(f"{device} xid=79" for device in devices) or None
        self.cluster.rest.merge_patch(paths.node(self._node), {"metadata": {"annotations": {ANNOTATION: text}}})

    def is_there(self, name: str) -> bool:
        pod = self.cluster.client.find(PODS, name, self.namespace)
        return pod is not None and dig(pod, "metadata", "deletionTimestamp") is None

    def wait_leaving(self, name: str) -> None:
        wait(lambda: f"{name} stays" if self.is_there(name) else None, EVICTED_S)

    def reasons(self, name: str) -> set[str]:
        found = self.cluster.client.list(EVENTS, self.namespace)
        return {item["reason"] for item in found if dig(item, "involvedObject", "name") == name}

    def wait_reason(self, name: str, reason: str) -> None:
        wait(lambda: None if reason in self.reasons(name) else f"only {self.reasons(name)}", EVICTED_S)

    def tainted(self) -> list[str]:
        return [
            device["name"]
            for device in self.cluster.devices()
            if any(taint["effect"] == "NoExecute" for taint in entries(device, "taints"))
        ]

    def holder(self) -> str:
        lease = self.cluster.client.find(LEASES, LEASE, self.namespace)
        return str(dig(lease, "spec", "holderIdentity", default="")).partition("_")[0]


def load_extended() -> list[Obj]:
    objects = load(ROOT / "examples" / "extended-resources.yaml")
    return [obj for obj in objects if obj["metadata"]["name"] == "plugin-style-whole"]


@pytest.fixture
def world(cluster: RealCluster, namespace: str, own_host: Host, node: str) -> Iterator[World]:
    assert own_host.process.lives
    made = World(cluster, namespace, node)
    yield made
    made.inject([])
    wait(lambda: ", ".join(made.tainted()), EVICTED_S)
    for pod in cluster.pods(namespace):
        cluster.client.delete(PODS, pod["metadata"]["name"], namespace)


@pytest.mark.needs(EXTENDED, TAINTS)
def test_pods_of_both_kinds_leave_budgets_are_honoured_and_a_second_replica_takes_over(
    world: World, replica: Callable[[str], DriverProcess]
) -> None:
    """Also the proof of kubernetes#141290: without the controller the pod with the extended resource stays."""
    world.run_pod("by-claim", claim=True)
    for name in ("by-resource", "guarded"):
        world.run_pod(name)
    world.wait_ready("by-claim", "by-resource", "guarded")
    guard(world, "guarded")
    world.inject(world.devices("by-claim", "by-resource", "guarded"))
    world.wait_leaving("by-claim")
    world.wait_reason("by-claim", "DeviceTaintManagerEviction")
    wait_settled(lambda: world.is_there("by-resource"))
    first = replica("first")
    wait(lambda: None if world.holder() == "first" else f"held by {world.holder()}", EVICTED_S)
    second = replica("second")
    world.wait_leaving("by-resource")
    world.wait_reason("by-resource", "GpuEviction")
    world.wait_reason("guarded", "GpuEvictionRefused")
    assert world.is_there("guarded")
    first.end(signal.SIGKILL)
    wait(lambda: None if world.holder() == "second" else f"held by {world.holder()}", EVICTED_S)
    world.cluster.client.delete(POD_DISRUPTION_BUDGETS, "guard", world.namespace)
    world.wait_leaving("guarded")
    assert second.end()[0] == 0
    assert world.holder() == ""


def guard(world: World, name: str) -> None:
    world.cluster.client.create(budget("guard", name), world.namespace)

    def counted() -> str | None:
        found = world.cluster.client.find(POD_DISRUPTION_BUDGETS, "guard", world.namespace)
        return None if dig(found, "status", "currentHealthy") == 1 else "the budget is not counted yet"

    wait(counted, 30.0)


def wait_settled(holds: Callable[[], bool]) -> None:
    assert holds()
    with pytest.raises(AssertionError, match="not within"):
        wait(lambda: "still so" if holds() else None, SETTLE_S)
