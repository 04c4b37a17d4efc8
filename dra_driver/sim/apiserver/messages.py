"""Requests, replies and the targets of URL paths (k8s.io/apiserver pkg/endpoints/request/requestinfo.go) as values,
independent of the web server.

Protobuf request bodies, which typed Go clients such as ``kubectl create`` send, are decoded with `protobuf.json`, which
``scripts/distill_protobuf.py`` writes; replies are always JSON. Envelope: k8s.io/apimachinery
pkg/runtime/serializer/protobuf.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import EDITION_2023, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from msgspec import Struct, field

from dra_driver.core import yaml_text
from dra_driver.core.time import rfc3339, rfc3339_micro
from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.jsonvalue import Obj, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS, NAMESPACES
from dra_driver.sim.apiserver.schema import type_of

Parts = dict[int, object]  # the values of a message by field number

PROTOBUF = "application/vnd.kubernetes.protobuf"
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


def _json(parts: Parts) -> object:
    text = parts.get(1)
    return json.loads(text) if isinstance(text, bytes) and text else None


def _time(parts: Parts, write: Callable[[float], str] = rfc3339) -> str | None:
    seconds, nanos = parts.get(1), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int) or seconds <= 0:
        return None  # Go's zero time is before 1970
    return write(seconds + nanos // 1000 / 1e6)


_SPECIAL: dict[str, Callable[[Parts], object]] = {
    "api.resource.Quantity": lambda parts: parts.get(1) or "0",
    "meta.v1.FieldsV1": _json,
    "meta.v1.MicroTime": partial(_time, write=rfc3339_micro),
    "meta.v1.Time": _time,
    "runtime.RawExtension": _json,
    "util.intstr.IntOrString": lambda parts: parts.get(3, "") if parts.get(1) == 1 else parts.get(2, 0),
}
"""Types whose JSON form is not an object of their fields."""


JSON = "application/json"
# Replies are JSON only: typed Go clients may prefer protobuf, but accept JSON.
_ACCEPTABLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/*", "*/*")
_YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")


class ApiRequest(Struct, frozen=True, kw_only=True):
    """One request. Header names are lower case; a query parameter given twice keeps its first value."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "")

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", JSON).partition(";")[0].strip() or JSON

    def wants(self, shape: str) -> bool:
        """Return whether the first acceptable form in Accept is ``shape``: Table, PartialObjectMetadata or
        PartialObjectMetadataList."""
        for choice in self.accept.split(","):
            media_type, *options = [option.strip() for option in choice.split(";")]
            wanted = next((option.removeprefix("as=") for option in options if option.startswith("as=")), "")
            if media_type == JSON and wanted in {"", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"}:
                return wanted == shape
        return False

    def check_accept(self) -> None:
        choices = [choice.partition(";")[0].strip() for choice in self.accept.split(",")]
        if self.accept and not any(choice in _ACCEPTABLE for choice in choices):
            text = f"only the following media types are accepted: {', '.join(_ACCEPTABLE[:3])}"
            raise status_error(406, "NotAcceptable", text)

    def flag(self, name: str) -> bool:
        """A boolean query parameter: ``watch``, ``watch=1`` and ``watch=true`` are true."""
        return name in self.query and self.query[name].lower() not in {"0", "false"}

    def document(self) -> object:
        """The decoded body. Raises InvalidObjectError (400) if it cannot be decoded, 415 for other media types."""
        kind = self.content_type
        if kind == PROTOBUF:
            return decode_body(self.body)
        if kind not in {*_YAML_TYPES, JSON} and not kind.endswith("+json"):
            raise unsupported_media_type([JSON, "application/yaml"])
        try:
            return yaml_text.load(self.body) if kind in _YAML_TYPES else json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"couldn't parse the request's body as {kind}: {error}") from error

    def object(self) -> Obj:
        """The decoded body, which must be an object. Raises InvalidObjectError (400)."""
        found = self.document()
        if not isinstance(found, dict):
            raise bad_request(f"the body must be a JSON object, got {type(found).__name__}")
        return found


class Reply(Struct, frozen=True, kw_only=True):
    body: bytes
    status: int = 200
    media_type: str = JSON
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: object, status: int = 200, warnings: tuple[str, ...] = ()) -> "Reply":
        return cls(body=dump(value), status=status, warnings=warnings)


def unsupported_media_type(accepted: Sequence[str]) -> Exception:
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return status_error(415, "UnsupportedMediaType", text)


_KINDS = {(kind.group, kind.version, kind.plural): kind for kind in ALL_KINDS}


class Target(Struct, frozen=True, kw_only=True):
    """The object or collection of a path. ``name`` is "" for a collection."""

    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def is_known_group(path: str) -> bool:
    """Return whether the path is below a served group and version. The real server sends no Status for other paths."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        return len(parts) > 2 and parts[1] == "v1"
    return len(parts) > 3 and any((group, version) == (parts[1], parts[2]) for group, version, _ in _KINDS)


def target_of(path: str) -> Target | None:
    """Parse ``path``; None if the API has no such path."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        group, rest = "", parts[1:]
    elif parts[:1] == ["apis"] and len(parts) > 1:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if not rest:
        return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    kind = _KINDS.get((group, version, rest[0])) if rest else None
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        return None
    if kind.namespaced and not namespace and len(rest) > 1:
        return None
    if len(rest) > 2 and rest[2] not in kind.subresources:
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
