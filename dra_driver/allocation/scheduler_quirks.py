"""Which scheduler is asked: its feature gates, and its known mistakes by version.

Owns the names of gates as ``--feature-gates`` spells them, their defaults in Kubernetes 1.36, and which of the faults
of 1.36 are gone in 1.37 (k8s.io/dynamic-resource-allocation structured/internal; pkg/features/kube_features.go).
Refuses to know what the gates and faults do: each is one flag that the rest of the room asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from dra_driver.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFeatures:
    """Feature gates of the scheduler; the defaults are those of 1.36."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True

    @property
    def stable(self) -> bool:
        """Whether the scheduler picks its oldest allocator, which knows neither shares nor binding conditions."""
        return not self.binding_conditions and not self.consumable_capacity

    @classmethod
    def from_gates(cls, gates: Mapping[str, bool]) -> "SchedulerFeatures":
        """Features from gates that differ from the default. Gates that do not concern allocation are ignored."""
        known = {GATES[name]: bool(value) for name, value in gates.items() if name in GATES}
        return cls(**known)


GATES: Final[dict[str, str]] = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRADeviceTaints": "device_taints",
    "DRADeviceBindingConditions": "binding_conditions",
    "DRAConsumableCapacity": "consumable_capacity",
}
"""Gate of Kubernetes -> field of Features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerQuirks:
    """The faults and habits of one version. The defaults are 1.36's; ``False`` everywhere is 1.37's.

    - ``counters_by_pool_name``: counters are kept by the name of the pool alone, so a second driver with a pool of the
      same name has its counter sets unchecked, or mixed up with the first one's.
    - ``counters_stay_charged``: a device that passes the counter check and is then refused for a taint, a constraint or
      capacity keeps its counters for the rest of the attempt.
    - ``shares_stay_charged``: giving back the share of a multi-allocatable device does not give back its counters.
    - ``distinct_forgets``: distinctAttribute remembers one value per request, the last one.
    - ``config_per_name``: a claim configuration that names two requests is written twice.
    - ``config_keeps_names``: a configuration for every request still lists them; later, no names mean all.
    - ``counter_slices_everywhere``: slices with counters concern every node, whatever node they name.
    - ``whole_units``: steps of a validRange are counted in whole units, fractions rounded up, and a negative request is
      accepted.
    """

    counters_by_pool_name: bool = True
    counters_stay_charged: bool = True
    shares_stay_charged: bool = True
    distinct_forgets: bool = True
    config_per_name: bool = True
    config_keeps_names: bool = True
    counter_slices_everywhere: bool = True
    whole_units: bool = True

    @classmethod
    def of_version(cls, version: str) -> "SchedulerQuirks":
        """The behaviour of a Kubernetes version: ``1.36``, ``v1.36.2``, ``1.37.0-rc.1``. Raises ConfigurationError."""
        major, _, rest = version.strip().removeprefix("v").partition(".")
        minor = rest.partition(".")[0]
        if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit() and len(version) < 64):
            raise ConfigurationError(f"{version[:64]!r} is no Kubernetes version: expected one like 1.36 or v1.36.2")
        return V1_36 if (int(major), int(minor)) <= (1, 36) else V1_37


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """The scheduler that is asked."""

    features: SchedulerFeatures
    quirks: SchedulerQuirks


V1_36: Final = SchedulerQuirks()
V1_37: Final = SchedulerQuirks(**{field.name: False for field in fields(SchedulerQuirks)})
