"""Chapter: GPUs become unhealthy under two Deployments, whose pods move, and accept claims again after they recover.
The policy requests eviction: Kubernetes evicts the pod with a claim, the controller the pod that requests an extended
resource, which Kubernetes 1.36 does not evict."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import Chapter, Say
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

    @property
    def gpu(self) -> tuple[str, str]:
        return self.node, self.device

    def __str__(self) -> str:
        return f"{self.pod} has {self.device} of {self.node}"


def run(cluster: Cluster, policy: Path, say: Say) -> str:
    """Run the chapter on a cluster, whose nodes get ``policy`` and no policy after it; returns the first
    unmet expectation, or ""."""
    cluster.set_policies([policy])
    controller = ControllerSubprocess(cluster.kubeconfig, cluster.folder / "controller.log")
    controller.start()
    try:
        chapter = _Health(cluster, say, NAMESPACE)
        return chapter.run("--- GPUs become unhealthy under running pods", chapter.play)
    finally:
        controller.stop()
        cluster.set_policies([])


class _Health(Chapter):
    def play(self) -> None:
        self.make_template("gpu", {"deviceClassName": _CLASS})
        claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        self._make_deployment("by-claim", {"claims": [{"name": "gpu"}]}, {"resourceClaims": claims})
        self._make_deployment("by-resource", {"limits": {"nvidia.com/gpu": "1"}}, {})

        def without_policy() -> str | None:
            missing = sum(_GRACE_ATTRIBUTE not in device.get("attributes", {}) for _, device in self._devices())
            return f"{missing} devices lack it" if missing else None

        self.expect(without_policy, "all nodes to follow the policy")
        self.expect(self._not_running, "both Deployments to run")
        before = self._places()
        self.say("1. Two Deployments run: one pod has a claim, the second pod requests nvidia.com/gpu: 1.")
        self.say("".join(f"    pod      {place}\n" for place in before.values()))
        with self._unhealthy(before):
            self.expect(lambda: self._not_moved(before), "both pods to run on other GPUs")
            self.expect(lambda: self._missing_event(before), "events about both evictions")
            self.say("".join(f"    event    {line}\n" for line in self._evictions(before)))
            self.expect(lambda: self._not_moved(before), "both pods to run after the events")
            self.say("3. The Deployments made new pods, which run on healthy GPUs.")
            self.say("".join(f"    pod      {place}\n" for place in self._places().values()))
        # If no reading showed the GPU as lost, its XID ends after `SETTLE_S` (60 s) without a reported recovery action.
        self.expect(lambda: ", ".join(self._taints()) or None, "the taints to be removed", within_s=90.0)
        names = [f"again-{number}" for number in range(len(before))]
        for name, place in zip(names, before.values(), strict=True):
            self.make_pod(name, self._request(place))
        self.expect_ready(names, "pods to run on the GPUs that were unhealthy")
        self.say("4. The GPUs were repaired and stayed healthy. Their taints were removed: new pods use them again.")
        self.say("".join(f"    pod      {name} runs\n" for name in names))

    def _make_deployment(self, name: str, resources: Obj, spec: Obj) -> None:
        container = {"name": "main", "image": "ubuntu:24.04", "resources": resources}
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
        body = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        self.create("apps/v1", "Deployment", name, body)

    @contextmanager
    def _unhealthy(self, places: Mapping[str, Place]) -> Iterator[None]:
        """XID 79 ("the GPU has fallen off the bus") on the GPUs of ``places``, and their repair at the end."""
        gpus = {place.gpu for place in places.values()}

        def untainted() -> str | None:
            missing = gpus - self._tainted().keys()
            return f"no taint on {sorted(missing)}" if missing else None

        self.say("2. Their GPUs report XID 79; the policy requests eviction.")
        try:
            for node, device in (place.gpu for place in places.values()):
                self.command("dra-driver", "sim", "inject", node, device, "xid=79", "--wait", "0", *self.kubeconfig)
            self.expect(untainted, "the GPUs to be tainted")
            self.say("".join(f"    taint    {line}\n" for line in self._taints()))
            yield
        finally:
            for node in {place.node for place in places.values()}:
                self.command("dra-driver", "sim", "recover", node, "--wait", "0", *self.kubeconfig)

    def _workloads(self) -> dict[str, Obj]:
        named = ((dig(pod, "metadata", "labels", "app", default=""), pod) for pod in self.pods() if not is_deleted(pod))
        return {name: pod for name, pod in named if name in _WORKLOADS}

    def _places(self) -> dict[str, Place]:
        places = {}
        for name, pod in sorted(self._workloads().items()):
            claim = extended_claim_name(pod) or next((claim for _, claim in claim_names(pod) if claim), None)
            if claim is None:
                raise RetryableError(f"pod {pod['metadata']['name']} has no claim yet, expected a running pod")
            allocated = self.cluster.store.get(RESOURCE_CLAIMS, claim, NAMESPACE)
            (result,) = entries(allocated, "status", "allocation", "devices", "results")
            places[name] = Place(pod=pod["metadata"]["name"], node=pod["spec"]["nodeName"], device=result["device"])
        return places

    def _not_running(self) -> str | None:
        pods = self._workloads()
        return ", ".join(name for name in _WORKLOADS if name not in pods or not is_ready(pods[name])) or None

    def _not_moved(self, before: Mapping[str, Place]) -> str | None:
        if (missing := self._not_running()) is not None:
            return missing
        same = [name for name, place in self._places().items() if place.gpu == before[name].gpu]
        return f"{', '.join(same)} did not move" if same else None

    def _devices(self, node: str = "") -> Iterator[tuple[str, Obj]]:
        for item in self.cluster.slices(node):
            for device in entries(item, "spec", "devices"):
                yield item["spec"]["nodeName"], device

    def _tainted(self) -> dict[tuple[str, str], Obj]:
        return {
            (node, device["name"]): taint
            for node, device in self._devices()
            for taint in entries(device, "taints")
            if taint.get("effect") == "NoExecute" and "-mig-" not in device["name"]
        }

    def _taints(self) -> list[str]:
        return [
            f"{device} of {node}: {taint['key']}={taint.get('value', '')}:NoExecute"
            for (node, device), taint in sorted(self._tainted().items())
        ]

    def _evictions(self, places: Mapping[str, Place]) -> list[str]:
        pods = {place.pod for place in places.values()}
        return [f"{pod}: {reason}: {text}" for pod, reason, text in self.events() if pod in pods and reason in _REASONS]

    def _missing_event(self, places: Mapping[str, Place]) -> str | None:
        said = self._evictions(places)
        return next((f"no event {reason}" for reason in _REASONS if not any(reason in line for line in said)), None)

    def _request(self, place: Place) -> Obj:
        for _, device in self._devices(place.node):
            if device["name"] == place.device:
                expression = f'device.attributes["{_CLASS}"].uuid == "{device["attributes"]["uuid"]["string"]}"'
                return {"deviceClassName": _CLASS, "selectors": [{"cel": {"expression": expression}}]}
        raise RetryableError(f"{place.device} of {place.node} is not published any more")
