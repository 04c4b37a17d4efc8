"""The permission that a request needs, as RBAC names it, from the request's verb and path (Kubernetes "Authorization",
"Determine the Request Verb"; apiserver pkg/endpoints/request/requestinfo.go)."""

from typing import Final
from urllib.parse import unquote

from msgspec import Struct

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "WATCH": "watch"}


class AccessRight(Struct, frozen=True, kw_only=True):
    """One permission. ``namespace`` and ``name`` are "" for all; a non-resource path has only ``url``."""

    verb: str
    resource: str = ""
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    namespaced: bool = False
    url: str = ""

    def __str__(self) -> str:
        """``list pods in namespace team-a``, ``list deviceclasses.resource.k8s.io``, ``get /metrics``."""
        if self.url:
            return f"{self.verb} {self.url}"
        what = "/".join(part for part in (self.resource, self.subresource) if part)
        what = f"{what}.{self.group}" if self.group else what
        named = f" {self.name}" if self.name else ""
        if not self.namespaced:
            return f"{self.verb} {what}{named}"
        return f"{self.verb} {what}{named} in {'namespace ' + self.namespace if self.namespace else 'all namespaces'}"

    @property
    def attributes(self) -> dict[str, str]:
        """The ``resourceAttributes`` of an access review."""
        named = ("verb", "group", "resource", "subresource", "namespace", "name")
        return {key: value for key in named if (value := getattr(self, key))}

    @property
    def auth_can_i(self) -> str:
        if self.url:
            return f"kubectl auth can-i {self.verb} {self.url}"
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        sub = f" --subresource {self.subresource}" if self.subresource else ""
        where = "" if not self.namespaced else f" -n {self.namespace}" if self.namespace else " -A"
        return f"kubectl auth can-i {self.verb} {what}{sub}{where}"


NAMESPACED: Final = frozenset(
    {
        "configmaps",
        "daemonsets",
        "events",
        "leases",
        "persistentvolumeclaims",
        "pods",
        "resourceclaims",
        "resourceclaimtemplates",
        "resourcequotas",
    }
)
"""Namespaced resources that this project reads or writes; a path for all namespaces does not show the difference."""


def right_of(request: str) -> AccessRight | None:
    """The permission for a request such as ``GET /api/v1/pods``; None for other texts. A GET of a collection is a list;
    errors call a watch ``watch``."""
    verb, _, path = request.partition(" ")
    path = path.partition("?")[0].strip()
    method = verb.upper()
    if not path.startswith("/") or method not in {"GET", *_VERBS}:
        return None
    parts = [unquote(part) for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return AccessRight(verb="get" if method == "GET" else _VERBS[method], url=path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "", "")[:3]
    return AccessRight(
        verb=_VERBS.get(method) or ("get" if name else "list"),
        resource=resource,
        group=group,
        subresource=subresource,
        namespace=namespace,
        name=name,
        namespaced=bool(namespace) or resource in NAMESPACED,
    )


def missing_right(error: Exception) -> str:
    """A refusal (403) as a phrase that names the right; the error's own words where they name no request."""
    right = right_in(str(error))
    if right is None:
        return str(error)
    return f"this user may not {right} (403); an administrator can grant it, and to check: {right.auth_can_i}"


def right_in(message: str) -> AccessRight | None:
    """The right that the request which begins an error's sentence needed: ``GET /api/v1/pods failed: 403 ...``."""
    words = message.split(" ", 2)
    return right_of(" ".join(words[:2])) if len(words) > 1 else None
