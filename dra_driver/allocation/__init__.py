"""Dry-run of the Kubernetes scheduler's device allocation: ``Allocator(...).question(claims).on(node)``."""

from dra_driver.allocation.allocator import Allocator, Outcome, Question
from dra_driver.allocation.events import Recorder
from dra_driver.allocation.limits import Limits
from dra_driver.allocation.scheduler_quirks import V1_36, V1_37, Behaviour, Features
from dra_driver.allocation.taken import taken_devices

__all__ = [
    "V1_36",
    "V1_37",
    "Allocator",
    "Behaviour",
    "Features",
    "Limits",
    "Outcome",
    "Question",
    "Recorder",
    "taken_devices",
]
