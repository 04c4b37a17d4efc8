"""Dry run of the Kubernetes scheduler's device allocation: ``Allocator(...).question(claims).on(node)``.

Other packages import from here, not from the modules inside.
"""

from dra_driver.scheduler.allocation.allocated import NO_USE, PoolKey, allocated_devices, pool_uses
from dra_driver.scheduler.allocation.allocator import AllocationOutcome, Allocator, Question
from dra_driver.scheduler.allocation.amounts import amount, nano
from dra_driver.scheduler.allocation.capacity import consumption, shortage
from dra_driver.scheduler.allocation.devices import PoolDevice, PoolSlice
from dra_driver.scheduler.allocation.events import (
    CapacityShort,
    Cause,
    ConstraintBroken,
    CounterShort,
    DeviceId,
    Event,
    GateOff,
    InUse,
    NotOnNode,
    NotSelected,
    PoolLeftOut,
    Rejection,
    SearchRecorder,
    Tainted,
)
from dra_driver.scheduler.allocation.extended import (
    EXTENDED_CLAIM_ANNOTATION,
    ExtendedClaim,
    extended_claim,
    resource_classes,
)
from dra_driver.scheduler.allocation.limits import Limits
from dra_driver.scheduler.allocation.malformed import guarded
from dra_driver.scheduler.allocation.nodes import node_matches
from dra_driver.scheduler.allocation.pod_fit import (
    MAX_PODS,
    NodeUsage,
    unfit_reason,
    unmodelled_constraints,
    usage_by_node,
)
from dra_driver.scheduler.allocation.pools import Pool
from dra_driver.scheduler.allocation.requests import MAX_DEVICES
from dra_driver.scheduler.allocation.scheduler_quirks import (
    V1_34,
    V1_35,
    V1_36,
    V1_37,
    SchedulerFeatures,
    SchedulerQuirks,
)
from dra_driver.scheduler.allocation.taints import untolerated

__all__ = [
    "EXTENDED_CLAIM_ANNOTATION",
    "MAX_DEVICES",
    "MAX_PODS",
    "NO_USE",
    "V1_34",
    "V1_35",
    "V1_36",
    "V1_37",
    "AllocationOutcome",
    "Allocator",
    "CapacityShort",
    "Cause",
    "ConstraintBroken",
    "CounterShort",
    "DeviceId",
    "Event",
    "ExtendedClaim",
    "GateOff",
    "InUse",
    "Limits",
    "NodeUsage",
    "NotOnNode",
    "NotSelected",
    "Pool",
    "PoolDevice",
    "PoolKey",
    "PoolLeftOut",
    "PoolSlice",
    "Question",
    "Rejection",
    "SchedulerFeatures",
    "SchedulerQuirks",
    "SearchRecorder",
    "Tainted",
    "allocated_devices",
    "amount",
    "consumption",
    "extended_claim",
    "guarded",
    "nano",
    "node_matches",
    "pool_uses",
    "resource_classes",
    "shortage",
    "unfit_reason",
    "unmodelled_constraints",
    "untolerated",
    "usage_by_node",
]
