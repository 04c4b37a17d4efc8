"""What real pods use, told by the chart's exporter: the join, the sums, eviction over a grant, commands and page.

The pods' own processes use the GPUs; an annotation of the claim says how much. One process of the host uses the shared
GPU beside them. Environment: E2E_IMAGE (as for `test_chart_pods`). This host has to be the cluster's node, and its
kubelet has to make cgroups for pods.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated.usage import ANNOTATION, SimulatedUse, change_uses, parse_steps
from dra_driver.hardware.gpu.simulated.usage import NAME as USAGE_FILE
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.usage.sources import place_of
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import EVENTS, PODS
from dra_driver.sim.loop import kind_of
from tests.e2e import forms, test_chart_pods
from tests.e2e.cluster import DRIVER, KUBECTL_DRA, RealCluster, containers, wait
from tests.e2e.forms import policy
from tests.e2e.gates import PARTITIONS, SHARES, why_skipped
from tests.e2e.host import STATE_DIR, local_node
from tests.e2e.test_chart import NAMESPACE, Release, release
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
    return forms.template(name, request, annotations={ANNOTATION: json.dumps(steps)}, labels={"team": name})


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
    return forms.pod(name, pod_spec(**templates))


class UsedCluster:
    """A cluster with the release on its only node. ``namespace`` is that of the pods."""

    def __init__(self, real: RealCluster, namespace: str, node: str, installed: Release) -> None:
        self.real, self.namespace, self.node, self.installed = real, namespace, node, installed

    def exporter(self) -> Obj:
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
        found: Obj = dig(self.real.rest.get(paths.gpu_nodes(self.node)), "status", "usage") or {}
        return found

    def claim_names(self) -> dict[tuple[str, str], str]:
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
    return [template(name, steps, share(memory)), forms.deployment(name, pod_spec(gpu=name))]


def job(name: str, memory: str, steps: list[dict[str, Any]]) -> list[Obj]:
    """A Job of one pod with a share of ``memory``, and its template. It tries again once: its program ends with an
    error on demand."""
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
        return [*KUBECTL_DRA, *arguments, "--kubeconfig", str(self.kubeconfig)]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr


class PageReader:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._address = process.stdout.readline().strip()
        opened = urllib3.request("GET", self._address, timeout=30.0, retries=False)
        assert opened.status == 200, opened.data
        (cookie,) = SimpleCookie(opened.headers["set-cookie"]).values()
        self._base = self._address.partition("/open")[0]
        self._cookie = f"{cookie.key}={cookie.value}"

    def text(self, path: str) -> str:
        answer = urllib3.request(
            "GET", self._base + path, headers={"Cookie": self._cookie}, timeout=30.0, retries=False
        )
        assert answer.status == 200, (path, answer.status, answer.data)
        plain = re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]*>", " ", answer.data.decode(), flags=re.DOTALL)
        return " ".join(unescape(plain).split())


pytestmark = pytest.mark.needs(SHARES, PARTITIONS)
READY_S = 240.0
TOLD_S = 60.0
EVICTED_S = 180.0
OBJECTS = [
    template("left", [{"memory": "4Gi", "utilization": 20}], share("12Gi")),
    template("right", [{"memory": "6Gi", "utilization": 40, "processes": 2}], share("12Gi")),
    template("slice", [{"memory": "5Gi", "utilization": 70}], partition("1g.10gb")),
    template("whole", [{"memory": "30Gi", "utilization": 90, "processes": 3}], whole()),
    pod("pair", left="left", right="right"),
    pod("cut", slice="slice"),
    pod("alone", whole="whole"),
]
FROM = "from 1 of 1 exporters,"
TOLD_TO_PODS = {"GpuEvictionAnnounced", "GpuEviction"}
USED = {("pair", "left"): 4.0, ("pair", "right"): 6.0, ("cut", "slice"): 5.0, ("alone", "whole"): 30.0}
PROCESSES = {("pair", "left"): 1, ("pair", "right"): 2, ("cut", "slice"): 1, ("alone", "whole"): 3}


@pytest.fixture(scope="module")
def used(kubeconfig: str, gates: dict[str, bool]) -> Iterator[UsedCluster]:
    if reason := why_skipped([SHARES, PARTITIONS], gates):
        pytest.skip(reason)
    values = test_chart_pods.image_values() | VALUES
    real = RealCluster(RestClient(Connection.load(kubeconfig)))
    if (node := local_node(real.nodes())) is None:
        pytest.skip("this host is no node of the cluster, so no process of its own can use a GPU beside pods")
    with release(kubeconfig) as installed:
        installed.install(values, wait=True)
        real.rest.create(paths.gpu_policies(), POLICY)
        wait(lambda: None if is_shared(real) else "no GPU is shared", READY_S)
        namespace = real.make_namespace("usage")
        real.apply(OBJECTS, namespace)
        wait(lambda: test_chart_pods.not_running(real, namespace), READY_S)
        found = UsedCluster(real, namespace, node, installed)
        if place_of(Path(f"/proc/{pids_of(found.exporter())[0]}/cgroup").read_text()) is None:
            pytest.skip("the node's kubelet makes no cgroups for pods")
        wait(lambda: None if len(found.gpus()) == 3 else str(found.usage()), TOLD_S)
        with host_process(found.gpus()["gpu-0"]["uuid"]):
            yield found
        real.rest.delete(paths.gpu_policies("e2e-usage"))
        test_chart_pods.remove(real, installed, namespace, values, print)
        real.dropped()


def is_shared(real: RealCluster) -> bool:
    return any(device.get("allowMultipleAllocations") for device in real.devices())


def test_each_process_counts_for_its_claim_and_every_gpu_adds_up(used: UsedCluster) -> None:
    wait(lambda: None if used.used() == USED else str(used.used()), TOLD_S)
    names = used.claim_names()
    told = used.samples("dra_claim_memory_used_bytes")
    assert {(each["pod"], each["container"]): each["claim"] for each, _ in told} == names
    counts = used.samples("dra_claim_processes")
    assert {(each["pod"], each["container"]): count for each, count in counts} == PROCESSES
    wait(lambda: wrong_sums(used), TOLD_S)
    answer = used.usage()
    assert set(answer["knows"].values()) == {True}, answer["knows"]
    by_claim = {each["name"]: each for each in answer["claims"] if each["namespace"] == used.namespace}
    assert {name: each["pods"] for name, each in by_claim.items()} == {
        claim: [pod_name] for (pod_name, _), claim in names.items()
    }
    forms = {key: by_claim[claim]["devices"][0]["form"] for key, claim in names.items()}
    assert forms == {**dict.fromkeys(USED, "share"), ("cut", "slice"): "partition", ("alone", "whole"): "whole"}


def wrong_sums(used: UsedCluster) -> str | None:
    """On each GPU claims + unattributed + reserved = used, with the parts that the pods and the host have."""
    gpus = used.gpus()
    (cut,) = [name for name, each in gpus.items() if each["instances"]]
    claims = dict.fromkeys(gpus, 30 * GIB) | {"gpu-0": 10 * GIB, cut: 5 * GIB}
    for name, each in gpus.items():
        parts = [each[f"memory{part}Bytes"] for part in ("Claims", "Unattributed", "Reserved")]
        expected = [claims[name], HOST_BYTES if name == "gpu-0" else 0]
        if parts[:2] != expected or not parts[2] or sum(parts) != each["memoryUsedBytes"]:
            return f"{name}: {parts}, in use {each['memoryUsedBytes']}; expected {expected}"
    return None


def test_a_process_of_the_host_is_told(used: UsedCluster) -> None:
    """By the GpuNode and an event of the Node, after 30 s; nothing of a claim is over."""
    wait(lambda: None if used.gpu_node().get("unattributed") else str(used.gpu_node()), 2 * TOLD_S)
    found = used.gpu_node()
    (told,) = found["unattributed"]
    assert (told["gpu"], told["processes"], told["memory"]) == ("gpu-0", 1, "3Gi")
    assert told["commands"][0].startswith("python")
    assert not found.get("overGrant")
    messages = [each["message"] for each in events_of(used, used.node, "default")]
    wait(lambda: None if any("belong to no claim" in each for each in messages) else str(messages), TOLD_S)


def test_it_can_write_one_folder_and_sees_nothing_of_the_hosts_processes_but_its_proc(used: UsedCluster) -> None:
    (process, *others) = pids_of(used.exporter())
    assert not others
    mounts = mounts_of(process)
    own = next(path for path in mounts if path.endswith("/findings"))
    kept = {path: mode for path, mode in mounts.items() if not path.startswith(("/dev", "/proc", "/sys", "/etc/"))}
    assert kept.pop(own) == "rw"
    writable = {path for path, mode in kept.items() if mode == "rw"}
    assert writable <= {"/var/run/secrets/kubernetes.io/serviceaccount"}, writable
    assert {"/host/proc", "/pod-resources", "/var/log/containers"} <= kept.keys()
    status = Path(f"/proc/{process}/status").read_text()
    (inside,) = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
    assert inside[-1] == "1"
    assert "token" not in str(list(Path(f"/proc/{process}/root/var/run").glob("secrets/**/*")))


def test_it_takes_little(used: UsedCluster, say: Callable[[str], None]) -> None:
    """As the kernel counts it, within what the chart requests (memory 64Mi)."""
    (process,) = pids_of(used.exporter())
    cpu_s, began = cpu_seconds(process), time.monotonic()
    wait(lambda: None if time.monotonic() > began + 20 else "measured", 30.0)
    share_of_core = (cpu_seconds(process) - cpu_s) / (time.monotonic() - began)
    (resident,) = [int(line.split()[1]) for line in status_of(process) if line.startswith("VmRSS:")]
    seconds = {name: sum(v for _, v in used.samples(f"dra_exporter_look_seconds_{name}")) for name in ("sum", "count")}
    look_ms = 1000 * seconds["sum"] / seconds["count"]
    say(f"exporter: {resident >> 10} MiB, {share_of_core:.1%} of a core at a look every 2 s, {look_ms:.0f} ms each")
    assert resident < 64 << 10


def status_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def cpu_seconds(pid: int) -> float:
    """User and system (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def reader(used: UsedCluster, kubeconfig: str, tmp_path: Path) -> Iterator[Reader]:
    namespace = used.real.make_namespace("reader")
    yield Reader(used.real, namespace, Path(kubeconfig), tmp_path)
    used.real.drop_namespace(namespace)


def test_people_with_the_readers_role_ask_by_command(
    used: UsedCluster, reader: Reader, say: Callable[[str], None]
) -> None:
    """Each command says which right is missing; the role is enough for use, and `view` for labels and quotas."""

    def told(*arguments: str) -> str:
        status, out, error = reader.run(*arguments)
        say(f"$ kubectl dra {' '.join(arguments)}\n{error}{out}")
        assert (status, error[:22]) == (0, FROM)
        return out

    def refused(missing: str, *arguments: str) -> None:
        status, out, error = reader.run(*arguments)
        say(f"$ kubectl dra {' '.join(arguments)}\n{error}")
        assert (status, out) == (1, "")
        assert f'cannot list resource "{missing}"' in error

    def until_allowed(command: str) -> None:
        wait(lambda: ((done := reader.run(command))[0] and done[2]) or None, TOLD_S)

    wait(lambda: None if used.used() == USED else str(used.used()), TOLD_S)
    refused("pods", "usage")
    bound = [reader.may_list_pods(NAMESPACE)]
    wait(lambda: None if "pods/proxy" in reader.run("usage")[2] else "the binding is not seen yet", TOLD_S)
    error = reader.run("usage")[2]
    say(f"without pods/proxy: {error}")
    assert 'cannot get resource "pods/proxy"' in error
    bound.append(reader.bind("dra-driver-usage-reader", "Role", NAMESPACE))
    until_allowed("usage")
    items = json.loads(told("usage", "-n", used.namespace, "-o", "json"))["items"]
    assert {(each["pods"][0], each["usedBytes"] / GIB) for each in items} == {(p, gib) for (p, _), gib in USED.items()}
    assert "alone" in told("usage", "-n", used.namespace)
    assert used.namespace in told("usage", "--by", "namespace")
    assert "would fit a share of 5 GiB" in told("idle", "-n", used.namespace)
    refused("resourceclaims", "usage", "--by", "label:team", "-n", used.namespace)
    refused("resourcequotas", "quota")
    bound.append(reader.bind("view", "ClusterRole"))
    until_allowed("quota")
    assert "whole" in told("usage", "--by", "label:team", "-n", used.namespace)
    assert used.namespace in told("quota", "--idle")
    assert "would fit 3g.40gb" in told("idle", "--all", "-n", used.namespace)
    for path in bound:
        used.real.rest.delete(path)


def test_the_page_shows_what_is_used(used: UsedCluster, kubeconfig: str) -> None:
    names = used.claim_names()
    of_pair = [names["pair", each] for each in ("left", "right")]
    expected: list[tuple[str, ...]] = [
        ("/", used.node, "gpu-0", "H100"),
        (f"/nodes/{used.node}", "gpu-0"),
        (f"/nodes/{used.node}/gpu-0", *of_pair),
        ("/claims", *names.values(), "of 12 GiB"),
        *((f"/claims/{used.namespace}/{names[key]}", f"{gib:.0f} GiB") for key, gib in USED.items()),
        *((path,) for path in ("/pending", "/capacity", "/events")),
    ]
    command = [*KUBECTL_DRA, "ui", "--kubeconfig", kubeconfig]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            page = PageReader(process)
            for path, *texts in expected:
                wait(partial(untold, page, path, *texts), TOLD_S)
        finally:
            process.terminate()


def untold(page: PageReader, path: str, *texts: str) -> str | None:
    found = page.text(path)
    missing = [text for text in texts if text not in found]
    return f"{path} lacks {missing}: {found}" if missing else None


def test_a_pod_over_its_grant_leaves_and_its_neighbours_stay(used: UsedCluster, say: Callable[[str], None]) -> None:
    namespace, real = used.namespace, used.real
    before = {each["metadata"]["name"]: containers(each) for each in real.pods(namespace)}
    objects = deployment("greedy", "12Gi", GREEDY)
    real.apply(objects, namespace)
    wait(lambda: None if greedy_pods(used) else str(real.warnings(namespace)), READY_S)
    (first,) = greedy_pods(used)
    name = first["metadata"]["name"]
    wait(lambda: None if used.gpu_node().get("overGrant") else str(used.gpu_node()), TOLD_S)
    (told,) = used.gpu_node()["overGrant"]
    say(f"GpuNode: {json.dumps(told)}")
    assert (told["claim"], told["used"], told["granted"]) == (used.claim_names()[name, "gpu"], "20Gi", "12Gi")
    assert [each["name"] for each in told["pods"]] == [name]
    wait(lambda: None if name not in [p["metadata"]["name"] for p in greedy_pods(used)] else "it stays", EVICTED_S)
    for about, where, reasons in ((used.node, "default", {"GpuMemoryOverGrant"}), (name, namespace, TOLD_TO_PODS)):
        events = {each["reason"]: each["message"] for each in events_of(used, about, where) if is_about(each, name)}
        assert reasons <= events.keys()
        say("\n".join(f"{reason}: {events[reason]}" for reason in sorted(reasons)))
    after = {each["metadata"]["name"]: containers(each) for each in real.pods(namespace)}
    assert {pod_name: after[pod_name] for pod_name in before} == before
    wait(lambda: None if greedy_pods(used) else "no other pod was made", READY_S)
    for obj in reversed(objects):
        real.client.delete(kind_of(obj), "greedy", namespace)
    wait(lambda: None if not greedy_pods(used) else "it is not gone", READY_S)


def greedy_pods(used: UsedCluster) -> list[Obj]:
    return running(used, "greedy")


def running(used: UsedCluster, prefix: str) -> list[Obj]:
    found = [each for each in used.real.pods(used.namespace) if each["metadata"]["name"].startswith(prefix)]
    alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
    return [each for each in alive if dig(each, "status", "phase") == "Running"]


def is_about(event: Obj, name: str) -> bool:
    """Whether it is on the pod or names it; events on Nodes outlive pods and tests."""
    return name in (dig(event, "involvedObject", "name"), *event["message"].split())


def events_of(used: UsedCluster, name: str, namespace: str) -> list[Obj]:
    found = used.real.client.list(EVENTS, namespace)
    return [each for each in found if dig(each, "involvedObject", "name") == name]


def events_told(used: UsedCluster, name: str) -> dict[str, str]:
    """Events of an evicted pod by reason. Waits for all: the controller emits the last after the eviction."""
    found: dict[str, str] = {}

    def missing() -> str | None:
        found.update((each["reason"], each["message"]) for each in events_of(used, name, used.namespace))
        return f"no {', '.join(lacking)}" if (lacking := sorted(TOLD_TO_PODS - found.keys())) else None

    wait(missing, TOLD_S)
    return {reason: found[reason] for reason in sorted(TOLD_TO_PODS)}


def test_a_jobs_pod_over_its_grant_leaves_and_the_job_tries_again(
    used: UsedCluster, say: Callable[[str], None]
) -> None:
    """Its condition says that it was disrupted, so that a podFailurePolicy can leave the failure out of account."""
    objects = job("batch", "12Gi", GREEDY)
    used.real.apply(objects, used.namespace)
    wait(lambda: None if running(used, "batch") else str(used.real.warnings(used.namespace)), READY_S)
    (first,) = running(used, "batch")
    name = first["metadata"]["name"]
    wait(lambda: None if name not in names_of(running(used, "batch")) else "it stays", EVICTED_S)
    wait(lambda: None if running(used, "batch") else "no other pod was made", READY_S)
    say("\n".join(f"{reason}: {message}" for reason, message in events_told(used, name).items()))
    for obj in reversed(objects):
        used.real.client.delete(kind_of(obj), "batch", used.namespace)
    for each in used.real.pods(used.namespace):
        if each["metadata"]["name"].startswith("batch"):
            used.real.client.delete(PODS, each["metadata"]["name"], used.namespace)
    wait(lambda: None if "batch" not in str(names_of(used.real.pods(used.namespace))) else "it is not gone", READY_S)


def test_an_idle_claim_is_taken_back_from_a_pod_that_is_made_anew(
    used: UsedCluster, say: Callable[[str], None]
) -> None:
    """One of no controller stays, as do all that use their GPU; what the policy says is announced first."""
    using = {pod_name for pod_name, _ in USED}
    pods = {each["metadata"]["name"]: each for each in used.real.pods(used.namespace)}
    before = {name: containers(pods[name]) for name in using}
    objects = [*deployment("sleepy", "4Gi", SLEEPY), template("alone-sleepy", SLEEPY, share("4Gi"))]
    used.real.apply([*objects, pod("lone", gpu="alone-sleepy")], used.namespace)
    wait(lambda: None if running(used, "sleepy") and running(used, "lone") else "they do not run", READY_S)
    (first,), (lone,) = running(used, "sleepy"), running(used, "lone")
    name = first["metadata"]["name"]
    claim = used.claim_names()[name, "gpu"]
    wait(lambda: None if claim in idle_claims(used) else str(used.gpu_node()), 60.0 * IDLE_MIN + READY_S)
    (told,) = [each for each in used.gpu_node()["idle"] if each["claim"] == claim]
    say(f"GpuNode: {json.dumps(told)}")
    assert (told["action"], told["afterMinutes"]) == ("Reclaim", IDLE_MIN)
    wait(lambda: None if name not in names_of(running(used, "sleepy")) else "it stays", 60.0 * IDLE_MIN + EVICTED_S)
    say("\n".join(f"{reason}: {message}" for reason, message in events_told(used, name).items()))
    after = {each["metadata"]["name"]: containers(each) for each in used.real.pods(used.namespace)}
    assert {pod_name: after[pod_name] for pod_name in before} == before
    assert after["lone"] == containers(lone)
    used.real.client.delete(kind_of(objects[1]), "sleepy", used.namespace)
    used.real.client.delete(PODS, "lone", used.namespace)
    wait(lambda: None if not running(used, "sleepy") and not running(used, "lone") else "they are not gone", READY_S)


def names_of(pods: list[Obj]) -> list[str]:
    return [each["metadata"]["name"] for each in pods]


def idle_claims(used: UsedCluster) -> list[str]:
    return [each["claim"] for each in used.gpu_node().get("idle") or ()]


def test_with_the_hosts_pids_the_join_is_the_same(used: UsedCluster) -> None:
    """`exporter.hostPID`, for drivers that list processes of the caller's PID namespace alone."""
    exporter = VALUES["exporter"] | {"hostPID": True}
    used.installed.upgrade(test_chart_pods.image_values() | VALUES | {"exporter": exporter}, wait=True)
    wait(lambda: None if used.exporter()["spec"].get("hostPID") else "the former one", READY_S)
    wait(lambda: None if used.used() == USED else str(used.used()), READY_S)
    wait(lambda: wrong_sums(used), TOLD_S)
