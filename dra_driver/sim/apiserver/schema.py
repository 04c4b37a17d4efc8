"""The fields of objects and how their lists and maps merge: for decoding, strategic merge patches and apply patches.

``scripts/distill_openapi.py`` distills `schema.json` from Kubernetes 1.36.2's OpenAPI document. Decoding follows Go's
decoder: it drops nulls, drops and reports unknown fields, and rejects wrong JSON types.
"""

from functools import cache
from importlib.resources import files

from msgspec import Struct

from dra_driver.core.convert import decode_json
from dra_driver.core.quantity import Quantity
from dra_driver.core.time import parse_time, rfc3339, rfc3339_micro
from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind

ANY = "any"
# This project's own kinds: `rules/core.py` validates the fields below spec.
_OWN_GROUP = "gpu.dra-driver.io"
_OWN_FIELDS = {"GpuPolicy": ("spec", "status"), "GpuNode": ("status",)}
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "Quantity": (str, int, float),
    "Time": (str,),
    "MicroTime": (str,),
    "IntOrString": (int, str),
}
_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}


class SchemaTable(Struct):
    """``kinds`` names the type of each ``<apiVersion>/<kind>``; ``types`` has the fields of each type as text."""

    kinds: dict[str, str]
    types: dict[str, dict[str, str]]


class FieldType(Struct, frozen=True, kw_only=True):
    """The type of a field. ``wraps`` are its containers, outermost first, ``[]`` or ``{}``; ``name`` is the item type.
    ``list_type`` is atomic, set, map or ""; ``keys`` identify items of a map list; apply patches replace ``atomic``
    values as a whole; ``patch`` and ``patch_key`` are for strategic merge patches."""

    name: str
    wraps: tuple[str, ...] = ()
    list_type: str = ""
    keys: tuple[str, ...] = ()
    atomic: bool = False
    patch: tuple[str, ...] = ()
    patch_key: str = ""

    @property
    def inner(self) -> "FieldType":
        return FieldType(name=self.name, wraps=self.wraps[1:])

    @property
    def is_list(self) -> bool:
        return self.wraps[:1] == ("[]",)

    @property
    def is_map(self) -> bool:
        return self.wraps[:1] == ("{}",)


def _parse(text: str) -> FieldType:
    type_text, *options = text.split()
    wraps = []
    while type_text[:2] in {"[]", "{}"}:
        wraps.append(type_text[:2])
        type_text = type_text[2:]
    found = dict(option.split("=", 1) for option in options)
    keys = tuple(found["keys"].split(",")) if "keys" in found else ()
    return FieldType(
        name=type_text,
        wraps=tuple(wraps),
        list_type=found.get("list", ""),
        keys=keys,
        atomic=found.get("map") == "atomic" or found.get("list") == "atomic",
        patch=tuple(found.get("patch", "").split(",")),
        patch_key=found.get("patchKey", ""),
    )


@cache
def table() -> SchemaTable:
    data = files("dra_driver.sim.apiserver").joinpath("schema.json").read_bytes()
    loaded = decode_json(data, SchemaTable)
    for kind, fields in _OWN_FIELDS.items():
        loaded.kinds[f"{_OWN_GROUP}/v1alpha1/{kind}"] = f"{_OWN_GROUP}.{kind}"
        header = {"apiVersion": "string", "kind": "string", "metadata": "meta.v1.ObjectMeta"}
        loaded.types[f"{_OWN_GROUP}.{kind}"] = header | dict.fromkeys(fields, ANY)
    return loaded


@cache
def fields_of(type_name: str) -> dict[str, FieldType]:
    """Fields of a type; empty for scalars and free-form values."""
    return {field: _parse(text) for field, text in table().types.get(type_name, {}).items()}


def type_of(kind: ResourceKind) -> FieldType:
    return FieldType(name=table().kinds.get(f"{kind.api_version}/{kind.kind}", ANY))


def decode(kind: ResourceKind, obj: Obj) -> list[str]:
    """Drop nulls and unknown fields in place; returns the paths of unknown fields. Raises InvalidObjectError (400) for
    a wrong JSON type."""
    unknown: list[str] = []
    try:
        _decode_fields(obj, type_of(kind).name, "", unknown)
    except TypeError as error:
        version = kind.version
        text = f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: json: cannot unmarshal {error}'
        raise bad_request(text) from error
    return unknown


def _decode_fields(obj: Obj, type_name: str, path: str, unknown: list[str]) -> None:
    fields = fields_of(type_name)
    for key in list(obj):
        here = f"{path}.{key}" if path else key
        field = fields.get(key)
        if field is None:
            unknown.append(here)
            del obj[key]
        elif obj[key] is None:
            del obj[key]
        else:
            obj[key] = _decoded(obj[key], field, here, unknown)


def _decoded(value: object, field: FieldType, path: str, unknown: list[str]) -> object:
    if field.is_list and isinstance(value, list):
        value[:] = [
            item if item is None else _decoded(item, field.inner, f"{path}[{at}]", unknown)
            for at, item in enumerate(value)
        ]
        return value
    if field.is_map and isinstance(value, dict):
        for key, item in value.items():
            if item is not None:
                value[key] = _decoded(item, field.inner, f"{path}.{key}", unknown)
        return value
    if field.wraps:
        raise _mismatch(value, path, field)
    if field.name in _JSON_TYPES:
        allowed = _JSON_TYPES[field.name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise _mismatch(value, path, field)
        return _canonical(value, field.name)
    if field.name != ANY:
        if not isinstance(value, dict):
            raise _mismatch(value, path, field)
        _decode_fields(value, field.name, path, unknown)
    return value


def _canonical(value: object, type_name: str) -> object:
    if type_name == "Quantity":
        try:
            return str(Quantity.parse(str(value)))
        except ValueError as error:
            rule = "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            raise bad_request(f"quantities must match the regular expression {rule}: {error}") from error
    if type_name in {"Time", "MicroTime"}:
        moment = parse_time(value)
        if moment is None:
            raise bad_request(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": it is not an RFC 3339 time')
        return rfc3339(moment) if type_name == "Time" else rfc3339_micro(moment)
    return value


def _mismatch(value: object, path: str, field: FieldType) -> TypeError:
    seen = _NAMES.get(type(value), "value")
    wanted = "".join("[]" if wrap == "[]" else "map[string]" for wrap in field.wraps) + field.name
    return TypeError(f"{seen} into field {path} of type {wanted}")
