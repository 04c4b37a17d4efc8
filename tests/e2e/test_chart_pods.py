"""A release of the chart under running pods: simulated GPUs, a policy, upgrade, rollback, uninstall, cleanup.

Environment: E2E_IMAGE (the driver's image with its tag, which the nodes have), KUBECTL (prints what people see).
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import NAMESPACES
from tests.e2e.cluster import CRDS, DRIVER, RealCluster, containers, wait
from tests.e2e.forms import STAY, pod, pod_spec, policy, slice_of, template
from tests.e2e.gates import PARTITIONS
from tests.e2e.host import CDI_DIR, KUBELET_ROOT
from tests.e2e.test_chart import NAMESPACE, Release, next_chart, release
from tests.fakes import chart

Trace = tuple[str, str, str]
"""Resource with its group, namespace and name of an object."""

UNRELATED = frozenset(("events", "events.events.k8s.io", "leases.coordination.k8s.io"))
"""Events go by themselves, after an hour; leases of nodes and of the control plane come and go."""

FOLDERS = (
    KUBELET_ROOT / "plugins",
    KUBELET_ROOT / "plugins_registry",
    CDI_DIR,
    *(Path(name) for name in ("/etc/cdi", "/run", "/dev", "/dev/shm", "/dev/char")),
)


def objects(rest: RestClient) -> tuple[set[Trace], int]:
    """All objects that can be listed, and of how many kinds they are."""
    kinds = dict(_listable(rest))
    found = {
        (kind, str(obj["metadata"].get("namespace", "")), str(obj["metadata"]["name"]))
        for kind, path in kinds.items()
        for obj in _listed(rest, path)
    }
    return found, len(kinds)


def host_files() -> set[str]:
    """Paths in the directories that the driver writes to, and mount points, with a name of the driver's or NVIDIA's."""
    names = {str(path) for folder in FOLDERS for path in folder.glob("*")}
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()}
    return {name for name in names | mounts if DRIVER in name or "dra-driver" in name or "nvidia" in name}


def looked_at() -> str:
    return ", ".join([*map(str, FOLDERS), "mount points"])


def _listable(rest: RestClient) -> Iterator[tuple[str, str]]:
    """Each resource once, in its group's preferred version: its name with the group, and its path."""
    roots = [("", "/api/v1")]
    for group in rest.get("/apis")["groups"]:
        roots.append((str(group["name"]), f"/apis/{group['preferredVersion']['groupVersion']}"))
    for group_name, root in roots:
        for resource in rest.get(root)["resources"]:
            kind = f"{resource['name']}.{group_name}".rstrip(".")
            if "list" in resource["verbs"] and "/" not in resource["name"] and kind not in UNRELATED:
                yield kind, f"{root}/{resource['name']}"


def _listed(rest: RestClient, path: str) -> list[dict[str, dict[str, str]]]:
    try:
        return list(rest.list(path)["items"])
    except KubernetesApiError:  # served by nothing any more: a definition was deleted a moment ago
        return []


PODS = 20
GPUS = "4xh100-sxm5-80gb"
READY_S = 240.0
OWN_CRDS = ("gpunodes.gpu.dra-driver.io", "gpupolicies.gpu.dra-driver.io")
"""What `kubectl delete crd` of docs/operations.md, "Uninstall", names."""
NODE_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/dra-driver-node"
KEPT = {
    *(("customresourcedefinitions.apiextensions.k8s.io", name) for name in OWN_CRDS),
    ("gpupolicies.gpu.dra-driver.io", "e2e-chart"),
    ("gpunodes.gpu.dra-driver.io", os.environ.get("E2E_NODE_NAME", "")),
}
"""What an uninstall leaves in a cluster with this node alone."""
POLICY = policy("e2e-chart", priority=5, attributes=[{"name": "example.com/pool", "string": "a"}])


def a_pod(name: str) -> Obj:
    return pod(name, pod_spec("slice", f"nvidia-smi -L; {STAY}", terminationGracePeriodSeconds=2))


def image_values() -> dict[str, Any]:
    """For simulated GPUs, with the image of $E2E_IMAGE; skips the test where it is not set."""
    image = os.environ.get("E2E_IMAGE")
    if not image:
        pytest.skip("$E2E_IMAGE is not set; it names the driver's image with its tag, which the nodes have")
    repository, _, tag = image.rpartition(":")
    return chart.preset("simulated") | {"image": {"repository": repository, "tag": tag}}


@pytest.fixture
def values() -> dict[str, Any]:
    return image_values() | {"simulate": GPUS}


@pytest.fixture
def installed(kubeconfig: str, real: RealCluster) -> Iterator[Release]:
    with release(kubeconfig) as made:
        yield made
    real.drop_namespace(NAMESPACE)
    wait(lambda: NAMESPACE if real.client.find(NAMESPACES, NAMESPACE, "") else None, 90.0)


@pytest.fixture
def namespace(real: RealCluster) -> Iterator[str]:
    name = real.make_namespace("chart")
    yield name
    real.drop_namespace(name)
    real.dropped()


@pytest.fixture
def real(kubeconfig: str) -> RealCluster:
    return RealCluster(RestClient(Connection.load(kubeconfig)))


def table(*arguments: str) -> str:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    command = [kubectl, "--kubeconfig", os.environ["KUBECONFIG"], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return f"$ kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}"


@pytest.mark.needs(PARTITIONS)
def test_pods_run_through_upgrade_rollback_and_a_policy_and_nothing_stays(
    *,
    values: dict[str, Any],
    say: Callable[[str], None],
    real: RealCluster,
    installed: Release,
    namespace: str,
    tmp_path: Path,
) -> None:
    objects_before, kinds = objects(real.rest)
    files_before = host_files()
    installed.install(values, wait=True)
    say("installed: " + "; ".join(f"{p['metadata']['name']} {dig(p, 'status', 'phase')}" for p in real.pods(NAMESPACE)))
    wait(lambda: None if real.slices() else "no slices", READY_S)
    run_pods(real, namespace)
    before = {p["metadata"]["name"]: containers(p) for p in real.pods(namespace)}
    say(f"{len(before)} pods run, each on a partition of its own")
    follow_a_policy(real, say)
    first = node_processes(real)
    changed = values | {"node": {"podAnnotations": {"example.com/revision": "2"}}}
    installed.upgrade(changed, path=next_chart(tmp_path), wait=True)
    undisturbed(real, namespace, before)
    second = node_processes(real)
    assert not first & second
    say(f"upgraded: {', '.join(sorted(first))} became {', '.join(sorted(second))}")
    installed.rollback(1, wait=True)
    undisturbed(real, namespace, before)
    third = node_processes(real)
    assert not second & third
    say(f"rolled back to revision 1: {', '.join(sorted(third))}")
    remove(real, installed, namespace, values, say)
    say(f"looked at all objects of {kinds} kinds and at names in {looked_at()}")
    look_for_traces(real, say, objects_before, files_before)


def test_without_privileges_pods_get_whole_gpus(
    values: dict[str, Any], say: Callable[[str], None], real: RealCluster, installed: Release, namespace: str
) -> None:
    """The preset `unprivileged`, without NVIDIA's runtime: simulated GPUs need none."""
    values |= chart.preset("unprivileged")
    values["node"]["runtimeClassName"] = ""
    installed.install(values, wait=True)
    wait(lambda: None if real.slices() else "no slices", READY_S)
    names = {device["name"] for each in real.slices() for device in each["spec"]["devices"]}
    assert names == {f"gpu-{number}" for number in range(4)}, "partitions need privileges"
    whole = template("slice", {"deviceClassName": DRIVER})
    real.apply([whole, *(a_pod(f"pod-{number}") for number in range(4))], namespace)
    wait(lambda: not_running(real, namespace), READY_S)
    logs = real.logs(namespace)
    assert len(set(logs.values())) == 4, f"each pod has a GPU of its own: {logs}"
    say(f"4 pods run, each on a whole GPU; {', '.join(sorted(names))} are published")
    remove(real, installed, namespace, values, say)


@pytest.mark.needs(PARTITIONS)
def test_pods_run_while_helm_takes_over_what_kubectl_applied(
    *,
    values: dict[str, Any],
    say: Callable[[str], None],
    real: RealCluster,
    installed: Release,
    namespace: str,
    tmp_path: Path,
) -> None:
    manifest = tmp_path / "driver.yaml"
    manifest.write_text("---\n".join(chart.texts(values).values()), encoding="utf-8")
    real.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, "")
    table("apply", "-f", str(manifest))
    wait(lambda: None if real.slices() else "no slices", READY_S)
    run_pods(real, namespace)
    before = {p["metadata"]["name"]: containers(p) for p in real.pods(namespace)}
    node_set = real.rest.get(NODE_SET)["metadata"]["uid"]
    installed.install(values, wait=True, take_ownership=True)
    undisturbed(real, namespace, before)
    assert real.rest.get(NODE_SET)["metadata"]["uid"] == node_set
    say(f"{len(before)} pods ran on while Helm took the objects over")
    remove(real, installed, namespace, values, say)


def remove(
    real: RealCluster, installed: Release, namespace: str, values: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Pods first, then the release, then what is on the node."""
    for item in real.pods(namespace):
        real.rest.delete(f"/api/v1/namespaces/{namespace}/pods/{item['metadata']['name']}")
    wait(lambda: ", ".join(p["metadata"]["name"] for p in real.pods(namespace)), READY_S)
    real.drop_namespace(namespace)
    installed.uninstall()
    wait(lambda: f"{len(real.slices())} slices" if real.slices() else None, 90.0)
    say("uninstalled; slices are gone")
    clean_up(real, values, say)


def node_processes(real: RealCluster) -> set[str]:
    return {
        p["metadata"]["name"]
        for p in real.pods(NAMESPACE)
        if p["metadata"]["labels"].get("app.kubernetes.io/component") == "node"
        and "deletionTimestamp" not in p["metadata"]
    }


def run_pods(real: RealCluster, namespace: str) -> None:
    pods = [a_pod(f"pod-{number}") for number in range(PODS)]
    real.apply([template("slice", slice_of("1g.10gb")), *pods], namespace)
    wait(lambda: not_running(real, namespace), READY_S)


def not_running(real: RealCluster, namespace: str) -> str | None:
    waiting = [p["metadata"]["name"] for p in real.pods(namespace) if dig(p, "status", "phase") != "Running"]
    return f"{', '.join(waiting)}: {real.warnings(namespace)[-3:]}" if waiting else None


def undisturbed(real: RealCluster, namespace: str, before: dict[str, Any]) -> None:
    assert {p["metadata"]["name"]: containers(p) for p in real.pods(namespace)} == before
    assert real.warnings(namespace, "FailedPrepareDynamicResources") == []


def follow_a_policy(real: RealCluster, say: Callable[[str], None]) -> None:
    real.rest.create(paths.gpu_policies(), POLICY)
    wait(lambda: None if in_force(real, "a") else "the policy is in force nowhere", READY_S)
    wait(lambda: condition_is_not_true(real, 1), READY_S)
    changed = real.rest.get(paths.gpu_policies("e2e-chart"))
    changed["spec"]["attributes"][0]["string"] = "b"
    real.rest.update(paths.gpu_policies("e2e-chart"), changed)
    wait(lambda: None if in_force(real, "b") else "the changed policy is in force nowhere", READY_S)
    wait(lambda: condition_is_not_true(real, 2), READY_S)
    say(table("get", "gpunodes", "-o", "wide") + table("get", "gpupolicies", "-o", "wide"))


def condition_is_not_true(real: RealCluster, generation: int) -> str | None:
    status = real.rest.get(paths.gpu_policies("e2e-chart")).get("status")
    states = [item["status"] for item in entries(status, "conditions")]
    if states == ["True"] and dig(status, "observedGeneration") == generation:
        return None
    return f"the status is {status}"


def in_force(real: RealCluster, value: str) -> bool:
    devices = [device for each in real.slices() for device in dig(each, "spec", "devices") or ()]
    return bool(devices) and any(dig(device, "attributes", "example.com/pool", "string") == value for device in devices)


def clean_up(real: RealCluster, values: dict[str, Any], say: Callable[[str], None]) -> None:
    """The pod that docs/operations.md names, on every node with the driver's folder; here on this host's."""
    node = os.environ.get("E2E_NODE_NAME", "")
    (manifest,) = yaml.safe_load_all(chart.texts(values | {"cleanup": {"node": node}})["cleanup.yaml"])
    manifest["metadata"]["namespace"] = NAMESPACE
    real.client.create(manifest, NAMESPACE)
    name = manifest["metadata"]["name"]
    wait(
        lambda: None if dig(real.pod(name, NAMESPACE), "status", "phase") in {"Succeeded", "Failed"} else "runs", 120.0
    )
    say("cleanup:\n" + real.client.log(NAMESPACE, name, "cleanup"))
    assert dig(real.pod(name, NAMESPACE), "status", "phase") == "Succeeded"
    real.rest.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    real.drop_namespace(NAMESPACE)


def look_for_traces(
    real: RealCluster, say: Callable[[str], None], objects_before: set[Trace], files_before: set[str]
) -> None:
    """Only definitions with policies and GpuNodes stay, and the command of docs/operations.md removes them."""
    assert sorted(host_files() - files_before) == []
    wait(lambda: str(left_over(real, objects_before) - KEPT or ""), 90.0)
    left = left_over(real, objects_before)
    say("left: " + "; ".join(f"{kind} {name}" for kind, name in sorted(left)))
    assert left == KEPT
    for name in OWN_CRDS:
        real.rest.delete(f"{CRDS}/{name}")
    wait(lambda: str(left_over(real, objects_before) or ""), 90.0)
    say(f"after kubectl delete crd {' '.join(OWN_CRDS)}: nothing\n")


def left_over(real: RealCluster, objects_before: set[Trace]) -> set[tuple[str, str]]:
    """Kind and name of each. The API server makes an APIService for the definitions' group, and it goes with them."""
    found = {(kind, name) for kind, _, name in objects(real.rest)[0] - objects_before}
    return found - {("apiservices.apiregistration.k8s.io", "v1alpha1.gpu.dra-driver.io")}
