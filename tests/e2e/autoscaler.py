"""Fake nodes of one node group, each with a node process of its own, and a real cluster-autoscaler that adds and
removes them.

The nodes are Node objects of the autoscaler's provider kwok. No kubelet runs: pods are bound and stay Pending, and
`Fleet.tend` does what machines do: it starts a node process on each new node and renews the nodes' leases.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import yaml

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import CONFIG_MAPS, EVENTS, NODES, PODS
from tests.e2e import forms
from tests.e2e.cluster import GONE_S, KUBECTL_DRA, RealCluster, wait
from tests.fakes.node_process import NodeProcess

GROUP: Final = "gpus"
MAX_NODES: Final = 4
KWOK: Final = "cluster-autoscaler.kwok.nodegroup"
LABEL: Final = "e2e.dra-driver.io/group"
HOSTNAME: Final = "kubernetes.io/hostname"
KEPT: Final = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
PROVISION_S: Final = 120.0
LEASE_S: Final = 10.0
LOOPS: Final = 3
"""Scans of the autoscaler after which a state counts as kept."""
QUICK: Final = {
    "scan-interval": "1s",
    "scale-down-unneeded-time": "2s",
    "scale-down-delay-after-add": "0s",
    "unremovable-node-recheck-timeout": "1s",
    "node-delete-delay-after-taint": "0s",
}


def dra(kubeconfig: str, *words: str, status: int = 0) -> str:
    """Standard output of a kubectl dra command that must end with this status."""
    command = [*KUBECTL_DRA, *words, "--kubeconfig", kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROVISION_S, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


class Fleet:
    """One node group on one kind of GPUs. Not thread-safe."""

    def __init__(self, cluster: RealCluster, kubeconfig: str, namespace: str, folder: Path) -> None:
        self.cluster, self.kubeconfig, self.namespace, self._folder = cluster, kubeconfig, namespace, folder
        self.policies = folder / "policies"
        self.policies.mkdir()
        self.gpus = ""
        self.boots = True
        """New nodes get a node process; False for a driver that never starts."""
        self.processes: dict[str, NodeProcess] = {}
        self._renewed: dict[str, float] = {}
        self._autoscaler: subprocess.Popen[bytes] | None = None
        self._log = folder / "autoscaler.log"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{found.getsockname()[1]}"

    # --- Nodes, as machines and kubelets keep them.

    def add(self, gpus: str, *names: str, removable: bool = False) -> None:
        """Create nodes with these GPUs, and wait until they have published them.

        The autoscaler removes them only if they are ``removable``; the nodes that it adds always are.
        """
        self.gpus = gpus
        for name in names:
            marks = {f"{KWOK}/name": GROUP, "kwok.x-k8s.io/node": "fake"}
            node = _node(name, marks if removable else marks | KEPT)
            self.cluster.rest.create(paths.nodes(), node | {"spec": {"providerID": f"kwok:{name}"}})
        self.wait(lambda: "; ".join(filter(None, map(self._unpublished, names))))

    def nodes(self) -> list[str]:
        return sorted(node["metadata"]["name"] for node in self._nodes())

    def _nodes(self) -> list[Obj]:
        return [node for node in self.cluster.nodes() if dig(node, "metadata", "labels", LABEL) == GROUP]

    def slices(self, node: str) -> list[Obj]:
        return [item for item in self.cluster.slices() if dig(item, "spec", "nodeName") == node]

    def _unpublished(self, node: str) -> str | None:
        found = self.slices(node)
        if found and len(found) == found[0]["spec"]["pool"]["resourceSliceCount"]:
            return None
        process = self.processes.get(node)
        return f"node {node} published {len(found)} slices: {process.text if process else 'no process'}"

    def tend(self) -> None:
        for node in self.nodes():
            if node not in self.processes and self.boots:
                self.cluster.rest.merge_patch(paths.node(node), {"metadata": {"labels": {HOSTNAME: node}}})
                self.processes[node] = self._boot(node)
            if time.monotonic() - self._renewed.get(node, -LEASE_S) >= LEASE_S:
                self._renew(node)
                self._renewed[node] = time.monotonic()

    def _boot(self, node: str) -> NodeProcess:
        folder = self._folder / node
        folder.mkdir()
        flags = {"simulate": self.gpus, "policy_dir": str(self.policies), "poll_interval": "1"}
        return NodeProcess(folder, environ={"KUBECONFIG": self.kubeconfig}, node_name=node, **flags).start()

    def _renew(self, node: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now}
        try:
            self.cluster.rest.merge_patch(paths.leases("kube-node-lease", node), {"spec": spec})
        except NotFoundError:
            header = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node}}
            self.cluster.rest.create(paths.leases("kube-node-lease"), header | {"spec": spec})

    def wait(self, complaint: Callable[[], str | None], timeout_s: float = PROVISION_S) -> None:
        def tended() -> str | None:
            self.tend()
            assert self._autoscaler is None or self._autoscaler.poll() is None, self._log.read_text()[-4000:]
            return complaint()

        wait(tended, timeout_s)

    # --- The autoscaler.

    def autoscale(self, **flags: str) -> None:
        """Start the autoscaler, and wait until it has scanned the nodes."""
        provider = {
            "readNodesFrom": "configmap",
            "nodegroups": {"fromNodeLabelKey": LABEL},
            "nodes": {"skipTaint": True},
            "configmap": {"name": "kwok-provider-templates"},
        }
        template = {"apiVersion": "v1", "kind": "List", "items": [_node(GROUP, {f"{KWOK}/max-count": str(MAX_NODES)})]}
        for name, key, value in (("config", "config", provider), ("templates", "templates", template)):
            metadata = {"name": f"kwok-provider-{name}"}
            data = {key: yaml.safe_dump(value)}
            body = {"apiVersion": "v1", "kind": CONFIG_MAPS.kind, "metadata": metadata, "data": data}
            self.cluster.client.create(body, self.namespace)
        given = QUICK | {name.replace("_", "-"): value for name, value in flags.items()}
        fixed = {
            "cloud-provider": "kwok", "kubeconfig": self.kubeconfig, "namespace": self.namespace, "v": "4",
            "leader-elect": "false", "address": self._address,
        }  # fmt: skip
        command = [os.environ["E2E_AUTOSCALER"], *(f"--{name}={value}" for name, value in (fixed | given).items())]
        environ = {
            **os.environ, "KUBECONFIG": self.kubeconfig, "POD_NAMESPACE": self.namespace,
            "KWOK_PROVIDER_MODE": "local",
        }  # fmt: skip
        with self._log.open("wb") as log:
            self._autoscaler = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        self.scanned()

    def scanned(self, loops: int = LOOPS) -> None:
        """Wait until the autoscaler has completed this many further scans."""
        target = self._loops() + loops + 1
        self.wait(lambda: None if self._loops() >= target else f"{self._loops()} of {target} scans")

    def _loops(self) -> int:
        return self.log().count("Starting main loop")

    def log(self) -> str:
        return self._log.read_text()

    def metrics(self) -> str:
        with urlopen(f"http://{self._address}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    # --- Pods.

    def apply(self, *objects: Obj) -> None:
        self.cluster.apply(objects, self.namespace)

    def pods(self, name: str, request: Obj, **spec: object) -> None:
        """A bare pod with one claim. Such a pod cannot be moved, so its node stays."""
        self.apply(forms.template(name, request), forms.pod(name, self.spec(forms.pod_spec(name), **spec)))

    def deploy(self, name: str, request: Obj, *, replicas: int = 1, **spec: object) -> None:
        """Pods with a controller, which the autoscaler can move."""
        made = forms.deployment(name, self.spec(forms.pod_spec(name), **spec))
        made["spec"]["replicas"] = replicas
        self.apply(forms.template(name, request), made)

    @staticmethod
    def spec(pod: Obj, **more: object) -> Obj:
        """On this group's nodes only, and deleted without a kubelet."""
        return pod | {"nodeSelector": {LABEL: GROUP}, "terminationGracePeriodSeconds": 0} | more

    def placed(self, *names: str) -> dict[str, str]:
        """Pod -> its node, "" for none; of the named ones, or of all whose names begin so."""
        found = {
            pod["metadata"]["name"]: dig(pod, "spec", "nodeName") or "" for pod in self.cluster.pods(self.namespace)
        }
        return {pod: node for pod, node in found.items() if not names or pod.startswith(names)}

    def wait_bound(self, *names: str, count: int | None = None) -> list[str]:
        """Wait until these pods have nodes, and return the nodes in the order of the pods' names."""

        def unbound() -> str | None:
            placed = self.placed(*names)
            waits = [name for name, node in placed.items() if not node]
            if not waits and placed and count in (None, len(placed)):
                return None
            return f"no node: {waits} of {placed}; {self.events()}"

        self.wait(unbound)
        return [node for _, node in sorted(self.placed(*names).items())]

    def delete(self, name: str) -> None:
        """Delete the Deployment of this name, else the pod."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}"
        try:
            self.cluster.rest.delete(path, propagation="Background")
        except NotFoundError:
            self.cluster.client.delete(PODS, name, self.namespace)
        self.wait(lambda: f"pods: {self.placed(name)}" if self.placed(name) else None, GONE_S)

    def events(self, *reasons: str, of: str = "") -> list[str]:
        return [
            f"{dig(event, 'involvedObject', 'name')}: {event['reason']}: {event['message']}"
            for event in self.cluster.client.list(EVENTS, self.namespace)
            if str(dig(event, "involvedObject", "name")).startswith(of) and (not reasons or event["reason"] in reasons)
        ]

    def wait_event(self, reason: str, of: str) -> str:
        """Wait for this event about the pod of this name, or one whose name begins so, and return its text."""
        self.wait(lambda: None if self.events(reason, of=of) else f"no event {reason} of {of}: {self.events(of=of)}")
        return self.events(reason, of=of)[0]

    # --- Expectations.

    def wait_grown(self, pod: str) -> str:
        """Wait until the autoscaler adds one node for the pod and the scheduler binds it there. Returns the node."""
        before = set(self.nodes())
        assert f"{len(before)}->{len(before) + 1}" in self.wait_event("TriggeredScaleUp", pod)
        (node,) = self.wait_bound(pod)
        assert node not in before
        self.scanned()
        assert set(self.nodes()) == before | {node}
        return node

    def wait_refused(self, pod: str) -> None:
        """Wait until the autoscaler has said that no new node helps the pod, and adds none in its next scans."""
        before = self.nodes()
        assert "cannot allocate all claims" in self.wait_event("NotTriggerScaleUp", pod)
        self.scanned()
        assert (self.nodes(), self.events("TriggeredScaleUp", of=pod)) == (before, [])
        said = dra(self.kubeconfig, "explain", "pod", pod, "-n", self.namespace, status=1)
        assert re.search(r"cluster autoscaler, \S+: pod didn't trigger scale-up", said), said

    def wait_nodes(self, *nodes: str) -> None:
        """Wait until these are the nodes, and no slice of another is left, nor published again."""
        self.wait(lambda: None if self.nodes() == sorted(nodes) else f"nodes {self.nodes()}; {self.log()[-3000:]}")
        self.wait(self._without_node, GONE_S)
        self.scanned()
        assert (self.nodes(), self._without_node()) == (sorted(nodes), None)

    def _without_node(self) -> str | None:
        names = set(self.nodes())
        left = [
            item["metadata"]["name"]
            for item in self.cluster.slices()
            if item["spec"]["nodeName"] in self.processes.keys() - names
        ]
        return f"slices without their node: {left}" if left else None

    def wait_said(self, pattern: str, loops: int = LOOPS) -> None:
        """Wait until the autoscaler logs the pattern in this many further lines."""
        target = len(re.findall(pattern, self.log())) + loops
        self.wait(
            lambda: None if len(re.findall(pattern, self.log())) >= target else f"no {pattern}: {self.log()[-3000:]}"
        )

    # --- The end.

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        if self._autoscaler is not None:
            self._autoscaler.send_signal(signal.SIGTERM)
            self._autoscaler.wait(30)
        self.cluster.drop_namespace(self.namespace)
        for node in self.nodes():
            self.cluster.client.delete(NODES, node, "")
        wait(self._without_node, GONE_S)
        for path in (paths.leases("kube-node-lease", node) for node in self._renewed):
            self._delete_lease(path)
        self.cluster.dropped()

    def _delete_lease(self, path: str) -> None:
        try:
            self.cluster.rest.delete(path)
        except NotFoundError:
            return


def _node(name: str, annotations: dict[str, str]) -> Obj:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a fake node",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: GROUP}, "annotations": annotations},
        "status": {"allocatable": room, "capacity": room, "conditions": [ready]},
    }


@contextmanager
def fleet(cluster: RealCluster, kubeconfig: str, title: str, folder: Path) -> Iterator[Fleet]:
    made = Fleet(cluster, kubeconfig, cluster.make_namespace(title), folder)
    try:
        yield made
    finally:
        made.close()
