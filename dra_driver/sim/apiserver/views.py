"""Formats objects and lists as a request asks: plain, as a table, or metadata only.

For plain objects, the reply has the JSON bytes that the store keeps; other forms are built per request.
"""

from collections.abc import Sequence
from datetime import datetime

from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.event_view import to_events_v1
from dra_driver.sim.apiserver.jsonvalue import Obj, dump
from dra_driver.sim.apiserver.messages import ApiRequest, Reply
from dra_driver.sim.apiserver.paths import Target
from dra_driver.sim.apiserver.state import Record
from dra_driver.sim.apiserver.tables import INCLUDE_CHOICES, partial, table


def include_option(request: ApiRequest) -> str:
    """The includeObject option: how much of the object each table row has. Raises 400 for other values."""
    include = request.query.get("includeObject", "")
    if include not in INCLUDE_CHOICES:
        raise bad_request(f'unrecognized includeObject value: "{include}"')
    return include


def view_of(target: Target, obj: Obj) -> Obj:
    """The object in the API group of the path."""
    return to_events_v1(obj) if target.is_other_view else obj


def one(
    request: ApiRequest,
    target: Target,
    record: Record,
    now: datetime,
    *,
    status: int = 200,
    warnings: tuple[str, ...] = (),
) -> Reply:
    """A reply with one object."""
    if request.wants("Table"):
        metadata = {"resourceVersion": record.obj["metadata"].get("resourceVersion", "")}
        include = include_option(request)
        return Reply.of(table(target.kind, [record.obj], metadata, now, include=include), status, warnings)
    if request.wants("PartialObjectMetadata"):
        return Reply.of(partial(record.obj), status, warnings)
    body = dump(view_of(target, record.obj)) if target.is_other_view else record.json
    return Reply(body=body, status=status, warnings=warnings)


def many(request: ApiRequest, target: Target, records: Sequence[Record], revision: int, now: datetime) -> Reply:
    """A reply with a list."""
    metadata = {"resourceVersion": str(revision)}
    if request.wants("Table"):
        objects = [record.obj for record in records]
        return Reply.of(table(target.kind, objects, metadata, now, include=include_option(request)))
    if request.wants("PartialObjectMetadataList"):
        items = [partial(record.obj) for record in records]
        shape = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        return Reply.of(shape | {"items": items})
    head = dump({"kind": f"{target.kind.kind}List", "apiVersion": target.group_version, "metadata": metadata})
    if target.is_other_view:
        rows = [dump(view_of(target, record.obj)) for record in records]
    else:
        rows = [record.list_item for record in records]
    return Reply(body=head[:-1] + b',"items":[' + b",".join(rows) + b"]}")
