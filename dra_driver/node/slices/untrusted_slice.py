"""Reads ResourceSlices that came from the API server, which any client may have written. Pure.

A part that is missing or of another type reads as empty; nothing raises.
"""

from collections.abc import Mapping
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def metadata(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(item.get("metadata"))


def spec(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(item.get("spec"))


def pool(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(spec(item).get("pool"))


def name(item: Mapping[str, Any]) -> str:
    return str(metadata(item).get("name", ""))


def generation(item: Mapping[str, Any]) -> int:
    value = pool(item).get("generation")
    return value if isinstance(value, int) else 0


def owners(item: Mapping[str, Any]) -> list[Any]:
    owners = metadata(item).get("ownerReferences")
    return [owner for owner in owners if isinstance(owner, Mapping)] if isinstance(owners, list) else []
