"""When two wire values have the same meaning, and which fields the API server dropped. Pure.

The API server changes what it is sent without changing its meaning: absent, null and empty are equal; a quantity has
several spellings; it fills in a taint's ``timeAdded``. Measured on Kubernetes 1.36; source of the rules: the
``omitempty`` tags of resource/v1/types.go and apimachinery's Quantity.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec.json import decode, encode

from dra_driver.core.quantity import Quantity

# Below these keys, the strings of those keys are quantities: capacity: {memory: {value: 80Gi, requestPolicy:
# {default: 1Gi}}}.
_QUANTITY_PARENTS = frozenset({"capacity", "counters"})
_QUANTITY_KEYS = frozenset({"value", "default", "validValues", "min", "max", "step"})


def same(sent: object, found: object) -> bool:
    """Whether ``found`` (from the API server) has the meaning of ``sent``: structs, or what JSON has."""
    sent = decode(encode(sent))
    # The first comparison is a hundred times cheaper and nearly always decides: the driver sends values in the form in
    # which the API server prints them.
    return bool(sent == found or normal(sent, found) == normal(found, sent))


def digest(value: object) -> str:
    """The same text for values of the same meaning. Stored where a copy of the value would be large."""
    text = json.dumps(normal(value), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def normal(value: object, other: object = None, under: str = "") -> object:
    """A form of the value in which equal meaning is equality. ``other`` is the value that it is compared with."""
    if isinstance(value, dict):
        return _normal_mapping(value, other if isinstance(other, dict) else {}, under)
    if isinstance(value, list | tuple):
        others = list(other) if isinstance(other, list | tuple) else []
        others += [None] * (len(value) - len(others))
        return [normal(child, opposite, under) for child, opposite in zip(value, others, strict=False)]
    if under == "quantity" and isinstance(value, str):
        with suppress(ValueError):
            return Quantity.parse(value)
    return value


def _normal_mapping(value: Mapping[str, object], other: Mapping[str, object], under: str) -> dict[str, object]:
    result = {}
    for key, child in value.items():
        if key == "timeAdded" and isinstance(child, str) and key not in other:
            continue  # added by the server to a taint that was sent without a time
        below = key if key in _QUANTITY_PARENTS else under
        if under in _QUANTITY_PARENTS and key in _QUANTITY_KEYS:
            below = "quantity"
        shown = normal(child, other.get(key), below)
        # Absent optional booleans are false; ``bool: false`` of an attribute is a value.
        if shown is None or shown in ({}, [], "") or (shown is False and key != "bool"):
            continue
        result[key] = shown
    return result


def dropped_fields(sent: object, found: object, path: str = "") -> Iterator[str]:
    """Paths of fields that were sent and did not come back: the API server silently drops fields whose gate is off."""
    sent = decode(encode(sent))
    sent, found = normal(sent, found), normal(found, sent)
    yield from _dropped_fields(sent, found, path)


def _dropped_fields(sent: object, found: object, path: str) -> Iterator[str]:
    if isinstance(sent, dict):
        there = found if isinstance(found, dict) else {}
        for key, child in sent.items():
            if key not in there:
                yield f"{path}.{key}".lstrip(".")
            else:
                yield from _dropped_fields(child, there[key], f"{path}.{key}")
    elif isinstance(sent, list):
        there_list = found if isinstance(found, list) else []
        for index, child in enumerate(sent):
            if index >= len(there_list):
                yield f"{path}[{index}]".lstrip(".")
            else:
                yield from _dropped_fields(child, there_list[index], f"{path}[{index}]")
