"""Objects that the tests create, pods that request GPUs in every form, and manifests with expectations."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.kube.published.listing import Devices, difference, observed_devices
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver import kinds
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.demo.expectations import Expectation, allocated_devices, unmet, why_unscheduled
from dra_driver.sim.loop import load
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import GONE_S, REACH_S, SETTLE_S, RealCluster, wait
from tests.e2e.host import Hardware

LIST = "nvidia-smi -L; env | grep ^CUDA_MPS"
SHAREABLE = "device.allowMultipleAllocations"


def whole() -> Obj:
    """A request for one GPU that is not shared. It names no field that needs a feature gate."""
    return _request("gpu.nvidia.com", '!("sharingStrategy" in device.attributes["gpu.nvidia.com"])')


def slice_of(profile: str) -> Obj:
    return _request("mig.nvidia.com", f'device.attributes["gpu.nvidia.com"].profile == "{profile}"')


def share(memory: str, percent: int) -> Obj:
    asked = {"memory": memory, "computePercent": str(percent)}
    return _request("gpu.nvidia.com", SHAREABLE) | {"capacity": {"requests": asked}}


def _request(device_class: str, expression: str) -> Obj:
    return {"deviceClassName": device_class, "selectors": [{"cel": {"expression": expression}}]}


# Shares first, on the only shared GPU, then the whole GPU: a scheduler may try GPUs in any order.
PODS = {
    "ten": share("10Gi", 10),
    "twenty": share("20Gi", 20),
    "whole": whole(),
    "small": slice_of("1g.10gb"),
    "larger": slice_of("2g.20gb"),
}
"""Requests of pods for GPUs in every form, on three H100."""


class Forms:
    def __init__(self, cluster: RealCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    @property
    def rest(self) -> RestClient:
        return self.cluster.rest

    def create(
        self, name: str, request: Obj, command: str = LIST, *, host_users: bool = True, exists: bool = False
    ) -> None:
        """One pod with one device; without ``host_users`` in a user namespace of its own.

        ``exists``: the device is there already, and so published whatever the feature gates.
        """
        spec = pod_spec(name, f"{command}; {STAY}", hostUsers=host_users)
        self.cluster.apply([template(name, request), pod(name, spec)], self.namespace, needs=() if exists else None)

    def run(
        self, name: str, request: Obj, command: str = LIST, *, host_users: bool = True, exists: bool = False
    ) -> None:
        self.create(name, request, command, host_users=host_users, exists=exists)
        self.wait_ready(name)

    def get(self, name: str) -> Obj:
        return self.cluster.pod(name, self.namespace)

    def delete(self, *names: str) -> None:
        for name in names:
            self.cluster.client.delete(kinds.PODS, name, self.namespace)
        wait(lambda: self._left(names), GONE_S)

    def wait_ready(self, *names: str, timeout_s: float = REACH_S) -> None:
        wait(lambda: self._unready(names), timeout_s)

    def waits(self, *names: str) -> bool:
        """Whether the scheduler has rejected all of them."""
        return all(
            dig(self.get(name), "status", "phase") == "Pending" and why_unscheduled(self.get(name)) for name in names
        )

    def log(self, name: str) -> str:
        # A container is ready before its command has printed anything.
        wait(lambda: None if self._log(name) else f"the log of {name} is empty", 30.0)
        return self._log(name)

    def wait_line(self, name: str, line: str) -> None:
        wait(lambda: None if line in self._log(name).splitlines() else f"{name} logs {self._log(name)}", 30.0)

    def sees(self, name: str) -> Devices:
        """The devices in the pod's log, which must be the allocated ones."""
        allocated = allocated_devices(self.get(name), self.cluster.client)
        # nvidia-smi prints a line after the other, and the log may be read in between.
        wait(lambda: difference(observed_devices(self.log(name)), allocated), 30.0)
        return observed_devices(self.log(name))

    def partition(self, name: str) -> str:
        (only,) = self.sees(name).partitions
        return only.uuid

    @contextmanager
    def cleared(self) -> Iterator["Forms"]:
        """After the body everything is deleted, also if the body failed."""
        try:
            yield self
        finally:
            self.delete(*(pod["metadata"]["name"] for pod in self.cluster.pods(self.namespace)))

    def _log(self, name: str) -> str:
        return self.cluster.client.log(self.namespace, name, "main")

    def _unready(self, names: tuple[str, ...]) -> str | None:
        waiting = [name for name in names if not is_ready(self.get(name))]
        return f"{waiting} not ready; {self.cluster.warnings(self.namespace)}" if waiting else None

    def _left(self, names: tuple[str, ...]) -> str:
        lists = (kinds.PODS, kinds.RESOURCE_CLAIMS)
        found = [obj["metadata"]["name"] for kind in lists for obj in self.cluster.client.list(kind, self.namespace)]
        # The name of a generated claim is that of its pod, of its entry in the pod, and five letters.
        return ", ".join(one for one in found if one in names or one.rsplit("-device-", 1)[0] in names)


IMAGE = "ubuntu:24.04"
STAY = "trap 'exit 0' TERM; sleep infinity & wait"


def template(name: str, request: Obj, **metadata: Any) -> Obj:
    devices = {"requests": [{"name": "device", "exactly": request}]}
    header = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**header, "spec": {"spec": {"devices": devices}, **({"metadata": metadata} if metadata else {})}}


def pod_spec(of_template: str, command: str = STAY, **spec: Any) -> Obj:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["bash", "-c", command],
        "resources": {"claims": [{"name": "device"}]},
    }
    claims = [{"name": "device", "resourceClaimTemplateName": of_template}]
    return {"containers": [container], "resourceClaims": claims, **spec}


def pod(name: str, spec: Obj) -> Obj:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, spec: Obj) -> Obj:
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": spec}
    made = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pods}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": made}


def budget(name: str, app: str) -> Obj:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def policy(name: str, **spec: Any) -> Obj:
    header = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}}
    return {**header, "spec": spec}


# The scheduler has looked at a pod, and again, well within this time; a pod that is Pending after it is not just slow.
PENDING_S = 5.0


@contextmanager
def reached(cluster: RealCluster, path: Path, namespace: str, expectations: Sequence[Expectation]) -> Iterator[str]:
    """The body runs while the expectations of ``path`` hold; after it the objects are deleted, and nothing is left.

    Yields their namespace: ``namespace``, or the one among the objects.
    """
    objects = load(path)
    home = cluster.home(objects, namespace)
    try:
        cluster.apply(objects, namespace)
        wait(lambda: _unmet(cluster, home, expectations), REACH_S)
        _hold(cluster, home, expectations)
        yield home
    finally:
        cluster.remove(objects, home)


def check_partitions(cluster: RealCluster, hardware: Hardware, namespace: str) -> None:
    """Each pod's logs list exactly the MIG devices of the hardware at the placements of its claims, and the hardware
    has no other."""
    everybody: set[str] = set()
    for pod in cluster.pods(namespace):
        granted = hardware.uuids_of(cluster.granted_devices(pod))
        logs = cluster.all_logs(pod) if granted else {}
        seen = {part.uuid for log in logs.values() for part in observed_devices(log).partitions}
        assert seen == granted, f"{pod['metadata']['name']} sees {seen}, was granted {granted}"
        everybody |= granted
    assert set(hardware.made().values()) == everybody


def _hold(cluster: RealCluster, namespace: str, expectations: Sequence[Expectation]) -> None:
    time.sleep(PENDING_S if any(e.state == "Pending" for e in expectations) else SETTLE_S)
    assert unmet(expectations, cluster.client, namespace) is None


def _unmet(cluster: RealCluster, namespace: str, expectations: Sequence[Expectation]) -> str | None:
    complaint = unmet(expectations, cluster.client, namespace)
    return None if complaint is None else f"{complaint}; warnings: {cluster.warnings(namespace)}"
