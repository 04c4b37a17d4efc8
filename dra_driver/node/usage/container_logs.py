"""Which pod and container a container's id belongs to, by the names of its log. Pure.

The kubelet links ``/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`` to
``/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log`` (pkg/kubelet/kuberuntime/legacy.go and helpers.go,
BuildPodLogsDirectory) when it starts a container. The kubelet's PodResources tell neither a pod's UID nor a
container's id, so these links are what joins a cgroup with a pod's name; no log is read. A long name is cut at 255
characters, and then lacks its id: such a container is found by its pod's UID.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.node.usage.cgroups import CgroupPlace
from dra_driver.node.usage.values import ContainerRef

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
