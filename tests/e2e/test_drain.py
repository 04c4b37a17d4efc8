"""GPUs are taken out of service by `kubectl dra drain`, worked on and given back: reset, reboot, removal.

What a person does on the node is done to the file that describes the simulated GPUs, to the processes on this host, and
to the kubelet. A second publisher is a resource in the Node's status, as the kubelet writes it for a device plugin.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DraError, NotFoundError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION
from dra_driver.kube import paths
from dra_driver.kubectl.commands import kubectl
from dra_driver.kubectl.drain import DrainOptions, DrainReport, drain, wait_at_most
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import DRIVER, GONE_S, ROOT, RealCluster, containers, events, holds, versions, wait
from tests.e2e.forms import Forms, budget, deployment, pod, pod_spec, share, slice_of, template, whole
from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES, TAINTS
from tests.e2e.host import CDI_DIR, STATE_DIR, Host
from tests.fakes import chart
from tests.rights.accounts import acting_as
from tests.rights.forbidden import RBAC

KUBELET_RESTART = os.environ.get("E2E_KUBELET_RESTART")
GPUS = "driverVersion: {}\ngpus:\n- {{model: h100-sxm5-80gb, count: 3}}\n- {{model: l4-24gb, count: 2}}\n"
OLD, NEW = "580.65.06", "590.44.01"
POLICY = ROOT / "tests" / "e2e" / "policies" / "time-sliced-l4.yaml"
NOTICED_S = 30.0
WIPED_S = 60.0
"""The kubelet deletes the slices of a driver 30 s after its last connection."""
BACK_S = 90.0


@pytest.fixture
def driver_file(tmp_path: Path) -> Path:
    path = tmp_path / "gpus.yaml"
    path.write_text(GPUS.format(OLD))
    return path


@pytest.fixture
def requirements(driver_file: Path) -> Requirements:
    return Requirements(nodes=(("gpu-a", str(driver_file)),), policies=(POLICY,))


@pytest.fixture
def forms(cluster: RealCluster, own_host: Host, namespace: str, node_name: str) -> Iterator[Forms]:
    with Forms(cluster, namespace).cleared() as found:
        try:
            yield found
        finally:
            marks = {"annotations": {DRAIN_ANNOTATION: None, DETACH_ANNOTATION: None}}
            cluster.rest.merge_patch(paths.node(node_name), {"metadata": marks})


class Drains:
    def __init__(self, node: str, kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._node, self._flags, self._capsys = node, ["--kubeconfig", kubeconfig, "-o", "json"], capsys

    def run(self, command: str, *flags: str) -> tuple[int, Any]:
        self._capsys.readouterr()
        status = kubectl.main([command, self._node, *self._flags, *flags])
        return status, json.loads(self._capsys.readouterr().out)


@pytest.fixture
def drains(node_name: str, kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> Drains:
    return Drains(node_name, kubeconfig, capsys)


def extended(name: str) -> Obj:
    spec = pod_spec(name)
    del spec["resourceClaims"]
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return pod(name, spec)


def budgets(namespace: str) -> str:
    return f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"


def drained(cluster: RealCluster) -> set[str]:
    """GPUs whose devices, all of them, have the taint of a drain."""
    found: dict[str, set[bool]] = {}
    for device in cluster.devices():
        keys = {taint["key"] for taint in entries(device, "taints")}
        found.setdefault(device["name"].partition("-mig-")[0], set()).add("gpu.dra-driver.io/drained" in keys)
    assert all(len(answers) == 1 for answers in found.values()), found
    return {gpu for gpu, answers in found.items() if True in answers}


@pytest.mark.needs(PARTITIONS, SHARES, EXTENDED, TAINTS)
def test_a_node_is_drained_of_every_form_as_budgets_allow(
    forms: Forms, drains: Drains, namespace: str, driver_file: Path
) -> None:
    cluster = forms.cluster
    forms.create("whole", whole())
    forms.create("share", share("4Gi", 10))
    guarded = deployment("guarded", pod_spec("guarded", terminationGracePeriodSeconds=1))
    cluster.apply([extended("extended"), template("guarded", slice_of("1g.10gb")), guarded], namespace)
    cluster.rest.create(budgets(namespace), budget("guarded", "guarded"))

    def complaint() -> str | None:
        ready = [pod["metadata"]["name"] for pod in cluster.pods(namespace) if is_ready(pod)]
        return None if len(ready) == 4 else f"only {ready} are ready: {cluster.warnings(namespace)}"

    wait(complaint, BACK_S)
    status, report = drains.run("drain", "--evict", "--force", "--timeout", "20s")
    assert (status, report["result"]) == (1, "failed"), report
    assert drained(cluster) == {"gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4"}
    assert {pod.rpartition("/")[2] for pod in report["evicted"]} == {"whole", "share", "extended"}
    (refused,) = report["notEvicted"]
    assert "disruption budget guarded" in refused["reason"].lower(), refused
    assert [holder["form"] for holder in report["items"]] == ["partition"]
    cluster.rest.delete(f"{budgets(namespace)}/guarded")
    status, report = drains.run("drain", "--evict", "--timeout", "2m")
    assert (status, report["free"], report["detached"]) == (0, True, True), report
    driver_file.with_suffix(".new").write_text(GPUS.format(NEW))
    driver_file.with_suffix(".new").replace(driver_file)
    status, report = drains.run("undrain")
    assert (status, report["annotation"]) == (0, None), report
    assert (drained(cluster), len(versions(cluster))) == (set(), 1)
    assert "590" in str(versions(cluster))
    wait(lambda: None if any(is_ready(pod) for pod in cluster.pods(namespace)) else "the next pod waits", BACK_S)
    cluster.client.delete(DEPLOYMENTS, "guarded", namespace)
    wait(lambda: "it has pods" if cluster.pods(namespace) else None, GONE_S)


@pytest.mark.needs(TAINTS)
def test_one_gpu_is_reset_while_others_compute(forms: Forms, drains: Drains, node_name: str) -> None:
    cluster = forms.cluster
    names = ("first", "second")
    for name in names:
        forms.create(name, whole())
    forms.wait_ready(*names)
    held = {name: next(iter(cluster.granted_devices(forms.get(name)))) for name in names}
    before = containers(forms.get("second"))
    detached = events(cluster, node_name, "DriverDetached")
    status, report = drains.run("drain", "--gpu", held["first"], "--evict", "--force", "--detach", "--timeout", "2m")
    assert (status, report["detached"], len(report["evicted"])) == (0, True, 1), report
    assert drained(cluster) == {held["first"]}
    assert events(cluster, node_name, "DriverDetached") == detached + 1
    # Here nvidia-smi --gpu-reset would run: nothing of the driver has the GPU open.
    forms.create("third", whole())
    holds(lambda: not is_ready(forms.get("third")))
    status, report = drains.run("undrain", "--gpu", held["first"])
    assert (status, report["annotation"]) == (0, None), report
    forms.wait_ready("third")
    assert containers(forms.get("second")) == before


@pytest.mark.skipif(not KUBELET_RESTART, reason="E2E_KUBELET_RESTART names no command that restarts the kubelet")
def test_a_drained_node_stays_drained_over_a_reboot(
    own_host: Host, forms: Forms, drains: Drains, driver_file: Path
) -> None:
    """CDI files gone, kubelet and node process started anew: what a reboot leaves, except for the kernel."""
    cluster = forms.cluster
    forms.run("before", whole())
    assert drains.run("drain", "--evict", "--force", "--timeout", "2m")[0] == 0
    own_host.process.end()
    for path in CDI_DIR.glob(f"k8s.{DRIVER}-*.json"):
        path.unlink()
    command = shlex.split(KUBELET_RESTART or "")
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own_host.restart()
    forms.create("after", whole())
    holds(lambda: not is_ready(forms.get("after")))
    assert not [device for device in cluster.devices() if not device.get("taints")]
    assert drains.run("undrain")[0] == 0
    forms.wait_ready("after")
    forms.sees("after")


@pytest.mark.needs(PARTITIONS)
def test_a_drained_driver_is_removed_without_a_trace(own_host: Host, forms: Forms, drains: Drains) -> None:
    cluster = forms.cluster
    forms.run("before", slice_of("1g.10gb"))
    assert drains.run("drain", "--evict", "--force", "--no-detach", "--timeout", "2m")[0] == 0
    assert cluster.pods(forms.namespace) == []
    assert own_host.hardware.traces() in (None, "")
    own_host.process.end()
    wait(lambda: "slices" if cluster.slices() else None, WIPED_S)
    left = sorted(path.name for path in CDI_DIR.glob(f"k8s.{DRIVER}-*.json"))
    assert left == [f"k8s.{DRIVER}-device_base.json"], "what the documented removal deletes by hand"
    (CDI_DIR / left[0]).unlink()
    own_host.mps.end()
    shutil.rmtree(STATE_DIR)
    own_host.start()
    assert drains.run("undrain")[0] == 0
    forms.run("after", whole())


def test_the_role_for_people_who_drain_suffices_and_a_tenant_reads_what_is_missing(
    forms: Forms, node_name: str, kubeconfig: str, namespace: str
) -> None:
    cluster = forms.cluster
    forms.run("first", whole())
    options = DrainOptions(node=node_name, driver=DRIVER, evict=True, force=True)

    def run(user: str) -> DrainReport:
        report = DrainReport(command="drain", node=node_name, driver=DRIVER)
        drain(acting_as(kubeconfig, user), options, report, wait_at_most(120.0), print)
        return report

    with pytest.raises(DraError) as refused:
        run("e2e-tenant")
    for right in ("patch nodes", "list resourceclaims.resource.k8s.io", "create pods/eviction", "list events"):
        assert right in str(refused.value)
    assert drained(cluster) == set()
    name = f"{namespace}-drainer"
    roles = [
        {**each, "metadata": {**each["metadata"], "name": name}}
        for each in chart.objects({"drainer": {"enabled": True}})
        if each["metadata"]["name"] == "dra-driver-drainer"
    ]
    paths_of = {"ClusterRole": f"{RBAC}/clusterroles", "Role": f"{RBAC}/namespaces/default/roles"}
    bindings = {"ClusterRole": f"{RBAC}/clusterrolebindings", "Role": f"{RBAC}/namespaces/default/rolebindings"}
    try:
        for role in roles:
            cluster.rest.create(paths_of[role["kind"]], role)
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": f"{role['kind']}Binding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": name},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "e2e-drainer"}],
            }
            cluster.rest.create(bindings[role["kind"]], binding)
        assert run("e2e-drainer").result == "done"
    finally:
        for path in (*bindings.values(), *paths_of.values()):
            with contextlib.suppress(NotFoundError):
                cluster.rest.delete(f"{path}/{name}")


@pytest.mark.needs(TAINTS)
def test_a_device_plugin_on_the_node_withdraws_the_devices(own_host: Host, forms: Forms, node_name: str) -> None:
    """After ten seconds, except for the GPU of a running pod, and they are offered again a minute after it has gone."""
    cluster = forms.cluster
    forms.run("holder", whole())
    before = containers(forms.get("holder"))
    everything = {device["name"] for device in cluster.devices()}

    def offer(amount: str) -> None:
        resources = {"nvidia.com/gpu": amount}
        status = {"status": {"capacity": resources, "allocatable": resources}}
        cluster.rest.merge_patch(f"{paths.node(node_name)}/status", status)

    def published(fine: Callable[[set[str]], bool]) -> str | None:
        found = {device["name"] for device in cluster.devices()}
        return None if fine(found) else f"{sorted(found)} are published"

    try:
        offer("4")
        (held,) = cluster.granted_devices(forms.get("holder"))
        wait(lambda: published(lambda found: {name.partition("-mig-")[0] for name in found} == {held}), NOTICED_S)
        assert {dig(device, "taints", 0, "value") for device in cluster.devices()} == {"second-publisher"}
        wait(lambda: None if events(cluster, node_name, "SecondPublisher") else "no event", NOTICED_S)
        forms.create("next", whole())
        holds(lambda: not is_ready(forms.get("next")))
        offer("0")
        wait(lambda: published(lambda found: found == everything), BACK_S)
        forms.wait_ready("next")
        assert containers(forms.get("holder")) == before
    finally:
        gone = {"status": {"capacity": {"nvidia.com/gpu": None}, "allocatable": {"nvidia.com/gpu": None}}}
        cluster.rest.merge_patch(f"{paths.node(node_name)}/status", gone)
