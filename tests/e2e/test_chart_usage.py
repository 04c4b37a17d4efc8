"""What real pods use, told by the chart's exporter: the join, the sums, eviction over a grant, commands and page.

Environment: E2E_IMAGE (as for `test_chart_pods`). This host has to be the cluster's node, and its kubelet has to make
cgroups for pods.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.usage.cgroups import place_of
from tests.e2e import test_chart_pods
from tests.e2e.cluster import RealCluster, wait
from tests.e2e.gates import PARTITIONS, SHARES, why_skipped
from tests.e2e.helm_release import release
from tests.e2e.node import local_node
from tests.e2e.used_cluster import (
    GIB,
    HOST_BYTES,
    POLICY,
    VALUES,
    UsedCluster,
    host_process,
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
USED = {("pair", "left"): 4.0, ("pair", "right"): 6.0, ("cut", "slice"): 5.0, ("alone", "whole"): 30.0}
PROCESSES = {("pair", "left"): 1, ("pair", "right"): 2, ("cut", "slice"): 1, ("alone", "whole"): 3}


@pytest.fixture(scope="module")
def used(kubeconfig: str, gates: dict[str, bool]) -> Iterator[UsedCluster]:
    """The release, and pods on three GPUs with a process of the host beside them."""
    if reason := why_skipped([SHARES, PARTITIONS], gates):
        pytest.skip(reason)
    values = test_chart_pods.image_values() | VALUES
    real = RealCluster(RestClient(Connection.load(kubeconfig)))
    if local_node(real.nodes()) is None:
        pytest.skip("this host is no node of the cluster, so no process of its own can use a GPU beside pods")
    with release(kubeconfig) as installed:
        installed.install(values, wait=True)
        real.rest.create(paths.gpu_policies(), POLICY)
        wait(lambda: None if is_shared(real) else "no GPU is shared", READY_S)
        namespace = real.make_namespace("usage")
        real.apply(OBJECTS, namespace)
        wait(lambda: test_chart_pods.not_running(real, namespace), READY_S)
        found = UsedCluster(real, namespace)
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
