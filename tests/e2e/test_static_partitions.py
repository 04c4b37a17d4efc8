"""MIG devices that an administrator creates while the node process runs: published, allocated, never destroyed."""

import pytest

from dra_driver.core.model.mig import MigInstance
from dra_driver.sim.apiserver.jsonvalue import dig
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import RealCluster, wait
from tests.e2e.forms import Forms, slice_of
from tests.e2e.gates import PARTITIONS
from tests.e2e.host import Host
from tests.fakes.simulated_gpus import SimulatedBackend

PROFILE = "2g.10gb"
REQUIREMENTS = Requirements(nodes=(("gpu-a", "1xa100-sxm4-40gb+mig"),))
# The GPUs are read each second; an event reports a change earlier.
NOTICED_S = 15.0


@pytest.fixture
def backend(own_host: Host, namespace: str) -> SimulatedBackend:
    return own_host.hardware.backend()


def made_by_hand(backend: SimulatedBackend, start: int) -> tuple[MigInstance, str]:
    (gpu,) = backend.snapshot().gpus
    profile = next(one for one in gpu.mig_profiles if one.name == PROFILE)
    instance = backend.foreign_create(gpu.uuid, profile.profile_id, start)
    assert instance.device is not None
    return instance, str(instance.device.uuid)


def uuids(cluster: RealCluster) -> set[str]:
    return {str(dig(device, "attributes", "uuid", "string", default="")) for device in cluster.devices()} - {""}


def test_a_foreign_partition_is_published_allocated_and_stays(
    cluster: RealCluster, backend: SimulatedBackend, forms: Forms
) -> None:
    """It is published with its UUID without a restart, a pod gets exactly this one, and it exists after the pod.

    Where the cluster keeps no counters, nothing but the foreign partition is published.
    """
    (gpu,) = backend.snapshot().gpus
    before = len(cluster.devices())
    assert (before > 0) == cluster.gates[PARTITIONS]
    instance, uuid = made_by_hand(backend, start=2)
    wait(lambda: None if uuids(cluster) == {uuid} else f"slices have {uuids(cluster)}", NOTICED_S)
    assert len(cluster.devices()) < max(before, 2), "what overlaps it is still offered"

    request = slice_of(PROFILE)
    attributes = 'device.attributes["gpu.nvidia.com"]'
    request["selectors"].append({"cel": {"expression": f'"uuid" in {attributes} && {attributes}.uuid == "{uuid}"'}})
    forms.run("given", request, exists=True)
    assert forms.partition("given") == uuid
    forms.delete("given")
    assert [one.gi_id for one in backend.mig_instances(gpu.uuid)] == [instance.gi_id]

    backend.foreign_destroy(gpu.uuid, instance.gi_id)
    wait(lambda: None if len(cluster.devices()) == before else "what overlapped it is not offered again", NOTICED_S)
    assert uuids(cluster) == set()


@pytest.mark.needs(PARTITIONS)
def test_partitions_are_created_beside_a_foreign_one(
    cluster: RealCluster, backend: SimulatedBackend, forms: Forms
) -> None:
    (gpu,) = backend.snapshot().gpus
    instance, uuid = made_by_hand(backend, start=0)
    wait(lambda: None if uuids(cluster) == {uuid} else f"slices have {uuids(cluster)}", NOTICED_S)
    forms.run("own", slice_of("3g.20gb"))
    assert {str(one.device.uuid) for one in backend.mig_instances(gpu.uuid) if one.device} == {
        uuid,
        forms.partition("own"),
    }
    forms.delete("own")
    assert [one.gi_id for one in backend.mig_instances(gpu.uuid)] == [instance.gi_id]
    assert backend.mig_mode(gpu.uuid)
    backend.foreign_destroy(gpu.uuid, instance.gi_id)
