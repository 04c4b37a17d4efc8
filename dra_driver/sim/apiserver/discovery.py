"""Discovery documents: groups, versions and kinds, in the aggregated and in the older form.

Built from `kinds`. Shapes: apidiscovery.k8s.io/v2 APIGroupDiscoveryList, metav1.APIGroupList and
metav1.APIResourceList.
"""

from collections.abc import Iterable

from dra_driver.sim.apiserver.jsonvalue import Obj, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply

_AGGREGATED = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_REVIEWS = (("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),)


def _subresource_verbs(subresource: str) -> list[str]:
    only = {"log": ["get"], "proxy": ["get"], "binding": ["create"], "eviction": ["create"], "finalize": ["update"]}
    return only.get(subresource, ["get", "patch", "update"])


def _subresource_kind(kind: ResourceKind, subresource: str) -> tuple[str, str, str]:
    if subresource == "binding":
        return ("", "v1", "Binding")
    if subresource == "proxy":
        return ("", "v1", "PodProxyOptions")
    if subresource == "eviction":
        return ("policy", "v1", "Eviction")
    if subresource == "scale":
        return ("autoscaling", "v1", "Scale")
    return (kind.group, kind.version, kind.kind)


def _groups() -> dict[tuple[str, str], list[ResourceKind]]:
    """Kinds by group and version, the core group first."""
    found: dict[tuple[str, str], list[ResourceKind]] = {}
    for kind in ALL_KINDS:
        for group_version in ((kind.group, kind.version), *kind.served_also_as):
            found.setdefault(group_version, []).append(kind)
    for group, version, *_ in _REVIEWS:
        found.setdefault((group, version), [])
    return dict(sorted(found.items()))


def _response_kind(group: str, version: str, kind: str) -> Obj:
    return {"group": group, "version": version, "kind": kind}


def _aggregated_kind(kind: ResourceKind, group: str, version: str) -> Obj:
    entry: Obj = {
        "resource": kind.plural,
        "responseKind": _response_kind(group, version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": _VERBS,
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": _response_kind(*_subresource_kind(kind, name)),
                "verbs": _subresource_verbs(name),
            }
            for name in kind.subresources
        ]
    return entry


def _aggregated_review(group: str, version: str, kind: str, plural: str) -> Obj:
    return {
        "resource": plural,
        "responseKind": _response_kind(group, version, kind),
        "scope": "Cluster",
        "singularResource": kind.lower(),
        "verbs": ["create"],
    }


def aggregated(*, core: bool) -> Obj:
    """APIGroupDiscoveryList of the core group (``/api``) or of all others (``/apis``)."""
    items = []
    for (group, version), kinds in _groups().items():
        if (group == "") is core:
            resources = [_aggregated_kind(kind, group, version) for kind in kinds]
            resources += [_aggregated_review(*review) for review in _REVIEWS if review[:2] == (group, version)]
            versions = [{"version": version, "freshness": "Current", "resources": resources}]
            items.append({"metadata": {"name": group, "creationTimestamp": None}, "versions": versions})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


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
            "kind": _subresource_kind(kind, name)[2],
            "verbs": _subresource_verbs(name),
        }


def _legacy_resources(group: str, version: str) -> Obj | None:
    kinds = _groups().get((group, version))
    if kinds is None:
        return None
    rows = [row for kind in kinds for row in _legacy_rows(kind)]
    rows += [
        {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": ["create"]}
        for review_group, review_version, kind, plural in _REVIEWS
        if (review_group, review_version) == (group, version)
    ]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}


def discovery(request: ApiRequest) -> Reply | None:
    """The reply for ``/api``, ``/apis`` and the paths of groups and versions; None for other paths."""
    parts = [part for part in request.path.split("/") if part]
    if len(parts) == 1 and _AGGREGATED in request.accept.replace(" ", ""):
        body = dump(aggregated(core=parts == ["api"]))
        return Reply(body=body, media_type=f"application/json;{_AGGREGATED}")
    document = _legacy(parts)
    return None if document is None else Reply.of(document)


def _legacy(parts: list[str]) -> Obj | None:
    groups = sorted({group_version for group_version in _groups() if group_version[0]})
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
