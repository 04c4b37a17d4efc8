"""Partitions that are withheld because the GPU cannot be cut, and taints of whole GPUs alone."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Taint, WithheldPartitions
from dra_driver.kube.published.limits import MAX_TAINTS
from dra_driver.node.slices.build import Built, build_devices
from dra_driver.node.slices.gates import ApiServerFeatures
from tests.unit.node.slices.gpus import ALL, H100, instance, mig_gpu, snapshot

NO_TAINTS = replace(ALL, taints=False)
TAINT = Taint(key="gpu.dra-driver.io/creation-refused", value="in-use", effect="NoSchedule")
WIRE = {"key": TAINT.key, "value": "in-use", "effect": "NoSchedule"}
FABRIC = Taint(key="gpu.dra-driver.io/fabric-not-ready", effect="NoSchedule")
FREE = mig_gpu(H100)
CUT = replace(FREE, mig_enabled=True, mig_mode_owned=True, mig_instances=(instance(FREE, 19, 6, owned=True),))
EXISTING, REFUSED, OTHER = "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-1g10gb-19-5", "gpu-0-mig-1g10gb-19-4"


def build(gpu: Gpu, features: ApiServerFeatures = ALL, **terms: Any) -> Built:
    withheld = WithheldPartitions(
        reason="gpu-0 cannot be cut", taint=TAINT, refused=frozenset({PartitionId(gpu.uuid, 19, 5)})
    )
    given = GpuTerms(**{"withheld": withheld, **terms})
    return build_devices(snapshot(gpu), {gpu.uuid: given}, features)


def taints(built: Built) -> dict[str, Any]:
    return {device["name"]: device.get("taints") for device in built.devices}


@pytest.mark.parametrize("features", [ALL, NO_TAINTS], ids=["taints", "no taints"])
def test_existing_instances_and_the_whole_gpu_are_not_withheld(features: ApiServerFeatures) -> None:
    """A claim may get an instance that exists, and the whole GPU needs none."""
    found = taints(build(CUT, features))
    assert found["gpu-0"] is None
    assert found[EXISTING] is None


def test_other_partitions_are_tainted() -> None:
    """They stay published with their counters: a claim that waits for one keeps the whole GPU from looking free."""
    found = taints(build(CUT))
    assert {name for name, taint in found.items() if taint == [WIRE]} == set(found) - {"gpu-0", EXISTING}
    assert build(CUT).counter_sets == build(CUT, withheld=None).counter_sets


def test_without_taints_all_but_the_refused_ones_are_left_out() -> None:
    """New claims must not get them; those that were refused are allocated to a claim already."""
    found = build(CUT, NO_TAINTS)
    assert [device["name"] for device in found.devices] == ["gpu-0", EXISTING, REFUSED]
    assert found.left_out[0].reason == "gpu-0 cannot be cut"


def test_the_reason_is_reported_once() -> None:
    assert [one.reason for one in build(FREE).left_out] == ["gpu-0 cannot be cut"]


def test_a_gpu_without_partitions_is_not_affected() -> None:
    assert build(FREE, profiles=frozenset()) == build(FREE, profiles=frozenset(), withheld=None)


def test_foreign_instances_are_not_withheld() -> None:
    foreign = replace(FREE, mig_enabled=True, mig_instances=(instance(FREE, 9, 4),))
    assert taints(build(foreign))["gpu-0-mig-3g40gb-9-4"] is None


def test_a_policys_taints_stay() -> None:
    reserved = tuple(Taint(key=f"example.com/t{number}", effect="NoSchedule") for number in range(MAX_TAINTS))
    found = taints(build(CUT, taints=reserved[:1]))
    assert [taint["key"] for taint in found[OTHER]] == ["example.com/t0", TAINT.key]
    assert [taint["key"] for taint in found[EXISTING]] == ["example.com/t0"]
    assert len(taints(build(CUT, taints=reserved))[OTHER]) == MAX_TAINTS


def test_taints_of_the_whole_gpu_are_not_on_its_partitions() -> None:
    """Partitions do not use the NVLink fabric."""
    found = taints(build(FREE, withheld=None, whole_taints=(FABRIC,)))
    assert found.pop("gpu-0") == [{"key": FABRIC.key, "effect": "NoSchedule"}]
    assert set(map(str, found.values())) == {"None"}


def test_a_shared_gpu_has_the_taints_of_the_whole_one() -> None:
    sharing = SharingTerms(strategy=Strategy.TIME_SLICING)
    found = taints(build(FREE, withheld=None, profiles=frozenset(), sharing=sharing, whole_taints=(FABRIC,)))
    assert found == {"gpu-0": [{"key": FABRIC.key, "effect": "NoSchedule"}]}


def test_without_taints_the_whole_gpu_stays_published() -> None:
    """Left out while a claim has it, its partitions would look free; a prepare waits for the fabric anyway."""
    assert "gpu-0" in taints(build(FREE, NO_TAINTS, withheld=None, whole_taints=(FABRIC,)))
