"""Reads fields of objects of any shape: what is missing or of another type reads as empty."""

from collections.abc import Mapping, Sequence
from typing import Any

Wire = Mapping[str, Any]


def at(item: object, *path: str) -> object:
    """The value at a path of names; None where there is none."""
    for name in path:
        if not isinstance(item, Mapping):
            return None
        item = item.get(name)
    return item


def text(item: object, *path: str) -> str:
    """The text at a path, else empty."""
    value = at(item, *path)
    return value if isinstance(value, str) else ""


def number(item: object, *path: str) -> int:
    """The whole number at a path, else 0."""
    value = at(item, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def mapping(item: object, *path: str) -> Wire:
    """The object at a path, else an empty one."""
    value = at(item, *path)
    return value if isinstance(value, Mapping) else {}


def dicts(item: object, *path: str) -> list[Wire]:
    """The objects of the list at a path; slices of large snapshots have lists of another type."""
    value = at(item, *path)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [each for each in value if isinstance(each, Mapping)]


def name_of(item: object) -> str:
    """``metadata.name``."""
    return text(item, "metadata", "name")


def namespace_of(item: object) -> str:
    """``metadata.namespace``."""
    return text(item, "metadata", "namespace")


def labels_of(item: object) -> Wire:
    """``metadata.labels``."""
    return mapping(item, "metadata", "labels")


def subject_of(kind: str, item: object) -> str:
    """``pod/team-a/train``, ``node/gpu-a``."""
    return "/".join(part for part in (kind, namespace_of(item), name_of(item)) if part)


def is_ready(item: object) -> bool:
    """Whether the condition Ready of a pod or node is True."""
    return condition_of(item, "Ready").get("status") == "True"


def condition_of(item: object, kind: str) -> Wire:
    """The condition of that type in ``status.conditions``, else an empty object."""
    return next((each for each in dicts(item, "status", "conditions") if each.get("type") == kind), {})
