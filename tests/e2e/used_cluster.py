"""The chart's usage exporter beside real pods: the release, pods that use simulated GPUs, and what is told of them.

The pods' own processes are the ones that use the GPUs; how much each uses says an annotation of its claim. One process
of the host uses the shared GPU beside them.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, Final

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated.usage import ANNOTATION, SimulatedUse, change_uses, parse_steps
from dra_driver.hardware.gpu.simulated.usage import NAME as USAGE_FILE
from dra_driver.kube import paths
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from tests.e2e import objects
from tests.e2e.cluster import DRIVER, RealCluster
from tests.e2e.helm_release import NAMESPACE, Release
from tests.e2e.node import STATE_DIR
from tests.e2e.objects import policy
from tests.rights.accounts import Account, token

GIB: Final = 2**30
GPUS: Final = "1xa100-sxm4-40gb,2xh100-sxm5-80gb"
"""gpu-0 is shared; the others are taken whole and cut."""
GRACE_S: Final = 10
IDLE_MIN: Final = 1
"""The least that a policy takes; eviction comes as many minutes later."""
POLICY: Final = policy(
    "e2e-usage",
    select={"productNames": ["NVIDIA A100*"]},
    sharing={"strategy": "TimeSlicing", "maxShares": 8, "defaultComputePercent": 0},
    usage={
        "overGrant": {"action": "Evict", "graceSeconds": GRACE_S},
        "idle": {"afterMinutes": IDLE_MIN, "action": "Reclaim"},
    },
)
VALUES: Final[dict[str, Any]] = {
    "simulate": GPUS,
    "mpsHost": {"enabled": False},
    "exporter": {"enabled": True, "settings": {"LOG_FORMAT": "json", "INTERVAL": "2"}},
    # On one node with three GPUs, two findings within ten minutes would stop all evictions.
    "controller": {"replicas": 1, "settings": {"BRAKE_PERCENT": "100"}},
    "eviction": {"overGrant": True, "reclaimIdle": True},
    "usageReader": {"enabled": True},
}
HOST_BYTES: Final = 3 * GIB
_HTTP_PORT: Final = 8082
_CONTAINER: Final = re.compile(r"containerd://([0-9a-f]{64})")


def template(name: str, steps: list[dict[str, Any]], request: Obj) -> Obj:
    """A claim template whose pods use what the steps say."""
    return objects.template(name, request, annotations={ANNOTATION: json.dumps(steps)}, labels={"team": name})


def share(memory: str) -> Obj:
    return {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": memory}}, **_of("A100")}


def whole() -> Obj:
    return {"deviceClassName": DRIVER, **_of("H100")}


def partition(profile: str) -> Obj:
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}
    return {"deviceClassName": "mig.nvidia.com", "selectors": [selector, *_of("H100")["selectors"]]}


def _of(product: str) -> Obj:
    expression = f'device.attributes["{DRIVER}"].productName.contains("{product}")'
    return {"selectors": [{"cel": {"expression": expression}}]}


def pod_spec(**templates: str) -> Obj:
    """A container for each claim template, of its name, with three processes of its own."""
    return {
        "containers": [
            {
                "name": container,
                "image": "ubuntu:24.04",
                "command": ["bash", "-c", "trap 'exit 0' TERM; sleep infinity & sleep infinity & wait"],
                "resources": {"claims": [{"name": container}]},
            }
            for container in templates
        ],
        "resourceClaims": [{"name": name, "resourceClaimTemplateName": made} for name, made in templates.items()],
        "terminationGracePeriodSeconds": 2,
    }


def pod(name: str, **templates: str) -> Obj:
    return objects.pod(name, pod_spec(**templates))


class UsedCluster:
    """A cluster with the release on its only node. ``namespace`` is that of the pods."""

    def __init__(self, real: RealCluster, namespace: str, node: str, installed: Release) -> None:
        self.real, self.namespace, self.node, self.installed = real, namespace, node, installed

    def exporter(self) -> Obj:
        """The exporter's pod; the cluster has one node."""
        (found,) = [
            each
            for each in self.real.pods(NAMESPACE)
            if dig(each, "metadata", "labels", "app.kubernetes.io/component") == "exporter"
            and "deletionTimestamp" not in each["metadata"]
        ]
        return found

    def _page(self, page: str) -> str:
        name = self.exporter()["metadata"]["name"]
        return f"{paths.pod(NAMESPACE, f'{name}:{_HTTP_PORT}')}/proxy{page}"

    def usage(self) -> Obj:
        return self.real.rest.get(self._page("/usage"))

    def text(self, page: str) -> str:
        return self.real.rest.get_text(self._page(page))

    def used(self) -> dict[tuple[str, str], float]:
        """GiB in use by pod and container, as /metrics tells."""
        samples = self.samples("dra_claim_memory_used_bytes")
        return {(labels["pod"], labels["container"]): value / GIB for labels, value in samples}

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of one metric, of the containers in this namespace and of GPUs.

        A claim that was seen before its container began has had a series without a pod, which stays for some minutes.
        """
        families = text_string_to_metric_families(self.text("/metrics"))
        found = [(each.labels, each.value) for family in families for each in family.samples if each.name == name]
        return [
            each
            for each in found
            if each[0].get("namespace", self.namespace) == self.namespace and each[0].get("pod") != ""
        ]

    def gpus(self) -> dict[str, Obj]:
        return {each["device"]: each for each in self.usage().get("gpus", ())}

    def gpu_node(self) -> Obj:
        """``status.usage`` of the node's GpuNode."""
        found: Obj = dig(self.real.rest.get(paths.gpu_nodes(self.node)), "status", "usage") or {}
        return found

    def claim_names(self) -> dict[tuple[str, str], str]:
        """Name of the claim by pod and container."""
        return {
            (each["metadata"]["name"], status["name"]): status["resourceClaimName"]
            for each in self.real.pods(self.namespace)
            for status in entries(each, "status", "resourceClaimStatuses")
        }


@contextmanager
def host_process(gpu_uuid: str) -> Iterator[int]:
    """A process of the host that uses the GPU until the body ends. Yields its PID."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        steps = parse_steps(json.dumps([{"memory": str(HOST_BYTES), "utilization": 5}]))
        use = SimulatedUse(
            key="host", gpu_uuid=GpuUuid(gpu_uuid), since=time.time(), pids=(process.pid,), steps=steps
        )  # fmt: skip
        change_uses(STATE_DIR / USAGE_FILE, lambda former: (*former, use))
        try:
            yield process.pid
        finally:
            process.kill()
            change_uses(STATE_DIR / USAGE_FILE, lambda former: [each for each in former if each.key != use.key])


def pids_of(pod: Obj) -> list[int]:
    """Processes of the pod's first container on this host, by their cgroups."""
    found = _CONTAINER.fullmatch(entries(pod, "status", "containerStatuses")[0]["containerID"])
    assert found is not None
    return sorted(
        int(each.parent.name) for each in Path("/proc").glob("[0-9]*/cgroup") if found[1] in _content(each)
    )  # fmt: skip


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile
        return ""


def mounts_of(pid: int) -> dict[str, str]:
    """Mount point -> "ro" or "rw", as the process has it (proc_pid_mountinfo(5))."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
    return {fields[4]: fields[5].split(",")[0] for fields in (line.split() for line in lines)}


GREEDY: Final[list[dict[str, Any]]] = [
    {"memory": "10Gi", "utilization": 30},
    {"after": "15s", "memory": "20Gi", "utilization": 50},
]
"""20 GiB a while after the claim was prepared."""
SLEEPY: Final[list[dict[str, Any]]] = [{"memory": "2Gi", "utilization": 0}]


def deployment(name: str, memory: str, steps: list[dict[str, Any]]) -> list[Obj]:
    """A Deployment of one pod with a share of ``memory``, and its template."""
    return [template(name, steps, share(memory)), objects.deployment(name, pod_spec(gpu=name))]


def job(name: str, memory: str, steps: list[dict[str, Any]]) -> list[Obj]:
    """A Job of one pod with a share of ``memory``, and its template. It tries again once: its program ends with an
    error when it is told to."""
    spec = pod_spec(gpu=name) | {"restartPolicy": "Never"}
    for container in spec["containers"]:
        container["command"] = ["bash", "-c", "trap 'exit 143' TERM; sleep infinity & sleep infinity & wait"]
    pods = {"spec": spec}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return [template(name, steps, share(memory)), {**made, "spec": {"backoffLimit": 1, "template": pods}}]


class Reader:
    """A person with an account and a kubeconfig of their own. ``command`` runs ``kubectl dra`` with its rights."""

    def __init__(self, real: RealCluster, namespace: str, kubeconfig: Path, folder: Path) -> None:
        self._real, self._namespace = real, namespace
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}
        real.rest.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)
        account = Account(name="reader", namespace=namespace, token=token(real.rest, "reader", namespace))
        self.kubeconfig = account.kubeconfig(kubeconfig, folder / "kubeconfig")

    def bind(self, role: str, kind: str, inside: str = "") -> str:
        """Give the account a Role or ClusterRole, in a namespace or everywhere; returns the path of the binding."""
        group = "rbac.authorization.k8s.io"
        name = f"{self._namespace}-{role}"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding" if inside else "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": self._namespace}],
        }
        path = f"/apis/{group}/v1" + (f"/namespaces/{inside}/rolebindings" if inside else "/clusterrolebindings")
        self._real.rest.create(path, binding)
        return f"{path}/{name}"

    def may_list_pods(self, inside: str) -> str:
        """Give the account that right alone; returns the path of the Role, which is deleted with its namespace, too."""
        group = "rbac.authorization.k8s.io"
        path = f"/apis/{group}/v1/namespaces/{inside}/roles"
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": self._namespace}, "rules": rules}
        self._real.rest.create(path, role)
        self.bind(self._namespace, "Role", inside)
        return f"{path}/{self._namespace}"

    def command(self, *arguments: str) -> list[str]:
        module = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl"]
        return [*module, *arguments, "--kubeconfig", str(self.kubeconfig)]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, standard output and standard error."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr


class PageReader:
    """A browser without a window. ``process`` is ``kubectl dra ui``, which has just been started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._address = process.stdout.readline().strip()
        opened = urllib3.request("GET", self._address, timeout=30.0, retries=False)
        assert opened.status == 200, opened.data
        (cookie,) = SimpleCookie(opened.headers["set-cookie"]).values()
        self._base = self._address.partition("/open")[0] + cookie["path"].rstrip("/")
        self._cookie = f"{cookie.key}={cookie.value}"

    def text(self, path: str) -> str:
        """The page, which has to answer 200, without its tags."""
        answer = urllib3.request(
            "GET", self._base + path, headers={"Cookie": self._cookie}, timeout=30.0, retries=False
        )
        assert answer.status == 200, (path, answer.status, answer.data)
        plain = re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]*>", " ", answer.data.decode(), flags=re.DOTALL)
        return " ".join(unescape(plain).split())
