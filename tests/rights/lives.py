"""Processes that do all that they do in their lives, through a proxy that records their requests."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import DriverProcess, NodeProcess
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.claims_api import ClaimMaker, ensure_namespace

Obj = dict[str, Any]
WAIT_S = 60.0
SLICES = paths.resource_slices()
POLICY: Obj = {
    "apiVersion": "gpu.dra-driver.io/v1alpha1",
    "kind": "GpuPolicy",
    "metadata": {"name": "rights-object"},
    # Not for other nodes: they would see its definition deleted, and a node then keeps its last policies.
    "spec": {"select": {"nodeNames": ["rights-*"]}},
}
WRONG = "kind: Nonsense\n"
RIGHT = """
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: rights-are-right}
spec: {priority: 1}
"""


class Life:
    """A process behind a proxy that records its requests."""

    def __init__(self, process: DriverProcess, proxy: RecordingProxy) -> None:
        self._process, self._proxy = process, proxy

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            self._process.start()
            yield
            assert self._process.end()[0] == 0
        finally:
            self._process.kill()

    def _wait(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        self._process.wait_for(condition, timeout_s)

    def _asked(self, method: str, part: str) -> int:
        """The number of requests with this in their path."""
        return sum(verb == method and part in path for verb, path in self._proxy.requests)


def controller(folder: Path, proxy: RecordingProxy, namespace: str, **flags: str) -> DriverProcess:
    own = {"namespace": namespace, "pod_name": "rights", "lease_duration": "3", **flags}
    return DriverProcess("controller", folder, {"kubeconfig": str(proxy.kubeconfig(folder / "proxied.conf")), **own})


def prepared_claim(process: NodeProcess, admin: RestClient, node: str) -> dict[str, str]:
    """A claim for the first GPU, allocated as a scheduler does and prepared as a kubelet does."""
    process.wait_for(process.registration.exists, WAIT_S)
    register(process.registration)
    process.wait_for(lambda: "gpu-1" in json.dumps(slices_of(admin, node)), WAIT_S)
    ensure_namespace(admin)
    claim = ClaimMaker(admin, node=node, driver=DRIVER).make(0)
    with dial(process.dra) as channel:
        answer = DraClient(channel).prepare(claim["uid"], namespace=claim["namespace"], name=claim["name"])
    assert answer.claims[claim["uid"]].error == ""
    return claim


def slices_of(admin: RestClient, node: str) -> list[Obj]:
    listed = admin.list(SLICES, {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"})
    found: list[Obj] = listed["items"]
    return found


class NodeLife(Life):
    """A node process: it replaces an earlier run's slices, prepares a claim, loses its journal, and warns twice."""

    _process: NodeProcess

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, node: str) -> None:
        self._admin, self._node = admin, node
        self._policies = folder / "policies"
        self._policies.mkdir()
        config = str(proxy.kubeconfig(folder / "proxied.conf"))
        policies = str(self._policies)
        process = NodeProcess(folder, node_name=node, kubeconfig=config, policy_dir=policies, poll_interval="1")
        super().__init__(process, proxy)

    def live(self) -> list[tuple[str, str]]:
        self._admin.create(paths.gpu_policies(), POLICY)
        for number in range(3):
            leftover = resource_slice(self._node, gpu("gpu-0"), name=f"rights-{self._node}-{number}")
            self._admin.create(SLICES, leftover)
        try:
            with self._running():
                claim = prepared_claim(self._process, self._admin, self._node)
                self._edit_a_slice()
                self._lose_the_journal(claim)
                self._warn_twice()
                self._wait(lambda: self._asked("PATCH", "/gpunodes/"))
        finally:
            self._admin.delete(paths.gpu_policies(POLICY["metadata"]["name"]))
        return list(self._proxy.requests)

    def _edit_a_slice(self) -> None:
        edited = next(item for item in slices_of(self._admin, self._node) if item["spec"].get("devices"))
        edited["spec"]["devices"].pop()
        self._admin.update(f"{SLICES}/{edited['metadata']['name']}", edited)
        self._wait(lambda: any(method == "PUT" and "slices" in path for method, path in self._proxy.requests))

    def _lose_the_journal(self, claim: dict[str, str]) -> None:
        self._process.kill()
        for path in self._process.dra.parent.glob("state.db*"):
            path.unlink()
        before = self._reads(claim)
        self._process.start()
        self._wait(lambda: self._reads(claim) > before)

    def _reads(self, claim: dict[str, str]) -> int:
        return self._proxy.requests.count(("GET", paths.resource_claim(claim["namespace"], claim["name"])))

    def _warn_twice(self) -> None:
        """A repeat is counted on the first event when the process ends, or ten seconds after the first."""
        wrong, right = self._policies / "wrong.yaml", self._policies / "right.yaml"
        wrong.write_text(WRONG)
        self._wait(lambda: self._asked("POST", "/events"))
        wrong.unlink()
        right.write_text(RIGHT)
        self._wait(lambda: "rights-are-right" in self._process.text)
        told = self._process.text.count("policy problem")
        wrong.write_text(WRONG)
        self._wait(lambda: self._process.text.count("policy problem") > told)
        self._wait(lambda: self._asked("PATCH", "/events"))


class ControllerLife(Life):
    """A controller: it takes its Lease, evicts a pod, is refused another one, repeats that, and releases the Lease.

    In between it writes the status of a policy.
    """

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, namespace: str) -> None:
        self._admin = admin
        flags = {"grace": "0", "max_evictions_per_minute": "600", "evict_extended_resource_pods": "true"}
        super().__init__(controller(folder, proxy, namespace, **flags), proxy)

    def live(self, done: Callable[[], bool]) -> list[tuple[str, str]]:
        self._admin.create(paths.gpu_policies(), POLICY)
        try:
            with self._running():
                self._wait(done)
                self._wait(lambda: self._asked("PATCH", "/events"))
                self._wait(lambda: self._asked("PUT", "gpupolicies"))
        finally:
            self._admin.delete(paths.gpu_policies(POLICY["metadata"]["name"]))
        return list(self._proxy.requests)
