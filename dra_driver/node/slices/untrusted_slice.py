"""Reads ResourceSlices that came from the API server, which any client may have written. Pure.

A part that is missing or of another type reads as empty; nothing raises.
"""

from collections.abc import Mapping


def mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def metadata(item: Mapping[str, object]) -> Mapping[str, object]:
    return mapping(item.get("metadata"))


def spec(item: Mapping[str, object]) -> Mapping[str, object]:
    return mapping(item.get("spec"))


def pool(item: Mapping[str, object]) -> Mapping[str, object]:
    return mapping(spec(item).get("pool"))


def name(item: Mapping[str, object]) -> str:
    return str(metadata(item).get("name", ""))


def generation(item: Mapping[str, object]) -> int:
    value = pool(item).get("generation")
    return value if isinstance(value, int) else 0


def owners(item: Mapping[str, object]) -> list[Mapping[str, object]]:
    owners = metadata(item).get("ownerReferences")
    return [owner for owner in owners if isinstance(owner, Mapping)] if isinstance(owners, list) else []
