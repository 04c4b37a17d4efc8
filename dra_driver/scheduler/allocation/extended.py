"""Extended resources that devices satisfy: ``nvidia.com/gpu: 2`` in a container becomes requests of a claim (KEP-5004;
kubernetes/kubernetes pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go). A resource that the
node offers itself, through a device plugin, requests no device; its amount is not checked here."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct, field

from dra_driver.scheduler.allocation.capacity import amount
from dra_driver.scheduler.allocation.events import Wire

IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""With the name of a class appended: the extended resource that every class has implicitly."""
EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
UNNAMED: Final = "<extended-resources>"  # the claim's name until the API server generates one


class ExtendedClaim(Struct, frozen=True, kw_only=True):
    """The claim before its creation, and for each container's resource the request that satisfies it."""

    claim: Wire
    mappings: Sequence[Wire]


def resource_classes(classes: Iterable[Wire]) -> dict[str, str]:
    """Extended resource -> name of its class. The newest of several classes wins, then the first by name."""
    found: dict[str, str] = {}
    ordered = sorted(classes, key=lambda item: item["metadata"]["name"], reverse=True)
    for item in sorted(ordered, key=lambda item: item["metadata"].get("creationTimestamp") or ""):
        name = item["metadata"]["name"]
        found[IMPLICIT_PREFIX + name] = name
        if item["spec"].get("extendedResourceName"):
            found[item["spec"]["extendedResourceName"]] = name
    return found


def extended_claim(pod: Wire, node: Wire, by_resource: Mapping[str, str]) -> ExtendedClaim | None:
    """Return the claim for the pod's resources that the node does not offer, None if there are none. ``by_resource``:
    the result of `resource_classes`. Raises ValueError on a malformed quantity."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    containers = _containers(pod)
    names = {name for container in containers for name in _wanted(container.wire)}
    backed = sorted(n for n in names if n in by_resource and not _count(offered.get(n, "0")))
    requests: list[_Request] = []
    mappings: list[dict[str, str]] = []
    for name in backed:
        shared = _Shared(name, by_resource[name])
        shared.fill(containers)
        requests += shared.requests()
        mappings += shared.mappings()
    if not requests:
        return None
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata.get("uid", "")}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": UNNAMED,
            "generateName": f"{metadata['name']}-extended-resources-",
            "namespace": metadata.get("namespace", ""),
            "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"devices": {"requests": [request.wire for request in sorted(requests, key=attrgetter("name"))]}},
    }
    return ExtendedClaim(claim=claim, mappings=mappings)


class _Container(Struct, frozen=True):
    """A container. ``ends`` is set for init containers that end before the pod's containers start."""

    index: int
    wire: Wire
    ends: bool


class _Request(Struct, frozen=True):
    name: str
    class_name: str
    count: int

    @property
    def wire(self) -> Wire:
        exactly = {"deviceClassName": self.class_name, "allocationMode": "ExactCount", "count": self.count}
        return {"name": self.name, "exactly": exactly}


class _Shared(Struct):
    """One resource in all containers. Init containers that end share the devices of later containers."""

    resource: str
    class_name: str
    lasting: dict[int, _Request] = field(default_factory=dict)
    ending: list[_Request] = field(default_factory=list)
    _of_lasting: list[dict[str, str]] = field(default_factory=list)
    _of_ending: list[dict[str, str]] = field(default_factory=list)

    @property
    def largest(self) -> list[_Request]:
        """The first of the largest requests of init containers that end; empty without one."""
        return sorted(self.ending, key=lambda request: -request.count)[:1]

    def fill(self, containers: Sequence[_Container]) -> None:
        for one in containers:
            if not one.ends:
                request = self._request(one, [], self._of_lasting)
                if request is not None:
                    self.lasting[one.index] = request
        for one in containers:
            if one.ends:
                later = [request for index, request in self.lasting.items() if index >= one.index]
                request = self._request(one, later, self._of_ending)
                self.ending += [request] if request is not None else []

    def requests(self) -> list[_Request]:
        return [*self.largest, *self.lasting.values()]

    def mappings(self) -> list[dict[str, str]]:
        """Init containers run in sequence, so the largest of their requests satisfies all of them."""
        names = {request.name for request in self.ending}
        for mapping in self._of_ending:
            if mapping["requestName"] in names:
                mapping["requestName"] = self.largest[0].name
        return self._of_lasting + self._of_ending

    def _request(
        self, one: _Container, reusable: Sequence[_Request], mappings: list[dict[str, str]]
    ) -> _Request | None:
        wanted = _wanted(one.wire).get(self.resource, 0)
        found = 0
        for request in reusable if wanted else ():
            found += request.count
            mappings.append(self._mapping(one, request.name))
            if found >= wanted:
                return None
        if not wanted:
            return None
        place = sorted(one.wire["resources"]["requests"]).index(self.resource)
        name = f"container-{one.index}-request-{place}"
        mappings.append(self._mapping(one, name))
        return _Request(name, self.class_name, wanted - found)

    def _mapping(self, one: _Container, request: str) -> dict[str, str]:
        return {"containerName": one.wire["name"], "resourceName": self.resource, "requestName": request}


def _containers(pod: Wire) -> list[_Container]:
    first, then = pod["spec"].get("initContainers") or [], pod["spec"].get("containers") or []
    return [
        _Container(index, wire, index < len(first) and wire.get("restartPolicy") != "Always")
        for index, wire in enumerate([*first, *then])
    ]


def _wanted(container: Wire) -> dict[str, int]:
    requests = (container.get("resources") or {}).get("requests") or {}
    counts = {name: _count(value) for name, value in requests.items() if "/" in name}
    return {name: count for name, count in counts.items() if count}


def _count(value: object) -> int:
    quantity = amount(value).quantity
    return quantity.as_int() if quantity.is_integer() else 0
