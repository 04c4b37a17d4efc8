"""The scheduler's feature gates and its mistakes by version. Gates have the names of ``--feature-gates`` and the
defaults of Kubernetes 1.36 (pkg/features/kube_features.go). Each mistake of 1.36 that 1.37 corrects
(k8s.io/dynamic-resource-allocation structured/internal) is a flag, and so is each difference of 1.34 and 1.35."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.scheduler.cel import LACKS_BEFORE_1_36, LACKS_NONE


class SchedulerFeatures(Struct, frozen=True, kw_only=True):
    """Feature gates of the scheduler, with the defaults of 1.36."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = False
    one_allocator: bool = False

    @property
    def stable(self) -> bool:
        """Return whether the scheduler uses an allocator without shares and binding conditions (``stable``; in 1.35
        ``incubating``). ``one_allocator`` (1.34): it never does, because DRAResourceClaimDeviceStatus is on."""
        return not (self.binding_conditions or self.consumable_capacity or self.one_allocator)

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
    "DRAListTypeAttributes": "list_attributes",
}
"""Gate of Kubernetes -> field of Features."""


class SchedulerQuirks(Struct, frozen=True, kw_only=True):
    """Defects and differences of one version. The defaults are for 1.36; 1.37 has ``False`` everywhere."""

    counters_by_pool_name: bool = True  # counters of pools of one name are mixed up, whatever their drivers
    counters_stay_charged: bool = True  # a device rejected after the counter check stays charged in the attempt
    shares_stay_charged: bool = True  # deallocating a share does not refund its counters
    lists_meet_nothing: bool = True  # constraints ignore lists, selectors do not (kubernetes/kubernetes#139332)
    distinct_forgets: bool = True  # distinctAttribute remembers only the last value of a request
    config_per_name: bool = True  # a claim configuration that names two requests is written twice
    config_keeps_names: bool = True  # a configuration for all requests lists them; in 1.37 it lists none
    counter_slices_everywhere: bool = True  # slices with counters are relevant for every node
    whole_units: bool = True  # steps of a validRange are whole units, rounded up; negative requests pass

    # 1.34 and 1.35
    slices_as_listed: bool = False  # slices of a pool are tried in the order of the list (pools by name here)
    same_device_again: bool = False  # a request may get several shares of one device
    all_continues_as_first: bool = False  # with mode All, later devices use the first alternative of the request
    shares_hide_counters: bool = False  # a device with shares of other claims does not count as a counter consumer
    older_functions: bool = False  # selectors lack the functions of 1.36 (`functions_lacking`)

    # 1.34. `pools_as_seen`: a pool is invalid only if a device name occurs twice, and then a request that reaches it is
    # an error. `capacity_by_position` (DRAConsumableCapacity on): a slice with fewer devices crashes the scheduler.
    one_allocator: bool = False  # see `SchedulerFeatures.stable`
    pools_as_seen: bool = False  # only slices for the node count; incomplete pools are allocated
    shares_charge_each: bool = False  # counters are charged for every share of a device
    every_effect_blocks: bool = False  # taints with unknown effects (None) prevent allocation, too
    distinct_by_identity: bool = False  # distinctAttribute compares addresses of values, so only a device with itself
    tolerations_dropped: bool = False  # results lack the tolerations of the request
    capacity_by_position: bool = False  # the N-th device of a request is checked by the N-th of the slice

    @property
    def functions_lacking(self) -> frozenset[str]:
        return LACKS_BEFORE_1_36 if self.older_functions else LACKS_NONE

    @classmethod
    def of_version(cls, version: str) -> "SchedulerQuirks":
        """The quirks of a Kubernetes version: ``1.36``, ``v1.36.2``, ``1.37.0-rc.1``. Raises ConfigurationError."""
        major, _, rest = version.strip().removeprefix("v").partition(".")
        minor = rest.partition(".")[0]
        if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit() and len(version) < 64):
            raise ConfigurationError(
                f"{version[:64]!r} is not a Kubernetes version: expected one like 1.36 or v1.36.2",
                reason="InvalidVersion",
            )
        number = (int(major), int(minor))
        return next((quirks for last, quirks in _UP_TO if number <= last), V1_37)


class SchedulerRules(Struct, frozen=True, kw_only=True):
    """Gates and quirks of the scheduler whose answer is computed."""

    features: SchedulerFeatures
    quirks: SchedulerQuirks


V1_36: Final = SchedulerQuirks()
V1_35: Final = replace(
    V1_36,
    slices_as_listed=True,
    same_device_again=True,
    all_continues_as_first=True,
    shares_hide_counters=True,
    older_functions=True,
)
V1_34: Final = replace(
    V1_35,
    counters_by_pool_name=False,
    counter_slices_everywhere=False,
    one_allocator=True,
    pools_as_seen=True,
    shares_charge_each=True,
    every_effect_blocks=True,
    distinct_by_identity=True,
    tolerations_dropped=True,
    capacity_by_position=True,
)
V1_37: Final = SchedulerQuirks(**dict.fromkeys(SchedulerQuirks.__struct_fields__, False))
_UP_TO: Final = (((1, 34), V1_34), ((1, 35), V1_35), ((1, 36), V1_36))
