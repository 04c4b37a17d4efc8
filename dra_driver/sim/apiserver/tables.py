"""Objects as metav1.Table, which `kubectl get` requests (k8s.io/apiserver pkg/endpoints/handlers/response.go)."""

from collections.abc import Iterable
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kind import Column, Printer, ResourceKind
from dra_driver.sim.apiserver.printers.common import DEFAULT_PRINTER

_POD_CONDITIONS = {
    "Succeeded": [
        {"type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully."}
    ],
    "Failed": [{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}],
}
INCLUDE_CHOICES = ("", "Metadata", "Object", "None")


def _definition(column: Column) -> Obj:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": column.priority,
    }


def partial(obj: Obj) -> Obj:
    """The object's metadata as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _row(kind: ResourceKind, printer: Printer, obj: Obj, now: datetime, include: str) -> Obj:
    row: Obj = {"cells": printer.cells(obj, now)}
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
    printer = kind.printer or DEFAULT_PRINTER
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in printer.columns] if headers else None,
        "rows": [_row(kind, printer, obj, now, include) for obj in objects],
    }
