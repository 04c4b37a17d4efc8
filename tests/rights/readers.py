"""Opt-in parts that only read, through a proxy that records their requests, and what their tokens are tried for."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dra_driver.kube import paths
from dra_driver.kube.state import TAINT_RULE_APIS
from tests.contract.node.process.processes import ask
from tests.fakes.dra_objects import DRIVER
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.servers import free_port
from tests.rights.forbidden import RESOURCE, World, event, slice_of
from tests.rights.lives import Life, controller
from tests.rights.request import Obj, Request

WAIT_S = 120.0
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
            self._wait(self._surveyed, WAIT_S)
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
        [*command, "--kubeconfig", str(config)], capture_output=True, text=True, timeout=WAIT_S, check=False
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
