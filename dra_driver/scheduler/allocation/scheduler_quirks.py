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
    """Feature gates of the scheduler; the defaults are those of 1.36."""

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
    """The mistakes and differences of one version. The defaults are those of 1.36; 1.37 has ``False`` everywhere.

    - ``counters_by_pool_name``: counters are kept by pool name without the driver. Counter sets of a second driver with
      a pool of the same name are not checked, or are mixed up with those of the first driver.
    - ``counters_stay_charged``: a device that passes the counter check and is then rejected for a taint, a constraint
      or capacity keeps its counters charged until the attempt ends.
    - ``shares_stay_charged``: deallocating a share of a multi-allocatable device does not refund its counters.
    - ``lists_meet_nothing``: constraints do not know lists, although selectors do (kubernetes/kubernetes#139332).
    - ``distinct_forgets``: distinctAttribute remembers one value per request, the last one.
    - ``config_per_name``: a claim configuration that names two requests is written twice.
    - ``config_keeps_names``: a configuration for all requests lists them; from 1.37 on it lists none, which means all.
    - ``counter_slices_everywhere``: slices with counters are relevant for every node, whatever node they name.
    - ``whole_units``: steps of a validRange are counted in whole units, fractions rounded up, and a negative request is
      accepted.

    1.34 and 1.35:

    - ``slices_as_listed``: the slices of a pool are tried in the order of the list. Pools and, in a cluster, the list
      come in random order; the answer computed here tries pools by name.
    - ``same_device_again``: every device of a request is searched from the first device on, so one request may get
      several shares of one device.
    - ``all_continues_as_first``: an alternative with mode All gets its second device, and all further ones, as the
      first alternative of the request.
    - ``shares_hide_counters``: a device of which other claims have shares does not count as a consumer of counters.
    - ``older_functions``: selectors have no functions that came with 1.36 (`functions_lacking`).

    1.34:

    - ``one_allocator``: see `SchedulerFeatures.stable`.
    - ``pools_as_seen``: only slices for the node are counted. Devices of incomplete pools are allocated; a pool is
      invalid only if device names occur twice, and then a request that reaches it is an error.
    - ``shares_charge_each``: counters are charged for every share of a device.
    - ``every_effect_blocks``: taints with unknown effects (None) prevent allocation, too.
    - ``distinct_by_identity``: distinctAttribute compares addresses of values, so only a device with itself.
    - ``tolerations_dropped``: results do not have the tolerations of the request.
    - ``capacity_by_position``: with DRAConsumableCapacity on, the capacity of the device at position N of the slice is
      checked for the N-th device of a request; a slice with fewer devices crashes the scheduler.
    """

    counters_by_pool_name: bool = True
    counters_stay_charged: bool = True
    shares_stay_charged: bool = True
    lists_meet_nothing: bool = True
    distinct_forgets: bool = True
    config_per_name: bool = True
    config_keeps_names: bool = True
    counter_slices_everywhere: bool = True
    whole_units: bool = True
    slices_as_listed: bool = False
    same_device_again: bool = False
    all_continues_as_first: bool = False
    shares_hide_counters: bool = False
    older_functions: bool = False
    one_allocator: bool = False
    pools_as_seen: bool = False
    shares_charge_each: bool = False
    every_effect_blocks: bool = False
    distinct_by_identity: bool = False
    tolerations_dropped: bool = False
    capacity_by_position: bool = False

    @property
    def functions_lacking(self) -> frozenset[str]:
        return LACKS_BEFORE_1_36 if self.older_functions else LACKS_NONE

    @classmethod
    def of_version(cls, version: str) -> "SchedulerQuirks":
        """The quirks of a Kubernetes version: ``1.36``, ``v1.36.2``, ``1.37.0-rc.1``. Raises ConfigurationError."""
        major, _, rest = version.strip().removeprefix("v").partition(".")
        minor = rest.partition(".")[0]
        if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit() and len(version) < 64):
            raise ConfigurationError(f"{version[:64]!r} is no Kubernetes version: expected one like 1.36 or v1.36.2")
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
