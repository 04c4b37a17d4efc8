"""MIG devices that claims share: their capacities, and counters that Kubernetes' allocator charges once."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import DefaultShareTerms, GpuTerms, SharingTerms, Strategy
from dra_driver.node.slices.build import build_devices
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.scheduler.allocation import Allocator
from dra_driver.sim.apiserver.rules.slices import device_problems
from tests.fakes.dra_objects import Obj, claim, exactly, node, wire
from tests.fakes.published import EVERYTHING, MIG_CLASS, classes, slices
from tests.unit.node.slices.gpus import A100, ALL, H100, RTX, instance, mig_gpu, snapshot

QUARTERS = SharingTerms(strategy=Strategy.TIME_SLICING, max_shares=4, default_share=DefaultShareTerms(parts=4))
TERMS = GpuTerms(policy="p", partition_sharing=QUARTERS)
IN_1_35 = replace(ALL, shares_hide_counters=True)


def devices(gpu: Any = None, terms: GpuTerms = TERMS, features: ApiServerFeatures = ALL) -> dict[str, Obj]:
    gpu = gpu or mig_gpu(H100)
    built = build_devices(snapshot(gpu), {gpu.uuid: terms}, features)
    return {device.name: wire(device) for device in built.devices}


def shared(found: dict[str, Obj]) -> set[str]:
    return {name for name, device in found.items() if device.get("allowMultipleAllocations")}


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("share", [None, DefaultShareTerms(parts=4), DefaultShareTerms(memory_bytes=2**36)])
@pytest.mark.parametrize("key", [H100, A100, RTX])
def test_shared_mig_devices_are_valid_and_have_a_default_of_every_capacity(
    key: str, strategy: Strategy, share: DefaultShareTerms | None
) -> None:
    """A share consumes all of a capacity without a default, so no second share would fit."""
    gpu = mig_gpu(key, mig_enabled=True)
    gpu = replace(gpu, mig_instances=(instance(gpu, gpu.mig_profiles[0].profile_id, gpu.mig_profiles[0].starts[0]),))
    terms = GpuTerms(partition_sharing=SharingTerms(strategy=strategy, max_shares=4, default_share=share))
    found = devices(gpu, terms)
    assert shared(found) == found.keys()
    for name, device in found.items():
        assert device_problems(device, None, name, per_device=False) == []
        assert device["attributes"]["sharingStrategy"] == {"string": strategy.value}
        assert all("default" in each["requestPolicy"] for each in device["capacity"].values())
        engines = device["capacity"].keys() - {"memory", "computePercent", "shares"}
        assert {device["capacity"][each]["requestPolicy"]["default"] for each in engines} == {"0"}


def test_shares_of_a_mig_device_divide_its_memory() -> None:
    found = devices()["gpu-0-mig-1g10gb-19-0"]["capacity"]
    assert (found["memory"]["value"], found["memory"]["requestPolicy"]["default"]) == ("9984Mi", "2496Mi")
    assert found["computePercent"]["requestPolicy"]["default"] == "25"
    assert found["multiprocessors"]["value"] == "16"


def test_a_whole_gpu_is_not_shared_with_its_mig_devices() -> None:
    found = devices()
    assert found.keys() - shared(found) == {"gpu-0"}


@pytest.mark.parametrize(
    ("features", "names", "gate"),
    [
        (replace(ALL, multi_allocation=False), set(), "DRAConsumableCapacity"),
        (IN_1_35, {"gpu-0-mig-1g10gb-19-0"}, "scheduler of Kubernetes 1.35"),
    ],
)
def test_mig_devices_whose_shares_the_scheduler_cannot_count_are_exclusive(
    features: ApiServerFeatures, names: set[str], gate: str
) -> None:
    """In 1.35, shares of devices without counters are counted: of instances that another manager created."""
    gpu = mig_gpu(H100, mig_enabled=True)
    gpu = replace(gpu, mig_instances=(instance(gpu, 19, 0),))
    built = build_devices(snapshot(gpu), {gpu.uuid: TERMS}, features)
    assert shared(devices(gpu, TERMS, features)) == names
    assert any(gate in left.reason and "one claim at a time" in left.reason for left in built.left_out)


@pytest.mark.parametrize("features", [replace(ALL, multi_allocation=False), IN_1_35])
def test_a_gpu_with_shares_that_no_longer_count_is_not_offered(features: ApiServerFeatures) -> None:
    gpu = mig_gpu(H100)
    kept = replace(TERMS, kept_sharing={PartitionId(gpu.uuid, 19, 0): QUARTERS})
    assert devices(gpu, kept, features) == {}
    if features is IN_1_35:  # an instance without counters stays
        gpu = replace(gpu, mig_enabled=True, mig_instances=(instance(gpu, 19, 0),))
        assert "gpu-0-mig-1g10gb-19-0" in shared(devices(gpu, kept, features))


class Scheduler:
    """Allocates claims one after another, as the scheduler of Kubernetes 1.36 does."""

    def __init__(self) -> None:
        self.slices, self.held = slices(terms=TERMS), list[Obj]()

    def give(self, name: str, profile: str, **capacity: str) -> str | None:
        """The device of a new claim; None where it has to wait."""
        request = exactly(
            "gpu", f'device.attributes["gpu.nvidia.com"].profile == "{profile}"', deviceClassName=MIG_CLASS
        )
        if capacity:
            request["exactly"]["capacity"] = {"requests": capacity}
        wanted = claim(name, request)
        allocator = Allocator(slices=self.slices, classes=classes(), allocated=self.held)
        found = allocator.allocate(node("a"), [wanted]).allocations
        if found is None:
            return None
        self.held.append({**wanted, "status": {"allocation": found[0]}})
        return str(found[0]["devices"]["results"][0]["device"])

    def release(self, name: str) -> None:
        self.held = [each for each in self.held if each["metadata"]["name"] != name]


def test_a_shared_mig_device_consumes_its_counters_once() -> None:
    """An H100 has 28 quarters of seven partitions; a partition is free when its last share is released."""
    scheduler = Scheduler()
    assert EVERYTHING.multi_allocation
    first = [scheduler.give(f"a{number}", "1g.10gb") for number in range(4)]
    assert len(set(first)) == 1
    assert scheduler.give("seven", "7g.80gb") is None
    rest = [scheduler.give(f"b{number}", "1g.10gb") for number in range(24)]
    assert len({*first, *rest} - {None}) == 7
    assert scheduler.give("late", "1g.10gb") is None
    for number in range(24):
        scheduler.release(f"b{number}")
    for number in range(3):
        scheduler.release(f"a{number}")
        assert scheduler.give("seven", "7g.80gb") is None
    scheduler.release("a3")
    assert scheduler.give("seven", "7g.80gb") is not None


def test_amounts_of_nvidias_consumable_shares_are_counted() -> None:
    """Its two forms: an amount of memory, and a number of shares."""
    scheduler = Scheduler()
    assert len({scheduler.give(f"m{number}", "1g.10gb", memory="4Gi") for number in range(2)}) == 1
    other = scheduler.give("m2", "1g.10gb", memory="4Gi")
    assert other not in {None, "gpu-0-mig-1g10gb-19-0"}
    assert len({scheduler.give(f"s{number}", "1g.10gb", shares="1") for number in range(2)}) == 1
    assert scheduler.give("all", "1g.10gb", shares="4", memory="1Mi", computePercent="1") not in {None, other}
