"""Sets of devices that belong together, on the embedded cluster: linked GPUs, and a GPU with a network card."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.cluster import Cluster
from tests.scenario.conftest import ROOT, TIMEOUT_S, Pods

BOARD = ROOT / "examples" / "topology" / "two-pairs.yaml"
PAIRS = {frozenset({"gpu-0", "gpu-2"}), frozenset({"gpu-1", "gpu-3"})}
CLUSTER = {"nodes": {"gpu-a": str(BOARD)}}
"""A node with four GPUs and two bridges."""
LINKED = "gpu.nvidia.com/nvlinkIsland"


def template(name: str, count: int, *, attribute: str = "") -> Obj:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    devices: Obj = {"requests": [request]}
    if attribute:
        devices["constraints"] = [{"matchAttribute": attribute}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


def held(cluster: Cluster, namespace: str) -> Mapping[str, frozenset[str]]:
    found = {}
    for claim in cluster.store.list(RESOURCE_CLAIMS, namespace).items:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        found[claim["metadata"]["ownerReferences"][0]["name"]] = frozenset(one["device"] for one in results)
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


def test_a_gpu_comes_with_the_network_card_of_its_pcie_root(cluster: Cluster, namespace: str) -> None:
    cluster.store.create(RESOURCE_SLICES, _cards("pci0000:08"))
    example: Path = ROOT / "examples" / "topology" / "gpu-and-nic.yaml"
    cluster.apply(example, namespace)
    claims: list[Obj] = []

    def allocated() -> str | None:
        claims[:] = [cluster.store.get(RESOURCE_CLAIMS, "gpu-and-nic", namespace)]
        return None if claims[0].get("status", {}).get("allocation") else "not allocated"

    cluster.wait(allocated, TIMEOUT_S, "the claim")
    results = claims[0]["status"]["allocation"]["devices"]["results"]
    assert [(one["driver"], one["device"]) for one in results] == [("gpu.nvidia.com", "gpu-2"), ("dra.net", "nic-0")]
    cluster.store.delete(PODS, "gpu-and-nic", namespace)
    cluster.delete(example, namespace)
    cluster.store.delete(RESOURCE_SLICES, "cards")


def _cards(root: str) -> Obj:
    card = {"name": "nic-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}}}
    pool = {"name": "gpu-a", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "cards"},
        "spec": {"driver": "dra.net", "nodeName": "gpu-a", "pool": pool, "devices": [card]},
    }
