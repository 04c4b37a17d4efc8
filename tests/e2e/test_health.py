"""A GPU falls ill under pods: taints, the pods' status, eviction by Kubernetes, and recovery without a restart.

Faults are injected into the simulated GPUs of this host. Through all of it, pods on other GPUs must not notice.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dra_driver.core.model.gpu import Gpu
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import POLL_S, REACH_S, RealCluster, containers, events, wait
from tests.e2e.forms import Forms, deployment, pod_spec, share, template, whole
from tests.e2e.gates import POD_HEALTH, SHARES, TAINTS
from tests.e2e.host import START_S, Host, restart
from tests.e2e.test_drain import POLICY
from tests.fakes.node_process import NodeProcess

log = logging.getLogger(__name__)
SPEC = "2xh100-sxm5-80gb,2xl4-24gb"
REQUIREMENTS = Requirements(nodes=(("gpu-a", SPEC),), policies=(POLICY, POLICY.with_name("evict-xid-79.yaml")))
SHARERS = 20
TAINTED_S = 2.0
SHOWN_S = 30.0
EVICTED_S = 60.0
BACK_S = 60.0
XID, LOST = "gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost"
NEEDS_RESET = "gpu.dra-driver.io/recovery-action"

pytestmark = pytest.mark.needs(SHARES, TAINTS, POD_HEALTH)


class Sickness:
    def __init__(self, cluster: RealCluster, host: Host, forms: Forms, node: str) -> None:
        self.cluster, self.host, self.forms, self.node = cluster, host, forms, node
        self.backend = host.hardware.backend()
        self.gpus: dict[str, Gpu] = {gpu.device_name: gpu for gpu in host.hardware.as_described().gpus}

    def inject(self, device: str, fault: str) -> float:
        """Make the GPU ill; returns the seconds until its devices are tainted."""
        began = time.monotonic()
        self.backend.inject(self.gpus[device].uuid, fault)
        while not self.taints(device):
            assert time.monotonic() - began < START_S, self.host.process.text
            time.sleep(POLL_S / 5)
        return time.monotonic() - began

    def recover(self, device: str) -> None:
        self.backend.recover(self.gpus[device].uuid)

    def reset(self, device: str) -> None:
        """As a person does it: after the NVIDIA driver asked for it.

        A reset before the first look at the recovery action leaves no trace, and recovery is seen a minute later.
        """
        wait(lambda: None if NEEDS_RESET in self.taints(device) else "no reset is asked for yet", START_S)
        self.recover(device)

    def taints(self, device: str) -> dict[str, tuple[str, str]]:
        """Key -> effect and time, of the whole GPU."""
        (found,) = [each for each in self.cluster.devices() if each["name"] == device]
        return {each["key"]: (each["effect"], each["timeAdded"]) for each in entries(found, "taints")}

    def clean(self) -> None:
        wait(lambda: str({each["name"] for each in self.cluster.devices() if each.get("taints")} or ""), BACK_S)

    def health(self, pod: str) -> list[Obj]:
        found: list[Obj] = []
        for status in entries(self.forms.get(pod), "status", "containerStatuses"):
            for resource in entries(status, "allocatedResourcesStatus"):
                found += entries(resource, "resources")
        return found

    def is_told(self, pod: str, state: str) -> Callable[[], str | None]:
        """The kubelet of 1.34 tells it only of claims with the name that the pod has for them, so not of these."""
        if self.cluster.version().startswith("v1.34."):
            return lambda: None
        return lambda: None if [each.get("health") for each in self.health(pod)] == [state] else str(self.health(pod))

    def owner(self, app: str) -> Obj | None:
        pods = [pod for pod in self.cluster.pods(self.forms.namespace) if dig(pod, "metadata", "labels", "app") == app]
        ready = [pod for pod in pods if is_ready(pod) and not dig(pod, "metadata", "deletionTimestamp")]
        return ready[0] if len(ready) == 1 else None

    def runs_on(self, app: str, device: str) -> Callable[[], str | None]:
        def complaint() -> str | None:
            pod = self.owner(app)
            found = self.cluster.granted_devices(pod) if pod is not None else set()
            return None if found == {device} else f"{app} has {found}, expected {device}"

        return complaint


@pytest.fixture
def sickness(cluster: RealCluster, own_host: Host, namespace: str, node: str | None) -> Iterator[Sickness]:
    assert node is not None
    forms = Forms(cluster, namespace)
    names = [f"share-{number}" for number in range(SHARERS)]
    with forms.cleared():
        for name in names:
            forms.create(name, share("1Gi", 0), "true")
        forms.wait_ready(*names)
        before = [containers(forms.get(name)) for name in names]
        found = Sickness(cluster, own_host, forms, node)
        try:
            yield found
            assert [containers(forms.get(name)) for name in names] == before
        finally:
            for device in found.gpus:
                found.recover(device)
            found.clean()
            cluster.client.delete(DEPLOYMENTS, "app", namespace)


def test_an_error_is_a_taint_within_two_seconds_and_in_the_pods_status_until_it_recovers(sickness: Sickness) -> None:
    forms = sickness.forms
    forms.run("pod", whole(), "true")
    (device,) = sickness.cluster.granted_devices(forms.get("pod"))
    wait(sickness.is_told("pod", "Healthy"), SHOWN_S)
    seconds = sickness.inject(device, "xid=48")
    assert seconds < TAINTED_S
    log.info(f"taint after {seconds:.2f} s: {sickness.taints(device)}")
    wait(sickness.is_told("pod", "Unhealthy"), SHOWN_S)
    said = sickness.health("pod")
    log.info(f"allocatedResourcesStatus: {said}")
    if sickness.cluster.gates.get("ResourceHealthStatusMessage"):  # since 1.36; a look may see the GPU first
        wait(lambda: None if "XID 48" in (said := sickness.health("pod"))[0]["message"] else str(said), SHOWN_S)
    assert events(sickness.cluster, sickness.node, "GpuUnhealthy") > 0
    sickness.reset(device)
    sickness.clean()
    wait(sickness.is_told("pod", "Healthy"), SHOWN_S)
    assert sickness.forms.get("pod")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_gpu_that_fell_off_the_bus_loses_its_pods_and_gets_new_ones_after_its_recovery(sickness: Sickness) -> None:
    cluster, process = sickness.cluster, sickness.host.process
    spec = pod_spec("app", terminationGracePeriodSeconds=1)
    cluster.apply([template("app", whole()), deployment("app", spec)], sickness.forms.namespace)
    wait(lambda: None if sickness.owner("app") else "no pod yet", REACH_S)
    pod = sickness.owner("app")
    assert pod is not None
    (device,) = cluster.granted_devices(pod)
    (other,) = {"gpu-0", "gpu-1"} - {device}
    began = time.monotonic()
    seconds = sickness.inject(device, "xid=79")
    assert seconds < TAINTED_S
    wait(sickness.runs_on("app", other), EVICTED_S + REACH_S)
    log.info(f"taint after {seconds:.2f} s, its pod runs on {other} after {time.monotonic() - began:.1f} s")
    wait(lambda: None if {XID, LOST} <= sickness.taints(device).keys() else "not lost yet", START_S)
    time.sleep(2.0)  # what follows from the same fault comes within a second look
    before = sickness.taints(device)
    assert before[XID][0] == before[LOST][0] == "NoExecute"
    process.end(signal.SIGKILL)
    sickness.host.restart()
    stays(lambda: sickness.taints(device), before)
    with rolling_update(process):
        stays(lambda: sickness.taints(device), before)
    stays(lambda: sickness.taints(device), before)
    recovered = time.monotonic()
    sickness.recover(device)
    sickness.clean()
    log.info(f"taints {before} went {time.monotonic() - recovered:.1f} s after the recovery")
    sickness.forms.create("new", whole(), "true")
    sickness.forms.wait_ready("new")
    assert cluster.granted_devices(sickness.forms.get("new")) == {device}


def stays(seen: Callable[[], object], before: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert seen() == before
        time.sleep(POLL_S)


@contextmanager
def rolling_update(process: NodeProcess) -> Iterator[None]:
    """Two processes with different pods' UIDs, of which the first ends; afterwards the process as it was."""
    process.end()
    both = [NodeProcess(process.folder, environ=process.environ, **{**process.flags, "pod_uid": uid}) for uid in "ab"]
    try:
        for each in both:
            restart(each)
        both[0].end()
        yield
        both[1].end()
    finally:
        for each in both:
            each.kill()
        restart(process)
