"""The embedded cluster under a thousand pods with claims and extended resources, while node processes are killed,
kubelets and the API server restart, and GPUs become unhealthy. No two claims may ever have the same part of a GPU."""

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.core.errors import DraError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
)
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.demo import demo
from dra_driver.sim.loop import load
from dra_driver.sim.objects import is_ready
from tests.fakes.live_claims import Obj as Request
from tests.fakes.live_claims import gpu, partition, share
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.figures import rss_mib
from tests.soak.invariants import Memory, granted_twice, grants
from tests.soak.node_soak import ILLNESSES, guarded

ROOT = Path(__file__).resolve().parents[2]
NODES = {"gpu-a": "4xh100-sxm5-80gb", "gpu-b": "4xh100-sxm5-80gb"}
POLICIES = """
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: time-sliced}
spec:
  select: {minors: [2]}
  sharing: {strategy: TimeSlicing, maxShares: 4}
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: by-mps}
spec:
  select: {minors: [3]}
  sharing: {strategy: MPS, maxShares: 4}
"""
TEMPLATES: dict[str, Callable[[], Request]] = {
    "whole": gpu,
    "partition": lambda: partition("1g.10gb"),
    "time-sliced share": lambda: share("10Gi", 20, strategy="TimeSlicing"),
    "mps share": lambda: share("10Gi", 20),
}
EXTENDED = {"extended gpu": "nvidia.com/gpu", "extended partition": "nvidia.com/mig-1g.10gb"}
NAMESPACE = "soak"
THREADS = 6
POD_S = 180.0
PAUSE_S = 6.0
CHECK_S = 0.5


@dataclass
class ClusterRun:
    """What a run found. All threads increment ``seen``; lost increments do not matter."""

    claims: int
    seed: str
    cluster: Cluster
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    ready_ms: list[float] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    checks: int = 0
    done: int = 0
    seconds: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards `done`

    def next_pod(self) -> int | None:
        with self.lock:
            self.done += 1
            return self.done if self.done <= self.claims and not self.failures else None


def run(claims: int, seed: str) -> ClusterRun:
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policies.yaml"
        policy.write_text(POLICIES)
        with Cluster(NODES, policies=[policy]) as cluster:
            _install(cluster)
            found = ClusterRun(claims, seed, cluster)
            began = time.monotonic()
            others = [
                threading.Thread(target=guarded, args=(found.failures, work, found)) for work in (_disturb, _watch)
            ]
            for each in others:
                each.start()
            with ThreadPoolExecutor(THREADS) as threads:
                for worker in [
                    threads.submit(guarded, found.failures, _work, found, number) for number in range(THREADS)
                ]:
                    worker.exception()
            found.stop.set()
            for each in others:
                each.join(120.0)
            found.seconds = time.monotonic() - began
            _look_for_leaks(found)
            return found


def _install(cluster: Cluster) -> None:
    cluster.apply(ROOT / demo.CLASSES)
    for each in load(ROOT / "examples/extended-resources.yaml"):
        if each["kind"] == "DeviceClass":
            cluster.store.create(DEVICE_CLASSES, each)
    cluster.store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    for form, make in TEMPLATES.items():
        spec = {"spec": {"devices": {"requests": [make()]}}}
        body = {"metadata": {"name": form.replace(" ", "-")}, "spec": spec}
        cluster.store.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=NAMESPACE)


def _work(found: ClusterRun, number: int) -> None:
    dice = random.Random(f"{found.seed}-pods-{number}")  # noqa: S311 - what happens
    while (pod_number := found.next_pod()) is not None:
        form = dice.choice([*TEMPLATES, *EXTENDED])
        name = f"pod-{pod_number}"
        began = time.monotonic()
        found.cluster.store.create(PODS, _pod(name, form), namespace=NAMESPACE)
        _wait_ready(found.cluster, form, name)
        found.ready_ms.append((time.monotonic() - began) * 1000)
        found.seen[form] += 1
        log = found.cluster.client.log(NAMESPACE, name, "main")
        if "GPU" not in log:
            raise AssertionError(f"{form} {name} sees no GPU: {log!r:.200}")
        found.stop.wait(dice.uniform(0.0, 0.5))
        found.cluster.store.delete(PODS, name, NAMESPACE)
        found.cluster.wait(lambda name=name: _present(found.cluster, name), POD_S, f"{form} {name} to go")  # type: ignore[misc]


def _pod(name: str, form: str) -> Obj:
    container: Obj = {"name": "main", "image": "example.com/app:1"}
    spec: Obj = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if form in EXTENDED:
        container["resources"] = {"limits": {EXTENDED[form]: "1"}}
    else:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": form.replace(" ", "-")}]
    return {"metadata": {"name": name}, "spec": spec}


def _wait_ready(cluster: Cluster, form: str, name: str) -> None:
    """Raises AssertionError with the pod's last events. They are not read before: there are thousands."""

    def unready() -> str | None:
        pod = cluster.store.find(PODS, name, NAMESPACE)
        return None if pod is not None and is_ready(pod) else "it is not ready"

    try:
        cluster.wait(unready, POD_S, f"{form} {name}")
    except DraError as error:
        events = cluster.store.list(EVENTS, NAMESPACE).items
        told = [each["message"] for each in events if each["involvedObject"]["name"] == name]
        raise AssertionError(f"{error}: {told[-3:]}") from error


def _present(cluster: Cluster, name: str) -> str | None:
    return f"{name} is still there" if cluster.store.find(PODS, name, NAMESPACE) else None


def _disturb(found: ClusterRun) -> None:
    dice = random.Random(f"{found.seed}-disturbances")  # noqa: S311 - what happens
    hardware = {name: _hardware(found.cluster, name) for name in NODES}
    while not found.stop.wait(dice.uniform(0.5, 1.5) * PAUSE_S):
        node = found.cluster.nodes[dice.choice([*NODES])]
        what = dice.choice(["kill", "kill", "kubelet", "API server", "health", "health"])
        found.seen[f"disturbed: {what}"] += 1
        if what == "kill":
            node.process.kill()
            found.stop.wait(dice.uniform(0.0, 1.0))
            node.process.start()
        elif what == "kubelet":
            node.restart_kubelet()
        elif what == "API server":
            found.cluster.stop_api_server()
            found.stop.wait(dice.uniform(0.0, 1.0))
            found.cluster.start_api_server()
        else:
            ill = dice.choice(hardware[node.name].snapshot().gpus).uuid
            hardware[node.name].inject(ill, dice.choice(ILLNESSES))
            found.stop.wait(dice.uniform(0.2, 2.0))
            hardware[node.name].recover(ill)
    for each in hardware.values():
        for one in each.snapshot().gpus:
            each.recover(one.uuid)


def _hardware(cluster: Cluster, name: str) -> SimulatedBackend:
    state = cluster.nodes[name].folders.plugins / DRIVER / "simulated-gpus.json"
    return SimulatedBackend.from_spec(NODES[name], name, state_file=state)


def _watch(found: ClusterRun) -> None:
    gpus = SimulatedBackend.from_spec(NODES["gpu-a"], "gpu-a").snapshot().gpus
    memory = {f"{node}/{DRIVER} gpu-{each.minor}": each.memory_bytes or 0 for node in NODES for each in gpus}
    noted = 0
    while not found.stop.wait(CHECK_S):
        held = grants(found.cluster.store.list(RESOURCE_CLAIMS).items, gpus)
        found.failures += granted_twice([grant for each in held.values() for grant in each], memory)
        found.checks += 1
        if found.done >= noted + 50:
            noted = found.done
            for node in found.cluster.nodes.values():
                if (pid := node.process.pid) is not None and node.process.is_running:
                    found.memory.append(Memory(claims=noted, pid=pid, mib=rss_mib(pid)))


def _look_for_leaks(found: ClusterRun) -> None:
    def left() -> str | None:
        claims = [claim["metadata"]["name"] for claim in found.cluster.store.list(RESOURCE_CLAIMS).items]
        return ", ".join([*found.cluster.leftovers(), *(f"claim {name}" for name in claims)]) or None

    try:
        found.cluster.wait(left, 60.0, "the cluster to be clean")
    except DraError as error:
        found.failures.append(f"leak: {error}")
    if found.failures:
        logs = [f"{node.name}: {node.process.log_tail(20)}" for node in found.cluster.nodes.values()]
        found.failures.append("the logs end with\n" + "\n".join(logs))
