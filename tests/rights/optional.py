"""Opt-in parts that do all that they do in their lives, through a proxy that records their requests."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dra_driver.core.errors import AlreadyExistsError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.health_conditions import RECOVERED, UNHEALTHY
from tests.fakes.dra_objects import DRIVER
from tests.fakes.kubelet import DraClient, dial
from tests.fakes.node_process import NodeProcess
from tests.fakes.recording_proxy import RecordingProxy
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.claims_api import NAMESPACE, ClaimMaker
from tests.rights.accounts import pod_on
from tests.rights.evictions import is_leaving
from tests.rights.installation import until
from tests.rights.lives import WAIT_S, Life, prepared_claim

Obj = dict[str, Any]
CLAIMS = f"/namespaces/{NAMESPACE}/"
TWICE_S = 300.0
"""A device that falls ill twice: events about it are a minute apart, and a fault has to be over for a while."""


class TellingNode(Life):
    """A node process with the switches CLAIM_STATUS and CLAIM_EVENTS, and one prepared claim."""

    _process: NodeProcess

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, node: str) -> None:
        self._admin, self._node = admin, node
        self.claim: dict[str, str] = {}
        config = str(proxy.kubeconfig(folder / "proxied.conf"))
        process = NodeProcess(folder, node_name=node, kubeconfig=config, claim_status="true", claim_events="true")
        super().__init__(process, proxy)

    def live(self) -> list[tuple[str, str]]:
        with self._running():
            self.claim = prepared_claim(self._process, self._admin, self._node)
            self._wait(lambda: self._asked("PATCH", f"resourceclaims/{self.claim['name']}/status"))
            self._fall_ill_twice()
        return list(self._proxy.requests)

    def _fall_ill_twice(self) -> None:
        """The sentence that it has recovered is the same both times: the second is counted on the first event."""
        state = self._process.dra.with_name("simulated-gpus.json")
        gpus = SimulatedBackend.from_spec(str(self._process.flags["simulate"]), self._node, state_file=state)
        ill = gpus.snapshot().gpus[0].uuid
        while not self._asked("PATCH", f"{CLAIMS}events"):
            sick, well = self._told(UNHEALTHY), self._told(RECOVERED)
            gpus.inject(ill, "xid=79")
            self._wait(lambda before=sick: self._told(UNHEALTHY) > before, TWICE_S)  # type: ignore[misc]
            gpus.recover(ill)
            self._wait(lambda before=well: self._told(RECOVERED) > before, TWICE_S)  # type: ignore[misc]

    def _told(self, reason: str) -> int:
        events = self._admin.list(paths.events(NAMESPACE))["items"]
        return sum(each.get("count", 1) for each in events if each["reason"] == reason)


class Drainer(Life):
    """``kubectl dra drain --evict`` and ``undrain`` of a node with a pod that has a GPU, and whose driver is closed."""

    _process: NodeProcess

    def __init__(self, folder: Path, admin: RestClient, admin_file: Path, proxy: RecordingProxy, node: str) -> None:
        self._admin, self._node = admin, node
        self._config = proxy.kubeconfig(folder / "drainer.conf")
        super().__init__(NodeProcess(folder, node_name=node, kubeconfig=str(admin_file)), proxy)

    def live(self) -> list[tuple[str, str]]:
        with self._running():
            claim = prepared_claim(self._process, self._admin, self._node)
            pod = self._user_of(claim)
            with self._as_a_cluster_would(claim, pod):
                self._run("drain", self._node, "--evict", "--force", "--timeout", "120")
            self._run("undrain", self._node, "--timeout", "120")
        return list(self._proxy.requests)

    def _user_of(self, claim: dict[str, str]) -> str:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with suppress(AlreadyExistsError):  # a controller makes it where one runs
            self._admin.create(f"/api/v1{CLAIMS}serviceaccounts", account)
        body = pod_on(self._node, "default", NAMESPACE, f"user-{claim['name']}")
        pod = self._admin.create(paths.pods(NAMESPACE), body)
        path = paths.resource_claim(NAMESPACE, claim["name"])
        stored = self._admin.get(path)
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        stored["status"]["reservedFor"] = [user]
        self._admin.update(f"{path}/status", stored)
        return str(pod["metadata"]["name"])

    @contextmanager
    def _as_a_cluster_would(self, claim: dict[str, str], pod: str) -> Iterator[None]:
        """Without kubelet and controllers a pod that is evicted ends here, and its claim is taken back."""
        over, failed = threading.Event(), list[BaseException]()

        def follow() -> None:
            try:
                while not over.wait(0.2):
                    if is_leaving(self._admin, NAMESPACE, pod):
                        self._take_back(claim)
                        return
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                failed.append(error)

        thread = threading.Thread(target=follow, name="cluster")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(WAIT_S)
        assert failed == []

    def _take_back(self, claim: dict[str, str]) -> None:
        with dial(self._process.dra) as channel:
            DraClient(channel).unprepare(claim["uid"], namespace=NAMESPACE, name=claim["name"])
        maker = ClaimMaker(self._admin, node=self._node, driver=DRIVER)

        def dropped() -> str:
            maker.drop(claim)
            return ""

        until(dropped)  # where controllers run, they write it, too

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *arguments]
        command += ["--kubeconfig", str(self._config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
