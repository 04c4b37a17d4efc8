"""One pass: read our slices, plan, write, and look at what the API server made of it.

Owns the order of calls and what is remembered between passes (the node's UID, what the server accepted, which
versions are our own). Refuses to know threads and time (``publisher.py``, ``schedule.py``). The slices are listed
anew in each pass: one request, only when something happened, and no cache whose lag behind our own writes would have
to be reasoned about (client-go's slice controller keeps a mutation cache for that).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.errors import NotFoundError
from dra_driver.kube.types import Device, ResourceSlice
from dra_driver.slices.api import Slice, SlicesApi
from dra_driver.slices.compare import lacking, same
from dra_driver.slices.diff import PoolIdentity, Writes, foreign_pools, plan
from dra_driver.slices.layout import DesiredSlice, index_of, split

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass found and did. ``dropped`` are paths of fields that the API server did not keep."""

    writes: int
    created: int
    generation: int
    foreign_pools: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Accepted:
    """What the API server stored for these devices, where it differs from what was sent."""

    devices: Sequence[Device]
    spec: Mapping[str, Any]
    dropped: tuple[str, ...]


class Reconciler:
    """Brings the pool of one driver and node to a list of devices. Not thread-safe: the publisher's thread owns it."""

    def __init__(self, api: SlicesApi, driver: str, node: str, pool: str) -> None:
        self._api = api
        self._driver, self._node, self._pool = driver, node, pool
        self._node_uid = ""
        self._accepted: dict[int, _Accepted] = {}
        self._versions: dict[str, str] = {}

    def run(self, devices: Sequence[Device]) -> Pass:
        """Idempotent; raises KubernetesApiError at the first failure, after which a repetition goes on from there."""
        actual = self._api.list()
        self._versions = {_meta(item, "name"): _meta(item, "resourceVersion") for item in actual}
        desired = [self._with_accepted(want) for want in split(devices)]
        writes = self._planned(desired, actual)
        self._write(writes, desired)
        return Pass(
            writes=len(writes),
            created=len(writes.creates),
            generation=writes.generation,
            foreign_pools=foreign_pools(actual, self._identity()),
            dropped=self._dropped(desired),
        )

    @property
    def node_uid(self) -> str:
        """UID of the Node object, empty before the first pass."""
        return self._node_uid

    def is_own_write(self, name: str, version: str | None) -> bool:
        """Whether a watch event only tells what the last pass saw or did; ``version`` None stands for "deleted"."""
        return self._versions.get(name) == version

    def _planned(self, desired: Sequence[DesiredSlice], actual: Iterable[Slice]) -> Writes:
        known = self._node_uid
        if not known:
            self._node_uid = self._api.node_uid()
        writes = plan(desired, actual, self._identity())
        if known and writes.creates:
            # A Node object that was deleted and made again takes its slices with it: the new ones need the new owner.
            self._node_uid = self._api.node_uid()
            if self._node_uid != known:
                writes = plan(desired, actual, self._identity())
        return writes

    def _write(self, writes: Writes, desired: Sequence[DesiredSlice]) -> None:
        for delete in writes.deletes:
            try:
                self._api.delete(delete)
            except NotFoundError:
                log.debug("slice was gone already", extra={"slice": delete.name})
            self._versions.pop(delete.name, None)
        by_index = {want.index: want for want in desired}
        for sent in writes.updates:
            self._wrote("updated", by_index, sent, self._api.update(sent))
        for sent in writes.creates:
            self._wrote("created", by_index, sent, self._api.create(sent))

    def _wrote(self, verb: str, desired: Mapping[int, DesiredSlice], sent: ResourceSlice, stored: Slice) -> None:
        name = _meta(stored, "name")
        self._versions[name] = _meta(stored, "resourceVersion")
        log.info(
            f"slice {verb}",
            extra={"slice": name, "generation": sent["spec"]["pool"]["generation"], "devices": len(_devices(sent))},
        )
        found = stored.get("spec")
        index = index_of(sent["metadata"].get("name") or sent["metadata"].get("generateName", ""))
        if index is None or not isinstance(found, Mapping):
            return
        self._accepted.pop(index, None)
        if not same(sent["spec"], found):
            dropped = tuple(lacking(sent["spec"], found, "spec"))
            self._accepted[index] = _Accepted(desired[index].devices, found, dropped)

    def _dropped(self, desired: Sequence[DesiredSlice]) -> tuple[str, ...]:
        """Fields of what is published now that the API server did not keep."""
        self._accepted = {w.index: self._accepted[w.index] for w in desired if w.index in self._accepted}
        return tuple(path for accepted in self._accepted.values() for path in accepted.dropped)

    def _with_accepted(self, want: DesiredSlice) -> DesiredSlice:
        known = self._accepted.get(want.index)
        if known is None or list(known.devices) != list(want.devices):
            return want
        return replace(want, accepted=known.spec)

    def _identity(self) -> PoolIdentity:
        return PoolIdentity(driver=self._driver, node=self._node, node_uid=self._node_uid, pool=self._pool)


def _devices(body: ResourceSlice) -> list[Device]:
    return body["spec"].get("devices", [])


def _meta(item: Slice, key: str) -> str:
    metadata = item.get("metadata")
    value = metadata.get(key) if isinstance(metadata, Mapping) else None
    return value if isinstance(value, str) else ""
