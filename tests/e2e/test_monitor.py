"""Monitoring devices on a real scheduler: pods with admin access see a GPU while other claims have it, in any form."""

from collections.abc import Iterator

import pytest

from dra_driver.core.errors import DraError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import ROOT, RealCluster, containers, holds, wait
from tests.e2e.forms import PENDING_S, Forms, slice_of, whole
from tests.e2e.gates import PARTITIONS, TAINTS
from tests.e2e.host import Host
from tests.harness.claims_api import ADMIN_LABEL

REQUIREMENTS = Requirements(
    nodes=(("gpu-a", "1xh100-sxm5-80gb"),), policies=(ROOT / "examples/policies/monitored-gpus.yaml",)
)
CLASS, DEVICE = "monitor.gpu.nvidia.com", "gpu-0-monitor"
TOLERATED = {"tolerations": [{"key": "gpu.dra-driver.io/monitor", "operator": "Exists"}]}

pytestmark = pytest.mark.needs(PARTITIONS, TAINTS)


def monitor(**fields: object) -> Obj:
    return {"deviceClassName": CLASS, "adminAccess": True, **TOLERATED, **fields}


@pytest.fixture
def forms(cluster: RealCluster, own_host: Host, namespace: str) -> Iterator[Forms]:
    """In a namespace that may have admin access."""
    cluster.rest.merge_patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {ADMIN_LABEL: "true"}}})
    with Forms(cluster, namespace).cleared() as found:
        yield found


def test_a_monitor_sees_the_gpu_while_claims_have_it_in_any_form(own_host: Host, forms: Forms) -> None:
    (gpu,) = own_host.hardware.as_described().gpus
    forms.run("holder", whole())
    forms.run("monitor", monitor(allocationMode="All"))
    assert forms.cluster.granted_devices(forms.get("monitor")) == {DEVICE}
    assert gpu.uuid in forms.log("monitor")
    running = containers(forms.get("monitor"))
    assert forms.cluster.granted_devices(forms.get("holder")) == {"gpu-0"}

    forms.delete("holder")
    forms.run("first", slice_of("1g.10gb"))
    forms.run("second", slice_of("3g.40gb"))
    before = {name: containers(forms.get(name)) for name in ("first", "second")}
    assert len({forms.partition(name) for name in before}) == len(before)
    forms.run("another", monitor())
    assert gpu.uuid in forms.log("another")
    assert {name: containers(forms.get(name)) for name in before} == before
    assert containers(forms.get("monitor")) == running

    forms.delete("monitor", "another", "first", "second")
    forms.run("holder-again", whole())


def test_the_api_server_refuses_a_monitor_in_a_namespace_without_the_label(forms: Forms) -> None:
    path = f"/api/v1/namespaces/{forms.namespace}"
    forms.rest.merge_patch(path, {"metadata": {"labels": {ADMIN_LABEL: None}}})
    with pytest.raises(DraError, match="admin access to devices requires"):
        forms.create("monitor", monitor())


def test_a_monitor_without_the_toleration_waits(forms: Forms) -> None:
    forms.create("monitor", monitor(tolerations=[]))
    wait(lambda: None if forms.waits("monitor") else "it does not wait", PENDING_S)
    holds(lambda: forms.waits("monitor"))


def test_a_claim_without_admin_access_does_not_start_and_blocks_no_monitor(forms: Forms) -> None:
    """The scheduler allocates the device to both claims."""
    request = monitor()
    del request["adminAccess"]
    forms.create("taker", request)
    wait(lambda: None if refused(forms) else f"{forms.cluster.warnings(forms.namespace)}", 30.0)
    forms.run("monitor", monitor())
    assert forms.cluster.granted_devices(forms.get("taker")) == {DEVICE}
    assert not any(item.get("ready") for item in forms.get("taker")["status"].get("containerStatuses") or ())


def refused(forms: Forms) -> bool:
    return any("adminAccess" in line for line in forms.cluster.warnings(forms.namespace) if line.startswith("taker: "))
