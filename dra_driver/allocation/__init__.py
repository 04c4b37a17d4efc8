"""Dry-run of the Kubernetes scheduler's device allocation: ``Allocator(...).allocate(node, claims)``."""

from dra_driver.allocation.allocator import Allocator, Outcome, taken_devices

__all__ = ["Allocator", "Outcome", "taken_devices"]
