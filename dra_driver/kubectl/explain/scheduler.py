"""Derives the scheduler's behaviour and feature gates from the cluster's version.

The gates of a running scheduler cannot be read, so the defaults of its version apply unless they are given. A published
field that the API server keeps only with its gate on shows that it is on: before 1.36 those of `_YOUNG`, and lists as
attributes, which are refused without theirs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.subject import Wire
from dra_driver.scheduler.allocation import V1_36, SchedulerFeatures, SchedulerQuirks

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})")
# Off before 1.36 (pkg/features/kube_features.go).
_YOUNG: Final = (
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRAConsumableCapacity",
)
SLICES_LOOKED_AT: Final = 16
"""Of each driver, to learn whether it publishes lists."""
_LISTS: Final = ("ints", "strings", "bools", "versions")
# Field of a device -> its gate.
_FIELDS: Final = {
    "taints": "DRADeviceTaints",
    "bindingConditions": "DRADeviceBindingConditions",
    "allowMultipleAllocations": "DRAConsumableCapacity",
}


class SchedulerModel(Struct, frozen=True, kw_only=True):
    """Behaviour and feature gates that `explain` assumes of the scheduler."""

    features: SchedulerFeatures = field(default_factory=SchedulerFeatures)
    quirks: SchedulerQuirks = V1_36


def scheduler_of(version: str, gates: Mapping[str, bool], slices: Iterable[Wire] = ()) -> SchedulerModel:
    """Returns the model for a cluster of that version (1.36 when unknown).

    ``gates`` override the defaults, and what the published ``slices`` show.
    """
    found, defaults = _VERSION.match(version), _lists_seen(slices)
    if found is None:
        return SchedulerModel(features=SchedulerFeatures.from_gates({**defaults, **gates}))
    major, minor = int(found[1]), int(found[2])
    if (major, minor) < (1, 36):
        defaults |= {**dict.fromkeys(_YOUNG, False), **_gates_seen(slices)}
    return SchedulerModel(
        features=SchedulerFeatures.from_gates({**defaults, **gates}),
        quirks=SchedulerQuirks.of_version(f"{major}.{minor}"),
    )


def scheduler_for(state: ClusterState, gates: str = "") -> SchedulerModel:
    """The model for the cluster of ``state``, with gates as in ``--feature-gates``. Raises ConfigurationError."""
    return scheduler_of(state.server_version, gates_of(gates), state.slices)


def _gates_seen(slices: Iterable[Wire]) -> dict[str, bool]:
    """The gates of `_YOUNG` that are on, because a slice has a field of theirs."""
    seen: dict[str, bool] = {}
    for item in slices:
        if item["spec"].get("sharedCounters"):
            seen["DRAPartitionableDevices"] = True
        for device in item["spec"].get("devices") or ():
            seen |= {gate: True for field, gate in _FIELDS.items() if device.get(field)}
        if len(seen) == len(_YOUNG):
            break
    return seen


def _lists_seen(slices: Iterable[Wire]) -> dict[str, bool]:
    """The gate of lists, by the first device of some slices: a driver publishes its devices alike on all nodes.

    Devices of a large cluster are decoded when they are looked at, so looking at all would take seconds.
    """
    looked_at: Counter[str] = Counter()
    for item in slices:
        driver = str(item["spec"].get("driver"))
        if looked_at[driver] >= SLICES_LOOKED_AT:
            continue
        for device in (item["spec"].get("devices") or ())[:1]:
            looked_at[driver] += 1
            if any(kind in value for value in (device.get("attributes") or {}).values() for kind in _LISTS):
                return {"DRAListTypeAttributes": True}
    return {}


def gates_of(text: str) -> dict[str, bool]:
    """Parses ``A=true,B=false`` as in ``--feature-gates``. Raises ConfigurationError."""
    found = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = part.partition("=")
        if value.lower() not in ("true", "false"):
            raise ConfigurationError(f"feature gate {part[:80]!r}: expected NAME=true or NAME=false")
        found[name] = value.lower() == "true"
    return found
