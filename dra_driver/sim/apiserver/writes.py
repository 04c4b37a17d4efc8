"""Create and update objects: decode, default, prepare, validate, store, and set the server's metadata, in the order of
k8s.io/apiserver pkg/registry/rest/{create,update}.go. A kind's behaviour is in its `WriteRules`."""

import uuid
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.api_errors import (
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid_object,
    not_found,
    status_error,
)
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, child, copy_json, dig, mapping
from dra_driver.sim.apiserver.kind import ResourceKind, Review
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.apiserver.removal import Removal
from dra_driver.sim.apiserver.rules.core import meta_problems, meta_update_problems
from dra_driver.sim.apiserver.schema import decode
from dra_driver.sim.apiserver.state import Key, ObjectState, Record, object_key
from dra_driver.sim.apiserver.validation import generated_name, invalid

_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)
# A generated name may exist already; the real server makes the same number of attempts (k8s.io/apiserver,
# maxNameGenerationCreateAttempts).
_NAME_ATTEMPTS = 8


class WriteOptions(Struct, frozen=True, kw_only=True):
    """``on_unknown`` gets the paths of fields that are not in the schema, before they are dropped; may raise."""

    dry_run: bool = False
    on_unknown: Callable[[list[str]], None] = lambda _paths: None


PLAIN_WRITE = WriteOptions()


class ObjectWriter:
    """Writes to an `ObjectState`. Keeps the objects passed in, without copying. Not thread-safe; the store locks."""

    def __init__(
        self, state: ObjectState, removal: Removal, clock: Clock, check_cel: Callable[[str], str | None] | None = None
    ) -> None:
        self._state = state
        self._removal = removal
        self._clock = clock
        self._check_cel = check_cel or (lambda _expression: None)

    def create(self, kind: ResourceKind, obj: Obj, namespace: str, options: WriteOptions = PLAIN_WRITE) -> Record:
        """Store a new object. ``namespace`` is that of the request, "" if the object has it."""
        self._check_type(kind, obj)
        options.on_unknown(decode(kind, obj))
        self._place(kind, obj, namespace)
        self._fill_new(kind, obj)
        kind.rules.default(obj)
        if kind.has_status and not kind.keeps_status_on_create:
            obj.pop("status", None)
        self._check_namespace(kind, obj)
        self._name(kind, obj)
        kind.rules.prepare_create(obj)
        if kind.has_status:
            obj.setdefault("status", {})
        problems = meta_problems(kind, obj) + kind.rules.validate(obj, self._review(obj, None, ""))
        if problems:
            raise invalid_object(kind, dig(obj, "metadata", "name", default=""), problems)
        key = object_key(kind, obj)
        if self._state.get(kind, key) is not None:
            raise already_exists(kind, key[1])
        if options.dry_run:
            return Record(obj, self._state.revision)
        record = self._state.put(kind, obj)
        self._removal.collect_if_orphaned(kind, key)
        return record

    def update(
        self, kind: ResourceKind, obj: Obj, key: Key, *, subresource: str = "", options: WriteOptions = PLAIN_WRITE
    ) -> Record:
        """Replace the stored object or its status by ``obj``; returns the stored version."""
        self._check_type(kind, obj)
        options.on_unknown(decode(kind, obj))
        old = self._state.get(kind, key)
        if old is None:
            if kind.create_on_update and not subresource:
                return self.create(kind, obj, key[0], replace(options, on_unknown=PLAIN_WRITE.on_unknown))
            raise not_found(kind, key[1])
        self._check_preconditions(kind, obj, old, subresource)
        kind.rules.default(obj)
        new = self._merge_owned(kind, obj, old.obj, subresource)
        kind.rules.prepare_update(new, old.obj, subresource)
        problems = meta_update_problems(new, old.obj)
        problems += kind.rules.validate(new, self._review(new, old.obj, subresource))
        if problems:
            raise invalid_object(kind, key[1], problems)
        if new == old.obj:
            return old  # a write without a change is not stored, and watches do not see it
        if kind.generation and subresource != "status" and _body(new) != _body(old.obj):
            new["metadata"]["generation"] = old.obj["metadata"].get("generation", 0) + 1
        if options.dry_run:
            return Record(new, old.revision)
        record = self._state.put(kind, new)
        self._removal.finish(kind, key)
        self._removal.collect_if_orphaned(kind, key)
        return record

    def bind(self, namespace: str, pod: str, node: str) -> Record:
        """Assign a pod to a node and set its condition PodScheduled. Raises ConflictError if it has a node."""
        old = self._state.get(PODS, (namespace, pod))
        if old is None:
            raise not_found(PODS, pod)
        why = ""
        if dig(old.obj, "metadata", "deletionTimestamp"):
            why = f"pod {pod} is being deleted, cannot be assigned to a host"
        elif taken := dig(old.obj, "spec", "nodeName"):
            why = f'pod {pod} is already assigned to node "{taken}"'
        if why:
            raise conflict(PODS, pod, why, subresource="binding")
        new: Obj = copy_json(old.obj)
        new["spec"]["nodeName"] = node
        conditions = child(new, "status").setdefault("conditions", [])
        conditions[:] = [item for item in conditions if item.get("type") != "PodScheduled"]
        now = rfc3339(self._clock())
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": now})
        return self._state.put(PODS, new)

    def _check_type(self, kind: ResourceKind, obj: Obj) -> None:
        if not isinstance(obj.get("metadata", {}), dict):
            raise bad_request(f"{kind.kind}: metadata must be an object, got {type(obj['metadata']).__name__}")
        found = (obj.get("apiVersion", kind.api_version), obj.get("kind", kind.kind))
        if found != (kind.api_version, kind.kind):
            raise bad_request(
                f"{found[1]} in version {found[0]!r} cannot be handled as a {kind.kind}: expected {kind.api_version}"
            )
        obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind

    def _place(self, kind: ResourceKind, obj: Obj, namespace: str) -> None:
        metadata = obj.setdefault("metadata", {})
        if not kind.namespaced:
            metadata.pop("namespace", None)
            return
        own = metadata.get("namespace", "")
        if namespace and own and own != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace or own or "default"

    def _fill_new(self, kind: ResourceKind, obj: Obj) -> None:
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            # The real server also returns 500 without a reason.
            raise status_error(500, "", "resourceVersion should not be set on objects to be created")
        for field in _SERVER_OWNED:
            metadata.pop(field, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = rfc3339(self._clock())
        if kind.generation:
            metadata["generation"] = 1

    def _name(self, kind: ResourceKind, obj: Obj) -> None:
        metadata = obj["metadata"]
        if metadata.get("name") or not metadata.get("generateName"):
            return
        for _ in range(_NAME_ATTEMPTS):
            metadata["name"] = generated_name(metadata["generateName"])
            if self._state.get(kind, object_key(kind, obj)) is None:
                return

    def _check_namespace(self, kind: ResourceKind, obj: Obj) -> None:
        if not kind.namespaced:
            return
        name = obj["metadata"]["namespace"]
        record = self._state.get(NAMESPACES, ("", name))
        if record is None:
            raise not_found(NAMESPACES, name)
        if dig(record.obj, "metadata", "deletionTimestamp"):
            why = f"unable to create new content in namespace {name} because it is being terminated"
            happened = f"namespace {name} is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": happened, "field": "metadata.namespace"}
            raise forbidden(kind, dig(obj, "metadata", "name", default=""), why, [cause])

    def _check_preconditions(self, kind: ResourceKind, obj: Obj, old: Record, subresource: str) -> None:
        metadata, before = obj.setdefault("metadata", {}), old.obj["metadata"]
        sent = metadata.get("resourceVersion", "")
        if not sent and kind.needs_resource_version and not subresource:
            problem = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid_object(kind, before["name"], [problem], kind_name=kind.plural)
        if metadata.get("uid") and metadata["uid"] != before["uid"]:
            key = "/".join(part for part in (kind.plural, before.get("namespace", ""), before["name"]) if part)
            why = (
                f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {before['uid']}"
            )
            raise conflict(kind, before["name"], why)
        if sent and sent != before["resourceVersion"]:
            raise conflict(kind, before["name"])

    def _merge_owned(self, kind: ResourceKind, obj: Obj, old: Obj, subresource: str) -> Obj:
        """``obj`` with the fields that this kind of write may not change from the stored version."""
        if subresource == "status":
            new: Obj = copy_json(old)
            if "status" in obj:
                new["status"] = obj["status"]
            else:
                new.pop("status", None)
            if "managedFields" in obj["metadata"]:
                new["metadata"]["managedFields"] = obj["metadata"]["managedFields"]
            return new
        for field in _SERVER_OWNED:
            obj["metadata"].pop(field, None)
            if field in old["metadata"]:
                obj["metadata"][field] = old["metadata"][field]
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if kind.namespaced:
            obj["metadata"].setdefault("namespace", old["metadata"]["namespace"])
        else:
            obj["metadata"].pop("namespace", None)
        obj["metadata"].setdefault("name", old["metadata"]["name"])
        if kind.has_status:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = copy_json(old["status"])
        return obj

    def _review(self, obj: Obj, old: Obj | None, subresource: str) -> Review:
        def namespace_labels() -> dict[str, str]:
            record = self._state.get(NAMESPACES, ("", dig(obj, "metadata", "namespace", default="")))
            return mapping(record.obj, "metadata", "labels") if record else {}

        return Review(old=old, subresource=subresource, check_cel=self._check_cel, namespace_labels=namespace_labels)


def _body(obj: Obj) -> Obj:
    return {part: value for part, value in obj.items() if part not in {"metadata", "status"} and value is not None}
