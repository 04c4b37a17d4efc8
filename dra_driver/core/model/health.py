"""Health of GPUs as values: events and readings of the hardware, and the conditions that `node/health/` derives from
them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from dra_driver.core.model.ids import GpuUuid


class HealthEventKind(StrEnum):
    """Kind of an NVML event."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"


class HealthEvent(Struct, frozen=True, kw_only=True):
    """``count`` equal events of one GPU within one wait. ``xid`` is set for `HealthEventKind.XID`. ``gi_id`` and
    ``ci_id`` are None for an event of the whole GPU (NVML: 0xFFFFFFFF)."""

    kind: HealthEventKind
    gpu_uuid: GpuUuid
    xid: int | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    count: int = 1


class RecoveryAction(StrEnum):
    """Recovery action that NVML reports (field 230, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)."""

    NONE = "none"
    GPU_RESET = "gpu-reset"
    NODE_REBOOT = "node-reboot"
    DRAIN_P2P = "drain-p2p"
    DRAIN_AND_RESET = "drain-and-reset"
    IMEX_DOMAIN = "imex-domain"
    BUS_RESET = "bus-reset"
    UNKNOWN = "unknown"


class HealthReading(Struct, frozen=True, kw_only=True):
    """One sample of the health of one GPU. A field is None when hardware or driver do not report it.

    ``unreachable`` says why the GPU does not answer: it is lost, or with ``hangs`` a call has not returned, or with
    ``passing`` calls fail in a way that can pass without a reset, or with ``needs_reset`` NVML answers that a reset is
    required; the fields below are None then. ``rows_pending`` and ``rows_failed`` count row remapping,
    ``pages_pending`` retired pages of GPUs before Ampere. ``links_down`` are numbers of NVLinks that should be up.
    ``fabric_unhealthy`` describes NVML's health mask of the fabric, "" if healthy.
    """

    gpu_uuid: GpuUuid
    unreachable: str | None = None
    hangs: bool = False
    passing: bool = False
    needs_reset: bool = False
    recovery_action: RecoveryAction | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    pages_pending: bool | None = None
    links_down: tuple[int, ...] | None = None
    fabric_unhealthy: str | None = None


class HealthCause(StrEnum):
    """Cause of an unhealthy device; each has one taint key."""

    XID = "xid"
    ECC = "ecc"
    LOST = "lost"
    HANG = "hang"
    ROW_REMAP = "row-remap"
    RETIRED_PAGES = "retired-pages"
    RECOVERY_ACTION = "recovery-action"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    UNMONITORED = "unmonitored"


TAINT_KEYS: Final[Mapping[HealthCause, str]] = MappingProxyType(
    {
        HealthCause.XID: "gpu.nvidia.com/xid",
        HealthCause.LOST: "gpu.nvidia.com/gpu-lost",
        HealthCause.UNMONITORED: "gpu.nvidia.com/unmonitored",
        HealthCause.ECC: "gpu.dra-driver.io/ecc",
        HealthCause.HANG: "gpu.dra-driver.io/hung",
        HealthCause.ROW_REMAP: "gpu.dra-driver.io/row-remap",
        HealthCause.RETIRED_PAGES: "gpu.dra-driver.io/retired-pages",
        HealthCause.RECOVERY_ACTION: "gpu.dra-driver.io/recovery-action",
        HealthCause.NVLINK: "gpu.dra-driver.io/nvlink",
        HealthCause.FABRIC: "gpu.dra-driver.io/fabric-unhealthy",
    }
)
"""The key of each cause's taint, which stays. Those below ``gpu.nvidia.com`` are NVIDIA's driver's, so that tolerations
written for it work."""


class Severity(StrEnum):
    """Effect of a condition on the device, from weak to strong. Only ``NO_NEW_CLAIMS`` and above taint."""

    COUNTED = "counted"
    NO_NEW_CLAIMS = "no-new-claims"
    EVICT = "evict"


class HealthCondition(Struct, frozen=True, kw_only=True):
    """One cause on one GPU, or on its GPU instance ``gi_id``. ``value`` is the taint's value (an XID's number, a
    recovery action, or ""). ``since`` is seconds of the Unix epoch; it survives restarts and becomes ``timeAdded``.
    ``message`` is a sentence for ``kubectl describe pod``."""

    cause: HealthCause
    gpu_uuid: GpuUuid
    severity: Severity
    value: str
    since: float
    message: str
    gi_id: int | None = None
