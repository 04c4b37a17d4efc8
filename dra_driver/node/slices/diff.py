"""Compute the fewest writes that turn the existing ResourceSlices, edited by any client, into the desired ones. No I/O.

Source: kubernetes/dynamic-resource-allocation resourceslice/resourceslicecontroller.go, syncPool (1.36): slices are
matched by the index in their name, obsolete ones are deleted first, and the generation stays when at most one slice
changes in place. Beyond syncPool, a slice that only disappeared is recreated in the present generation, and a
generation that was written in part is completed in place.

Slices of counter sets are written last, so the write that completes a pool never has devices that need counters: an API
server whose gate was disabled silently drops counters, and overlapping devices would be allocated. A pool without its
counter sets is invalid to the scheduler, which is safe. The scheduler (1.36) also considers slices with counters on
every node: a new generation that begins with them would look incomplete to the whole cluster. The scheduler of 1.34
allocates devices of incomplete pools; `reconcile` writes its slices in two steps.

An update keeps the times of taints that are sent without one: the API server sets a missing ``timeAdded`` at each
update (resource/v1 defaults.go, SetDefaults_DeviceTaint), and eviction counts ``tolerationSeconds`` from it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.kube.objects.resource import Device, DeviceTaint, ResourcePool, ResourceSliceSpec
from dra_driver.node.slices import untrusted_slice
from dra_driver.node.slices.gates import digest, same
from dra_driver.node.slices.layout import DesiredSlice, generate_name, index_of

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

Times = Mapping[tuple[str, str, str, str], str]
"""``timeAdded`` by device name, and key, value and effect of the taint."""


class PoolIdentity(Struct, frozen=True, kw_only=True):
    """The pool's owner. ``node_uid`` makes the Node the owner, so that resource slices are deleted with it."""

    driver: str
    node: str
    node_uid: str
    pool: str


class Delete(Struct, frozen=True, kw_only=True):
    """An existing resource slice to delete, if it is still the version that was read."""

    name: str
    uid: str
    resource_version: str


class SliceBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """A ResourceSlice as sent. ``metadata`` is raw, so that an update keeps the fields of other clients."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceSlice"
    metadata: Mapping[str, object]
    spec: ResourceSliceSpec

    @property
    def index(self) -> int | None:
        return index_of(str(self.metadata.get("name") or self.metadata.get("generateName", "")))


class Writes(Struct, frozen=True, kw_only=True):
    """The writes: ``deletes`` first, then ``in_order``.

    The pool is incomplete until the last write, in the generation that the scheduler uses, so none of its devices is
    allocated. The exception is a single update in place, of which an API server drops no existing field.
    """

    deletes: tuple[Delete, ...] = ()
    updates: tuple[SliceBody, ...] = ()
    creates: tuple[SliceBody, ...] = ()
    generation: int = 1

    def in_order(self) -> list[SliceBody]:
        """Updates and creates (those without a name): slices with devices by index, then the rest by index."""
        return sorted((*self.updates, *self.creates), key=lambda body: (not body.spec.devices, body.index or 0))

    def __len__(self) -> int:
        return len(self.deletes) + len(self.updates) + len(self.creates)

    def __bool__(self) -> bool:
        return len(self) > 0


def compute_writes(
    desired: Sequence[DesiredSlice], actual: Iterable[Mapping[str, object]], identity: PoolIdentity
) -> Writes:
    """Compute the writes for one pool; resource slices of other pools in ``actual`` are ignored."""
    own = [item for item in actual if belongs_to_pool(item, identity)]
    generation = max((untrusted_slice.generation(item) for item in own), default=0)
    kept, older, obsolete = _match(desired, own, generation)
    pending = [want for want in desired if want.index not in kept]
    count = len(desired)
    changed = [
        want
        for want in desired
        if want.index in kept and not _is_current(kept[want.index], want, identity, generation, count)
    ]
    # Whether the last of these writes (`Writes.in_order`) has devices that need counters.
    completes = any(want.needs_counters for want in pending) and all(want.devices for want in pending)
    if not kept or (changed and len(changed) + len(pending) > 1) or completes:
        # Also the very first: 0 + 1. More than one write changes the meaning of the pool, and old and new resource
        # slices must not be mixed. And devices that need counters must not complete the pool.
        generation += 1
        changed = [want for want in desired if want.index in kept]
    kept |= older
    changed += [want for want in pending if want.index in older]
    missing = [want for want in pending if want.index not in older]
    times = known_times(own) if changed or missing else {}

    def timed(want: DesiredSlice) -> DesiredSlice:
        return replace(want, devices=with_times(want.devices, times)) if times else want

    return Writes(
        deletes=tuple(_delete(item) for item in obsolete),
        updates=tuple(_updated(kept[want.index], timed(want), identity, generation, count) for want in changed),
        creates=tuple(_created(timed(want), identity, generation, count) for want in missing),
        generation=generation,
    )


def belongs_to_pool(item: Mapping[str, object], identity: PoolIdentity) -> bool:
    """Return whether a resource slice belongs to the pool. Driver, pool and node names are immutable."""
    spec = untrusted_slice.spec(item)
    return (
        spec.get("driver") == identity.driver
        and spec.get("nodeName") == identity.node
        and untrusted_slice.pool(item).get("name") == identity.pool
    )


def foreign_pools(actual: Iterable[Mapping[str, object]], identity: PoolIdentity) -> tuple[str, ...]:
    """Names of other pools with devices of this driver on this node: of a second publisher, or left behind by one.

    Their resource slices are never changed: only their publisher knows their meaning.
    """
    names = {
        str(untrusted_slice.pool(item).get("name"))
        for item in actual
        if untrusted_slice.spec(item).get("driver") == identity.driver
        and untrusted_slice.spec(item).get("nodeName") == identity.node
        and not belongs_to_pool(item, identity)
    }
    return tuple(sorted(names))


_ByIndex = dict[int, Mapping[str, object]]


def _match(
    desired: Sequence[DesiredSlice], own: Sequence[Mapping[str, object]], generation: int
) -> tuple[_ByIndex, _ByIndex, list[Mapping[str, object]]]:
    """Existing resource slices by index: of this generation, else of an older one, and the obsolete
    rest (an unwanted index, or a duplicate)."""
    wanted = {want.index: want for want in desired}
    found: _ByIndex = {}
    obsolete = []
    for item in sorted(own, key=untrusted_slice.name):
        index = index_of(untrusted_slice.name(item))
        if index is None or index not in wanted:
            obsolete.append(item)
            continue
        former = found.get(index)
        if former is None:
            found[index] = item
        elif _rank(item, wanted[index]) > _rank(former, wanted[index]):
            found[index] = item  # of two duplicates, keep a slice that needs no write
            obsolete.append(former)
        else:
            obsolete.append(item)
    kept = {index: item for index, item in found.items() if untrusted_slice.generation(item) == generation}
    return kept, {index: item for index, item in found.items() if index not in kept}, obsolete


def _rank(item: Mapping[str, object], want: DesiredSlice) -> tuple[int, bool]:
    """By generation; within one, the slice with the desired content."""
    spec = untrusted_slice.spec(item)
    has_devices = same(want.devices, spec.get("devices") or [])
    has_both = has_devices and same(want.counter_sets, spec.get("sharedCounters") or [])
    return untrusted_slice.generation(item), has_both


def _is_current(
    item: Mapping[str, object], want: DesiredSlice, identity: PoolIdentity, generation: int, count: int
) -> bool:
    """Return whether the Node owns it and the spec is the desired one, or the API server's earlier version of it."""
    owner = _owner(identity).items()
    if not any(all(each.get(key) == value for key, value in owner) for each in untrusted_slice.owners(item)):
        return False
    spec, there = _spec_of(want, identity, generation, count), untrusted_slice.spec(item)
    if same(spec, there):
        return True
    return want.accepted is not None and same(spec.pool, there.get("pool")) and want.accepted == accepted(there)


def accepted(spec: Mapping[str, object]) -> str:
    return digest({key: value for key, value in spec.items() if key != "pool"})


def _created(want: DesiredSlice, identity: PoolIdentity, generation: int, count: int) -> SliceBody:
    name = generate_name(want.index, identity.driver, identity.node)
    return SliceBody(
        metadata={"generateName": name, "ownerReferences": [_owner(identity)]},
        spec=_spec_of(want, identity, generation, count),
    )


def _updated(
    item: Mapping[str, object], want: DesiredSlice, identity: PoolIdentity, generation: int, count: int
) -> SliceBody:
    """Labels, annotations and owners of other clients stay; the spec is replaced.

    ``resourceVersion`` stays: the API server answers with a conflict when the slice changed in between. managedFields
    are omitted: the API server then keeps its own.
    """
    metadata = {key: value for key, value in untrusted_slice.metadata(item).items() if key != "managedFields"}
    others = [
        owner for owner in untrusted_slice.owners(item) if owner.get("kind") != "Node" and not owner.get("controller")
    ]
    metadata["ownerReferences"] = [*others, _owner(identity)]
    return SliceBody(metadata=metadata, spec=_spec_of(want, identity, generation, count))


def _spec_of(want: DesiredSlice, identity: PoolIdentity, generation: int, count: int) -> ResourceSliceSpec:
    return ResourceSliceSpec(
        driver=identity.driver,
        pool=ResourcePool(name=identity.pool, generation=generation, resource_slice_count=count),
        node_name=identity.node,
        devices=want.devices,
        shared_counters=want.counter_sets,
    )


def _owner(identity: PoolIdentity) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Node", "name": identity.node, "uid": identity.node_uid, "controller": True}


def _delete(item: Mapping[str, object]) -> Delete:
    metadata = untrusted_slice.metadata(item)
    return Delete(
        name=untrusted_slice.name(item),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
    )


def known_times(slices: Iterable[Mapping[str, object]]) -> Times:
    """The times in existing resource slices."""
    return {
        (str(device.get("name")), str(taint.get("key")), str(taint.get("value") or ""), str(taint.get("effect"))): time
        for item in slices
        for device in untrusted_slice.mappings(untrusted_slice.spec(item).get("devices"))
        for taint in untrusted_slice.mappings(device.get("taints"))
        if isinstance(time := taint.get("timeAdded"), str) and _TIME.fullmatch(time)
    }


def with_times(devices: Sequence[Device], times: Times) -> tuple[Device, ...]:
    """The devices, with the known time in each taint without one."""

    def timed(device: str, taint: DeviceTaint) -> DeviceTaint:
        time = times.get((device, taint.key, taint.value, taint.effect), "")
        return replace(taint, time_added=taint.time_added or time)

    return tuple(
        replace(device, taints=tuple(timed(device.name, taint) for taint in device.taints)) if device.taints else device
        for device in devices
    )
