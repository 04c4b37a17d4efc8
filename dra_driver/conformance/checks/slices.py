"""What the driver publishes, without disturbing it."""

from collections import Counter
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.published import counters, devices, incomplete, newest
from dra_driver.conformance.values import UnableError, ViolationError, basic

TYPES: Final = "staging/src/k8s.io/api/resource/v1/types.go"
CONTROLLER: Final = "staging/src/k8s.io/dynamic-resource-allocation/resourceslice/resourceslicecontroller.go"
MAX_DEVICES: Final = 64


@basic("slices-published", f"{TYPES}:60-82")
def are_published(bench: Bench) -> None:
    """The driver publishes ResourceSlices for its node.

    Slices represent the resources in a pool of a driver; without any the scheduler allocates nothing.
    """
    try:
        bench.slices()
    except UnableError as error:
        raise ViolationError(str(error)) from error


@basic("slices-count", f"{TYPES}:274-281")
def count_is_right(bench: Bench) -> None:
    """Each pool has as many slices as they say.

    ResourceSliceCount is the total number of ResourceSlices in the pool at this generation number.
    """
    bench.wait(lambda: incomplete(bench.cluster.slices()), bench.limits.publish_s, "complete pools")


@basic("slices-generation", f"{TYPES}:258-272")
def old_generations_go(bench: Bench) -> None:
    """Slices of older generations do not stay.

    Whenever a driver changes something about a pool, it must change the generation in all ResourceSlices which are
    part of that pool.
    """

    def outdated() -> str:
        slices = bench.cluster.slices()
        if problem := incomplete(slices):
            return problem  # nothing is published yet, or the newest generation is still being written
        kept = [item["metadata"]["name"] for found in newest(slices).values() for item in found]
        old = [item["metadata"]["name"] for item in slices if item["metadata"]["name"] not in kept]
        return f"slices of older generations remain: {', '.join(old[:4])}" if old else ""

    bench.wait(outdated, bench.limits.publish_s, "one generation in each pool")


@basic("slices-device-names", f"{TYPES}:79-81")
def names_are_unique(bench: Bench) -> None:
    """Device names are unique in their pool.

    Each device in a given pool, regardless of how many ResourceSlices, must have a unique name.
    """
    repeated = [key for key, count in Counter(device.key for device in devices(bench.slices())).items() if count > 1]
    if repeated:
        pool, name = repeated[0]
        raise ViolationError(f"pool {pool} has more than one device {name}; schedulers then ignore the whole pool")


@basic("slices-counters", f"{TYPES}:185-240", needs=("partitions",))
def counters_exist(bench: Bench) -> None:
    """Counters that devices consume exist and suffice.

    Devices consume counters of the counter sets of their pool.
    """
    slices = bench.slices()
    published = counters(slices)
    for device in devices(slices):
        for (pool, name, counter), amount in device.charges.items():
            total = published.get((pool, name, counter))
            if total is None:
                raise ViolationError(f"device {device.name} consumes counter {name}/{counter}, which is not published")
            if total < amount:
                raise ViolationError(f"device {device.name} consumes {amount} of {name}/{counter}, which has {total}")


@basic("slices-room-for-taints", f"{TYPES}:285-292", level="should")
def leave_room_for_taints(bench: Bench) -> None:
    """A taint can be added to any device.

    A slice has at most 64 devices if any of them uses device taints.
    """
    for item in bench.slices():
        count = len(item["spec"].get("devices") or ())
        if count > MAX_DEVICES:
            raise ViolationError(
                f"slice {item['metadata']['name']} has {count} devices: the first taint makes it invalid, because a "
                f"slice with taints has at most {MAX_DEVICES}"
            )


@basic("slices-owner", f"{CONTROLLER}:206-253, 852-874", level="should")
def owned_by_node(bench: Bench) -> None:
    """Slices disappear with their node.

    ResourceSlices have their Node as owner, so that they are deleted with it.
    """
    for item in bench.slices():
        owners = item["metadata"].get("ownerReferences") or ()
        if item["spec"].get("nodeName") and not any(owner.get("kind") in {"Node", "Pod"} for owner in owners):
            raise ViolationError(f"slice {item['metadata']['name']} has no owner; it stays when its node is deleted")


@basic(
    "slices-pool-name",
    "staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go:1518-1525",
    level="should",
    needs=("partitions",),
)
def pool_name_is_own(bench: Bench) -> None:
    """A pool with counters has a name that no other driver uses.

    Schedulers up to 1.36.2 keep counters by pool name without the driver.
    """
    names = {item["spec"]["pool"]["name"] for item in bench.slices() if item["spec"].get("sharedCounters")}
    if bench.cluster.node in names:
        raise ViolationError(
            f"the pool with counters is named {bench.cluster.node}, like the node; another driver may use that name, "
            "and then schedulers up to 1.36.2 hand out overlapping partitions. Expected a name with the driver in it"
        )


@basic("slices-quiet", f"{CONTROLLER}:64-69")
def quiet(bench: Bench) -> None:
    """Nothing is written while nothing changes.

    Drivers that wrote without need overloaded API servers of large clusters (kubernetes#140011).
    """
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
