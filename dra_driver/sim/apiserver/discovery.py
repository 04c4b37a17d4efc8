"""Discovery and OpenAPI v3 documents, built from `kinds` and the field table of `schema`.

Discovery has metav1.APIGroupList and metav1.APIResourceList, to which clients of apidiscovery.k8s.io/v2 fall back.
OpenAPI has the parts that kubectl uses: the ``fieldValidation`` parameter of PATCH (k8s.io/cli-runtime
pkg/resource/query_param_verifier_v3.go), merge keys (kubectl pkg/cmd/apply/patcher.go), and types for `explain`.
"""

import hashlib
from collections.abc import Iterable
from functools import cache

from dra_driver.sim.apiserver.jsonvalue import Obj, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.patching import PATCH_TYPES
from dra_driver.sim.apiserver.schema import FieldType, fields_of, type_of

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_REVIEW_GROUP = ("authorization.k8s.io", "v1")
_REVIEW = {
    "name": "selfsubjectaccessreviews",
    "singularName": "selfsubjectaccessreview",
    "namespaced": False,
    "kind": "SelfSubjectAccessReview",
    "verbs": ["create"],
}


_SUBRESOURCE_VERBS = {"log": "get", "proxy": "get", "binding": "create", "eviction": "create", "finalize": "update"}
# Subresources with another kind than their object. Clients of a scale or an eviction read its group here.
_SUBRESOURCE_KINDS: dict[str, Obj] = {
    "binding": {"kind": "Binding"},
    "proxy": {"kind": "PodProxyOptions"},
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction"},
    "scale": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
}


def _groups() -> dict[tuple[str, str], list[ResourceKind]]:
    found: dict[tuple[str, str], list[ResourceKind]] = {}
    for kind in ALL_KINDS:
        found.setdefault((kind.group, kind.version), []).append(kind)
    found.setdefault(_REVIEW_GROUP, [])
    return dict(sorted(found.items()))


def _api_group(group: str, version: str) -> Obj:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _legacy_rows(kind: ResourceKind) -> Iterable[Obj]:
    row: Obj = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
    }
    if kind.short_names:
        row["shortNames"] = list(kind.short_names)
    if kind.categories:
        row["categories"] = list(kind.categories)
    yield row
    for name in kind.subresources:
        yield {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            **_SUBRESOURCE_KINDS.get(name, {"kind": kind.kind}),
            "verbs": [_SUBRESOURCE_VERBS[name]] if name in _SUBRESOURCE_VERBS else ["get", "patch", "update"],
        }


def _legacy_resources(group: str, version: str) -> Obj | None:
    kinds = _groups().get((group, version))
    if kinds is None:
        return None
    rows = [row for kind in kinds for row in _legacy_rows(kind)]
    if (group, version) == _REVIEW_GROUP:
        rows.append(_REVIEW)
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}


def discovery(path: str) -> Obj | None:
    """The document for ``/api``, ``/apis`` and the paths of groups and versions; None for other paths."""
    parts = [part for part in path.split("/") if part]
    groups = sorted(group_version for group_version in _groups() if group_version[0])
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_api_group(*each) for each in groups]}
    if parts == ["api", "v1"]:
        return _legacy_resources("", "v1")
    if len(parts) == 2 and parts[0] == "apis":
        found = [_api_group(*each) for each in groups if each[0] == parts[1]]
        return {"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else None
    if len(parts) == 3 and parts[0] == "apis":
        return _legacy_resources(parts[1], parts[2])
    return None


_SCALARS: dict[str, Obj] = {
    "Quantity": {"type": "string"},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "IntOrString": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "any": {"type": "object"},
}


def _field(field: FieldType) -> Obj:
    if field.is_list:
        schema: Obj = {"type": "array", "items": _field(field.inner)}
    elif field.is_map:
        schema = {"type": "object", "additionalProperties": _field(field.inner)}
    elif fields_of(field.name):
        schema = {"allOf": [{"$ref": f"#/components/schemas/{field.name}"}]}
    else:
        schema = _SCALARS.get(field.name, {"type": field.name})
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
        inside = "namespaces/{namespace}/" if kind.namespaced else ""
        paths[f"/{_root(group, version)}/{inside}{kind.plural}/{{name}}"] = _operations(kind, group_version_kind)
    info = {"title": "Kubernetes", "version": "v1.36.2"}
    return dump({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})


def _root(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


@cache
def openapi_index() -> bytes:
    served = sorted({(kind.group, kind.version) for kind in ALL_KINDS})
    paths = {}
    for group, version in served:
        digest = hashlib.sha256(_document(group, version)).hexdigest().upper()
        root = _root(group, version)
        paths[root] = {"serverRelativeURL": f"/openapi/v3/{root}?hash={digest}"}
    return dump({"paths": paths})


def openapi_document(path: str) -> bytes | None:
    """The document at ``/openapi/v3/`` + ``path``, None for an unknown path."""
    for kind in ALL_KINDS:
        if path == _root(kind.group, kind.version):
            return _document(kind.group, kind.version)
    return None
