"""What one look of the exporter has read, as values: the input of ``join``."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from dra_driver.core.model.usage import GpuUsage
from dra_driver.node.usage.containers import CgroupPlace, LogIndex
from dra_driver.node.usage.values import Assignments


class ProcessFacts(Struct, frozen=True, kw_only=True):
    """A process that /proc showed after the driver had listed it. ``place`` is None for a process of no pod.

    A process that ended, and one that began after the driver was asked (its PID was used again), has no facts.
    """

    command: str
    place: CgroupPlace | None


class ClaimedDevice(Struct, frozen=True, kw_only=True):
    """A device of a claim in a container, as the kubelet's PodResources tell: no UIDs."""

    namespace: str
    claim: str
    pool: str
    device: str
    share_id: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str, str | None]:
        return self.namespace, self.claim, self.pool, self.device, self.share_id


PodClaims = Mapping[tuple[str, str], Mapping[str, tuple[ClaimedDevice, ...]]]
"""By namespace and name of the pod, then by name of the container. Init containers that end are not in it."""


class Unread(Struct, frozen=True, kw_only=True):
    """Why something could not be read, as a sentence."""

    reason: str


class Look(Struct, frozen=True, kw_only=True):
    """All that was read. ``at`` is UTC; ``elapsed_s`` is as in `JoinedUsage`.

    ``assignments`` are the last good ones. ``processes`` are by PID; `Unread` where /proc cannot be read at all.
    """

    at: datetime
    elapsed_s: float
    assignments: Assignments | Unread
    readings: tuple[GpuUsage, ...] | Unread
    processes: Mapping[int, ProcessFacts] | Unread
    logs: LogIndex | Unread
    pods: PodClaims | Unread
    node: str = ""
