"""Prepares and unprepares ResourceClaims on one node, and keeps their durable record.

These names are what other packages use: `open_claims` opens everything in one directory, `ClaimService` has the
operations, `HardwareDependencies` is handed in to change GPUs, and `Journal` is where it keeps its GPU notes.
"""

from dra_driver.claims.assembly import Claims, open_claims
from dra_driver.claims.dependencies import HardwareDependencies
from dra_driver.claims.journal import Counts, Journal
from dra_driver.claims.workflow.service import ClaimService

__all__ = ["ClaimService", "Claims", "Counts", "HardwareDependencies", "Journal", "open_claims"]
