"""Processes that do all that they do in their lives, through a proxy that records their requests."""

import json
from collections.abc import Callable
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


class NodeLife:
    """A node process: it replaces an earlier run's slices, prepares a claim, loses its journal, and warns twice."""

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, node: str) -> None:
        self._admin, self._proxy, self._node = admin, proxy, node
        self._policies = folder / "policies"
        self._policies.mkdir()
        self._process = NodeProcess(
            folder,
            node_name=node,
            kubeconfig=str(proxy.kubeconfig(folder / "proxied.conf")),
            policy_dir=str(self._policies),
            poll_interval="1",
        )

    def live(self) -> list[tuple[str, str]]:
        """All requests. Waits at most a minute for each step."""
        self._admin.create(paths.gpu_policies(), POLICY)
        for number in range(3):
            leftover = resource_slice(self._node, gpu("gpu-0"), name=f"rights-{self._node}-{number}")
            self._admin.create(SLICES, leftover)
        try:
            self._process.start()
            claim = self._prepare()
            self._edit_a_slice()
            self._lose_the_journal(claim)
            self._warn_twice()
            self._wait(lambda: self._asked("PATCH", "/gpunodes/"))
            self._process.end()
        finally:
            self._process.kill()
            self._admin.delete(paths.gpu_policies(POLICY["metadata"]["name"]))
        return list(self._proxy.requests)

    def _wait(self, condition: Callable[[], object]) -> None:
        self._process.wait_for(condition, WAIT_S)

    def _slices(self) -> list[Obj]:
        listed = self._admin.list(SLICES, {"fieldSelector": f"spec.nodeName={self._node},spec.driver={DRIVER}"})
        found: list[Obj] = listed["items"]
        return found

    def _prepare(self) -> dict[str, str]:
        self._wait(self._process.registration.exists)
        register(self._process.registration)
        self._wait(lambda: "gpu-1" in json.dumps(self._slices()))
        ensure_namespace(self._admin)
        claim = ClaimMaker(self._admin, node=self._node, driver=DRIVER).make(0)
        with dial(self._process.dra) as channel:
            answer = DraClient(channel).prepare(claim["uid"], namespace=claim["namespace"], name=claim["name"])
        assert answer.claims[claim["uid"]].error == ""
        return claim

    def _edit_a_slice(self) -> None:
        """The driver puts back what another client changes."""
        edited = next(item for item in self._slices() if item["spec"].get("devices"))
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

    def _asked(self, method: str, part: str) -> bool:
        return any(verb == method and part in path for verb, path in self._proxy.requests)


class ControllerLife:
    """A controller: it takes its Lease, evicts a pod, is refused another one, repeats that, and releases the Lease.

    In between it writes the status of a policy.
    """

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, namespace: str) -> None:
        self._admin, self._proxy = admin, proxy
        flags: dict[str, str | None] = {
            "kubeconfig": str(proxy.kubeconfig(folder / "proxied.conf")),
            "namespace": namespace,
            "pod_name": "rights",
            "grace": "0",
            "max_evictions_per_minute": "600",
            "evict_extended_resource_pods": "true",
            "lease_duration": "3",
        }
        self._process = DriverProcess("controller", folder, flags)

    def live(self, done: Callable[[], bool]) -> list[tuple[str, str]]:
        self._admin.create(paths.gpu_policies(), POLICY)
        try:
            self._process.start()
            for condition in (done, self._repeated, self._wrote_status):
                self._process.wait_for(condition, WAIT_S)
            assert self._process.end()[0] == 0
        finally:
            self._process.kill()
            self._admin.delete(paths.gpu_policies(POLICY["metadata"]["name"]))
        return list(self._proxy.requests)

    def _repeated(self) -> bool:
        return any(method == "PATCH" and "/events" in path for method, path in self._proxy.requests)

    def _wrote_status(self) -> bool:
        return any(method == "PUT" and "gpupolicies" in path for method, path in self._proxy.requests)
