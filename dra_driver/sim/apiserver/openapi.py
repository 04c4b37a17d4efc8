"""OpenAPI v3 documents, as far as kubectl uses them: server-side validation, computing patches, explaining fields.

Built per group from the field table of `schema`. kubectl reads the ``fieldValidation`` parameter of the PATCH
operation (k8s.io/cli-runtime pkg/resource/query_param_verifier_v3.go) and for merge keys (kubectl
pkg/cmd/apply/patcher.go).
"""

import hashlib
from collections.abc import Iterable
from functools import cache

from dra_driver.sim.apiserver.jsonvalue import Obj, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.patch.patching import PATCH_TYPES
from dra_driver.sim.apiserver.schema import FieldType, fields_of, type_of

_SCALARS: dict[str, Obj] = {
    "Quantity": {"type": "string"},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "IntOrString": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "any": {"type": "object"},
}


def _ref(name: str) -> Obj:
    if name in _SCALARS:
        return dict(_SCALARS[name])
    return {"$ref": f"#/components/schemas/{name}"} if fields_of(name) else {"type": name}


def _field(field: FieldType) -> Obj:
    if field.is_list:
        schema: Obj = {"type": "array", "items": _field(field.inner)}
    elif field.is_map:
        schema = {"type": "object", "additionalProperties": _field(field.inner)}
    else:
        reference = _ref(field.name)
        schema = {"allOf": [reference]} if "$ref" in reference else reference
    options = {
        "x-kubernetes-list-type": field.list_type,
        "x-kubernetes-list-map-keys": list(field.keys),
        "x-kubernetes-patch-strategy": ",".join(part for part in field.patch if part),
        "x-kubernetes-patch-merge-key": field.patch_key,
    }
    return schema | {key: value for key, value in options.items() if value}


def _reachable(names: Iterable[str]) -> list[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and fields_of(name):
            found.add(name)
            waiting += [field.name for field in fields_of(name).values()]
    return sorted(found)


def _path_of(kind: ResourceKind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    return f"{root}{'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}/{{name}}"


def _operations(kind: ResourceKind, group_version_kind: Obj) -> Obj:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    content = {media_type: {"schema": {"type": "object"}} for media_type in PATCH_TYPES}
    patch = {
        "operationId": f"patch{kind.kind}",
        "parameters": parameters,
        "requestBody": {"content": content, "required": True},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": group_version_kind,
    }
    return {"patch": patch}


@cache
def _document(group: str, version: str) -> bytes:
    kinds = [kind for kind in ALL_KINDS if (kind.group, kind.version) == (group, version)]
    schemas: Obj = {
        name: {"type": "object", "properties": {key: _field(field) for key, field in fields_of(name).items()}}
        for name in _reachable(type_of(kind).name for kind in kinds)
    }
    paths: Obj = {}
    for kind in kinds:
        group_version_kind = {"group": group, "version": version, "kind": kind.kind}
        schemas[type_of(kind).name]["x-kubernetes-group-version-kind"] = [group_version_kind]
        paths[_path_of(kind)] = _operations(kind, group_version_kind)
    info = {"title": "Kubernetes", "version": "v1.36.2"}
    return dump({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})


def _root(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


@cache
def index() -> bytes:
    """The list of documents at ``/openapi/v3``."""
    served = sorted({(kind.group, kind.version) for kind in ALL_KINDS})
    paths = {}
    for group, version in served:
        digest = hashlib.sha256(_document(group, version)).hexdigest().upper()
        root = _root(group, version)
        paths[root] = {"serverRelativeURL": f"/openapi/v3/{root}?hash={digest}"}
    return dump({"paths": paths})


def document(path: str) -> bytes | None:
    """The document at ``/openapi/v3/`` + ``path``, None for an unknown path."""
    for kind in ALL_KINDS:
        if path == _root(kind.group, kind.version):
            return _document(kind.group, kind.version)
    return None
