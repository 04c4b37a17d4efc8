"""Which writes turn the slices that exist into the slices that should exist: as few as possible, none when nothing
changed.

Pure. Owns the generation and count rules of a pool. Source: kubernetes/dynamic-resource-allocation
resourceslice/resourceslicecontroller.go, syncPool (1.36): slices are matched by the index in their name, older
generations are obsolete, obsolete slices go first, and the generation stays when at most one slice changes in place.
One step further here: a slice that only disappeared is created again in the generation of the others, because the
pool then means again what it meant.

Counter sets are written last. An API server whose gate was switched off drops counters from what it is sent without a
word, and devices that overlap would be given away side by side. So the write that completes a pool is never one of
devices that need counters: each of them was seen to be kept before, and a pool that lacks its counter sets is invalid
to the scheduler, which is safe. Besides, the scheduler (1.36) takes counter slices for relevant on every node: in a new
generation that begins with them, the pool would look incomplete to the whole cluster.

Everything handed in as existing comes from the API server and may have been edited by anybody: nothing in it is
trusted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dra_driver.kube.types import ObjectMeta, OwnerReference, ResourceSlice, ResourceSliceSpec
from dra_driver.slices import untrusted_slice
from dra_driver.slices.compare import digest, same
from dra_driver.slices.layout import DesiredSlice, generate_name, index_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIdentity:
    """Whose pool it is. ``node_uid`` makes the node the owner, so that slices go when the Node object goes."""

    driver: str
    node: str
    node_uid: str
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """An existing slice that has to go; deleted only if it still is what was looked at."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What has to be written: ``deletes`` first, then ``in_order``.

    Until the last of them the pool is not complete, in the generation that the scheduler looks at, and nothing of it is
    given away; the exception is a single update in place, of which an API server drops nothing that was there before.
    """

    deletes: tuple[Delete, ...] = ()
    updates: tuple[ResourceSlice, ...] = ()
    creates: tuple[ResourceSlice, ...] = ()
    generation: int = 1

    def in_order(self) -> list[ResourceSlice]:
        """Updates and creates (those without a name): devices by index, then counter sets by index."""
        return sorted(
            (*self.updates, *self.creates),
            key=lambda body: ("sharedCounters" in body["spec"], index_of_body(body) or 0),
        )

    def __len__(self) -> int:
        return len(self.deletes) + len(self.updates) + len(self.creates)

    def __bool__(self) -> bool:
        return len(self) > 0


def compute_writes(
    desired: Sequence[DesiredSlice], actual: Iterable[Mapping[str, Any]], identity: PoolIdentity
) -> Writes:
    """The writes for one pool; slices of other pools in ``actual`` are ignored (``foreign_pools`` names them)."""
    own = [item for item in actual if is_ours(item, identity)]
    generation = max((untrusted_slice.generation(item) for item in own), default=0)
    kept, obsolete = _match(desired, own, generation)
    missing = [want for want in desired if want.index not in kept]
    count = len(desired)
    changed = [
        want
        for want in desired
        if want.index in kept and not _is_current(kept[want.index], want, identity, generation, count)
    ]
    if not kept:
        generation += 1  # also the very first: 0 + 1
    elif (changed and len(changed) + len(missing) > 1) or any(want.needs_counters for want in missing):
        # More than one write makes the pool mean something new: nobody may mix old and new slices. And devices that
        # need counters must not be what completes the pool.
        generation += 1
        changed = [want for want in desired if want.index in kept]
    return Writes(
        deletes=tuple(_delete(item) for item in obsolete),
        updates=tuple(_updated(kept[want.index], want, identity, generation, count) for want in changed),
        creates=tuple(_created(want, identity, generation, count) for want in missing),
        generation=generation,
    )


def is_ours(item: Mapping[str, Any], identity: PoolIdentity) -> bool:
    """Whether a slice belongs to the pool; driver, pool name and node name of a slice are immutable."""
    spec = untrusted_slice.spec(item)
    return (
        spec.get("driver") == identity.driver
        and spec.get("nodeName") == identity.node
        and untrusted_slice.pool(item).get("name") == identity.pool
    )


def foreign_pools(actual: Iterable[Mapping[str, Any]], identity: PoolIdentity) -> tuple[str, ...]:
    """Names of other pools with devices of this driver on this node: a second publisher, or what one left behind.

    Their slices are never touched: only their owner knows what they stand for.
    """
    names = {
        str(untrusted_slice.pool(item).get("name"))
        for item in actual
        if untrusted_slice.spec(item).get("driver") == identity.driver
        and untrusted_slice.spec(item).get("nodeName") == identity.node
        and not is_ours(item, identity)
    }
    return tuple(sorted(names))


def _match(
    desired: Sequence[DesiredSlice], own: Sequence[Mapping[str, Any]], generation: int
) -> tuple[dict[int, Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Existing slices by index, and those that stand for nothing: of old generations, surplus, twice there."""
    wanted = {want.index: want for want in desired}
    kept: dict[int, Mapping[str, Any]] = {}
    obsolete = []
    for item in sorted(own, key=untrusted_slice.name):
        index = index_of(untrusted_slice.name(item))
        if index is None or index not in wanted or untrusted_slice.generation(item) != generation:
            obsolete.append(item)
        elif index not in kept:
            kept[index] = item
        elif _has(item, wanted[index]) and not _has(kept[index], wanted[index]):
            obsolete.append(kept[index])  # of two, the one that needs no write stays
            kept[index] = item
        else:
            obsolete.append(item)
    return kept, obsolete


def _is_current(
    item: Mapping[str, Any], want: DesiredSlice, identity: PoolIdentity, generation: int, count: int
) -> bool:
    return _says(item, want, identity, generation, count) and any(
        _is_owner(owner, identity) for owner in untrusted_slice.owners(item)
    )


def _says(item: Mapping[str, Any], want: DesiredSlice, identity: PoolIdentity, generation: int, count: int) -> bool:
    """Whether the spec is what we would write, or what the API server made of it the last time."""
    spec, there = _spec_of(want, identity, generation, count), untrusted_slice.spec(item)
    if same(spec, there):
        return True
    return want.accepted is not None and same(spec["pool"], there.get("pool")) and want.accepted == accepted(there)


def accepted(spec: Mapping[str, Any]) -> str:
    """What to remember of a spec that the API server made of ours (`DesiredSlice.accepted`): all but the pool."""
    return digest({key: value for key, value in spec.items() if key != "pool"})


def _is_owner(owner: Mapping[str, Any], identity: PoolIdentity) -> bool:
    return all(owner.get(key) == value for key, value in _owner(identity).items())


def _has(item: Mapping[str, Any], want: DesiredSlice) -> bool:
    spec = untrusted_slice.spec(item)
    return same(list(want.devices), spec.get("devices") or []) and same(
        list(want.counter_sets), spec.get("sharedCounters") or []
    )


def _created(want: DesiredSlice, identity: PoolIdentity, generation: int, count: int) -> ResourceSlice:
    return ResourceSlice(
        apiVersion="resource.k8s.io/v1",
        kind="ResourceSlice",
        metadata=ObjectMeta(
            generateName=generate_name(want.index, identity.driver, identity.node), ownerReferences=[_owner(identity)]
        ),
        spec=_spec_of(want, identity, generation, count),
    )


def _updated(
    item: Mapping[str, Any], want: DesiredSlice, identity: PoolIdentity, generation: int, count: int
) -> ResourceSlice:
    """Others' labels, annotations and owners stay; the spec becomes ours entirely.

    ``resourceVersion`` stays, so that a change in between makes the API server answer with a conflict. managedFields
    are left out: the API server then keeps its own.
    """
    metadata = {key: value for key, value in untrusted_slice.metadata(item).items() if key != "managedFields"}
    others = [
        owner for owner in untrusted_slice.owners(item) if owner.get("kind") != "Node" and not owner.get("controller")
    ]
    metadata["ownerReferences"] = [*others, _owner(identity)]
    return ResourceSlice(
        apiVersion="resource.k8s.io/v1",
        kind="ResourceSlice",
        metadata=cast(ObjectMeta, metadata),
        spec=_spec_of(want, identity, generation, count),
    )


def _spec_of(want: DesiredSlice, identity: PoolIdentity, generation: int, count: int) -> ResourceSliceSpec:
    spec = ResourceSliceSpec(
        driver=identity.driver,
        pool={"name": identity.pool, "generation": generation, "resourceSliceCount": count},
        nodeName=identity.node,
    )
    if want.devices:
        spec["devices"] = list(want.devices)
    if want.counter_sets:
        spec["sharedCounters"] = list(want.counter_sets)
    return spec


def _owner(identity: PoolIdentity) -> OwnerReference:
    return OwnerReference(apiVersion="v1", kind="Node", name=identity.node, uid=identity.node_uid, controller=True)


def _delete(item: Mapping[str, Any]) -> Delete:
    metadata = untrusted_slice.metadata(item)
    return Delete(
        name=untrusted_slice.name(item),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
    )


def index_of_body(body: ResourceSlice) -> int | None:
    """The index of a slice that is about to be written."""
    return index_of(body["metadata"].get("name") or body["metadata"].get("generateName", ""))
