"""What the journal remembers of a claim, as values.

Owns the states of a claim on this node and the shape of an entry. Refuses to know how entries are stored.

    (no entry) --begin--> preparing --finish--> prepared --start_unprepare--> unpreparing --forget--> (no entry)
                              \\______________________ undo ______________________/
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from dra_driver.model.claim import ClaimRef
from dra_driver.model.ids import DeviceName, GpuUuid, PoolName

OwnerId = NewType("OwnerId", str)
"""One run of the node process; another run, also of the same pod, has another id."""


class State(StrEnum):
    """How far a claim has come. Only ``prepared`` was ever answered to the kubelet."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """One result of a claim's allocation as it was prepared; ``request`` is the base request."""

    request: str
    pool: PoolName
    device: DeviceName
    share_id: str | None
    admin_access: bool
    gpu_uuid: GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who works on an entry, and which time: what lets one process notice that another took an entry over."""

    owner: OwnerId
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One claim in the journal. ``changed_at`` is in seconds since the epoch and for people only."""

    ref: ClaimRef
    state: State
    attempt: Attempt
    boot_id: str
    changed_at: float
    devices: tuple[HeldDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a claim could not be begun: entries that hold one of its devices, or the claim's own entry."""

    by: tuple[Entry, ...]
