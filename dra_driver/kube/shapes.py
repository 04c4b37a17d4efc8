"""Check objects: names that Kubernetes accepts (RFC 1123; k8s.io/apimachinery pkg/util/validation,
pkg/apis/resource/validation/validation.go), and shapes as the structs of ``kube/objects/``. null counts as absent, as
in Go's decoder, and unknown fields pass."""

import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct, ValidationError
from msgspec.structs import FieldInfo, fields

from dra_driver.core.convert import convert
from dra_driver.kube.objects import core, resource

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_NAME = 253


def is_label(text: str) -> bool:
    """DNS label: at most 63 of a-z, 0-9 and inner dashes."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """DNS subdomain: labels with dots between, at most 253 characters."""
    return len(text) <= MAX_NAME and _SUBDOMAIN.fullmatch(text) is not None


def is_pool_name(text: str) -> bool:
    """One or more DNS subdomains with slashes between, at most 253 characters."""
    return len(text) <= MAX_NAME and all(is_subdomain(part) for part in text.split("/"))


S = TypeVar("S", bound=Struct)
KINDS: Final[Mapping[str, type[Struct]]] = {
    kind.__name__: kind
    for kind in (
        *(core.Node, core.Pod, core.Namespace, core.Event, core.PersistentVolumeClaim, core.StorageClass),
        *(resource.ResourceClaim, resource.ResourceClaimTemplate, resource.DeviceClass),
        *(resource.ResourceSlice, resource.DeviceTaintRule),
    )
}
_WORDS: Final = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def read(kind: type[S], item: object) -> S:
    """An object of the API server as a struct. Raises ValueError, which names the field, for one that does not fit."""
    try:
        return convert(item, kind)
    except ValidationError:
        pass
    try:
        return convert(_without_nulls(item), kind)
    except (ValidationError, RecursionError) as error:
        raise ValueError(problem_of(kind, item) or str(error)) from error


class MetadataPart(Struct, frozen=True, kw_only=True, rename="camel"):
    """For structs of few fields: what else is odd in an object does not lose it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""


def read_all(kind: type[S], items: Iterable[object], lost: Callable[[str], None]) -> list[S]:
    """The objects as structs. ``lost`` is called for each that does not fit: ``a/x cannot be read: spec: ...``."""
    found = []
    for item in items:
        try:
            found.append(read(kind, item))
        except ValueError as error:
            lost(f"{_name_of(item)} cannot be read: {str(error).removeprefix(': ')}")
    return found


def _name_of(item: object) -> str:
    named = item.get("metadata", item) if isinstance(item, Mapping) else None
    parts = (named.get("namespace"), named.get("name")) if isinstance(named, Mapping) else ()
    return "/".join(str(part)[:253] for part in parts if part) or "without a name"


def misfit(kind: str, item: object) -> str:
    """Return the error of an object of this kind, with the field's path; "" for a valid object. Of kinds without a
    struct here only metadata is checked."""
    problem = problem_of(KINDS.get(kind, core.Namespace), item)
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    if problem or not isinstance(metadata, Mapping) or metadata.get("name") or metadata.get("generateName"):
        return problem
    return "metadata.name: missing, expected text"


def problem_of(hint: object, value: object, path: str = "") -> str:
    """Return the error of a value of this type, with the field's path; "" for a valid value."""
    try:
        convert(value, cast(type[Any], hint))
    except (ValidationError, RecursionError, UnicodeEncodeError):  # the last for half of a surrogate pair in a text
        return _problem(hint, value, path)
    return ""


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _problem(hint: Any, value: object, path: str) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        plain = [each for each in arguments if each is not types.NoneType]
        if len(plain) == 1:
            return _problem(plain[0], value, path)
        good = isinstance(value, tuple(plain)) and not isinstance(value, bool)
        return "" if good else _says(path, _WORDS[plain[0]], value)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _says(path, "a list", value)
        return _first(_problem(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            return _says(path, "an object", value)
        return _first(_of_entry(arguments[1], name, item, path) for name, item in value.items())
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _of_struct(hint, value, path) if isinstance(value, Mapping) else _says(path, "an object", value)
    good = hint is object or (isinstance(value, hint) and (hint is bool or not isinstance(value, bool)))
    return "" if good else _says(path, _WORDS[hint], value)


def _of_struct(kind: type[Struct], value: Mapping[object, object], path: str) -> str:
    for field, hint in described(kind):
        where = f"{path}.{field.encode_name}".lstrip(".")
        if value.get(field.encode_name) is not None:
            problem = _problem(hint, value[field.encode_name], where)
        else:
            problem = f"{where}: missing, expected {_expected(hint)}" if field.required else ""
        if problem:
            return problem
    return ""


def _of_entry(hint: object, name: object, item: object, path: str) -> str:
    if not isinstance(name, str):
        return _says(f"{path}.{name}", "text as name", name)
    return "" if item is None else _problem(hint, item, f"{path}.{name}")


@cache
def described(kind: type[Struct]) -> tuple[tuple[FieldInfo, object], ...]:
    """The fields of a struct and their types."""
    hints = get_type_hints(kind)
    return tuple((field, hints[field.name]) for field in fields(kind))


def _expected(hint: Any) -> str:
    origin = get_origin(hint)
    return "a list" if origin is tuple else _WORDS.get(hint, "a number" if origin is types.UnionType else "an object")


def _first(problems: Any) -> str:
    return next(filter(None, problems), "")


def _says(path: str, expected: str, value: object) -> str:
    got = _WORDS.get(type(value), "nothing")
    shown = "" if isinstance(value, dict | list) else f": {str(value)[:40]!r}"  # text of a deep value would recurse
    return f"{path}: expected {expected}, got {got}{shown}"
