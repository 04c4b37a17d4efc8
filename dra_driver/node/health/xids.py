"""What is known of an XID, by its number. Pure."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from dra_driver.node.health.xid_table import ROWS

_REPORTED_SINCE: Final = 565
"""The driver branch that has NVML field 230; links of later branches cannot be relied on with every such driver."""


class XidRecovery(StrEnum):
    """What a GPU needs after an XID."""

    NONE = "none"
    RESTART_APP = "restart-app"
    GPU_RESET = "gpu-reset"
    NODE_REBOOT = "node-reboot"
    CONTACT_SUPPORT = "contact-support"


class Xid(Struct, frozen=True):
    """``reported``: a driver that has the recovery action at all (NVML field 230) reports one if this XID needs it."""

    number: int
    meaning: str
    recovery: XidRecovery
    reported: bool
    sources: str

    @property
    def taints(self) -> bool:
        """Whether it taints without a rule that says so."""
        return self.recovery not in {XidRecovery.NONE, XidRecovery.RESTART_APP}


KNOWN: Final = {
    number: Xid(number, meaning, XidRecovery(recovery), 0 < since <= _REPORTED_SINCE, sources)
    for number, meaning, recovery, since, sources in ROWS
}
"""Every XID of the table."""


def xid(number: int) -> Xid:
    """What is known of the XID. One that the table does not have taints, as it does with NVIDIA's drivers.

    An error that no document describes may be any; the taint goes after the GPU was reset or the node rebooted.
    """
    known = KNOWN.get(number)
    return known or Xid(number, "it is not in this driver's table", XidRecovery.CONTACT_SUPPORT, False, "")


def label(number: int) -> str:
    """The XID as a metric's label: its number, or ``other`` for one that the table does not have."""
    return str(number) if number in KNOWN else "other"
