"""The fewest writes, the right generations, times of taints, and other pools with this node's GPUs."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import GpuTerms, Taint
from dra_driver.kube.objects.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCounterConsumption,
    DeviceTaint,
)
from dra_driver.node.slices.build import build_devices
from dra_driver.node.slices.diff import (
    PoolIdentity,
    Writes,
    compute_writes,
    known_times,
    with_times,
)
from dra_driver.node.slices.layout import DesiredSlice, split
from dra_driver.node.slices.untrusted_slice import OtherPool, is_of, other_pools, slimmed
from tests.fakes.dra_objects import wire
from tests.unit.node.slices.gpus import ALL, gpu, snapshot, split_devices

IDENTITY = PoolIdentity(driver="gpu.nvidia.com", node="node-a", node_uid="u1", pool="node-a/gpu.nvidia.com")
Pool = dict[str, dict[str, Any]]


def devices(*names: str) -> tuple[Device, ...]:
    return tuple(Device(name=name, attributes={"type": DeviceAttribute(string="gpu")}) for name in names)


def desired(*slices: Sequence[str]) -> list[DesiredSlice]:
    return [DesiredSlice(index=index, devices=devices(*names)) for index, names in enumerate(slices)]


_numbers = itertools.count(1)


def apply(writes: Writes, pool: Mapping[str, dict[str, Any]]) -> Pool:
    """The slices of the API server after the writes."""
    result = copy.deepcopy(dict(pool))
    for delete in writes.deletes:
        assert result[delete.name]["metadata"]["uid"] == delete.uid
        del result[delete.name]
    for update in writes.updates:
        name = str(update.metadata["name"])
        assert update.metadata["resourceVersion"] == result[name]["metadata"]["resourceVersion"]
        result[name] = wire(update)
        result[name]["metadata"]["resourceVersion"] = str(next(_numbers))
    for create in writes.creates:
        item = wire(create)
        number = next(_numbers)
        name = f"{item['metadata'].pop('generateName')}{number:05d}"
        item["metadata"] |= {"name": name, "uid": f"uid-{number}", "resourceVersion": str(number)}
        result[name] = item
    return result


def published(*slices: Sequence[str]) -> Pool:
    return apply(compute_writes(desired(*slices), [], IDENTITY), {})


def generations(pool: Pool) -> set[int]:
    return {item["spec"]["pool"]["generation"] for item in pool.values()}


def test_growing_and_shrinking_keep_the_count_right() -> None:
    """resourceSliceCount tells the scheduler when it has seen everything."""
    grown = compute_writes(desired(["a"], ["b"]), published(["a"]).values(), IDENTITY)
    assert (len(grown.updates), len(grown.creates), grown.generation) == (1, 1, 2)
    shrunk = compute_writes(desired(["a"]), published(["a"], ["b"]).values(), IDENTITY)
    assert (len(shrunk.deletes), len(shrunk.updates), shrunk.generation) == (1, 1, 1)


def test_a_slice_that_disappeared_is_created_again_alone() -> None:
    pool = published(["a"], ["b"])
    del pool[min(pool)]
    writes = compute_writes(desired(["a"], ["b"]), pool.values(), IDENTITY)
    assert (len(writes.deletes), len(writes.updates), len(writes.creates)) == (0, 0, 1)
    assert writes.generation == 1


def test_old_generations_duplicates_and_unknown_names_are_deleted() -> None:
    pool = published(["a"])
    name = next(iter(pool))
    for other, generation in (("00000-gpu.nvidia.com-node-a-zzzzz", 1), ("00000-old", 0), ("node-a-gpu-x", 1)):
        item = copy.deepcopy(pool[name])
        item["metadata"] |= {"name": other, "uid": other}
        item["spec"]["pool"]["generation"] = generation
        pool[other] = item
    writes = compute_writes(desired(["a"]), pool.values(), IDENTITY)
    assert {delete.name for delete in writes.deletes} == set(pool) - {name}
    assert not writes.updates
    assert not writes.creates


def counted(*names: str) -> list[DesiredSlice]:
    """A counter set, and a slice of devices that need it for each name."""
    counters = {"memory": Counter(value="1")}
    taken = DeviceCounterConsumption(counter_set="c", counters=counters)
    held = (replace(device, consumes_counters=(taken,)) for device in devices(*names))
    return [
        DesiredSlice(index=0, counter_sets=(CounterSet(name="c", counters=counters),)),
        *(DesiredSlice(index=index, devices=(one,)) for index, one in enumerate(held, 1)),
    ]


def in_part(writes: Writes, pool: Pool, count: int) -> Pool:
    """The slices after the first ``count`` writes; there are no deletions and no creations."""
    assert not writes.deletes
    assert not writes.creates
    done = {body.metadata["name"] for body in writes.in_order()[:count]}
    updates = tuple(body for body in writes.updates if body.metadata["name"] in done)
    return apply(Writes(updates=updates, generation=writes.generation), pool)


@pytest.mark.parametrize("count", range(5))
def test_a_change_that_was_written_in_part_is_continued_in_place(count: int) -> None:
    """A busy API server refuses the rest; writing all of it anew, or deleting first, would keep it busy."""
    start = apply(compute_writes(counted("a", "b", "c"), [], IDENTITY), {})
    want = counted("x", "y", "z")
    half = in_part(compute_writes(want, start.values(), IDENTITY), start, count)
    rest = compute_writes(want, half.values(), IDENTITY)
    assert (len(rest.deletes), len(rest.updates), len(rest.creates)) == (0, 4 - count, 0)
    assert rest.generation == 2
    assert not compute_writes(want, apply(rest, half).values(), IDENTITY)


def test_a_change_that_was_written_in_part_and_is_outdated_is_replaced_in_place() -> None:
    start = apply(compute_writes(counted("a", "b", "c"), [], IDENTITY), {})
    half = in_part(compute_writes(counted("x", "y", "z"), start.values(), IDENTITY), start, 2)
    writes = compute_writes(counted("1", "2", "3"), half.values(), IDENTITY)
    assert (len(writes.deletes), len(writes.updates), len(writes.creates)) == (0, 4, 0)
    assert writes.generation == 3


def test_devices_that_need_counters_never_complete_a_generation() -> None:
    """An API server that drops counters would have them allocated side by side."""
    start = apply(compute_writes(counted("a", "b"), [], IDENTITY), {})
    for name in list(start):
        item = start[name]
        if not item["spec"].get("sharedCounters"):
            item["spec"]["pool"]["generation"] -= 1
    writes = compute_writes(counted("a", "b"), start.values(), IDENTITY)
    assert writes.generation == 2
    assert not writes.in_order()[-1].spec.devices


def test_of_two_slices_for_one_index_the_right_one_stays() -> None:
    """Keeping the other would cost an update more."""
    pool = published(["a"])
    name = next(iter(pool))
    wrong = copy.deepcopy(pool[name])
    wrong["metadata"] |= {"name": "00000-a", "uid": "w"}
    wrong["spec"]["devices"] = wire(devices("other"))
    writes = compute_writes(desired(["a"]), [wrong, pool[name]], IDENTITY)
    assert [delete.uid for delete in writes.deletes] == ["w"]
    assert len(writes) == 1


def test_a_new_node_object_becomes_the_owner_and_other_owners_stay() -> None:
    """A slice without an existing owner is garbage-collected."""
    pool = published(["a"])
    item = next(iter(pool.values()))
    item["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "old", "controller": True},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"},
    ]
    item["metadata"]["labels"] = {"added": "by-another-client"}
    writes = compute_writes(desired(["a"]), [item], IDENTITY)
    metadata = wire(writes.updates[0].metadata)
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["c", "u1"]
    assert metadata["labels"] == {"added": "by-another-client"}


def test_malformed_slices_do_no_harm() -> None:
    damaged: list[dict[str, Any]] = [
        {},
        {"metadata": None, "spec": None},
        {"spec": {"pool": []}},
        {"metadata": [], "spec": {"devices": 3}},
    ]
    for bad in damaged:
        assert len(compute_writes(desired(["a"]), [bad], IDENTITY).creates) == 1
    odd = copy.deepcopy(next(iter(published(["a"]).values())))
    odd["spec"]["pool"] |= {"generation": "many", "resourceSliceCount": None}
    odd["spec"]["devices"] = {"not": "a list"}
    odd["metadata"]["ownerReferences"] = "not a list"
    assert len(compute_writes(desired(["a"]), [odd], IDENTITY)) >= 1


_names = st.lists(st.sampled_from([f"gpu-{n}" for n in range(12)]), unique=True, max_size=12)


def _disturb(pool: Pool, draw: st.DataObject) -> Pool:
    """What other clients do: delete, edit, duplicate."""
    result = copy.deepcopy(pool)
    for name in list(result):
        match draw.draw(st.sampled_from(["keep", "keep", "delete", "edit", "double", "age"])):
            case "delete":
                del result[name]
            case "edit":
                result[name]["spec"]["devices"] = wire(devices("stranger"))
            case "double":
                item = copy.deepcopy(result[name])
                item["metadata"] |= {"name": name + "b", "uid": "double" + name}
                result[name + "b"] = item
            case "age":
                result[name]["spec"]["pool"]["generation"] -= 1
    return result


@given(_names, _names, st.integers(1, 5), st.data())
def test_any_state_becomes_the_desired_one_in_one_round(
    before: list[str], after: list[str], per_slice: int, data: st.DataObject
) -> None:
    start = apply(compute_writes(split_devices(devices(*before), per_slice=per_slice), [], IDENTITY), {})
    disturbed = _disturb(start, data)
    want = split_devices(devices(*after), per_slice=per_slice)
    writes = compute_writes(want, disturbed.values(), IDENTITY)
    result = apply(writes, disturbed)
    assert not compute_writes(want, result.values(), IDENTITY)
    assert [d["name"] for _, item in sorted(result.items()) for d in item["spec"].get("devices", [])] == after
    assert len(generations(result)) == 1
    assert min(generations(result)) >= max(generations(disturbed), default=0)
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in result.values()} == {len(want)}
    assert len(writes) <= len(disturbed) + len(want)


@given(_names, st.integers(1, 5), st.data())
def test_as_many_writes_as_slices_that_differ(names: list[str], per_slice: int, data: st.DataObject) -> None:
    start = apply(compute_writes(split_devices(devices(*names), per_slice=per_slice), [], IDENTITY), {})
    want = list(split_devices(devices(*names), per_slice=per_slice))
    changed = data.draw(st.sets(st.sampled_from(range(len(want)))))
    for index in changed:
        want[index] = DesiredSlice(index=index, devices=(*want[index].devices, *devices("new")))
    writes = compute_writes(want, start.values(), IDENTITY)
    assert len(writes) == (len(changed) if len(changed) < 2 else len(want))
    assert writes.generation == (1 if len(changed) < 2 else 2)


THEN, LATER = "2026-11-22T10:00:00Z", "2026-11-22T11:00:00Z"
RESERVED = Taint(key="example.com/reserved", value="ml", effect="NoExecute")


def stored(**changes: Any) -> dict[str, Any]:
    taint = {"key": RESERVED.key, "value": "ml", "effect": "NoExecute", "timeAdded": THEN, **changes}
    return {"metadata": {"name": "x"}, "spec": {"devices": [{"name": "gpu-0", "taints": [taint]}]}}


def device(**changes: str) -> Device:
    taint = DeviceTaint(key=RESERVED.key, value="ml", effect="NoExecute")
    return Device(name="gpu-0", taints=(replace(taint, **changes),))


@pytest.mark.parametrize(
    ("changes", "time"),
    [
        ({"value": "other"}, ""),
        ({"effect": "NoSchedule"}, ""),
        ({"key": "example.com/other"}, ""),
        ({"time_added": LATER}, LATER),
    ],
)
def test_another_taint_and_a_given_time_do_not_get_the_known_time(changes: dict[str, str], time: str) -> None:
    (found,) = with_times([device(**changes)], known_times([stored()]))
    assert found.taints[0].time_added == time


MALFORMED: tuple[object, ...] = (None, [], {"devices": 5}, {"devices": [5, {"taints": {"a": 1}}]})


@pytest.mark.parametrize(
    "item",
    [
        *(stored(timeAdded=time) for time in ("yesterday", 5, None, "2026-11-22T10:00:00Z and more")),
        *({"spec": spec} for spec in MALFORMED),
    ],
)
def test_a_malformed_slice_has_no_times(item: dict[str, Any]) -> None:
    """Any client may have written it, and one wrong field makes the whole slice invalid."""
    assert known_times([item]) == {}


def test_an_update_for_another_reason_keeps_the_time() -> None:
    def wanted(*gpus: Any) -> Any:
        shown: Snapshot = snapshot(*gpus)
        terms = {one.uuid: GpuTerms(policy="p", taints=(RESERVED,)) for one in gpus[:1]}
        return split(build_devices(shown, terms, ALL))

    (created,) = compute_writes(wanted(gpu(0)), [], IDENTITY).creates
    existing = wire(created)
    existing["metadata"]["name"] = "00000-gpu.nvidia.com-node-a-x"
    existing["spec"]["devices"][0]["taints"][0]["timeAdded"] = THEN
    assert not compute_writes(wanted(gpu(0)), [existing], IDENTITY)
    (update,) = compute_writes(wanted(gpu(0), gpu(1)), [existing], IDENTITY).updates
    assert update.spec.devices[0].taints[0].time_added == THEN
    assert not update.spec.devices[1].taints


DRIVER, POOL = IDENTITY.driver, IDENTITY.pool
OWN = {"GPU-0", "GPU-1"}


def slice_of(driver: str, pool: str, *attributes: dict[str, Any], name: str = "a") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "7", "managedFields": [{}]},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": 1},
            "devices": [{"name": "d", "attributes": own, "capacity": {}} for own in attributes],
        },
    }


def uuid(value: str, name: str = "uuid") -> dict[str, Any]:
    return {name: {"string": value}}


def found(*items: dict[str, Any]) -> tuple[OtherPool, ...]:
    return other_pools([slimmed(item) for item in items], DRIVER, POOL, OWN)


def test_only_names_versions_and_uuids_are_kept() -> None:
    assert slimmed(slice_of("other", "p", uuid("GPU-0"), uuid("GPU-0", "parentUUID"), uuid("MIG-1"))) == {
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": {"driver": "other", "pool": {"name": "p"}},
        "gpus": ("GPU-0",),
    }


def test_other_pools_with_gpus_of_this_node_are_found() -> None:
    """NVIDIA's driver has this driver's default name; its pool is the node's name.

    A GPU counts whole or as the parent of partitions, with or without a domain in the attribute's name.
    """
    nic = {"nearestGpu": {"string": "GPU-0"}, "uuid": {"string": "nic-1"}}
    others = [slice_of(DRIVER, POOL, uuid("GPU-0")), slice_of("nic", "p", nic), slice_of("other", "p", uuid("GPU-9"))]
    assert found(*others) == ()
    theirs = [slice_of("other", "p", uuid("GPU-0")), slice_of("other", "p", uuid("GPU-1", "other/parentUUID"))]
    assert found(*others, *theirs, slice_of(DRIVER, "node-a", uuid("GPU-0"))) == (
        OtherPool(driver=DRIVER, pool="node-a", gpus=frozenset({"GPU-0"})),
        OtherPool(driver="other", pool="p", gpus=frozenset({"GPU-0", "GPU-1"})),
    )


def test_objects_of_any_shape_are_read() -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"metadata": None, "spec": None},
        {"spec": {"devices": [None, {"attributes": {"uuid": None}}], "pool": 3}},
        {"spec": {"devices": {"uuid": "GPU-0"}}},
        slice_of("other", "p", {"uuid": {"int": 3}}),
    ]
    assert found(*wrong) == ()
    assert not is_of(slimmed({}), DRIVER)
    assert is_of(slimmed(slice_of(DRIVER, "x")), DRIVER)
