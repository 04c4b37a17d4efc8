"""A node whose GPUs are published as this driver publishes them, for questions to the allocator."""

from collections.abc import Sequence

from dra_driver.core.model.gpu import Snapshot
from dra_driver.node.slices import ApiServerFeatures, Built, build_devices, split
from dra_driver.scheduler.allocation import V1_36, Allocator, SchedulerQuirks
from tests.fakes.dra_objects import DRIVER, Obj, claim, device_class, node, resource_slice, wire

NODE = "a"
MIG_CLASS = "mig.nvidia.com"
EVERYTHING = ApiServerFeatures(counters=True, taints=True, taints_1_35=True, multi_allocation=True)
SAME_GPU = {"matchAttribute": f"{DRIVER}/parentUUID"}
_ATTRIBUTES = f'device.attributes["{DRIVER}"]'
_CLASSES = [
    device_class(),
    device_class(MIG_CLASS, expression=f'device.driver == "{DRIVER}" && {_ATTRIBUTES}.type == "mig"'),
]


def built(snapshot: Snapshot) -> Built:
    """The slices for an API server that keeps every field."""
    return build_devices(snapshot, {}, EVERYTHING)


def published(of: Built, *, per_slice: int = 64) -> list[Obj]:
    """The slices, as an API server returns them."""
    parts = split(of, per_slice=per_slice)
    found = []
    for part in parts:
        item = resource_slice(NODE, count=len(parts), name=f"{part.index:05x}-{NODE}")
        if part.counter_sets:
            del item["spec"]["devices"]
            item["spec"]["sharedCounters"] = wire(part.counter_sets)
        else:
            item["spec"]["devices"] = wire(part.devices)
        found.append(item)
    return found


def partition(name: str, profile: str, *, start: int | None = None) -> Obj:
    """A request for a partition by profile, perhaps at one placement."""
    wanted = f'{_ATTRIBUTES}.profile == "{profile}"'
    if start is not None:
        wanted += f" && {_ATTRIBUTES}.placementStart == {start}"
    exactly = {"deviceClassName": MIG_CLASS, "allocationMode": "ExactCount", "count": 1}
    return {"name": name, "exactly": {**exactly, "selectors": [{"cel": {"expression": wanted}}]}}


class Scheduler:
    """Allocates claims one after the other and remembers their devices."""

    def __init__(self, slices: Sequence[Obj], quirks: SchedulerQuirks = V1_36) -> None:
        self._slices = slices
        self._quirks = quirks
        self._held: dict[str, Obj] = {}
        self._made = 0

    def allocate(self, *requests: Obj, together: bool = False) -> tuple[str, list[str]] | None:
        """(claim, devices in order of the requests), None if it does not fit. ``together``: on one GPU."""
        self._made += 1
        name = f"claim-{self._made}"
        wanted = claim(name, *requests, constraints=[SAME_GPU]) if together else claim(name, *requests)
        allocator = Allocator(
            slices=self._slices, classes=_CLASSES, allocated=list(self._held.values()), quirks=self._quirks
        )
        allocations = allocator.allocate(node(NODE), [wanted]).allocations
        if allocations is None:
            return None
        self._held[name] = {**wanted, "status": {"allocation": allocations[0]}}
        return name, [result["device"] for result in allocations[0]["devices"]["results"]]

    def release(self, name: str) -> None:
        """Forget the claim and its allocation."""
        del self._held[name]
