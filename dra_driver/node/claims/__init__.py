"""Prepare and unprepare ResourceClaims on one node, and keep their durable record.

Other packages import from here, not from the modules inside.
"""

from dra_driver.node.claims.dependencies import HardwareDependencies
from dra_driver.node.claims.entry import AssignedDevice, Entry
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.waiting import GpuLocks, PrepareGate
from dra_driver.node.claims.workflow.service import Claims, ClaimService, open_claims
