"""Prepares and unprepares ResourceClaims on one node, and keeps their durable record.

These names are what other packages use: `open_claims` opens everything in one directory, `ClaimService` has the
operations, `HardwareDependencies` is handed in to change GPUs, `Journal` is where it keeps its GPU notes,
`Entry` and `AssignedDevice` are what it holds,
`GpuLocks` keeps other processes from changing a GPU, and `PrepareGate` pauses new prepares.
"""

from dra_driver.node.claims.dependencies import HardwareDependencies
from dra_driver.node.claims.entry import AssignedDevice, Entry
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.waiting import GpuLocks, PrepareGate
from dra_driver.node.claims.workflow.service import Claims, ClaimService, open_claims

__all__ = [
    "AssignedDevice",
    "ClaimService",
    "Claims",
    "Entry",
    "GpuLocks",
    "HardwareDependencies",
    "Journal",
    "PrepareGate",
    "open_claims",
]
