"""Opt-in parts, through a proxy that records their requests, and requests that readers must not make."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.core.errors import AlreadyExistsError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from dra_driver.kube.state import TAINT_RULE_APIS
from dra_driver.node.process.health_conditions import RECOVERED, UNHEALTHY
from tests.contract.node.process.processes import ask
from tests.e2e.cluster import wait
from tests.fakes.dra_objects import DRIVER
from tests.fakes.kubelet import DraClient, dial
from tests.fakes.node_process import NodeProcess
from tests.fakes.recording_proxy import RecordingProxy
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.claims_api import NAMESPACE, ClaimMaker
from tests.harness.servers import free_port
from tests.rights.accounts import pod_on
from tests.rights.forbidden import RESOURCE, World, event, slice_of
from tests.rights.lives import WAIT_S, Life, controller, is_leaving, prepared_claim
from tests.rights.request import Obj, Request

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

        wait(dropped, 30.0)  # where controllers run, they write it, too

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *arguments]
        command += ["--kubeconfig", str(self._config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


READER_WAIT_S = 120.0
WATCH = {"watch": "true", "timeoutSeconds": "1"}
CHANGE: Obj = {"metadata": {"labels": {"by": "an intruder"}}}
SURVEYED = 'dra_driver_capacity_surveys_total{result="done"} 1.0'


class SurveyingController(Life):
    def __init__(self, folder: Path, proxy: RecordingProxy, namespace: str) -> None:
        self._port = free_port()
        flags = {"policy_status": "false", "capacity_interval": "60", "http_addr": f"127.0.0.1:{self._port}"}
        super().__init__(controller(folder, proxy, namespace, **flags), proxy)

    def live(self) -> list[tuple[str, str]]:
        with self._running():
            self._wait(self._surveyed, READER_WAIT_S)
        return list(self._proxy.requests)

    def _surveyed(self) -> bool:
        assert "free capacity not surveyed" not in self._process.text, self._process.text
        try:
            return SURVEYED in ask(self._port, "/metrics")[1]
        except OSError:  # it does not listen yet
            return False


def usage(config: Path, namespace: str) -> str:
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "usage", "--driver-namespace", namespace]
    done = subprocess.run(
        [*command, "--kubeconfig", str(config)], capture_output=True, text=True, timeout=READER_WAIT_S, check=False
    )
    return f"{done.stdout}{done.stderr}"


def of_a_survey(world: World) -> Iterator[Request]:
    """Beside the four lists: single objects, watches and all writes of the same kinds, and what is near them."""
    claim = paths.resource_claim(world.tenant, "x")
    taint = {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}
    rule: Obj = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "x"}}
    collections = (
        ("slices", paths.resource_slices()),
        ("claims", paths.resource_claims()),
        ("nodes", paths.nodes()),
        *((f"taint rules of {api.rpartition('/')[2]}", f"{api}/devicetaintrules") for api in TAINT_RULE_APIS),
    )
    for what, path in collections:
        yield Request(f"watch {what}", "GET", path, query=WATCH)
        yield Request(f"delete all {what}", "DELETE", path)
    yield Request("read a slice", "GET", paths.resource_slices("x"))
    yield Request("read a claim", "GET", claim)
    yield Request("read a Node", "GET", paths.node(world.own))
    yield Request("create a slice", "POST", paths.resource_slices(), slice_of(world.own, f"{world.own}/{DRIVER}"))
    yield Request("taint all GPUs by a rule", "POST", f"{TAINT_RULE_APIS[1]}/devicetaintrules", rule)
    yield Request("change a taint rule", "PATCH", f"{TAINT_RULE_APIS[1]}/devicetaintrules/x", CHANGE)
    yield Request("taint a Node", "PATCH", paths.node(world.own), taint)
    yield Request("a kubelet's own answers", "GET", f"{paths.node(world.own)}/proxy/configz")
    yield Request("allocate a claim", "PATCH", f"{claim}/status", {"status": {}})
    yield Request("list claim templates", "GET", f"{RESOURCE}/v1/resourceclaimtemplates")
    yield Request("list device classes", "GET", paths.device_classes())
    yield Request("list all pods", "GET", paths.pods())
    yield Request("read a pod", "GET", paths.pod(world.tenant, "x"))
    yield Request("list GpuNodes", "GET", paths.gpu_nodes())
    yield Request("list GpuPolicies", "GET", paths.gpu_policies())
    yield Request("list quotas", "GET", paths.resource_quotas())
    yield Request("an event in a tenant's namespace", "POST", paths.events(world.tenant), event(world.tenant))
    yield Request("delete its own Lease", "DELETE", paths.leases(world.namespace, "dra-driver-controller"))
    yield Request("list the Leases of its namespace", "GET", paths.leases(world.namespace))


def of_a_usage_reader(world: World) -> Iterator[Request]:
    """Beside the list of the driver's pods and GET through them; ``x`` is a pod of the namespace."""
    space, own, pod = f"/api/v1/namespaces/{world.namespace}", paths.pods(world.namespace), "x"
    here, system = paths.pod(world.namespace, pod), "kube-system"
    container = {"name": "c", "image": "none.example/none"}
    new_pod = {"metadata": {"name": "rights"}, "spec": {"containers": [container]}}
    yield Request("watch the driver's pods", "GET", own, query=WATCH)
    for verb, does in (("POST", "post to"), ("PUT", "put to"), ("PATCH", "patch"), ("DELETE", "delete from")):
        path = f"{paths.pod(world.namespace, f'{pod}:8082')}/proxy/usage"
        yield Request(f"{does} an exporter", verb, path, {})
    yield Request("read a pod of the driver", "GET", here)
    yield Request("list a tenant's pods", "GET", paths.pods(world.tenant))
    yield Request("list all pods", "GET", paths.pods())
    yield Request("ask a tenant's pod over HTTP", "GET", f"{paths.pod(world.tenant, pod)}:8080/proxy/")
    yield Request("ask a pod of kube-system over HTTP", "GET", f"{paths.pod(system, pod)}:8080/proxy/")
    yield Request("ask a Service over HTTP", "GET", f"{space}/services/dra-driver-other:443/proxy/")
    yield Request("ask a kubelet over HTTP", "GET", f"{paths.node(world.own)}/proxy/pods")
    yield Request("create a pod", "POST", own, new_pod)
    yield Request("label a pod of the driver", "PATCH", here, CHANGE)
    yield Request("change a pod's status", "PATCH", f"{here}/status", {"status": {"podIP": "192.0.2.1"}})
    yield Request("a container in a pod of the driver", "PATCH", f"{here}/ephemeralcontainers", {"spec": {}})
    yield Request("delete a pod of the driver", "DELETE", here)
    yield Request("delete all pods of the driver", "DELETE", own)
    yield Request("evict a pod of the driver", "POST", f"{here}/eviction", {"metadata": {"name": pod}})
    yield Request("run a command in a pod of the driver", "POST", f"{here}/exec", {})
    yield Request("run a command by GET", "GET", f"{here}/exec")
    yield Request("attach to a pod of the driver", "GET", f"{here}/attach")
    yield Request("forward a port of a pod of the driver", "GET", f"{here}/portforward")
    yield Request("read the driver's log", "GET", f"{here}/log")
    yield Request("list the driver's Secrets", "GET", f"{space}/secrets")
    yield Request("list the driver's ConfigMaps", "GET", f"{space}/configmaps")
    yield Request("a token of the node process", "POST", f"{space}/serviceaccounts/dra-driver-node/token", {})
    yield Request("list the driver's events", "GET", paths.events(world.namespace))
    yield Request("list the driver's DaemonSets", "GET", f"/apis/apps/v1/namespaces/{world.namespace}/daemonsets")
    yield Request("list Nodes", "GET", paths.nodes())
    yield Request("list slices", "GET", paths.resource_slices())
    yield Request("list all claims", "GET", paths.resource_claims())
    yield Request("list a tenant's claims", "GET", paths.resource_claims(world.tenant))
    yield Request("list GpuNodes", "GET", paths.gpu_nodes())
