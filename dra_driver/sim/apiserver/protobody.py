"""Decodes protobuf request bodies to JSON objects. Typed Go clients send them, for example ``kubectl create``.

Field names and numbers come from `protobuf.json`, which ``scripts/distill_protobuf.py`` writes. There is no encoder,
because replies are always JSON. Envelope: k8s.io/apimachinery pkg/runtime/serializer/protobuf (``k8s\\0`` and a
runtime.Unknown).
"""

import base64
import json
import struct
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from dra_driver.core.time import rfc3339, rfc3339_micro
from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.schema import type_of

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_MAX_DEPTH = 64
_OTHER_KINDS = {
    "DeleteOptions": "meta.v1.DeleteOptions",
    "Binding": "core.v1.Binding",
    "Scale": "autoscaling.v1.Scale",
    "SelfSubjectAccessReview": "authorization.v1.SelfSubjectAccessReview",
}


@cache
def _table() -> dict[str, dict[int, tuple[str, str]]]:
    text = files("dra_driver.sim.apiserver").joinpath("protobuf.json").read_text(encoding="utf-8")
    return {
        name: {int(number): (entry.split()[0], entry.split()[1]) for number, entry in fields.items()}
        for name, fields in json.loads(text).items()
    }


def decode_body(body: bytes) -> Obj:
    """The object in ``body``. Raises InvalidObjectError (400) for other formats and unknown kinds."""
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        return _decode_envelope(body[len(_MAGIC) :])
    except (IndexError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the protobuf body cannot be read: {type(error).__name__}: {error}") from error


def _decode_envelope(data: bytes) -> Obj:
    parts = {number: value for number, value in _fields(data) if isinstance(value, bytes)}
    meta = {number: value.decode() for number, value in _fields(parts.get(1, b"")) if isinstance(value, bytes)}
    api_version, kind = meta.get(1, ""), meta.get(2, "")
    names = {(item.api_version, item.kind): type_of(item).name for item in ALL_KINDS}
    type_name = names.get((api_version, kind)) or _OTHER_KINDS.get(kind, "")
    if type_name not in _table():
        raise bad_request(f'no kind "{kind}" is registered for version "{api_version}" in protobuf: send JSON instead')
    return {"apiVersion": api_version, "kind": kind} | _message(parts.get(2, b""), type_name, 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and raw values of a message. Raises IndexError on a truncated message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}[wire] if wire in {1, 5} else len(data)
        if at + size > len(data):
            raise IndexError("the message ends in the middle of a field")
        yield tag >> 3, data[at : at + size]
        at += size


def _message(data: bytes, type_name: str, depth: int) -> Obj:
    if depth > _MAX_DEPTH:
        raise RecursionError(f"messages nested deeper than {_MAX_DEPTH}")
    known = _table().get(type_name, {})
    result: Obj = {}
    for number, value in _fields(data):
        if number not in known:
            continue
        name, kind = known[number]
        if name == "+":
            _inline(result, _value(value, kind, depth))
        elif kind.startswith("[]"):
            result.setdefault(name, []).append(_value(value, kind[2:], depth))
        elif kind.startswith("{}"):
            key, item = _entry(value, kind[2:], depth)
            result.setdefault(name, {})[key] = item
        else:
            decoded = _value(value, kind, depth)
            # Go always encodes structs that are not pointers; empty values in them were not set.
            if decoded not in ("", None):
                result[name] = decoded
    return result


def _inline(result: Obj, value: Any) -> None:
    if isinstance(value, dict):
        result.update(value)


def _entry(data: int | bytes, kind: str, depth: int) -> tuple[str, Any]:
    key, item = "", _value(b"", kind, depth)
    for number, value in _fields(_bytes(data)):
        if number == 1:
            key = _bytes(value).decode()
        elif number == 2:
            item = _value(value, kind, depth)
    return key, item


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise IndexError("a number in place of text or a message")
    return value


def _value(raw: int | bytes, kind: str, depth: int) -> Any:
    if kind in {"int", "bool"}:
        number = raw if isinstance(raw, int) else 0
        return bool(number) if kind == "bool" else number - (1 << 64) if number >> 63 else number
    data = _bytes(raw)
    if kind == "string":
        return data.decode()
    if kind == "bytes":
        return base64.b64encode(data).decode()
    if kind == "double":
        return struct.unpack("<d", data)[0]
    return _special(data, kind) if kind in _SPECIAL else _message(data, kind, depth + 1)


_SPECIAL = frozenset(
    {
        "api.resource.Quantity",
        "meta.v1.Time",
        "meta.v1.MicroTime",
        "util.intstr.IntOrString",
        "runtime.RawExtension",
        "meta.v1.FieldsV1",
        "authorization.v1.ExtraValue",
    }
)


def _special(data: bytes, kind: str) -> Any:
    """Types whose JSON form is not an object of their fields."""
    parts = dict(_fields(data))
    if kind == "authorization.v1.ExtraValue":
        return [_bytes(value).decode() for _, value in _fields(data)]
    if kind in {"meta.v1.Time", "meta.v1.MicroTime"}:
        return _time(parts, micro=kind == "meta.v1.MicroTime")
    if kind == "util.intstr.IntOrString":
        is_text = parts.get(1) == 1
        return _bytes(parts.get(3, b"")).decode() if is_text else parts.get(2, 0)
    text = _bytes(parts.get(1, b"")).decode()
    if kind == "api.resource.Quantity":
        return text or "0"
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise bad_request(f"a field of type {kind} is not JSON: {error}") from error


def _time(parts: dict[int, int | bytes], *, micro: bool) -> str | None:
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int) or not seconds or seconds >> 63:
        return None  # Go's zero time is before 1970
    return rfc3339_micro(seconds + nanos // 1000 / 1e6) if micro else rfc3339(seconds)
