"""Dry-run of the Kubernetes scheduler's device allocation: ``Allocator(...).question(claims).on(node)``."""

from dra_driver.allocation.allocated import allocated_devices
from dra_driver.allocation.allocator import AllocationOutcome, Allocator, Question
from dra_driver.allocation.events import SearchRecorder
from dra_driver.allocation.limits import Limits
from dra_driver.allocation.scheduler_quirks import V1_36, V1_37, SchedulerFeatures, SchedulerQuirks

__all__ = [
    "V1_36",
    "V1_37",
    "AllocationOutcome",
    "Allocator",
    "Limits",
    "Question",
    "SchedulerFeatures",
    "SchedulerQuirks",
    "SearchRecorder",
    "allocated_devices",
]
