"""Deletion: preconditions, grace periods of pods, finalizers, dependents and namespaces.

The garbage collector's and namespace controller's work is done immediately, under the store's lock, so that nothing
depends on timing. Rules: k8s.io/apiserver pkg/registry/rest/delete.go and pkg/registry/generic/registry/store.go,
kubernetes/kubernetes pkg/controller/garbagecollector. Running pods stay until their kubelet deletes them with grace
period 0.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from msgspec import Struct

from dra_driver.core.errors import NotFoundError
from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.api_errors import forbidden, not_found, precondition_failed
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, copy_json, dig, entries
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.apiserver.state import Key, ObjectState, Record, object_key

FOREGROUND = "foregroundDeletion"
UNDELETABLE_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})


class DeleteOptions(Struct, frozen=True, kw_only=True):
    """metav1.DeleteOptions. ``propagation`` is Background, Foreground, Orphan or "" for the kind's own default."""

    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    grace_period_s: int | None = None
    dry_run: bool = False


class Removal:
    """Deletes objects of an `ObjectState` and completes pending deletions, under the store's lock. ``when_terminating``
    gets the name of a namespace that was marked for deletion, and must arrange a call of `empty_namespace`; the default
    calls it."""

    def __init__(self, state: ObjectState, clock: Clock, when_terminating: Callable[[str], None] | None = None) -> None:
        self._state = state
        self._clock = clock
        self._when_terminating = when_terminating or self.empty_namespace

    def delete(self, kind: ResourceKind, key: Key, options: DeleteOptions) -> Record:
        """Remove the object, or mark it while a grace period, finalizers or dependents block that; returns the last
        version."""
        record = self._state.get(kind, key)
        if record is None:
            raise not_found(kind, key[1])
        self._check(kind, record, options)
        if options.dry_run:
            return record
        policy = options.propagation or kind.default_propagation
        if policy == "Orphan":
            uid = record.obj["metadata"]["uid"]
            for dependent_kind, dependent in self._state.owned_by(uid):
                self._drop_owners(dependent_kind, dependent, {uid})
        if kind is NAMESPACES:
            obj: Obj = copy_json(record.obj)
            obj["metadata"].setdefault("deletionTimestamp", rfc3339(self._clock()))
            obj.setdefault("status", {})["phase"] = "Terminating"
            marked = record if obj == record.obj else self._state.put(NAMESPACES, obj)
            self._when_terminating(key[1])
            return marked
        grace_s = self._grace_s(kind, record, options)
        waits_for = self._blocking_dependents(record) if policy == "Foreground" else []
        if grace_s or waits_for or entries(record.obj, "metadata", "finalizers"):
            record = self._mark(kind, record, grace_s, foreground=bool(waits_for))
            for dependent_kind, dependent in self._state.owned_by(record.obj["metadata"]["uid"]) if waits_for else ():
                self._delete_quietly(dependent_kind, dependent, options.propagation)
            return self._state.get(kind, key) or record
        record = self.remove(kind, key)
        if kind is not PODS:
            return record
        # The reply shows a deleted pod with a grace period of 0.
        ended = {"deletionTimestamp": rfc3339(self._clock()), "deletionGracePeriodSeconds": 0}
        return Record(record.obj | {"metadata": record.obj["metadata"] | ended}, record.revision)

    def remove(self, kind: ResourceKind, key: Key) -> Record:
        """Remove the object now, then its dependents."""
        record = self._state.remove(kind, key)
        self._collect_dependents(record)
        self._release_owners(record)
        if kind.namespaced:
            self._finish_namespace(key[0])
        return record

    def finish(self, kind: ResourceKind, key: Key) -> None:
        """Remove the object if it is marked for deletion and nothing blocks that. Call it after each update."""
        record = self._state.get(kind, key)
        if record is None or not dig(record.obj, "metadata", "deletionTimestamp"):
            return
        metadata = record.obj["metadata"]
        if kind is NAMESPACES:
            self._finish_namespace(key[1])
        elif not entries(metadata, "finalizers") and not metadata.get("deletionGracePeriodSeconds"):
            self.remove(kind, key)

    def collect_if_orphaned(self, kind: ResourceKind, key: Key) -> None:
        """Delete the object if it has owner references and none of the owners exists."""
        record = self._state.get(kind, key)
        owners = entries(record.obj, "metadata", "ownerReferences") if record else []
        if owners and not any(self._state.by_uid(owner.get("uid", "")) for owner in owners):
            self.delete(kind, key, DeleteOptions(propagation="Background"))

    def _check(self, kind: ResourceKind, record: Record, options: DeleteOptions) -> None:
        metadata = record.obj["metadata"]
        if kind is NAMESPACES and metadata["name"] in UNDELETABLE_NAMESPACES:
            raise forbidden(kind, metadata["name"], "this namespace may not be deleted")
        if options.uid and options.uid != metadata["uid"]:
            raise precondition_failed(kind, metadata["name"], "UID", options.uid, metadata["uid"])
        if options.resource_version and options.resource_version != metadata["resourceVersion"]:
            asked, found = options.resource_version, metadata["resourceVersion"]
            raise precondition_failed(kind, metadata["name"], "ResourceVersion", asked, found)

    def _grace_s(self, kind: ResourceKind, record: Record, options: DeleteOptions) -> int:
        """Seconds for the kubelet to stop the pod; 0 removes it at once (pod strategy's CheckGracefulDelete)."""
        obj = record.obj
        if kind is not PODS or not dig(obj, "spec", "nodeName"):
            return 0
        if dig(obj, "status", "phase") in {"Succeeded", "Failed"}:
            return 0
        asked = options.grace_period_s
        before = dig(obj, "metadata", "deletionGracePeriodSeconds")
        if asked is None:
            asked = before if before is not None else dig(obj, "spec", "terminationGracePeriodSeconds", default=30)
        if asked < 0:
            asked = 1
        # A second delete may shorten the grace period, not lengthen it.
        return int(asked if before is None else min(asked, before))

    def _mark(self, kind: ResourceKind, record: Record, grace_s: int, *, foreground: bool) -> Record:
        obj: Obj = copy_json(record.obj)
        metadata = obj["metadata"]
        if foreground and FOREGROUND not in entries(metadata, "finalizers"):
            metadata["finalizers"] = [*entries(metadata, "finalizers"), FOREGROUND]
        first = "deletionTimestamp" not in metadata
        if first or metadata.get("deletionGracePeriodSeconds", 0) > grace_s:
            metadata["deletionTimestamp"] = rfc3339(self._clock() + timedelta(seconds=grace_s))
            metadata["deletionGracePeriodSeconds"] = grace_s
        if first and kind.generation:
            metadata["generation"] = metadata.get("generation", 0) + 1
        return record if obj == record.obj else self._state.put(kind, obj)

    def _blocking_dependents(self, record: Record) -> list[tuple[ResourceKind, Record]]:
        uid = record.obj["metadata"]["uid"]
        return [
            (kind, dependent)
            for kind, dependent in self._state.owned_by(uid)
            for owner in entries(dependent.obj, "metadata", "ownerReferences")
            if owner.get("uid") == uid and owner.get("blockOwnerDeletion")
        ]

    def _delete_quietly(self, kind: ResourceKind, record: Record, propagation: str) -> None:
        options = DeleteOptions(uid=record.obj["metadata"]["uid"], propagation=propagation)
        with suppress(NotFoundError):  # deleted together with another dependent
            self.delete(kind, object_key(kind, record.obj), options)

    def _drop_owners(self, kind: ResourceKind, record: Record, uids: set[str]) -> None:
        obj: Obj = copy_json(record.obj)
        kept = [owner for owner in obj["metadata"]["ownerReferences"] if owner.get("uid") not in uids]
        obj["metadata"]["ownerReferences"] = kept
        if not kept:
            del obj["metadata"]["ownerReferences"]
        self._state.put(kind, obj)

    def _collect_dependents(self, record: Record) -> None:
        for kind, dependent in self._state.owned_by(record.obj["metadata"]["uid"]):
            owners = {owner.get("uid", "") for owner in entries(dependent.obj, "metadata", "ownerReferences")}
            missing = {uid for uid in owners if self._state.by_uid(uid) is None}
            if missing == owners:
                self._delete_quietly(kind, dependent, "Background")
            else:
                self._drop_owners(kind, dependent, missing)

    def _release_owners(self, record: Record) -> None:
        for reference in entries(record.obj, "metadata", "ownerReferences"):
            found = self._state.by_uid(reference.get("uid", ""))
            owner = self._state.get(*found) if found else None
            if found is None or owner is None or FOREGROUND not in entries(owner.obj, "metadata", "finalizers"):
                continue
            if not self._blocking_dependents(owner):
                obj: Obj = copy_json(owner.obj)
                obj["metadata"]["finalizers"].remove(FOREGROUND)
                self._state.put(found[0], obj)
                self.finish(*found)

    def empty_namespace(self, name: str) -> None:
        """Delete the contents of a namespace being deleted, then the namespace once it is empty."""
        for kind in self._state.kinds():
            for inside in self._state.records(kind, name) if kind.namespaced else ():
                self._delete_quietly(kind, inside, "Background")
        self._finish_namespace(name)

    def _finish_namespace(self, name: str) -> None:
        record = self._state.get(NAMESPACES, ("", name))
        if record is None or not dig(record.obj, "metadata", "deletionTimestamp"):
            return
        occupied = any(kind.namespaced and self._state.records(kind, name) for kind in self._state.kinds())
        if not occupied and not entries(record.obj, "metadata", "finalizers"):
            self._state.remove(NAMESPACES, ("", name))
