"""Detect which gated fields of a ResourceSlice the API server keeps.

A field whose feature gate is disabled is silently dropped, or the object is refused; no endpoint reports gates. So a
canary per feature is created with ``dryRun=All``, and the answer compared. Source: kubernetes/kubernetes
pkg/registry/resource/resourceslice/strategy.go (dropDisabledFields).

Counter sets belong into resource slices without devices since 1.35, and into the slice of their devices in 1.34
(pkg/apis/resource/validation/validation.go, validateResourceSliceSpec). Each version accepts only its arrangement.
"""

import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from dra_driver.core.errors import InvalidObjectError
from dra_driver.kube.discovery import ServerVersion
from dra_driver.kube.objects import resource
from dra_driver.kube.published.devices import memory_overhead
from dra_driver.node.slices.api import SlicesApi
from dra_driver.node.slices.diff import SliceBody
from dra_driver.node.slices.gates import ApiServerFeatures, dropped_fields
from dra_driver.node.slices.layout import generate_name

log = logging.getLogger(__name__)


_SHARES_HIDE_COUNTERS = (1, 35)
"""The version whose scheduler counts whole devices alone (k8s.io/dynamic-resource-allocation, checkAvailableCounters in
structured/internal/experimental/allocator_experimental.go). 1.34.9 and 1.36.2 also charge shares."""
_ONE_COUNTER = {"memory": resource.Counter(value="1")}
_SET = resource.CounterSet(name="canary", counters=_ONE_COUNTER)
_CONSUMER = resource.Device(
    name="canary", consumes_counters=(resource.DeviceCounterConsumption(counter_set="canary", counters=_ONE_COUNTER),)
)
_TWO_SHARES = resource.CapacityRequestPolicy(default="2", valid_values=("1", "2"))
_CANARIES = {
    "taints": resource.Device(
        name="canary", taints=(resource.DeviceTaint(key="canary", value="x", effect="NoSchedule"),)
    ),
    "taints_1_35": resource.Device(
        name="canary", taints=tuple(resource.DeviceTaint(key=f"canary-{number}", effect="None") for number in range(5))
    ),
    "multi_allocation": resource.Device(
        name="canary",
        allow_multiple_allocations=True,
        capacity={"memory": resource.DeviceCapacity(value="2", request_policy=_TWO_SHARES)},
    ),
}
_OVERHEAD_FROM = (1, 37)
_OVERHEAD = resource.Device(name="canary", node_allocatable_resources={"memory": memory_overhead("1Mi")})
_LIST = resource.Device(name="canary", attributes={"canary": resource.DeviceAttribute(ints=(0,))})


def probe(api: SlicesApi, driver: str, node: str, *, lists: bool = False, overhead: bool = False) -> ApiServerFeatures:
    """Query the API server, in up to six dry runs, and one each for ``lists`` and ``overhead``. Raises
    KubernetesApiError."""

    def keeps(device: resource.Device | None, counter_set: resource.CounterSet | None = None) -> bool:
        spec = resource.ResourceSliceSpec(
            driver=driver,
            node_name=node,  # admission policies bind a node's credentials to its own resource slices
            pool=resource.ResourcePool(name=f"{node}/{driver}/canary", generation=1, resource_slice_count=1),
            devices=() if device is None else (device,),
            shared_counters=() if counter_set is None else (counter_set,),
        )
        body = SliceBody(metadata={"generateName": generate_name(0xFFFFF, driver, node)}, spec=spec)
        try:
            answer = api.create(body, dry_run=True)
        except InvalidObjectError:
            return False  # the slice is invalid after the drop
        return not any(dropped_fields(spec, answer.get("spec")))

    canaries = {**_CANARIES, **({"list_attributes": _LIST} if lists else {})}
    canaries |= {"node_overhead": _OVERHEAD} if overhead else {}
    kept = {name: keeps(device) for name, device in canaries.items()}
    if keeps(None, _SET):  # 1.34 keeps a resource slice of counter sets alone, too, if the gate is on
        apart = keeps(_CONSUMER)
        beside = not apart and keeps(_CONSUMER, _SET)
        kept |= {
            "counters": apart or beside,
            "counters_beside_devices": beside,
            "counters_refused": not (apart or beside),
        }
    return ApiServerFeatures(**kept)


class FeatureWatch:
    """Keeps the answer, and probes again when the API server's version changes. Only reading is thread-safe.

    Without ``lists``, list attributes count as a feature that the API server lacks.
    """

    def __init__(
        self, api: SlicesApi, version: Callable[[], ServerVersion], driver: str, node: str, *, lists: bool = False
    ) -> None:
        self._api, self._version, self._lists = api, version, lists
        self._driver, self._node = driver, node
        self._asked: ServerVersion | None = None
        self.current = ApiServerFeatures()
        """The features; none before the first answer."""

    @property
    def is_known(self) -> bool:
        return self._asked is not None

    def refresh(self) -> bool:
        """Probe if needed; True when the answer changed. On KubernetesApiError the old answer stays."""
        version = self._version()
        if version == self._asked:
            return False
        minor = (version.major, version.minor)
        kept = probe(self._api, self._driver, self._node, lists=self._lists, overhead=minor >= _OVERHEAD_FROM)
        hides = minor == _SHARES_HIDE_COUNTERS
        before, self.current = self.current, replace(kept, shares_hide_counters=hides)
        self._asked = version
        found = {name: getattr(self.current, name) for name in ApiServerFeatures.__struct_fields__}
        log.info("API server features found", extra={"version": str(version), **found})
        return before != self.current

    def lose(self, names: Iterable[str]) -> bool:
        """Disable features until the server's version changes: a write showed that the server drops their fields.

        False when they were disabled before. API servers behind one address may differ in their gates; one that drops
        fields counts.
        """
        before, self.current = self.current, replace(self.current, **dict.fromkeys(names, False))
        return before != self.current
