"""JSON of this driver's objects and files: write a struct within its bounds, read what another process wrote. The
struct's annotations (``msgspec.Meta``) are the only description. The API server refuses an object as a whole, so
`to_wire` cuts long values; `from_wire` skips an unreadable list entry or optional field."""

import types
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, DecodeError, Meta, Struct, ValidationError, json

from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable
from dra_driver.core.time import rfc3339

S = TypeVar("S", bound=Struct)
ALWAYS: Final = Meta(extra_json_schema={"x-always": True})
"""Annotates a field with a default that is written even when it is empty, because the schema requires it."""


class _Type(NamedTuple):
    """One annotation: ``item`` is that of the items of a tuple, ``longest`` and ``most`` are bounds."""

    kind: object
    item: "_Type | None" = None
    longest: int | None = None
    most: int | None = None
    always: bool = False
    shortest: int = 0


class _Field(NamedTuple):
    name: str
    key: str
    type: _Type
    required: bool


def to_wire(value: Struct) -> dict[str, Any]:
    """The JSON object, within the bounds. Empty optional fields are omitted unless they are `ALWAYS`."""
    fields = [(field, _written(getattr(value, field.name), field.type)) for field in _fields(type(value))]
    return {
        field.key: held
        for field, held in fields
        if field.required or field.type.always or held not in (None, "", [], {})
    }


def from_wire(kind: type[S], value: object) -> S:
    """Return the struct. Raises ValueError for a value that is not an object or lacks a required field."""
    try:
        return convert(value, kind)
    except ValidationError:  # an entry of a later version, or of another writer
        found: S = _struct(kind, value)
        return found


def from_file(kind: type[S], content: bytes, name: str, *, version: int, max_bytes: int) -> S:
    """Decode a JSON file of this ``version``. Raises ConfigurationError, with ``name`` first, for other content."""
    if len(content) > max_bytes:
        raise ConfigurationError(f"{name} has {len(content)} bytes, expected at most {max_bytes}")
    try:
        document = json.decode(content)  # noqa: TID251 - no struct
    except (DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{name} is not JSON: {error}") from error
    found = document.get("version") if isinstance(document, dict) else None
    if found != version:
        raise ConfigurationError(f"{name} has version {str(found)[:20]!r}, expected {version}")
    try:
        return from_wire(kind, document)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _written(value: object, of: _Type) -> object:
    if isinstance(value, Struct):
        return to_wire(value)
    if isinstance(value, tuple):
        return [_written(item, of.item or _Type(None)) for item in value[: of.longest] if item != ""]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, str):
        return _text(value, of.longest)
    return min(value, of.most) if isinstance(value, int) and of.most is not None else value


def _text(text: str, longest: int | None) -> str:
    shown = printable(text)
    return shown if longest is None or len(shown) <= longest else f"{shown[: longest - 1]}…"


def _struct(kind: Any, value: object) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object, got {type(value).__name__}")  # noqa: TRY004 - data, not a wrong call
    found: dict[str, object] = {}
    for field in _fields(kind):
        try:
            if value.get(field.key) is not None:
                found[field.name] = _read(field.type, value[field.key])
        except ValueError as error:
            if field.required:
                raise ValueError(f"{field.key}: {error}") from error
    missing = [field.key for field in _fields(kind) if field.required and field.name not in found]
    if missing:
        raise ValueError(f"{missing[0]}: missing")
    return kind(**found)


def _read(of: _Type, value: object) -> object:
    if of.item is not None:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {type(value).__name__}")
        items = (_item(of.item, item) for item in value[: of.longest])
        found = tuple(item for item in items if item is not None)
        if len(found) < of.shortest:
            raise ValueError(f"expected {of.shortest} entries that can be read, got {len(found)}")
        return found
    if isinstance(of.kind, type) and issubclass(of.kind, Struct):
        return _struct(of.kind, value)
    try:
        return convert(value, cast(type[Any], of.kind))
    except ValidationError as error:
        raise ValueError(str(error)) from error


def _item(of: _Type, value: object) -> object:
    try:
        return _read(of, value)
    except ValueError:
        return None


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    keys = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    without = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    defaults = (NODEFAULT,) * without + kind.__struct_defaults__
    return tuple(
        _Field(name, key, _type(hints[name]), default is NODEFAULT)
        for (name, key), default in zip(keys, defaults, strict=True)
    )


def _type(hint: object) -> _Type:
    metas: list[Any] = []
    inner = hint
    while True:
        if get_origin(inner) is Annotated:
            inner, *found = get_args(inner)
            metas += found
        elif get_origin(inner) in (types.UnionType, Union):
            (inner,) = (each for each in get_args(inner) if each is not type(None))
        else:
            break
    longest = next((meta.max_length for meta in metas if meta.max_length is not None), None)
    most = next((meta.le for meta in metas if meta.le is not None), None)
    shortest = next((meta.min_length for meta in metas if meta.min_length is not None), 0)
    if get_origin(inner) is tuple:
        return _Type(inner, _type(get_args(inner)[0]), longest, None, ALWAYS in metas, shortest)
    is_struct = isinstance(inner, type) and issubclass(inner, Struct)
    return _Type(inner if is_struct else hint, None, longest, most, ALWAYS in metas)
