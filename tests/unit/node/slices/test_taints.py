"""Taints of a GPU that is not healthy and of its partitions, of whole GPUs only, and withheld partitions."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Taint, WithheldPartitions
from dra_driver.kube.published.limits import MAX_TAINTS
from dra_driver.node.slices.build import Built, build_devices, chosen
from dra_driver.node.slices.gates import ApiServerFeatures
from tests.fakes.dra_objects import wire
from tests.unit.node.slices.gpus import ALL, H100, instance, mig_gpu, snapshot

NO_TAINTS = replace(ALL, taints=False, taints_1_35=False)
SINCE = "2026-11-22T10:00:00Z"
XID = Taint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule", time_added=SINCE)
LOST = Taint(key="gpu.nvidia.com/gpu-lost", effect="NoExecute", time_added=SINCE)
UNMONITORED = Taint(key="gpu.nvidia.com/unmonitored", effect="None", time_added=SINCE)
FREE = mig_gpu(H100)
FOREIGN = replace(FREE, mig_enabled=True, mig_instances=(instance(FREE, 9, 4),))
OWN = replace(FREE, mig_enabled=True, mig_mode_owned=True, mig_instances=(instance(FREE, 19, 6, owned=True),))
MINE, FOREIGN_NAME = "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-3g40gb-9-4"


def build(gpu: Gpu, features: ApiServerFeatures = ALL, **terms: Any) -> Built:
    return build_devices(snapshot(gpu), {gpu.uuid: GpuTerms(**terms)}, features)


def keys(built: Built) -> dict[str, list[str]]:
    return {device.name: [taint.key for taint in device.taints] for device in built.devices}


def asked(count: int) -> tuple[Taint, ...]:
    return tuple(Taint(key=f"example.com/t{number}", effect="NoSchedule") for number in range(count))


def test_a_gpus_condition_taints_all_of_its_forms() -> None:
    found = keys(build(FREE, condition_taints=(XID,)))
    assert len(found) > 20
    assert set(map(tuple, found.values())) == {(XID.key,)}


def test_a_gpus_condition_taints_its_shares() -> None:
    built = build(FREE, profiles=frozenset(), condition_taints=(XID,),
                  sharing=SharingTerms(strategy=Strategy.TIME_SLICING))  # fmt: skip
    assert keys(built) == {"gpu-0": [XID.key]}


@pytest.mark.parametrize(("gpu", "name", "place"), [(OWN, MINE, (19, 6)), (FOREIGN, FOREIGN_NAME, (9, 4))])
def test_a_partitions_condition_taints_that_partition_alone(gpu: Gpu, name: str, place: tuple[int, int]) -> None:
    found = keys(build(gpu, partition_taints={PartitionId(gpu.uuid, *place): (XID,)}))
    assert found.pop(name) == [XID.key]
    assert set(map(tuple, found.values())) == {()}


def test_the_time_of_a_condition_is_published() -> None:
    built = build(FREE, condition_taints=(XID, LOST))
    assert wire(built.devices[0].taints) == [
        {"key": LOST.key, "effect": "NoExecute", "timeAdded": SINCE},
        {"key": XID.key, "value": "79", "effect": "NoSchedule", "timeAdded": SINCE},
    ]


def test_informational_taints_are_left_out_where_they_are_refused() -> None:
    """Kubernetes 1.34 has no effect None: the whole slice would be invalid."""
    built = build(FREE, replace(ALL, taints_1_35=False), condition_taints=(UNMONITORED, XID))
    assert keys(built)["gpu-0"] == [XID.key]
    assert keys(build(FREE, condition_taints=(UNMONITORED, XID)))["gpu-0"] == [XID.key, UNMONITORED.key]


@pytest.mark.parametrize(("features", "most"), [(ALL, 16), (replace(ALL, taints_1_35=False), 4)])
def test_what_does_not_fit_never_hides_that_a_device_is_not_healthy(features: ApiServerFeatures, most: int) -> None:
    """One taint over the limit makes a whole slice invalid."""
    found = keys(build(FREE, features, taints=asked(most), condition_taints=(UNMONITORED, XID, LOST)))["gpu-0"]
    assert found == [*(f"example.com/t{number}" for number in range(most - 1)), LOST.key]


def test_an_informational_taint_takes_no_place_of_another() -> None:
    assert chosen(asked(4), (UNMONITORED,), 4, informational=True) == asked(4)


def test_one_taint_per_key_the_strongest() -> None:
    evicting = replace(XID, effect="NoExecute", value="48")
    assert chosen((), (XID, evicting), 4, informational=True) == (evicting,)


def test_without_taints_a_gpu_that_is_not_healthy_is_withdrawn() -> None:
    built = build(FREE, NO_TAINTS, condition_taints=(XID,))
    assert (built.devices, built.counter_sets) == ([], [])
    (left_out,) = built.left_out
    assert left_out.reason.startswith("gpu-0 is not offered while it is not healthy (gpu.nvidia.com/xid=79): the API")


def test_without_taints_an_informational_condition_withdraws_nothing() -> None:
    assert build(FREE, NO_TAINTS, condition_taints=(UNMONITORED,)) == build(FREE, NO_TAINTS)


def test_without_taints_a_foreign_partition_that_is_not_healthy_is_withdrawn() -> None:
    built = build(FOREIGN, NO_TAINTS, partition_taints={PartitionId(FREE.uuid, 9, 4): (XID,)})
    assert keys(built).keys() == keys(build(FOREIGN, NO_TAINTS)).keys() - {FOREIGN_NAME}
    assert "MIG instance 3g.40gb at memory slice 4 of gpu-0 is not offered while it is not healthy" in str(built)


def test_without_taints_an_own_partition_stays() -> None:
    """A claim has it, and the scheduler would count one that is no longer published as free."""
    built = build(OWN, NO_TAINTS, partition_taints={PartitionId(FREE.uuid, 19, 6): (XID,)})
    assert keys(built) == keys(build(OWN, NO_TAINTS))


TAINT = Taint(key="gpu.dra-driver.io/creation-refused", value="in-use", effect="NoSchedule")
WIRE = {"key": TAINT.key, "value": "in-use", "effect": "NoSchedule"}
FABRIC = Taint(key="gpu.dra-driver.io/fabric-not-ready", effect="NoSchedule")
REFUSED, OTHER = "gpu-0-mig-1g10gb-19-5", "gpu-0-mig-1g10gb-19-4"


def build_withheld(gpu: Gpu, features: ApiServerFeatures = ALL, **terms: Any) -> Built:
    withheld = WithheldPartitions(
        reason="gpu-0 cannot be cut", taint=TAINT, refused=frozenset({PartitionId(gpu.uuid, 19, 5)})
    )
    given = GpuTerms(**{"withheld": withheld, **terms})
    return build_devices(snapshot(gpu), {gpu.uuid: given}, features)


def taints_of(built: Built) -> dict[str, Any]:
    return {device.name: wire(device.taints) or None for device in built.devices}


def test_other_partitions_are_tainted() -> None:
    found = taints_of(build_withheld(OWN))
    assert {name for name, taint in found.items() if taint == [WIRE]} == set(found) - {"gpu-0", MINE}
    assert build_withheld(OWN).counter_sets == build_withheld(OWN, withheld=None).counter_sets


def test_without_taints_all_but_the_refused_ones_are_left_out() -> None:
    found = build_withheld(OWN, NO_TAINTS)
    assert [device.name for device in found.devices] == ["gpu-0", MINE, REFUSED]
    assert found.left_out[0].reason == "gpu-0 cannot be cut"


def test_only_partitions_that_do_not_exist_are_withheld_with_one_reason() -> None:
    assert [one.reason for one in build_withheld(FREE).left_out] == ["gpu-0 cannot be cut"]
    assert build_withheld(FREE, profiles=frozenset()) == build_withheld(FREE, profiles=frozenset(), withheld=None)
    assert taints_of(build_withheld(FOREIGN))[FOREIGN_NAME] is None


def test_a_policys_taints_stay() -> None:
    reserved = tuple(Taint(key=f"example.com/t{number}", effect="NoSchedule") for number in range(MAX_TAINTS))
    found = taints_of(build_withheld(OWN, taints=reserved[:1]))
    assert [taint["key"] for taint in found[OTHER]] == ["example.com/t0", TAINT.key]
    assert [taint["key"] for taint in found[MINE]] == ["example.com/t0"]
    assert len(taints_of(build_withheld(OWN, taints=reserved))[OTHER]) == MAX_TAINTS


def test_taints_of_the_whole_gpu_are_not_on_its_partitions() -> None:
    """Partitions do not use the NVLink fabric."""
    found = taints_of(build_withheld(FREE, withheld=None, whole_taints=(FABRIC,)))
    assert found.pop("gpu-0") == [{"key": FABRIC.key, "effect": "NoSchedule"}]
    assert set(map(str, found.values())) == {"None"}


def test_without_taints_the_whole_gpu_stays_published() -> None:
    """Left out while a claim has it, its partitions would look free; a prepare waits for the fabric anyway."""
    assert "gpu-0" in taints_of(build_withheld(FREE, NO_TAINTS, withheld=None, whole_taints=(FABRIC,)))
