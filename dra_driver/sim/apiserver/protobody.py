"""Decodes protobuf request bodies to JSON objects. Typed Go clients send them, for example ``kubectl create``.

Field names and numbers come from `protobuf.json`, which ``scripts/distill_protobuf.py`` writes. There is no encoder,
because replies are always JSON. Envelope: k8s.io/apimachinery pkg/runtime/serializer/protobuf (``k8s\\0`` and a
runtime.Unknown).
"""

import base64
import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import EDITION_2023, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from dra_driver.core.time import rfc3339, rfc3339_micro
from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.schema import type_of

Parts = dict[int, object]
"""The values of a message by field number."""

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_OTHER_KINDS = {
    "DeleteOptions": "meta.v1.DeleteOptions",
    "Binding": "core.v1.Binding",
    "Scale": "autoscaling.v1.Scale",
    "SelfSubjectAccessReview": "authorization.v1.SelfSubjectAccessReview",
}
_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int": FieldDescriptorProto.TYPE_INT64,
    "string": FieldDescriptorProto.TYPE_STRING,
}
_ENVELOPE: dict[str, dict[str, str]] = {
    "runtime.TypeMeta": {"1": "apiVersion string", "2": "kind string"},
    "runtime.Unknown": {"1": "typeMeta runtime.TypeMeta", "2": "raw bytes"},
}


@cache
def _table() -> dict[str, dict[int, tuple[str, str]]]:
    """Name and type of each field by type and number."""
    text = files("dra_driver.sim.apiserver").joinpath("protobuf.json").read_text(encoding="utf-8")
    types: dict[str, dict[str, str]] = json.loads(text) | _ENVELOPE
    for kind in {entry.split()[1] for fields in types.values() for entry in fields.values()}:
        if kind.startswith("{}"):  # on the wire, a map is a list of entries
            types[kind] = {"1": "key string", "2": f"value {kind[2:]}"}
    return {
        name: {int(number): (entry.split()[0], entry.split()[1]) for number, entry in fields.items()}
        for name, fields in types.items()
    }


@cache
def _classes() -> dict[str, type[Message]]:
    """The message class of each type of the table."""
    # Unlike proto2, editions refuse text that is not UTF-8, as Go does.
    file = FileDescriptorProto(name="kubernetes.proto", syntax="editions", edition=EDITION_2023)
    names = {name: f"T{at}" for at, name in enumerate(_table())}
    for name, fields in _table().items():
        message = file.message_type.add(name=names[name])
        for number, (_, kind) in fields.items():
            field = message.field.add(name=f"f{number}", number=number)
            several = kind.startswith(("[]", "{}"))
            field.label = FieldDescriptorProto.LABEL_REPEATED if several else FieldDescriptorProto.LABEL_OPTIONAL
            item = kind.removeprefix("[]")
            field.type = _SCALARS.get(item, FieldDescriptorProto.TYPE_MESSAGE)
            if item not in _SCALARS:
                field.type_name = names[item]
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(names[name])) for name in names}


def decode_body(body: bytes) -> Obj:
    """The object in ``body``. Raises InvalidObjectError (400) for other formats and unknown kinds."""
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        return _decode_envelope(body[len(_MAGIC) :])
    except (DecodeError, ValueError, OverflowError, OSError, RecursionError) as error:
        raise bad_request(f"the protobuf body cannot be read: {type(error).__name__}: {error}") from error


def _decode_envelope(data: bytes) -> Obj:
    parts = _parts(_classes()["runtime.Unknown"].FromString(data))
    meta = _value(parts.get(1), "runtime.TypeMeta")
    given = meta if isinstance(meta, dict) else {}
    api_version, kind = given.get("apiVersion", ""), given.get("kind", "")
    names = {(item.api_version, item.kind): type_of(item).name for item in ALL_KINDS}
    type_name = names.get((api_version, kind)) or _OTHER_KINDS.get(kind, "")
    if type_name not in _table():
        raise bad_request(f'no kind "{kind}" is registered for version "{api_version}" in protobuf: send JSON instead')
    raw = parts.get(2)
    message = _classes()[type_name].FromString(raw if isinstance(raw, bytes) else b"")
    return {"apiVersion": api_version, "kind": kind} | _fields(message, type_name)


def _parts(message: Message) -> Parts:
    return {field.number: value for field, value in message.ListFields()}


def _fields(message: Message, type_name: str) -> Obj:
    known, result = _table()[type_name], Obj()
    for number, value in _parts(message).items():
        name, kind = known[number]
        if kind.startswith("[]"):
            result[name] = [_value(item, kind[2:]) for item in value] if isinstance(value, Sequence) else []
        elif kind.startswith("{}"):
            pairs = [_parts(entry) for entry in value] if isinstance(value, Sequence) else []
            result[name] = {str(pair.get(1, "")): _value(pair.get(2), kind[2:]) for pair in pairs}
        elif isinstance(decoded := _value(value, kind), dict) and name == "+":
            result |= decoded
        # Go always encodes structs that are not pointers; empty values in them were not set.
        elif decoded not in ("", None):
            result[name] = decoded
    return result


def _value(value: object, kind: str) -> object:
    """The JSON form of a value; ``value`` None is an entry of a map without one, which has the type's empty value."""
    if kind in _SCALARS:
        if value is None:
            return {"bool": False, "int": 0}.get(kind, "")
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    message = value if isinstance(value, Message) else _classes()[kind]()
    return _SPECIAL[kind](_parts(message)) if kind in _SPECIAL else _fields(message, kind)


def _quantity(parts: Parts) -> object:
    return parts.get(1) or "0"


def _int_or_string(parts: Parts) -> object:
    return parts.get(3, "") if parts.get(1) == 1 else parts.get(2, 0)


def _json(parts: Parts) -> object:
    text = parts.get(1)
    return json.loads(text) if isinstance(text, bytes) and text else None


def _time(parts: Parts, write: Callable[[float], str] = rfc3339) -> str | None:
    seconds, nanos = parts.get(1), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int) or seconds <= 0:
        return None  # Go's zero time is before 1970
    return write(seconds + nanos // 1000 / 1e6)


_SPECIAL: dict[str, Callable[[Parts], object]] = {
    "api.resource.Quantity": _quantity,
    "meta.v1.FieldsV1": _json,
    "meta.v1.MicroTime": partial(_time, write=rfc3339_micro),
    "meta.v1.Time": _time,
    "runtime.RawExtension": _json,
    "util.intstr.IntOrString": _int_or_string,
}
"""Types whose JSON form is not an object of their fields."""
