"""Decode a CDI document as strictly as the runtimes do: unknown, repeated and wrongly typed fields are errors.

It reads JSON only, because this project writes JSON and reads only its own files. The embedded cluster and diagnosis
use it to show what a container really gets.

Source: the reference library decodes with ``UnmarshalStrict`` into the structs of ``specs-go/config.go``, then
checks that the declared version is known and high enough for the fields used (``specs-go/version.go``).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.core.errors import InvalidSpecError
from dra_driver.hardware.cdi.spec import (
    KNOWN_VERSIONS,
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    minimum_version,
    wire_name,
)
from dra_driver.hardware.cdi.validation import spec_problems

FieldReader = Callable[[Any, str], Any]
"""Decodes one JSON value to a field's value; the string is the path for messages. Raises `_Mistake`."""


class _Mistake(Exception):  # noqa: N818 - never leaves this module
    """One problem of the text, as a sentence without the file's name."""


def decode(text: str | bytes, source: str) -> CdiSpec:
    """The document in ``text``, valid by the specification's rules.

    Raises `InvalidSpecError`, whose message starts with ``source`` and names the field. The declared version is checked
    and not kept: encoding the document again declares the lowest version that covers it.
    """
    try:
        wire = json.loads(text, object_pairs_hook=_unique_keys)
        _check_is_object(wire, "the document")
        declared = _string(wire.pop("cdiVersion", ""), "cdiVersion")
        spec: CdiSpec = _SPEC(wire, "")
        problems = (*_version_problems(declared, spec), *spec_problems(spec))
    except (_Mistake, ValueError, RecursionError) as mistake:
        raise InvalidSpecError(f"CDI document {source} cannot be read: {mistake}") from mistake
    if problems:
        raise InvalidSpecError(f"CDI document {source} is invalid: " + "; ".join(problems))
    return spec


def _version_problems(declared: str, spec: CdiSpec) -> tuple[str, ...]:
    version = declared.removeprefix("v")
    if version not in KNOWN_VERSIONS:
        return (f"cdiVersion: {declared!r} is unknown, expected one of {', '.join(KNOWN_VERSIONS)}",)
    needed = minimum_version(spec)
    if KNOWN_VERSIONS.index(version) < KNOWN_VERSIONS.index(needed):
        return (f"cdiVersion: {declared!r} is too low, its fields need at least {needed}",)
    return ()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Mistake(f"key {next(key for key in keys if keys.count(key) > 1)!r} is repeated in one object")
    return found


def _check_is_object(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise _Mistake(f"{path}: expected an object, found {type(value).__name__}")


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _Mistake(f"{path}: expected a string, found {value!r}")
    return value


def _integer(low: int, high: int) -> FieldReader:
    def read(value: Any, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _Mistake(f"{path}: expected an integer from {low} to {high}, found {value!r}")
        return value

    return read


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _Mistake(f"{path}: expected true or false, found {value!r}")
    return value


def _strings_by_name(value: Any, path: str) -> Mapping[str, str]:
    _check_is_object(value, path)
    return {key: _string(item, f"{path}.{key}") for key, item in value.items()}


def _list_of(read_item: FieldReader) -> FieldReader:
    def read(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _Mistake(f"{path}: expected a list, found {type(value).__name__}")
        return tuple(read_item(item, f"{path}[{i}]") for i, item in enumerate(value))

    return read


def _object(
    make: Callable[..., Any], required: Mapping[str, FieldReader], optional: Mapping[str, FieldReader]
) -> FieldReader:
    """Decodes an object to ``make(**fields)``. A missing required field becomes an empty value, which validation
    refuses."""
    readers = {wire_name(name): (name, reader) for name, reader in {**required, **optional}.items()}

    def read(value: Any, path: str) -> Any:
        _check_is_object(value, path or "the document")
        prefix = f"{path}." if path else ""
        for key in value:
            if key not in readers:
                raise _Mistake(f"{prefix}{key}: unknown field (known are {', '.join(readers)})")
        fields = {readers[key][0]: readers[key][1](item, prefix + key) for key, item in value.items()}
        return make(**{**{name: _EMPTY[reader] for name, reader in required.items()}, **fields})

    return read


_INT64 = _integer(-(2**63), 2**63 - 1)
_UINT32 = _integer(0, 2**32 - 1)
_STRINGS = _list_of(_string)

_EMPTY: dict[FieldReader, Any] = {_string: ""}

_NODE = _object(
    DeviceNode,
    {"path": _string},
    {
        "host_path": _string,
        "type": _string,
        "major": _INT64,
        "minor": _INT64,
        "file_mode": _UINT32,
        "permissions": _string,
        "uid": _UINT32,
        "gid": _UINT32,
    },
)
_MOUNT = _object(
    Mount,
    {"host_path": _string, "container_path": _string},
    {"options": _STRINGS, "type": _string},
)
_HOOK = _object(Hook, {"hook_name": _string, "path": _string}, {"args": _STRINGS, "env": _STRINGS, "timeout": _INT64})
_RDT = _object(
    IntelRdt,
    {},
    {
        "clos_id": _string,
        "l3_cache_schema": _string,
        "mem_bw_schema": _string,
        "schemata": _STRINGS,
        "enable_monitoring": _boolean,
    },
)
_NET_DEVICE = _object(NetDevice, {"host_interface_name": _string, "name": _string}, {})
_EDITS = _object(
    ContainerEdits,
    {},
    {
        "env": _STRINGS,
        "device_nodes": _list_of(_NODE),
        "net_devices": _list_of(_NET_DEVICE),
        "mounts": _list_of(_MOUNT),
        "hooks": _list_of(_HOOK),
        "additional_gids": _list_of(_UINT32),
        "intel_rdt": _RDT,
    },
)
_EMPTY[_EDITS] = ContainerEdits()
_DEVICE = _object(CdiDevice, {"name": _string, "container_edits": _EDITS}, {"annotations": _strings_by_name})
_SPEC = _object(
    CdiSpec,
    {"kind": _string},
    {"annotations": _strings_by_name, "devices": _list_of(_DEVICE), "container_edits": _EDITS},
)
