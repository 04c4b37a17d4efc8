"""What metrics show of the health of a node's GPUs, as values."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.ids import GpuUuid


class HealthState(StrEnum):
    """The state of a GPU or GPU instance: that of its worst condition."""

    HEALTHY = "healthy"
    RECOVERING = "recovering"
    NO_NEW_CLAIMS = "no-new-claims"
    EVICT = "evict"


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """The state of one GPU (``gi_id`` None) or of a GPU instance with conditions of its own.

    ``seconds`` is how long it has had this state. `HealthState.RECOVERING`: recovery was seen for every condition, and
    their calm times have not passed; the device still has its taints.
    """

    gpu_uuid: GpuUuid
    gi_id: int | None
    state: HealthState
    seconds: float


class HealthStatus(Struct, frozen=True, kw_only=True):
    """Everything at one moment. ``xids`` counts XIDs since this process started, by GPU and number.

    Numbers are texts: an XID that the table does not have is ``other``, so that there are few different ones.
    ``recoveries`` counts conditions that ended after recovery was seen, by GPU and cause.
    """

    devices: tuple[DeviceHealth, ...] = ()
    xids: Mapping[tuple[GpuUuid, str], int]
    recoveries: Mapping[tuple[GpuUuid, HealthCause], int]
