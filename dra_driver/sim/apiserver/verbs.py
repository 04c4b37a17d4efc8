"""The verbs of the API on one target: get, list, create, update, patch, delete, deletecollection; and the forms of
their replies. Options of the query follow k8s.io/apiserver pkg/endpoints/handlers. Errors come from
`dra_driver.core.errors`."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from dra_driver.core.errors import NotFoundError
from dra_driver.sim.apiserver.api_errors import bad_request, expired, status_error
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, dig, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, Target, unsupported_media_type
from dra_driver.sim.apiserver.patching import APPLY_PATCH, PATCH_TYPES, Patch
from dra_driver.sim.apiserver.printers import Column, Printer, printer_of
from dra_driver.sim.apiserver.removal import DeleteOptions
from dra_driver.sim.apiserver.selectors import Match, field_match, label_match
from dra_driver.sim.apiserver.state import Record
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.validation import StatusCause, forbidden_field, required, unsupported
from dra_driver.sim.apiserver.writes import WriteOptions

_POD_CONDITIONS = {
    "Succeeded": [
        {"type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully."}
    ],
    "Failed": [{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}],
}
INCLUDE_CHOICES = ("", "Metadata", "Object", "None")


def partial(obj: Obj) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _definition(column: Column) -> Obj:
    shown = {"name": column.name, "type": column.type, "format": column.format}
    return {**shown, "description": "", "priority": column.priority}


def _row(kind: ResourceKind, printer: Printer, obj: Obj, now: datetime, include: str) -> Obj:
    row: Obj = {"cells": [column.cell(obj, now) for column in printer]}
    if kind.plural == "pods" and (conditions := _POD_CONDITIONS.get(dig(obj, "status", "phase", default=""))):
        row["conditions"] = conditions
    row["object"] = None if include == "None" else obj if include == "Object" else partial(obj)
    return row


def table(
    kind: ResourceKind, objects: Iterable[Obj], metadata: Obj, now: datetime, *, include: str = "", headers: bool = True
) -> Obj:
    """A table with one row per object. ``include`` is how much of the object each row has."""
    printer = printer_of(kind.kind)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in printer] if headers else None,
        "rows": [_row(kind, printer, obj, now, include) for obj in objects],
    }


def include_option(request: ApiRequest) -> str:
    """The includeObject option: how much of the object each table row has. Raises 400 for other values."""
    include = request.query.get("includeObject", "")
    if include not in INCLUDE_CHOICES:
        raise bad_request(f'unrecognized includeObject value: "{include}"')
    return include


def object_reply(
    request: ApiRequest,
    target: Target,
    record: Record,
    now: datetime,
    *,
    status: int = 200,
    warnings: tuple[str, ...] = (),
) -> Reply:
    if request.wants("Table"):
        metadata = {"resourceVersion": record.obj["metadata"].get("resourceVersion", "")}
        include = include_option(request)
        return Reply.of(table(target.kind, [record.obj], metadata, now, include=include), status, warnings)
    if request.wants("PartialObjectMetadata"):
        return Reply.of(partial(record.obj), status, warnings)
    return Reply(body=record.json, status=status, warnings=warnings)


def list_reply(request: ApiRequest, target: Target, records: Sequence[Record], revision: int, now: datetime) -> Reply:
    metadata = {"resourceVersion": str(revision)}
    if request.wants("Table"):
        objects = [record.obj for record in records]
        return Reply.of(table(target.kind, objects, metadata, now, include=include_option(request)))
    if request.wants("PartialObjectMetadataList"):
        items = [partial(record.obj) for record in records]
        shape = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        return Reply.of(shape | {"items": items})
    head = dump({"kind": f"{target.kind.kind}List", "apiVersion": target.kind.api_version, "metadata": metadata})
    rows = [record.list_item for record in records]
    return Reply(body=head[:-1] + b',"items":[' + b",".join(rows) + b"]}")


_META_FIELDS = ("metadata.name", "metadata.namespace")
_PROPAGATIONS = ("Background", "Foreground", "Orphan")


def _unsupported_field(kind: ResourceKind) -> str:
    if not kind.selectable:
        return '"{key}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    of_kind = f" for {kind.api_version}, Kind={kind.kind}" if kind.group == "resource.k8s.io" else ""
    return f"field label not supported{of_kind}: {{key}}"


def selection(request: ApiRequest, target: Target) -> list[Match]:
    """Predicates for a request's label and field selectors. Raises InvalidObjectError (400)."""
    fields, kind = request.query.get("fieldSelector", ""), target.kind
    matches = [
        label_match(request.query.get("labelSelector", "")),
        field_match(fields, (*_META_FIELDS, *kind.selectable), _unsupported_field(kind)),
    ]
    if target.name:
        matches.append(field_match(f"metadata.name={target.name}"))
    return [match for match in matches if match]


def options_invalid(options: str, problem: StatusCause) -> Exception:
    text = f'{options}.meta.k8s.io "" is invalid: {problem}'
    cause = {"reason": problem.reason, "message": problem.message, "field": problem.field}
    return status_error(422, "Invalid", text, {"group": "meta.k8s.io", "kind": options, "causes": [cause]})


class Verbs:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, request: ApiRequest, target: Target) -> Reply:
        self._check_revision(request)
        return object_reply(
            request, target, self._store.read(target.kind, target.name, target.namespace), self._clock()
        )

    def list(self, request: ApiRequest, target: Target) -> Reply:
        """List a collection. ``limit`` is ignored: lists are always complete."""
        self._check_revision(request)
        if request.query.get("continue"):
            raise expired(0, self._store.revision)
        chosen, revision = self._selected(request, target)
        return list_reply(request, target, chosen, revision, self._clock())

    def _selected(self, request: ApiRequest, target: Target) -> tuple[Sequence[Record], int]:
        matches = selection(request, target)
        records, revision = self._store.read_all(target.kind, target.namespace)
        return [record for record in records if all(match(record.obj) for match in matches)], revision

    def create(self, request: ApiRequest, target: Target) -> Reply:
        checks = _FieldValidation(request, target)
        options = self._write_options(request, "CreateOptions", checks)
        stored = self._store.create(target.kind, request.object(), namespace=target.namespace, options=options)
        return self._written(request, target, stored, checks, created=True)

    def update(self, request: ApiRequest, target: Target) -> Reply:
        obj, checks = request.object(), _FieldValidation(request, target)
        metadata = obj.setdefault("metadata", {})
        wanted = {"name": target.name} | ({"namespace": target.namespace} if target.kind.namespaced else {})
        for field, value in wanted.items():
            if metadata.setdefault(field, value) != value:
                raise bad_request(
                    f"the {field} of the object ({metadata[field]}) does not match the {field} on the URL ({value})"
                )
        known = self._known(target)
        options = self._write_options(request, "UpdateOptions", checks)
        stored = self._store.update(target.kind, obj, subresource=target.subresource, options=options)
        return self._written(request, target, stored, checks, created=not known)

    def patch(self, request: ApiRequest, target: Target) -> Reply:
        """Patch the object; 201 if an apply patch created it."""
        if request.content_type not in PATCH_TYPES:
            raise unsupported_media_type(PATCH_TYPES)
        checks, is_apply = _FieldValidation(request, target), request.content_type == APPLY_PATCH
        manager, force = request.query.get("fieldManager", ""), request.query.get("force")
        if is_apply and not manager:
            raise options_invalid("PatchOptions", required("fieldManager", "is required for apply patch"))
        if force is not None and not is_apply:
            raise options_invalid("PatchOptions", forbidden_field("force", "may not be specified for non-apply patch"))
        known = self._known(target)
        stored = self._store.patch(
            target.kind,
            target.name,
            Patch(body=request.document(), type=request.content_type, manager=manager, force=force == "true"),
            namespace=target.namespace,
            subresource=target.subresource,
            options=self._write_options(request, "PatchOptions", checks),
        )
        return self._written(request, target, stored, checks, created=not known)

    def _write_options(self, request: ApiRequest, name: str, checks: "_FieldValidation") -> WriteOptions:
        return WriteOptions(dry_run=self._dry_run(request, name), on_unknown=checks.on_unknown)

    def _written(
        self, request: ApiRequest, target: Target, stored: Obj, checks: "_FieldValidation", *, created: bool
    ) -> Reply:
        status = 201 if created else 200
        return object_reply(request, target, Record(stored, 0), self._clock(), status=status, warnings=checks.warnings)

    def delete(self, request: ApiRequest, target: Target) -> Reply:
        options = self._delete_options(request)
        removed, last = self._store.remove(target.kind, target.name, target.namespace, options)
        if not removed or target.kind.returns_deleted:
            return object_reply(request, target, Record(last, 0), self._clock())
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        details["uid"] = last["metadata"]["uid"]
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return Reply.of(success | {"details": {key: value for key, value in details.items() if value}})

    def delete_collection(self, request: ApiRequest, target: Target) -> Reply:
        """Delete every selected object; returns the list of them."""
        options = self._delete_options(request)
        chosen, revision = self._selected(request, target)
        for record in chosen:
            metadata = record.obj["metadata"]
            with suppress(NotFoundError):  # deleted as a dependent of an earlier one
                self._store.delete(target.kind, metadata["name"], metadata.get("namespace", ""), options)
        return list_reply(request, target, chosen, revision, self._clock())

    def _known(self, target: Target) -> bool:
        return self._store.find(target.kind, target.name, target.namespace) is not None

    def _check_revision(self, request: ApiRequest) -> None:
        """Check resourceVersion: replies have the newest state, which satisfies all but future and exact revisions."""
        sent, match = request.query.get("resourceVersion", ""), request.query.get("resourceVersionMatch", "")
        if not sent:
            if match and not request.flag("sendInitialEvents"):
                text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
                raise options_invalid("ListOptions", forbidden_field("resourceVersionMatch", text))
            return
        revision, current = revision_number(sent), self._store.revision
        if revision > current:
            raise too_large(revision, current)
        if match == "Exact" and revision != current:
            raise expired(revision, current)

    def _dry_run(self, request: ApiRequest, options: str) -> bool:
        value = request.query.get("dryRun", "")
        if value not in {"", "All"}:
            raise options_invalid(options, unsupported("dryRun", [value], ["All"]))
        return value == "All"

    def _delete_options(self, request: ApiRequest) -> DeleteOptions:
        body = request.object() if request.body.strip() else {}
        grace = body.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        propagation = body.get("propagationPolicy") or request.query.get("propagationPolicy", "")
        if propagation and propagation not in _PROPAGATIONS:
            problem = unsupported("propagationPolicy", propagation, [*_PROPAGATIONS, "nil"])
            raise options_invalid("DeleteOptions", problem)
        return DeleteOptions(
            uid=dig(body, "preconditions", "uid", default=""),
            resource_version=dig(body, "preconditions", "resourceVersion", default=""),
            propagation=propagation,
            grace_period_s=None if grace is None else int(grace),
            dry_run="All" in (body.get("dryRun") or ()) or self._dry_run(request, "DeleteOptions"),
        )


class _FieldValidation:
    """Handles unknown fields by the request's fieldValidation: Ignore, Warn (the default) or Strict."""

    def __init__(self, request: ApiRequest, target: Target) -> None:
        self._policy = request.query.get("fieldValidation", "") or "Warn"
        self._kind = target.kind
        self.warnings: tuple[str, ...] = ()
        if self._policy not in {"Ignore", "Warn", "Strict"}:
            problem = unsupported("fieldValidation", self._policy, ["Ignore", "Strict", "Warn"])
            raise options_invalid("CreateOptions", problem)

    def on_unknown(self, paths: list[str]) -> None:
        """Called by the store with the paths of fields that it will drop. Raises InvalidObjectError if Strict."""
        texts = tuple(f'unknown field "{path}"' for path in paths)
        if texts and self._policy == "Strict":
            name, version = self._kind.kind, self._kind.version
            why = f"strict decoding error: {', '.join(texts)}"
            raise bad_request(f'{name} in version "{version}" cannot be handled as a {name}: {why}')
        self.warnings = texts if self._policy == "Warn" else ()


def revision_number(text: str) -> int:
    """A resourceVersion as a number. Raises 400 if it is not a number."""
    if not text.isdigit():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def too_large(asked: int, current: int) -> Exception:
    """504: the client asks for a revision that this server has not reached."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    text = f"Timeout: Too large resource version: {asked}, current: {current}"
    return status_error(504, "Timeout", text, {"causes": [cause], "retryAfterSeconds": 1})
