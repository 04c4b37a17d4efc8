"""A large fleet for the web UI without an API server: nodes of two models and three pools, claims, use, faults, and
waiting pods. Equal for equal arguments."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dra_driver.core.model.gpu_node import GpuNodeStatus, HealthWord, NodeGpu, ReportedIdle, ReportedUsage
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport
from dra_driver.kubectl.web.reading import FileSource
from tests.bench import allocation_cluster as bench
from tests.fakes.dra_objects import DRIVER

GIB = 2**30
TOTAL = 80 * GIB
SINCE = "2026-01-02T10:00:00Z"
LABEL = "cloud.google.com/gke-nodepool"


class LargeFleet(FileSource):
    """``nodes`` nodes of eight GPUs: of 20 nodes one has a fault, and one has an exporter that does not answer."""

    def __init__(self, nodes: int, *, mig: bool = False, long_names: bool = False) -> None:
        self._nodes, self._long, self._parts = nodes, long_names, bench.SharedParts()
        self._names = [self._name(index) for index in range(nodes)]
        super().__init__(replace(self._objects(mig=mig), source="large"))

    def _name(self, index: int) -> str:
        return f"node-{index}" + ("-x" * 122)[: 253 - len(f"node-{index}")] * self._long

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        return {name: self._status(index) for index, name in enumerate(self._names)}

    def quotas(self, gaps: list[str]) -> Sequence[object]:
        hard = {f"{DRIVER}.deviceclass.resource.k8s.io/devices": "3000"}
        used = {f"{DRIVER}.deviceclass.resource.k8s.io/devices": "2117"}
        return [{"metadata": {"namespace": "team-0", "name": "gpus"}, "spec": {"hard": hard}, "status": {"used": used}}]

    def use(self) -> UseReport:
        gpus, uses = [], []
        for index, node in enumerate(self._names):
            for minor in range(bench.GPUS):
                held = _is_held(index, minor)
                if index % 20 == 7 or _is_faulty(index, minor):
                    continue
                busy = (_wave(index, minor) if held else 0) / 100
                used = int(TOTAL * (0.15 + 0.8 * busy)) if held else 0
                memory = GpuMemory(
                    node=node,
                    device=f"gpu-{minor}",
                    total_bytes=TOTAL,
                    used_bytes=used,
                    busy_ratio=busy,
                    power_watts=70 + 600 * busy,
                )
                gpus.append(memory)
                if held:
                    claim, namespace = f"train-{index}-{minor}", f"team-{index % 12}"
                    uses.append(
                        ClaimDeviceUse(
                            namespace=namespace,
                            claim=claim,
                            node=node,
                            device=f"gpu-{minor}",
                            used_bytes=used,
                            granted_bytes=TOTAL,
                            sm_ratio=busy,
                            peak_bytes=used,
                            processes=1,
                            idle_s=0.0,
                        )
                    )
        gaps = [f"node {self._names[7]}: its exporter does not answer"] if self._nodes > 7 else []
        return UseReport(source="large", window_s=3600, uses=uses, gpus=gpus, gaps=gaps)

    def with_state(self, state: ClusterState) -> "LargeFleet":
        """Return the fleet with other objects."""
        found = copy.copy(self)
        FileSource.__init__(found, state)
        return found

    def _objects(self, *, mig: bool) -> ClusterState:
        nodes = []
        for index, name in enumerate(self._names):
            labels = {LABEL: ("train-a", "train-b", "serve")[index % 3]}
            ready = [{"type": "Ready", "status": "False" if index % 150 == 11 else "True"}]
            nodes.append({"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"conditions": ready}})
        return ClusterState(
            nodes=tuple(nodes),
            slices=tuple(each for index in range(self._nodes) for each in self._slices(index, mig=mig)),
            classes=tuple(bench.classes()),
            claims=tuple(
                self._claim(index, minor)
                for index in range(self._nodes)
                for minor in range(8)
                if _is_held(index, minor)
            ),
            pods=tuple(_waiting(number) for number in range(30)),
            events=tuple(_event(number) for number in range(60)),
            server_version="v1.36.2",
        )

    def _slices(self, index: int, *, mig: bool) -> Iterator[dict[str, Any]]:
        for text in bench.slices(index, mig=mig):
            if index % 4 == 3:
                text = text.replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")  # noqa: PLW2901
            item = json.loads(text, object_pairs_hook=self._parts.join)
            item["spec"]["nodeName"], item["spec"]["pool"]["name"] = (
                self._names[index],
                f"{self._names[index]}/{DRIVER}",
            )
            for device in item["spec"].get("devices") or ():
                if index % 4 == 3 and "productName" in device["attributes"]:
                    device["attributes"]["productName"]["string"] = "NVIDIA A100-SXM4-80GB"
                if device["name"] == "gpu-3" and _is_faulty(index, 3):
                    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule", "timeAdded": SINCE}
                    device["taints"] = [taint]
            yield item

    def _claim(self, index: int, minor: int) -> dict[str, Any]:
        name = f"train-{index}-{minor}"
        pool = f"{self._names[index]}/{DRIVER}"
        result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": f"gpu-{minor}"}
        metadata = {"name": name, "namespace": f"team-{index % 12}", "creationTimestamp": SINCE, "uid": name}
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"{name}-0", "uid": f"p-{name}"}],
        }
        return {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": status}

    def _status(self, index: int) -> GpuNodeStatus:
        gpus = []
        for minor in range(bench.GPUS):
            uuid = f"GPU-{index:08x}-ce1e-3b6e-6cc1-{minor:012x}"
            faulty = _is_faulty(index, minor)
            gpus.append(
                NodeGpu(
                    name=f"gpu-{minor}",
                    uuid=uuid,
                    product_name="NVIDIA H100 80GB HBM3",
                    memory="80Gi",
                    health=HealthWord.UNHEALTHY if faulty else HealthWord.HEALTHY,
                    causes=("xid",) if faulty else (),
                    message="XID 79: the GPU has fallen off the bus. Drain the node and reboot it." if faulty else None,
                )
            )
        idle = ReportedIdle(
            namespace=f"team-{index % 12}", claim=f"train-{index}-0", claim_uid="u", since=SINCE, after_min=60
        )
        usage = ReportedUsage(idle=(idle,) if index % 10 == 0 and _is_held(index, 0) else ())
        return GpuNodeStatus(driver_name=DRIVER, driver_version="580.65.06", gpus=tuple(gpus), usage=usage)


def _is_faulty(index: int, minor: int) -> bool:
    return index % 20 == 13 and minor == 3


def _is_held(index: int, minor: int) -> bool:
    return (index * 7 + minor * 3) % 10 < 7


def _wave(index: int, minor: int) -> int:
    """Percent busy, spread over all levels."""
    return (index * 37 + minor * 53 + index * minor) % 101


def _waiting(number: int) -> dict[str, Any]:
    claims = [{"name": "gpu", "resourceClaimName": f"missing-{number % 3}"}]
    spec = {"containers": [{"name": "main"}], "resourceClaims": claims}
    metadata = {"name": f"wait-{number}", "namespace": f"team-{number % 3}", "creationTimestamp": SINCE}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _event(number: int) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": f"team-{number % 3}", "name": f"wait-{number % 30}"}
    event = {"reason": "FailedScheduling", "message": "0/1000 nodes are available: 1000 cannot allocate all claims."}
    if number % 20 == 0:
        about = {"kind": "Node", "namespace": "", "name": f"node-{number + 13}"}
        event = {"reason": "GpuUnhealthy", "message": "gpu-3: XID 79: the GPU has fallen off the bus."}
    return {**event, "metadata": {"name": f"e-{number}"}, "involvedObject": about, "lastTimestamp": SINCE, "count": 3}
