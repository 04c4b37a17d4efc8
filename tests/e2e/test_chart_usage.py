"""What real pods use, told by the chart's exporter: the join, the sums, eviction over a grant, commands and page.

Environment: E2E_IMAGE (as for `test_chart_pods`). This host has to be the cluster's node, and its kubelet has to make
cgroups for pods.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.usage.containers import place_of
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import EVENTS, PODS
from dra_driver.sim.client import kind_of
from tests.e2e import test_chart_pods
from tests.e2e.cluster import RealCluster, containers, wait
from tests.e2e.gates import PARTITIONS, SHARES, why_skipped
from tests.e2e.helm_release import NAMESPACE, release
from tests.e2e.node import local_node
from tests.e2e.used_cluster import (
    GIB,
    GREEDY,
    HOST_BYTES,
    IDLE_MIN,
    POLICY,
    SLEEPY,
    VALUES,
    PageReader,
    Reader,
    UsedCluster,
    deployment,
    host_process,
    job,
    mounts_of,
    partition,
    pids_of,
    pod,
    share,
    template,
    whole,
)

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
    """The release, and pods on three GPUs with a process of the host beside them."""
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
    devices = [device for each in real.slices() for device in each["spec"].get("devices") or ()]
    return any(device.get("allowMultipleAllocations") for device in devices)


def test_each_process_counts_for_its_claim_and_every_gpu_adds_up(used: UsedCluster) -> None:
    """Two containers of one pod share a GPU with a process of the host."""
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
    """As the kernel has its mounts; its own PID is 1."""
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
    """A person without any right of their own, in a namespace of their own."""
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
    assert "would fit a share of 5.0 GiB" in told("idle", "-n", used.namespace)
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
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "ui", "--kubeconfig", kubeconfig]
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
    """Told by the Node's event and the GpuNode, announced to the pod, evicted; the ReplicaSet makes another."""
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
    """Pods of such names that run and are not about to end."""
    found = [each for each in used.real.pods(used.namespace) if each["metadata"]["name"].startswith(prefix)]
    alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
    return [each for each in alive if dig(each, "status", "phase") == "Running"]


def is_about(event: Obj, name: str) -> bool:
    """Whether it is on the pod or names it; events on Nodes outlive pods and tests."""
    return name in (dig(event, "involvedObject", "name"), *event["message"].split())


def events_of(used: UsedCluster, name: str, namespace: str) -> list[Obj]:
    found = used.real.client.list(EVENTS, namespace)
    return [each for each in found if dig(each, "involvedObject", "name") == name]


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
    reasons = {each["reason"]: each["message"] for each in events_of(used, name, used.namespace)}
    say("\n".join(f"{reason}: {reasons[reason]}" for reason in sorted(TOLD_TO_PODS & reasons.keys())))
    assert reasons.keys() >= TOLD_TO_PODS
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
    reasons = {each["reason"]: each["message"] for each in events_of(used, name, used.namespace)}
    say("\n".join(f"{reason}: {reasons[reason]}" for reason in sorted(TOLD_TO_PODS & reasons.keys())))
    assert reasons.keys() >= TOLD_TO_PODS
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
