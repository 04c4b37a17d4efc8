"""The scheduler whose answer is computed: its feature gates, and its mistakes by version.

Gates have the names of ``--feature-gates`` and the defaults of Kubernetes 1.36 (pkg/features/kube_features.go). Each
mistake of 1.36 that 1.37 corrects (k8s.io/dynamic-resource-allocation structured/internal) is a flag.
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
        """Whether the scheduler uses its ``stable`` allocator, without shares and binding conditions."""
        return not self.binding_conditions and not self.consumable_capacity

    @classmethod
    def from_gates(cls, gates: Mapping[str, bool]) -> "SchedulerFeatures":
        """Features from gates that differ from the default. Gates that do not affect allocation are ignored."""
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
    """The mistakes of one version. The defaults are those of 1.36; 1.37 has ``False`` everywhere.

    - ``counters_by_pool_name``: counters are kept by pool name without the driver. Counter sets of a second driver with
      a pool of the same name are not checked, or are mixed up with those of the first driver.
    - ``counters_stay_charged``: a device that passes the counter check and is then rejected for a taint, a constraint
      or capacity keeps its counters charged until the attempt ends.
    - ``shares_stay_charged``: deallocating a share of a multi-allocatable device does not refund its counters.
    - ``distinct_forgets``: distinctAttribute remembers one value per request, the last one.
    - ``config_per_name``: a claim configuration that names two requests is written twice.
    - ``config_keeps_names``: a configuration for all requests lists them; from 1.37 on it lists none, which means all.
    - ``counter_slices_everywhere``: slices with counters are relevant for every node, whatever node they name.
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
        """The quirks of a Kubernetes version: ``1.36``, ``v1.36.2``, ``1.37.0-rc.1``. Raises ConfigurationError."""
        major, _, rest = version.strip().removeprefix("v").partition(".")
        minor = rest.partition(".")[0]
        if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit() and len(version) < 64):
            raise ConfigurationError(f"{version[:64]!r} is no Kubernetes version: expected one like 1.36 or v1.36.2")
        return V1_36 if (int(major), int(minor)) <= (1, 36) else V1_37


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """Gates and quirks of the scheduler whose answer is computed."""

    features: SchedulerFeatures
    quirks: SchedulerQuirks


V1_36: Final = SchedulerQuirks()
V1_37: Final = SchedulerQuirks(**{field.name: False for field in fields(SchedulerQuirks)})
