"""Run one pass: list the existing ResourceSlices, compute the writes, write, and compare the answers.

Each pass lists the resource slices: a cache would lag behind own writes. It stops at the first answer that lacks a
gated field: without counters the scheduler would allocate a whole GPU and its partitions. The pool stays incomplete
(see ``diff.py``), so none of its devices is allocated until the next pass.

A resource slice with counter sets and devices (1.34) is first written with the counter sets only: an update of a
resource slice that has counters keeps all of them, whatever the gate of the API server
(dropDisabledDRAPartitionableDevicesFields in pkg/registry/resource/resourceslice/strategy.go).
"""

import logging
from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import InvalidObjectError, NotFoundError
from dra_driver.node.slices import untrusted_slice
from dra_driver.node.slices.api import SlicesApi, StoredSlice
from dra_driver.node.slices.diff import PoolIdentity, SliceBody, Writes, accepted, compute_writes, foreign_pools
from dra_driver.node.slices.gates import dropped_fields, lists_in, lost_with, same
from dra_driver.node.slices.layout import DesiredSlice

log = logging.getLogger(__name__)

MAX_DROPPED = 16  # paths that are kept per resource slice, for people; a resource slice may lack hundreds


class ReconcileResult(Struct, frozen=True, kw_only=True):
    """The result of one pass. ``dropped`` are paths of fields that the API server did not keep; ``lost`` are features
    (``gates.ApiServerFeatures``) that it turned out to lack: the pass then stopped half-way."""

    writes: int
    created: int
    generation: int
    foreign_pools: tuple[str, ...]
    dropped: tuple[str, ...]
    lost: frozenset[str]


class _Accepted(Struct, frozen=True, kw_only=True):
    """The API server stored a changed version: the desired content, and the server's version."""

    want: DesiredSlice
    digest: str
    dropped: tuple[str, ...]


class Reconciler:
    """Brings the pool of one driver and node to the desired resource slices. Not thread-safe: one thread owns it."""

    def __init__(self, api: SlicesApi, driver: str, node: str, pool: str) -> None:
        self._api = api
        self._driver, self._node, self._pool = driver, node, pool
        self.node_uid = ""
        """UID of the Node object; "" before the first pass."""
        self._accepted: dict[int, _Accepted] = {}
        self._versions: dict[str, str] = {}

    def run(self, wanted: Sequence[DesiredSlice]) -> ReconcileResult:
        """Idempotent. Raises KubernetesApiError at the first failure; another call continues from there."""
        actual = self._api.list()
        self._versions = {_meta(item, "name"): _meta(item, "resourceVersion") for item in actual}
        desired = [self._with_accepted(want) for want in wanted]
        writes = self._planned(desired, actual)
        with_counters = {_meta(item, "name") for item in actual if untrusted_slice.spec(item).get("sharedCounters")}
        lost = self._write(writes, desired, with_counters)
        return ReconcileResult(
            writes=len(writes),
            created=len(writes.creates),
            generation=writes.generation,
            foreign_pools=foreign_pools(actual, self._identity()),
            dropped=self._dropped(desired),
            lost=lost,
        )

    def is_own_write(self, name: str, version: str | None) -> bool:
        """Return whether an event reports a state that the last pass read or wrote; ``version`` None: deleted."""
        return self._versions.get(name) == version

    def _planned(self, desired: Sequence[DesiredSlice], actual: Iterable[StoredSlice]) -> Writes:
        known = self.node_uid
        if not known:
            self.node_uid = self._api.node_uid()
        writes = compute_writes(desired, actual, self._identity())
        if known and writes.creates:
            # When a Node object is deleted and created again, its resource slices are deleted too, and new ones need
            # the new owner.
            self.node_uid = self._api.node_uid()
            if self.node_uid != known:
                writes = compute_writes(desired, actual, self._identity())
        return writes

    def _write(self, writes: Writes, desired: Sequence[DesiredSlice], with_counters: Container[str]) -> frozenset[str]:
        """Write; returns the features that an answer showed to be missing, empty when all writes are done.

        ``with_counters`` are the names of existing resource slices that have counter sets.
        """
        for delete in writes.deletes:
            try:
                self._api.delete(delete)
            except NotFoundError:
                log.debug("resource slice was already deleted", extra={"slice": delete.name})
            self._versions.pop(delete.name, None)
        by_index = {want.index: want for want in desired}
        for planned in writes.in_order():
            body = planned
            if body.spec.shared_counters and body.spec.devices and body.metadata.get("name") not in with_counters:
                alone = replace(body.spec, devices=())
                stored = self._send(replace(body, spec=alone))
                if lost := lost_with(dropped_fields(alone, stored.get("spec"), "spec")):
                    return lost
                # The second step updates the stored slices of the first.
                version = {"name": _meta(stored, "name"), "resourceVersion": _meta(stored, "resourceVersion")}
                body = replace(body, metadata={**body.metadata, **version})
            known = "name" in body.metadata
            try:
                stored = self._send(body)
            except InvalidObjectError:
                # Without its list, an attribute has no value: the API server refuses a field that it otherwise drops.
                if lost := lost_with(lists_in(body.spec)):
                    return lost
                raise
            if lost := self._wrote("updated" if known else "created", by_index, body, stored):
                return lost
        return frozenset()

    def _send(self, body: SliceBody) -> StoredSlice:
        return self._api.update(body) if "name" in body.metadata else self._api.create(body)

    def _wrote(
        self, verb: str, desired: Mapping[int, DesiredSlice], sent: SliceBody, stored: StoredSlice
    ) -> frozenset[str]:
        name, spec = _meta(stored, "name"), sent.spec
        self._versions[name] = _meta(stored, "resourceVersion")
        log.info(
            f"resource slice {verb}",
            extra={
                "slice": name,
                "generation": spec.pool.generation,
                "devices": len(spec.devices),
                "counter_sets": len(spec.shared_counters),
            },
        )
        kept, index = stored.get("spec"), sent.index
        if index is None or not isinstance(kept, Mapping):
            return frozenset()
        self._accepted.pop(index, None)
        if same(spec, kept):
            return frozenset()
        dropped = tuple(dropped_fields(spec, kept, "spec"))
        lost = lost_with(dropped)
        if not lost:
            self._accepted[index] = _Accepted(want=desired[index], digest=accepted(kept), dropped=dropped[:MAX_DROPPED])
        return lost

    def _dropped(self, desired: Sequence[DesiredSlice]) -> tuple[str, ...]:
        """Fields of the published resource slices that the API server did not keep."""
        self._accepted = {w.index: self._accepted[w.index] for w in desired if w.index in self._accepted}
        return tuple(path for accepted in self._accepted.values() for path in accepted.dropped)

    def _with_accepted(self, want: DesiredSlice) -> DesiredSlice:
        known = self._accepted.get(want.index)
        return replace(want, accepted=known.digest) if known is not None and known.want.says_the_same(want) else want

    def _identity(self) -> PoolIdentity:
        return PoolIdentity(driver=self._driver, node=self._node, node_uid=self.node_uid, pool=self._pool)


def _meta(item: StoredSlice, key: str) -> str:
    value = untrusted_slice.metadata(item).get(key)
    return value if isinstance(value, str) else ""
