"""What the driver publishes, without disturbing it."""

from collections import Counter
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.published import counters, devices, incomplete, newest
from dra_driver.conformance.values import Check, UnableError, ViolationError

TYPES: Final = "staging/src/k8s.io/api/resource/v1/types.go"
CONTROLLER: Final = "staging/src/k8s.io/dynamic-resource-allocation/resourceslice/resourceslicecontroller.go"
MAX_DEVICES: Final = 64


def are_published(bench: Bench) -> None:
    try:
        bench.slices()
    except UnableError as error:
        raise ViolationError(str(error)) from error


def count_is_right(bench: Bench) -> None:
    bench.wait(lambda: incomplete(bench.cluster.slices()), bench.limits.publish_s, "complete pools")


def old_generations_go(bench: Bench) -> None:
    def outdated() -> str:
        slices = bench.cluster.slices()
        if problem := incomplete(slices):
            return problem  # nothing is published yet, or the newest generation is still being written
        kept = [item["metadata"]["name"] for found in newest(slices).values() for item in found]
        old = [item["metadata"]["name"] for item in slices if item["metadata"]["name"] not in kept]
        return f"slices of older generations remain: {', '.join(old[:4])}" if old else ""

    bench.wait(outdated, bench.limits.publish_s, "one generation in each pool")


def names_are_unique(bench: Bench) -> None:
    repeated = [key for key, count in Counter(device.key for device in devices(bench.slices())).items() if count > 1]
    if repeated:
        pool, name = repeated[0]
        raise ViolationError(f"pool {pool} has more than one device {name}; schedulers then ignore the whole pool")


def counters_exist(bench: Bench) -> None:
    slices = bench.slices()
    published = counters(slices)
    for device in devices(slices):
        for (pool, name, counter), amount in device.charges.items():
            total = published.get((pool, name, counter))
            if total is None:
                raise ViolationError(f"device {device.name} consumes counter {name}/{counter}, which is not published")
            if total < amount:
                raise ViolationError(f"device {device.name} consumes {amount} of {name}/{counter}, which has {total}")


def leave_room_for_taints(bench: Bench) -> None:
    for item in bench.slices():
        count = len(item["spec"].get("devices") or ())
        if count > MAX_DEVICES:
            raise ViolationError(
                f"slice {item['metadata']['name']} has {count} devices: the first taint makes it invalid, because a "
                f"slice with taints has at most {MAX_DEVICES}"
            )


def owned_by_node(bench: Bench) -> None:
    for item in bench.slices():
        owners = item["metadata"].get("ownerReferences") or ()
        if item["spec"].get("nodeName") and not any(owner.get("kind") in {"Node", "Pod"} for owner in owners):
            raise ViolationError(f"slice {item['metadata']['name']} has no owner; it stays when its node is deleted")


def pool_name_is_own(bench: Bench) -> None:
    names = {item["spec"]["pool"]["name"] for item in bench.slices() if item["spec"].get("sharedCounters")}
    if bench.cluster.node in names:
        raise ViolationError(
            f"the pool with counters is named {bench.cluster.node}, like the node; another driver may use that name, "
            "and then schedulers up to 1.36.2 hand out overlapping partitions. Expected a name with the driver in it"
        )


def quiet(bench: Bench) -> None:
    before = _versions(bench)
    bench.pause(bench.limits.quiet_s)
    changed = [name for name, version in _versions(bench).items() if before.get(name) != version]
    if changed:
        raise ViolationError(
            f"{len(changed)} slices were written within {bench.limits.quiet_s:g} s although nothing had changed, "
            f"among them {changed[0]}"
        )


def _versions(bench: Bench) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in bench.slices()}


CHECKS: Final = (
    Check(
        id="slices-published",
        title="The driver publishes ResourceSlices for its node",
        rule="Slices represent the resources in a pool of a driver; without any the scheduler allocates nothing.",
        source=f"{TYPES}:60-82",
        run=are_published,
    ),
    Check(
        id="slices-count",
        title="Each pool has as many slices as they say",
        rule="ResourceSliceCount is the total number of ResourceSlices in the pool at this generation number.",
        source=f"{TYPES}:274-281",
        run=count_is_right,
    ),
    Check(
        id="slices-generation",
        title="Slices of older generations do not stay",
        rule="Whenever a driver changes something about a pool, it must change the generation in all ResourceSlices "
        "which are part of that pool.",
        source=f"{TYPES}:258-272",
        run=old_generations_go,
    ),
    Check(
        id="slices-device-names",
        title="Device names are unique in their pool",
        rule="Each device in a given pool, regardless of how many ResourceSlices, must have a unique name.",
        source=f"{TYPES}:79-81",
        run=names_are_unique,
    ),
    Check(
        id="slices-counters",
        title="Counters that devices consume exist and suffice",
        rule="Devices consume counters of the counter sets of their pool.",
        source=f"{TYPES}:185-240",
        run=counters_exist,
        needs=("partitions",),
    ),
    Check(
        id="slices-room-for-taints",
        title="A taint can be added to any device",
        rule="A slice has at most 64 devices if any of them uses device taints.",
        source=f"{TYPES}:285-292",
        run=leave_room_for_taints,
        level="should",
    ),
    Check(
        id="slices-owner",
        title="Slices disappear with their node",
        rule="ResourceSlices have their Node as owner, so that they are deleted with it.",
        source=f"{CONTROLLER}:206-253, 852-874",
        run=owned_by_node,
        level="should",
    ),
    Check(
        id="slices-pool-name",
        title="A pool with counters has a name that no other driver uses",
        rule="Schedulers up to 1.36.2 keep counters by pool name without the driver.",
        source="staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go:1518-1525",
        run=pool_name_is_own,
        level="should",
        needs=("partitions",),
    ),
    Check(
        id="slices-quiet",
        title="Nothing is written while nothing changes",
        rule="Drivers that wrote without need overloaded API servers of large clusters (kubernetes#140011).",
        source=f"{CONTROLLER}:64-69",
        run=quiet,
    ),
)
