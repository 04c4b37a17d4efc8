"""A chapter of the demonstration: GPUs fall ill under two Deployments, whose pods move, and are used again.

The policy asks for eviction. Kubernetes' own eviction deletes the pod that has a claim; the controller, which runs as a
process of its own here, evicts the one that came by an extended resource, which Kubernetes 1.36 forgets.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import RetryableError
from dra_driver.hardware.gpu.simulated.fault_orders import ANNOTATION
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import EVENTS, NODES, PODS, RESOURCE_CLAIMS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import WAIT_S, Say, make_pod, run_chapter
from dra_driver.sim.node.node_process import ControllerSubprocess
from dra_driver.sim.objects import claim_names, extended_claim_name, is_deleted, is_ready

POLICY: Final = Path("examples/health/evict-soon.yaml")
NAMESPACE: Final = "demo-health"
_GRACE_ATTRIBUTE: Final = "gpu.dra-driver.io/evictionGraceSeconds"
_CLASS: Final = "gpu.nvidia.com"
_WORKLOADS: Final = ("by-claim", "by-resource")
_REASONS: Final = ("DeviceTaintManagerEviction", "GpuEviction")


class Place(Struct, frozen=True, kw_only=True):
    """A pod of a workload, its node and its device."""

    pod: str
    node: str
    device: str

    def __str__(self) -> str:
        return f"{self.pod} has {self.device} of {self.node}"


def run(cluster: Cluster, policy: Path, say: Say) -> bool:
    """Run the chapter on a cluster, whose nodes get ``policy`` and no policy after it."""
    say("--- GPUs fall ill under running pods")
    cluster.set_policies([policy])
    controller = ControllerSubprocess(cluster.kubeconfig, cluster.folder / "controller.log")
    controller.start()
    try:
        return not run_chapter(cluster, say, NAMESPACE, lambda: _play(cluster, say))
    finally:
        controller.stop()
        cluster.set_policies([])


def _play(cluster: Cluster, say: Say) -> None:
    _make_workloads(cluster)
    cluster.wait(lambda: _without_policy(cluster), WAIT_S, "all nodes to follow the policy")
    cluster.wait(lambda: _not_running(cluster), WAIT_S, "both Deployments to run")
    before = _places(cluster)
    say("1. Two Deployments run: one pod has a claim, the other asks for nvidia.com/gpu: 1.")
    say("".join(f"    pod      {place}\n" for place in before.values()))
    with _ill(cluster, before, say):
        cluster.wait(lambda: _not_moved(cluster, before), WAIT_S, "both pods to run on other GPUs")
        say("".join(f"    event    {line}\n" for line in _events(cluster, before)))
        cluster.wait(lambda: _not_moved(cluster, before), WAIT_S, "both pods to run when the events are there")
        say("3. The Deployments made new pods, which run on healthy GPUs.")
        say("".join(f"    pod      {place}\n" for place in _places(cluster).values()))
    cluster.wait(lambda: _still_tainted(cluster), WAIT_S, "the taints to go")
    for number, place in enumerate(before.values()):
        make_pod(cluster, NAMESPACE, f"again-{number}", _request(cluster, place))
    names = [f"again-{number}" for number in range(len(before))]
    cluster.wait(lambda: _unready(cluster, names), WAIT_S, "pods to run on the GPUs that were ill")
    say("4. The GPUs were repaired, stayed calm, and lost their taints by themselves: new pods use them again.")
    say("".join(f"    pod      {name} runs\n" for name in names))


def _make_workloads(cluster: Cluster) -> None:
    exactly = {"deviceClassName": _CLASS}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    cluster.client.create(template, NAMESPACE)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    _make_deployment(cluster, "by-claim", {"claims": [{"name": "gpu"}]}, resourceClaims=claims)
    _make_deployment(cluster, "by-resource", {"limits": {"nvidia.com/gpu": "1"}})


def _make_deployment(cluster: Cluster, name: str, resources: Obj, **spec: Any) -> None:
    container = {"name": "main", "image": "ubuntu:24.04", "resources": resources}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    header = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    cluster.client.create({**header, "spec": body}, NAMESPACE)


@contextmanager
def _ill(cluster: Cluster, places: Mapping[str, Place], say: Say) -> Iterator[None]:
    """XID 79 ("the GPU has fallen off the bus") on the GPUs of ``places``, and their repair at the end.

    Does what ``dra-driver sim inject`` and ``sim recover`` do.
    """
    orders: dict[str, list[str]] = {}
    for place in places.values():
        orders.setdefault(place.node, []).append(f"{place.device} xid=79")
    say("2. Their GPUs report XID 79; the policy asks for eviction.")
    say("\n".join(f"$ dra-driver sim inject {place.node} {place.device} xid=79" for place in places.values()))
    try:
        for node, faults in orders.items():
            _annotate(cluster, node, ", ".join(faults))
        cluster.wait(lambda: _untainted(cluster, places), WAIT_S, "the GPUs to be tainted")
        say("".join(f"    taint    {line}\n" for line in _taints(cluster)))
        yield
    finally:
        for node in orders:
            _annotate(cluster, node, "")


def _annotate(cluster: Cluster, node: str, faults: str) -> None:
    obj = cluster.store.get(NODES, node)
    annotations = obj["metadata"].setdefault("annotations", {})
    if faults:
        annotations[ANNOTATION] = faults
    else:
        annotations.pop(ANNOTATION, None)
    del obj["metadata"]["resourceVersion"]  # the kubelet's writes do not concern this annotation
    cluster.store.update(NODES, obj)


def _pods(cluster: Cluster) -> dict[str, Obj]:
    """The newest pod of each workload."""
    found: dict[str, Obj] = {}
    for pod in cluster.store.list(PODS, NAMESPACE).items:
        name = dig(pod, "metadata", "labels", "app", default="")
        if name in _WORKLOADS and not is_deleted(pod):
            found[name] = pod
    return found


def _places(cluster: Cluster) -> dict[str, Place]:
    places = {}
    for name, pod in sorted(_pods(cluster).items()):
        claim = extended_claim_name(pod) or next((claim for _, claim in claim_names(pod) if claim), None)
        if claim is None:
            raise RetryableError(f"pod {pod['metadata']['name']} has no claim yet, expected a running pod")
        (result,) = entries(
            cluster.store.get(RESOURCE_CLAIMS, claim, NAMESPACE), "status", "allocation", "devices", "results"
        )
        places[name] = Place(pod=pod["metadata"]["name"], node=pod["spec"]["nodeName"], device=result["device"])
    return places


def _not_running(cluster: Cluster) -> str | None:
    pods = _pods(cluster)
    return ", ".join(name for name in _WORKLOADS if name not in pods or not is_ready(pods[name])) or None


def _not_moved(cluster: Cluster, before: Mapping[str, Place]) -> str | None:
    if (missing := _not_running(cluster)) is not None:
        return missing
    now = _places(cluster)
    same = [name for name, place in now.items() if (place.node, place.device) == _where(before[name])]
    return f"{', '.join(same)} did not move" if same else None


def _where(place: Place) -> tuple[str, str]:
    return place.node, place.device


def _without_policy(cluster: Cluster) -> str | None:
    devices = [device for item in cluster.slices() for device in entries(item, "spec", "devices")]
    missing = sum(_GRACE_ATTRIBUTE not in device.get("attributes", {}) for device in devices)
    return f"{missing} devices lack it" if missing else None


def _tainted(cluster: Cluster) -> dict[tuple[str, str], Obj]:
    return {
        (item["spec"]["nodeName"], device["name"]): taint
        for item in cluster.slices()
        for device in entries(item, "spec", "devices")
        for taint in entries(device, "taints")
        if taint.get("effect") == "NoExecute" and "-mig-" not in device["name"]
    }


def _taints(cluster: Cluster) -> list[str]:
    return [
        f"{device} of {node}: {taint['key']}={taint.get('value', '')}:NoExecute"
        for (node, device), taint in sorted(_tainted(cluster).items())
    ]


def _untainted(cluster: Cluster, places: Mapping[str, Place]) -> str | None:
    missing = {_where(place) for place in places.values()} - _tainted(cluster).keys()
    return f"no taint on {sorted(missing)}" if missing else None


def _still_tainted(cluster: Cluster) -> str | None:
    return ", ".join(_taints(cluster)) or None


def _events(cluster: Cluster, places: Mapping[str, Place]) -> list[str]:
    """What was said about the pods that had to go."""
    pods = {place.pod for place in places.values()}

    def lines() -> list[str]:
        return [
            f"{item['involvedObject']['name']}: {item['reason']}: {item['message']}"
            for item in cluster.store.list(EVENTS, NAMESPACE).items
            if item["involvedObject"]["name"] in pods and item["reason"] in _REASONS
        ]

    def missing() -> str | None:
        said = lines()
        return next((f"no event {reason}" for reason in _REASONS if not any(reason in line for line in said)), None)

    cluster.wait(missing, WAIT_S, "events about both evictions")
    return lines()


def _request(cluster: Cluster, place: Place) -> dict[str, Any]:
    """A request for exactly the GPU of ``place``. Raises RetryableError when it is not published."""
    for item in cluster.slices(place.node):
        for device in entries(item, "spec", "devices"):
            if device["name"] == place.device:
                uuid = device["attributes"]["uuid"]["string"]
                expression = f'device.attributes["{_CLASS}"].uuid == "{uuid}"'
                return {"deviceClassName": _CLASS, "selectors": [{"cel": {"expression": expression}}]}
    raise RetryableError(f"{place.device} of {place.node} is not published any more")


def _unready(cluster: Cluster, names: list[str]) -> str | None:
    pods = {name: cluster.store.find(PODS, name, NAMESPACE) for name in names}
    return ", ".join(name for name, pod in pods.items() if pod is None or not is_ready(pod)) or None
