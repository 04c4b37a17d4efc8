"""Plans for claims, without side effects: `plan_claim` for an allocation, `restore_plan` for a journal entry.

Other packages import from here, not from the modules inside. `journal` imports `conflicts` itself.
"""

from dra_driver.node.claims.planning.devices import check_alive
from dra_driver.node.claims.planning.plan import (
    PlannedDevice,
    PreparePlan,
    names_of,
    plan_claim,
    recorded_answer,
    restore_plan,
)
from dra_driver.node.claims.planning.sharing_plan import partition_daemons

__all__ = [
    "PlannedDevice",
    "PreparePlan",
    "check_alive",
    "names_of",
    "partition_daemons",
    "plan_claim",
    "recorded_answer",
    "restore_plan",
]
