"""What one look of the exporter has read, as values: the input of ``join``."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.node.usage.values import Assignments, ContainerRef

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_POD: Final = re.compile(rf"(?:pod|(?:[^/]*-)pod){_UID}(?:\.slice(?P<joined>:[^:]+:.+)?)?")
_CONTAINER: Final = re.compile(r"(?:(?P<runtime>[a-z0-9][a-z0-9.-]*)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_NO_CONTAINERS: Final = ("crio-conmon", "conmon")
"""CRI-O's own process beside each container."""


class CgroupPlace(Struct, frozen=True, kw_only=True):
    """Where a process runs. ``pod_uid`` is None where the path begins below the pod, ``container_id`` where the
    runtime's names are not known; never both."""

    pod_uid: str | None = None
    container_id: str | None = None


def place_of(content: str) -> CgroupPlace | None:
    """The pod and container of a process with this ``/proc/PID/cgroup``; None for a process of no pod."""
    places = {found for path in _paths(content) if (found := _of_path(path)) is not None}
    uids = {each.pod_uid for each in places if each.pod_uid is not None}
    ids = {each.container_id for each in places if each.container_id is not None}
    if not places or len(uids) > 1 or len(ids) > 1:
        return None
    return CgroupPlace(pod_uid=next(iter(uids), None), container_id=next(iter(ids), None))


def _paths(content: str) -> list[str]:
    lines = (line.split(":", 2) for line in content.splitlines())
    return [fields[2] for fields in lines if len(fields) == 3]


def _of_path(path: str) -> CgroupPlace | None:
    parts = path.split("/")
    for at, part in enumerate(parts):
        pod = _POD.fullmatch(part)
        if pod is not None:
            uid = pod["uid"].replace("_", "-")
            joined = pod["joined"]
            below = [joined.rsplit(":", 1)[1]] if joined else parts[at + 1 :]
            return CgroupPlace(pod_uid=uid, container_id=_container(below[0]) if below else None)
    # Seen from a cgroup namespace, a container beside the reader's own has lost its pod.
    beside = [part for part in parts if part not in ("", "..")]
    container = _container(beside[0]) if path.startswith("/..") and beside else None
    return CgroupPlace(container_id=container) if container is not None else None


def _container(part: str) -> str | None:
    found = _CONTAINER.fullmatch(part)
    return found["id"] if found is not None and found["runtime"] not in _NO_CONTAINERS else None


MAX_LINKS: Final = 20_000
"""Some pods of a node, each with containers that were started again."""
_ID: Final = re.compile(r"-(?P<id>[0-9a-f]{64})\.log")
_TARGET: Final = re.compile(
    r"(?:.*/)?(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_(?P<uid>[0-9a-f-]{32,36})/(?P<container>[^/]+)/[^/]+"
)


class LogIndex(Struct, frozen=True, kw_only=True):
    """The containers that the links name: by id, and each pod's by its UID."""

    by_id: Mapping[str, ContainerRef]
    by_uid: Mapping[str, frozenset[ContainerRef]]

    def container(self, place: CgroupPlace) -> ContainerRef | None:
        """The container at that place; with the name "" where only its pod is known, None where not even that."""
        found = self.by_id.get(place.container_id) if place.container_id is not None else None
        if found is not None and place.pod_uid in (None, found.pod.uid):
            return found
        of_pod = self.by_uid.get(place.pod_uid, frozenset()) if place.pod_uid is not None else frozenset()
        if not of_pod:
            return None
        first = next(iter(of_pod))
        return first if len(of_pod) == 1 else ContainerRef(pod=first.pod, container="")


def index(links: Iterable[tuple[str, str]]) -> LogIndex:
    """The index of ``links``, each the name of a link and what it points to. Others than the kubelet's are left out."""
    by_id: dict[str, ContainerRef] = {}
    by_uid: dict[str, set[ContainerRef]] = {}
    for name, target in links:
        found = _TARGET.fullmatch(target)
        if found is None:
            continue
        pod = UsingPod(namespace=found["namespace"], name=found["pod"], uid=found["uid"])
        container = ContainerRef(pod=pod, container=found["container"])
        by_uid.setdefault(pod.uid, set()).add(container)
        if (named := _ID.search(name)) is not None:
            by_id[named["id"]] = container
    return LogIndex(by_id=by_id, by_uid={uid: frozenset(all_of) for uid, all_of in by_uid.items()})


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
