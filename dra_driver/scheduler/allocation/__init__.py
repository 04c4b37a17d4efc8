"""Dry run of the Kubernetes scheduler's device allocation: ``Allocator(...).question(claims).on(node)``."""

from dra_driver.scheduler.allocation.allocator import AllocationOutcome, Allocator, Question
from dra_driver.scheduler.allocation.capacity import amount, consumption, nano, shortage
from dra_driver.scheduler.allocation.devices import NO_USE, PoolDevice, PoolKey, PoolSlice, pool_uses
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
    Tainted,
    guarded,
)
from dra_driver.scheduler.allocation.extended import (
    EXTENDED_CLAIM_ANNOTATION,
    IMPLICIT_PREFIX,
    ExtendedClaim,
    extended_claim,
    resource_classes,
)
from dra_driver.scheduler.allocation.nodes import (
    MAX_PODS,
    NodeUsage,
    node_matches,
    unfit_reason,
    unmodelled_constraints,
    untolerated,
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
from dra_driver.scheduler.allocation.state import Limits
