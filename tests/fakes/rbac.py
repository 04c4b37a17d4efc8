"""Decide by Role and ClusterRole manifests as the API server's RBAC authorizer does, for rules about resources
(kubernetes/kubernetes plugin/pkg/auth/authorizer/rbac, RuleAllows)."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?P<rest>/.*)")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a request asks for; ``resource`` with its subresource, such as ``resourceclaims/status``."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    @classmethod
    def of_request(cls, method: str, url: str) -> "Access | None":
        """None for a path that is no resource, such as /version: every authenticated user may read those."""
        parts = urlsplit(url)
        match = _PATH.fullmatch(parts.path)
        if match is None:
            return None
        segments = [unquote(segment) for segment in match["rest"].strip("/").split("/")]
        namespace = ""
        if segments[0] == "namespaces" and len(segments) > 2:
            namespace, segments = segments[1], segments[2:]
        resource, name = segments[0], segments[1] if len(segments) > 1 else ""
        if len(segments) > 2:
            resource = f"{resource}/{segments[2]}"
        watch = parse_qs(parts.query).get("watch") == ["true"]
        verb = _VERBS.get(method) or ("watch" if watch else "get" if name else "list")
        if verb == "delete" and not name:
            verb = "deletecollection"
        return cls(verb=verb, group=match["group"] or "", resource=resource, namespace=namespace, name=name)


class Rules:
    def __init__(self, manifests: Iterable[Mapping[str, Any]], *, account: str, namespace: str) -> None:
        objects = list(manifests)
        self._granted: list[tuple[str, Mapping[str, Any]]] = []  # namespace ("" for all) and rule
        for binding in objects:
            subjects = [(item["name"], item["namespace"]) for item in binding.get("subjects", ())]
            if (account, namespace) in subjects:
                inside = binding["metadata"]["namespace"] if binding["kind"] == "RoleBinding" else ""
                kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
                (role,) = [
                    obj
                    for obj in objects
                    if (obj["kind"], obj["metadata"]["name"]) == (kind, name)
                    and (kind != "Role" or obj["metadata"]["namespace"] == inside)
                ]
                self._granted += [(inside, rule) for rule in role["rules"]]

    def allow(self, access: Access) -> bool:
        return any(
            namespace in ("", access.namespace)
            and {access.verb, "*"} & set(rule["verbs"])
            and {access.group, "*"} & set(rule["apiGroups"])
            and {access.resource, "*"} & set(rule["resources"])
            and access.name in (rule.get("resourceNames") or [access.name])
            for namespace, rule in self._granted
        )

    def grants(self) -> Iterator["Grant"]:
        """Each verb on each resource by itself."""
        for namespace, rule in self._granted:
            for group, resource, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
                names = tuple(rule.get("resourceNames", ()))
                yield Grant(verb=verb, group=group, resource=resource, namespace=namespace, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One verb on one resource: in a namespace ("" for all), for objects of these names (none for all)."""

    verb: str
    group: str
    resource: str
    namespace: str
    names: tuple[str, ...]

    def used_by(self, access: Access) -> bool:
        return (
            (self.verb, self.group, self.resource) == (access.verb, access.group, access.resource)
            and self.namespace in ("", access.namespace)
            and (not self.names or access.name in self.names)
        )
