"""Hold the inputs of one sample, and find the pod and container of a process by cgroup and links of logs. No I/O.

The kubelet names a pod's cgroup by the pod's UID (pkg/kubelet/cm/pod_container_manager_linux.go, GetPodContainerName):
``pod<UID>`` with the driver cgroupfs, ``...-pod<UID with _>.slice`` with systemd. Below it are containers: ``<id>``
(containerd with cgroupfs), ``crio-<id>``, ``cri-containerd-<id>.scope``, ``crio-<id>.scope``, ``docker-<id>.scope``.
containerd with another setting than the kubelet has ``...-pod<UID>.slice:cri-containerd:<id>`` in one name. The first
match from the root counts: a container may name cgroups below its own as it likes. In a cgroup namespace (cgroups(7)),
paths begin with ``/..`` for each level above it, which may cut off the pod's slice.

The kubelet links ``/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`` to
``/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log`` (pkg/kubelet/kuberuntime/legacy.go and helpers.go), which joins a
cgroup with a pod's name. A name is cut at 255 characters and then lacks its id: the pod's UID finds such a container.
"""

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
"""CRI-O's process next to each container."""


class CgroupPlace(Struct, frozen=True, kw_only=True):
    """The place of a process, at least one of both: ``pod_uid`` is None for a path that begins below the pod,
    ``container_id`` for an unknown naming scheme."""

    pod_uid: str | None = None
    container_id: str | None = None


def place_of(content: str) -> CgroupPlace | None:
    """The pod and container of a process with this ``/proc/PID/cgroup``; None without a pod, or if hierarchies
    differ."""
    lines = (line.split(":", 2) for line in content.splitlines())
    places = {found for line in lines if len(line) == 3 and (found := _of_path(line[2])) is not None}
    uids = {each.pod_uid for each in places if each.pod_uid is not None}
    ids = {each.container_id for each in places if each.container_id is not None}
    if not places or len(uids) > 1 or len(ids) > 1:
        return None
    return CgroupPlace(pod_uid=next(iter(uids), None), container_id=next(iter(ids), None))


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
"""Some pods of a node, each with restarted containers."""
_ID: Final = re.compile(r"-(?P<id>[0-9a-f]{64})\.log")
_TARGET: Final = re.compile(
    r"(?:.*/)?(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_(?P<uid>[0-9a-f-]{32,36})/(?P<container>[^/]+)/[^/]+"
)


class LogIndex(Struct, frozen=True, kw_only=True):
    """The containers that the links name: by id, and each pod's by its UID."""

    by_id: Mapping[str, ContainerRef]
    by_uid: Mapping[str, frozenset[ContainerRef]]

    def container(self, place: CgroupPlace) -> ContainerRef | None:
        """The container at that place; with the name "" if only its pod is found, None if neither is."""
        found = self.by_id.get(place.container_id) if place.container_id is not None else None
        if found is not None and place.pod_uid in (None, found.pod.uid):
            return found
        of_pod = self.by_uid.get(place.pod_uid, frozenset()) if place.pod_uid is not None else frozenset()
        if not of_pod:
            return None
        first = next(iter(of_pod))
        return first if len(of_pod) == 1 else ContainerRef(pod=first.pod, container="")


def index(links: Iterable[tuple[str, str]]) -> LogIndex:
    """``links`` are names of links and their targets; unknown forms are skipped."""
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
    """A process in /proc after the driver listed it. ``place`` is None for a process without a pod. A process that
    ended, or that began after the driver's answer (its PID was reused), has no facts."""

    command: str
    place: CgroupPlace | None


class ClaimedDevice(Struct, frozen=True, kw_only=True):
    """A device of a claim in a container, from the kubelet's PodResources: no UIDs."""

    namespace: str
    claim: str
    pool: str
    device: str
    share_id: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str, str | None]:
        return self.namespace, self.claim, self.pool, self.device, self.share_id


PodClaims = Mapping[tuple[str, str], Mapping[str, tuple[ClaimedDevice, ...]]]
"""By namespace and name of the pod, then by name of the container, without ended init containers."""


class Unread(Struct, frozen=True, kw_only=True):
    """The reason why a source could not be read."""

    reason: str


class Look(Struct, frozen=True, kw_only=True):
    """All sources of one sample. ``at`` is UTC; ``elapsed_s`` is as in `JoinedUsage`. ``assignments`` are the last good
    ones; ``processes`` are by PID. ``is_nested``: the exporter's PID namespace is below that of /proc."""

    at: datetime
    elapsed_s: float
    assignments: Assignments | Unread
    readings: tuple[GpuUsage, ...] | Unread
    processes: Mapping[int, ProcessFacts] | Unread
    logs: LogIndex | Unread
    pods: PodClaims | Unread
    node: str = ""
    is_nested: bool = False
