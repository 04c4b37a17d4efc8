"""One GPU as a whole, as MIG devices and as shares, under a real scheduler, kubelet and container runtime.

The GPU is a simulated H100 of a node process of this test; its state file shows what was done to it.
"""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import GONE_S, KUBECTL_DRA, RealCluster, containers, wait
from tests.e2e.forms import PENDING_S, Forms, check_partitions, share, slice_of, whole
from tests.e2e.gates import PARTITIONS, SHARES
from tests.e2e.host import Host

ONE_H100 = (("gpu-a", "1xh100-sxm5-80gb"),)
REQUIREMENTS = Requirements(nodes=ONE_H100)
MPS_POLICY = Path(__file__).parent / "policies" / "mps-h100.yaml"
SMALL = "1g.10gb"
# A failed call makes the kubelet wait for its next look at the pod.
RETRY_S = 180.0
# Longer than any test waits for the moment at which it kills the process that is in the call.
LONG_CALL_S = 300.0


shared_gpu = pytest.mark.parametrize(
    "requirements", [Requirements(nodes=ONE_H100, policies=(MPS_POLICY,))], ids=["shared"], indirect=True
)


@pytest.fixture
def forms(cluster: RealCluster, own_host: Host, namespace: str) -> Iterator[Forms]:
    """After the test all pods are deleted while the driver runs, without the test's delays."""
    with Forms(cluster, namespace).cleared() as found:
        yield found
        own_host.hardware.backend().clear_faults()
        if not own_host.process.lives:
            own_host.restart()


def explained(forms: Forms, pod: str, kubeconfig: str) -> tuple[int, str]:
    command = [*KUBECTL_DRA, "explain", f"pod/{pod}", "-n", forms.namespace, "--kubeconfig", kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.needs(PARTITIONS)
def test_seven_mig_devices_no_eighth_then_the_whole_gpu(
    own_host: Host, cluster: RealCluster, forms: Forms, kubeconfig: str
) -> None:
    seven = [f"slice-{number}" for number in range(7)]
    for name in seven:
        forms.create(name, slice_of(SMALL))
    forms.wait_ready(*seven)
    assert len({forms.partition(name) for name in seven}) == 7
    check_partitions(cluster, own_host.hardware, forms.namespace)

    forms.create("eighth", slice_of(SMALL))
    forms.create("whole", whole())
    time.sleep(PENDING_S)
    assert forms.waits("eighth", "whole")
    for name in ("eighth", "whole"):
        status, said = explained(forms, name, kubeconfig)
        assert status == 1, said
        assert "cannot" in said, said
    assert len(own_host.hardware.made()) == 7

    forms.delete("slice-3")
    forms.wait_ready("eighth")
    forms.delete(*(name for name in seven if name != "slice-3"))
    time.sleep(PENDING_S)
    assert forms.waits("whole")
    check_partitions(cluster, own_host.hardware, forms.namespace)

    forms.delete("eighth")
    forms.wait_ready("whole")
    (gpu,) = own_host.hardware.backend().snapshot().gpus
    assert forms.sees("whole").gpus == (gpu.uuid,)
    assert (gpu.mig_enabled, gpu.mig_instances) == (False, ())


@pytest.mark.needs(PARTITIONS)
def test_a_mig_device_waits_while_the_whole_gpu_is_in_use(own_host: Host, forms: Forms, kubeconfig: str) -> None:
    forms.run("whole", whole())
    forms.create("slice", slice_of(SMALL))
    time.sleep(PENDING_S)
    assert forms.waits("slice")
    assert explained(forms, "slice", kubeconfig)[0] == 1
    forms.delete("whole")
    forms.wait_ready("slice")
    assert set(own_host.hardware.made().values()) == {forms.partition("slice")}


@pytest.mark.needs(SHARES, PARTITIONS)
@shared_gpu
def test_shares_fill_the_gpu_and_not_more(own_host: Host, forms: Forms, kubeconfig: str) -> None:
    asked = {"ten": (10, 20), "twenty": (20, 30), "thirty": (30, 40)}
    for name, (memory_gib, percent) in asked.items():
        forms.create(name, share(f"{memory_gib}Gi", percent))
        forms.wait_ready(name)  # one after the other: see REACH_S
    for name, (memory_gib, percent) in asked.items():
        forms.wait_line(name, f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={memory_gib * 1024}M")
        forms.wait_line(name, f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}")
    assert len({forms.sees(name).gpus for name in asked}) == 1
    assert len(own_host.hardware.daemons()) == 1

    forms.create("fourth", share("20Gi", 10))
    forms.create("slice", slice_of(SMALL))
    time.sleep(PENDING_S)
    assert forms.waits("fourth", "slice")
    assert explained(forms, "fourth", kubeconfig)[0] == 1
    assert explained(forms, "slice", kubeconfig)[0] == 1
    forms.delete("ten")
    forms.wait_ready("fourth")
    forms.wait_line("fourth", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M")
    assert forms.waits("slice")

    forms.delete("twenty", "thirty", "fourth")
    forms.wait_ready("slice")
    assert own_host.hardware.daemons() == ()
    assert set(own_host.hardware.made().values()) == {forms.partition("slice")}


@pytest.mark.needs(SHARES)
@shared_gpu
def test_a_new_policy_does_not_touch_shares_in_use(own_host: Host, cluster: RealCluster, forms: Forms) -> None:
    names = ("one", "other")
    for name in names:
        forms.run(name, share("10Gi", 20))
    before = {name: (containers(forms.get(name)), forms.log(name)) for name in names}
    said, in_force = own_host.hardware.said("mps-control"), own_host.process.text.count("policies in force")

    (own_host.policies / MPS_POLICY.name).unlink()
    own_host.process.wait_for(lambda: own_host.process.text.count("policies in force") > in_force, GONE_S)
    time.sleep(PENDING_S)
    assert shareable(cluster) == {"gpu-0"}
    assert {name: (containers(forms.get(name)), forms.log(name)) for name in names} == before
    assert own_host.hardware.said("mps-control") == said
    forms.delete("one")
    assert shareable(cluster) == {"gpu-0"}
    forms.delete("other")
    wait(lambda: f"{shareable(cluster)} can be shared" if shareable(cluster) else None, GONE_S)
    forms.run("whole", whole())


def shareable(cluster: RealCluster) -> set[str]:
    return {device["name"] for device in cluster.devices() if device.get("allowMultipleAllocations")}


def kill_in_long_call(own_host: Host) -> None:
    own_host.process.wait_for(lambda: not own_host.hardware.faults(), RETRY_S)
    own_host.process.end(signal.SIGKILL)
    own_host.restart()


@pytest.mark.needs(PARTITIONS)
@pytest.mark.parametrize("method", ["set_mig_mode", "create_gpu_instance", "create_compute_instance"])
def test_killed_while_it_creates_a_mig_device(method: str, own_host: Host, cluster: RealCluster, forms: Forms) -> None:
    own_host.hardware.backend().fail_next(method, delay_s=LONG_CALL_S)
    for name in ("one", "other"):
        forms.create(name, slice_of(SMALL))
    kill_in_long_call(own_host)
    forms.wait_ready("one", "other", timeout_s=RETRY_S)
    assert forms.partition("one") != forms.partition("other")
    check_partitions(cluster, own_host.hardware, forms.namespace)


@pytest.mark.needs(PARTITIONS)
@pytest.mark.parametrize("method", ["destroy_compute_instance", "destroy_gpu_instance"])
def test_killed_while_it_destroys_a_mig_device(method: str, own_host: Host, cluster: RealCluster, forms: Forms) -> None:
    for name in ("leaving", "staying"):
        forms.create(name, slice_of(SMALL))
    forms.wait_ready("leaving", "staying")
    before, partition = containers(forms.get("staying")), forms.partition("staying")
    own_host.hardware.backend().fail_next(method, delay_s=LONG_CALL_S)
    forms.cluster.client.delete(PODS, "leaving", forms.namespace)
    kill_in_long_call(own_host)
    wait(lambda: _still_made(own_host, partition), RETRY_S)
    forms.delete("leaving")
    assert containers(forms.get("staying")) == before
    check_partitions(cluster, own_host.hardware, forms.namespace)


def _still_made(own_host: Host, partition: str) -> str | None:
    made = own_host.hardware.made()
    return None if set(made.values()) == {partition} else f"the GPU has {made}"
