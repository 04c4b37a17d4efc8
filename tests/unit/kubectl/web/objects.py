"""Objects of a small cluster: one H100 with MIG and shares, and one whole A100."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from dra_driver.core.model.gpu_node import GpuNodeStatus, HealthWord, NodeGpu, NodeProblem
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import claims_of
from dra_driver.kubectl.web.fleet import SeenFleet, fleet_of
from dra_driver.kubectl.web.reading import FileSource, SeenCluster, read_from

T = TypeVar("T")
DRIVER = "gpu.nvidia.com"
NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
GIB = 2**30


def whole(name: str, uuid: str, memory: str = "80Gi", counter_set: str = "", **more: Any) -> dict[str, Any]:
    """A whole GPU."""
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": uuid}, "productName": {"string": "NVIDIA H100"}}
    device = {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}}
    consumes = [{"counterSet": counter_set, "counters": {"memory": {"value": memory}}}] if counter_set else []
    return {**device, **({"consumesCounters": consumes} if consumes else {}), **more}


def partition(name: str, parent: str, profile: str, place: tuple[int, int], counter_set: str = "") -> dict[str, Any]:
    """A MIG device; ``place`` is its start and its size in memory slices."""
    start, size = place
    texts = {"type": "mig", "parentUUID": parent, "profile": profile}
    attributes: dict[str, Any] = {name: {"string": value} for name, value in texts.items()}
    attributes |= {"placementStart": {"int": start}, "placementSize": {"int": size}}
    consumes = [{"counterSet": counter_set, "counters": {"memory": {"value": "10Gi"}}}]
    memory = {"memory": {"value": f"{10 * size}Gi"}}
    return {"name": name, "attributes": attributes, "capacity": memory, "consumesCounters": consumes}


def slice_of(
    node: str, *devices: dict[str, Any], sets: tuple[str, ...] = (), generation: int = 1, of: int = 1
) -> dict[str, Any]:
    """One of ``of`` ResourceSlices: devices, or counter sets of eight memory slices."""
    counters = {f"memory-slice-{place}": {"value": "1"} for place in range(8)} | {"memory": {"value": "80Gi"}}
    shared = [{"name": name, "counters": counters} for name in sets]
    pool = {"name": node, "generation": generation, "resourceSliceCount": of}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
    content = {"sharedCounters": shared} if sets else {"devices": list(devices)}
    return {"metadata": {"name": f"{node}-{generation}-{len(devices)}"}, "spec": {**spec, **content}}


def claim(name: str, node: str, *results: dict[str, Any], namespace: str = "team") -> dict[str, Any]:
    """An allocated claim; without results a pending one."""
    found = [{"request": "gpu", "driver": DRIVER, "pool": node, **result} for result in results]
    pods = [{"resource": "pods", "name": f"{name}-pod"}]
    status = {"allocation": {"devices": {"results": found}}, "reservedFor": pods}
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-02T11:00:00Z"}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": spec, "status": status if results else {}}


def share(device: str, memory: str, percent: str = "20") -> dict[str, Any]:
    return {"device": device, "shareID": "s", "consumedCapacity": {"memory": memory, "computePercent": percent}}


def waiting_pod(name: str, namespace: str = "team", owner: str = "") -> dict[str, Any]:
    owners = [{"kind": "ReplicaSet", "name": owner, "uid": owner}] if owner else []
    metadata = {"name": name, "namespace": namespace, "ownerReferences": owners}
    metadata["creationTimestamp"] = "2026-01-02T11:30:00Z"
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "none"}], "containers": [{"name": "main"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def given(value: T | None) -> T:
    assert value is not None
    return value


def told(*gpus: NodeGpu, problem: str = "") -> GpuNodeStatus:
    problems = (NodeProblem(reason="NotReady", message=problem),) if problem else ()
    return GpuNodeStatus(driver_name=DRIVER, driver_version="580.65.06", gpus=gpus, problems=problems)


def told_gpu(name: str, uuid: str, **more: Any) -> NodeGpu:
    return NodeGpu(name=name, uuid=uuid, product_name="NVIDIA H100", memory="80Gi", **more)


def small_state(*claims: dict[str, Any], **more: Any) -> ClusterState:
    """Node ``n`` with gpu-0, which may be cut or shared."""
    devices = (
        whole("gpu-0", "GPU-0", counter_set="c", allowMultipleAllocations=True),
        partition("gpu-0-mig-1g10gb-19-6", "GPU-0", "1g.10gb", (6, 1), "c"),
        partition("gpu-0-mig-3g40gb-9-0", "GPU-0", "3g.40gb", (0, 4), "c"),
    )
    node = {"metadata": {"name": "n"}}
    both = (slice_of("n", sets=("c",), of=2), slice_of("n", *devices, of=2))
    parts: dict[str, Any] = {"nodes": (node,), "slices": both, "claims": claims}
    return ClusterState(**parts | more)


def fleet(state: ClusterState, **said: GpuNodeStatus) -> SeenFleet:
    return fleet_of(state.slices, state.nodes, claims_of(state, NOW), said)


class Source(FileSource):
    """A state with these GpuNodes."""

    def __init__(self, state: ClusterState, said: Mapping[str, GpuNodeStatus]) -> None:
        super().__init__(state)
        self._said = said

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        return self._said

    def quotas(self, gaps: list[str]) -> Sequence[object]:
        return ()


def seen(state: ClusterState, **said: GpuNodeStatus) -> SeenCluster:
    return read_from(Source(state, said), lambda: NOW)


UNHEALTHY = HealthWord.UNHEALTHY
