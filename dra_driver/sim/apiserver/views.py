"""Formats objects and lists as a request asks: plain, as a table, or metadata only.

For plain objects, the reply has the JSON bytes that the store keeps; other forms are built per request. Tables:
k8s.io/apiserver pkg/endpoints/handlers/response.go.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, Target
from dra_driver.sim.apiserver.printers import Column, Printer, printer_of
from dra_driver.sim.apiserver.state import Record

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
    """A table with one row per object.

    ``include`` is how much of the object each row has; ``headers`` False leaves out the column definitions.
    """
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


def one(
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


def many(request: ApiRequest, target: Target, records: Sequence[Record], revision: int, now: datetime) -> Reply:
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
