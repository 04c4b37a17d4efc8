"""Sets of devices that belong together, on the embedded cluster: linked GPUs, GPUs with network cards, rails."""

from collections.abc import Mapping
from random import Random

import pytest

from dra_driver.core.model.claim import PreparedDevice
from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName
from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.node.network import NetworkDriver
from tests.scenario.conftest import ROOT as CHECKOUT
from tests.scenario.conftest import Pods

EXAMPLES = CHECKOUT / "examples" / "topology"
PAIRS = {frozenset({"gpu-0", "gpu-2"}), frozenset({"gpu-1", "gpu-3"})}
CLUSTER = {
    "nodes": {"gpu-a": str(EXAMPLES / "two-pairs.yaml")},
    "policies": [EXAMPLES / "rails-policy.yaml"],
    "nics": True,
}
"""A node with four GPUs, two bridges and four network cards on two PCIe roots."""
RAILS = {"0": 0, "1": 0, "2": 1, "3": 1}
"""The rail, and the number of the PCIe root, by the number of a GPU or card."""
ROOT = "resource.kubernetes.io/pcieRoot"
OTHER = ClaimUid("11111111-2222-3333-4444-555555555555")
LINKED = "gpu.nvidia.com/nvlinkIsland"


def template(name: str, count: int, *, attribute: str = "") -> Obj:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    devices: Obj = {"requests": [request]}
    if attribute:
        devices["constraints"] = [{"matchAttribute": attribute}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


def held(cluster: Cluster, namespace: str) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for claim in cluster.store.list(RESOURCE_CLAIMS, namespace).items:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        owner = claim["metadata"].get("ownerReferences", [claim["metadata"]])[0]["name"]
        found[owner] = found.get(owner, frozenset()) | {one["device"] for one in results}
    return found


def test_two_linked_gpus_are_always_a_pair(cluster: Cluster, namespace: str) -> None:
    rng, pods = Random(7), Pods(cluster, namespace)  # noqa: S311 - it has to come out the same every time
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, template("one", 1), namespace=namespace)
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, template("two", 2, attribute=LINKED), namespace=namespace)
    running: dict[str, int] = {}
    pairs = 0
    for number in range(12):
        count = rng.choice((1, 2, 2))
        while sum(running.values()) + count > 4 or (count == 2 and not _has_pair(held(cluster, namespace), running)):
            gone = rng.choice(sorted(running))
            pods.end(gone)
            del running[gone]
        name = f"p{number}"
        pods.run(name, template="one" if count == 1 else "two")
        running[name] = count
        found = held(cluster, namespace)[name]
        assert len(found) == count
        assert count == 1 or found in PAIRS
        pairs += count == 2
    assert pairs > 5
    for name in running:
        pods.end(name)


def _has_pair(found: Mapping[str, frozenset[str]], running: Mapping[str, int]) -> bool:
    taken = frozenset().union(*(found[name] for name in running))
    return any(pair.isdisjoint(taken) for pair in PAIRS)


def test_a_gpu_comes_with_a_network_card_of_its_pcie_root(cluster: Cluster, namespace: str) -> None:
    pods = Pods(cluster, namespace)
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, template("one", 2), namespace=namespace)
    pods.run("other", template="one")
    cluster.apply(EXAMPLES / "gpu-and-nic.yaml", namespace)
    pods.wait_ready("gpu-and-nic")
    (claim,) = [
        each for each in cluster.store.list(RESOURCE_CLAIMS, namespace).items if "gpu-and" in each["metadata"]["name"]
    ]
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [one["driver"] for one in results] == ["gpu.nvidia.com", "dra.net"]
    assert len({RAILS[one["device"][-1]] for one in results}) == 1
    assert [[card.device for card in held] for held in network(cluster).prepared.values()] == [[results[1]["device"]]]
    for name in ("other", "gpu-and-nic"):
        pods.end(name)
    cluster.store.delete(DEVICE_CLASSES, "rdma-nic")


def test_pods_pinned_to_rails_have_the_same_rails_and_a_third_waits(
    cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = Pods(cluster, namespace)
    cluster.apply(EXAMPLES / "rails.yaml", namespace)
    pods.wait_ready("prefill", "decode")
    found = held(cluster, namespace)
    for name in ("prefill", "decode"):
        gpus = [device for device in found[name] if device.startswith("gpu-")]
        assert sorted(RAILS[device[-1]] for device in gpus) == [0, 1]
        assert sorted(RAILS[device[-1]] for device in found[name] - set(gpus)) == [0, 1]
    third = pods.get("prefill")
    cluster.store.create(
        PODS, {"metadata": {"name": "third"}, "spec": {**third["spec"], "nodeName": ""}}, namespace=namespace
    )
    pods.wait_event("third", "FailedScheduling", "cannot allocate all claims")
    source = ["--kubeconfig", str(cluster.kubeconfig)]
    assert kubectl.main(["explain", "third", "-n", namespace, *source]) == 1
    said = capsys.readouterr().out
    assert "-2 selector: device.attributes" in said
    assert "seen: rail = 1 (2 devices)" in said
    assert "-2 in use" in said
    assert "(pod prefill)" in said
    assert kubectl.main(["explain", "prefill", "decode", "-n", namespace, *source]) == 0
    assert "different rails" not in capsys.readouterr().out
    for name in ("third", "prefill", "decode"):
        pods.end(name)


def test_pods_without_a_rail_get_different_rails_and_explain_names_them(
    cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pods, source = Pods(cluster, namespace), ["-n", namespace, "--kubeconfig", str(cluster.kubeconfig)]
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, template("pair", 2, attribute=ROOT), namespace=namespace)
    for name in ("prefill", "decode"):
        pods.run(name, template="pair")
    assert kubectl.main(["explain", "prefill", "decode", *source]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "pods on different rails: prefill on rail 0; decode on rail 1. DRA cannot match devices of different" in said
    for name in ("prefill", "decode"):
        pods.end(name)


def test_claims_of_two_drivers_are_prepared_together_or_not_at_all(cluster: Cluster, namespace: str) -> None:
    """The first driver refuses, then the second; afterwards nothing of the pods is left (see `namespace`)."""
    pods, cards = Pods(cluster, namespace), network(cluster)
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, near("refused", parameters={"kind": "Unknown"}), namespace=namespace)
    cluster.store.create(RESOURCE_CLAIM_TEMPLATES, near("good"), namespace=namespace)
    pods.create("first", template="refused")
    pods.wait_event("first", "FailedPrepareDynamicResources", "GpuConfig")
    assert len(cards.prepared) == 1
    pods.end("first")
    assert cards.prepared == {}
    names = [f"nic-{number}" for number in range(4)]
    cards.prepared[OTHER] = tuple(
        PreparedDevice(request_names=("nic",), pool=PoolName("gpu-a"), device=DeviceName(name), cdi_device_ids=())
        for name in names
    )
    pods.create("second", template="good")
    pods.wait_event("second", "FailedPrepareDynamicResources", f"is prepared for claim {OTHER}")
    assert cluster.nodes["gpu-a"].journal_rows() == 0
    del cards.prepared[OTHER]
    pods.wait_ready("second")
    pods.end("second")


def test_pod_that_waits_for_a_card_holds_no_gpu(cluster: Cluster, namespace: str) -> None:
    pods = Pods(cluster, namespace)
    never = {"name": "nic", "exactly": {"deviceClassName": "dranet", "count": 5}}
    for name, request in (("gpu", template("x", 1)["spec"]["spec"]["devices"]["requests"][0]), ("nic", never)):
        spec: Obj = {"spec": {"devices": {"requests": [request]}}}
        cluster.store.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("gpu", "nic")]
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}, {"name": "nic"}]}}
    both: Obj = {"metadata": {"name": "both"}, "spec": {"containers": [container], "resourceClaims": claims}}
    cluster.store.create(PODS, both, namespace=namespace)
    pods.wait_event("both", "FailedScheduling", "cannot allocate all claims")
    assert set(held(cluster, namespace).values()) == {frozenset()}
    pods.end("both")


def test_cards_are_published_again_after_a_restart_of_the_kubelet(cluster: Cluster, namespace: str) -> None:
    before = {each["metadata"]["uid"] for each in cluster.slices()}
    cluster.nodes["gpu-a"].restart_kubelet()
    cluster.wait_published()
    after = [each for each in cluster.slices() if each["metadata"]["uid"] not in before]
    assert sorted(each["spec"]["driver"] for each in after) == ["dra.net", "gpu.nvidia.com"]


def network(cluster: Cluster) -> NetworkDriver:
    found = cluster.nodes["gpu-a"].network
    assert found is not None
    return found


def near(name: str, *, parameters: Obj | None = None) -> Obj:
    """A template for a GPU and a network card of its root."""
    made = template(name, 1)
    devices = made["spec"]["spec"]["devices"]
    devices["requests"].append({"name": "nic", "exactly": {"deviceClassName": "dranet"}})
    devices["constraints"] = [{"requests": ["gpu", "nic"], "matchAttribute": ROOT}]
    if parameters:
        opaque = {"driver": "gpu.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", **parameters}}
        devices["config"] = [{"requests": ["gpu"], "opaque": opaque}]
    return made
