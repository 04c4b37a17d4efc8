"""Parses URL paths of the Kubernetes API: kind, namespace, name and subresource.

Grammar: k8s.io/apiserver pkg/endpoints/request/requestinfo.go.
"""

from msgspec import Struct

from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS, NAMESPACES

_KINDS: dict[tuple[str, str, str], ResourceKind] = {
    (group, version, kind.plural): kind
    for kind in ALL_KINDS
    for group, version in ((kind.group, kind.version), *kind.served_also_as)
}


class Target(Struct, frozen=True, kw_only=True):
    """The object or collection of a path. ``name`` is "" for a collection; ``group_version`` is the one in the path."""

    kind: ResourceKind
    group_version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def is_other_view(self) -> bool:
        """Whether the path has another group than objects of the kind are stored in (events.k8s.io)."""
        return self.group_version != self.kind.api_version


def is_known_group(path: str) -> bool:
    """Whether the path is below a served group and version; for other paths the real server returns no Status."""
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
    group_version = f"{group}/{version}" if group else version
    name, subresource = (*rest[1:], "", "")[:2]
    return Target(kind=kind, group_version=group_version, namespace=namespace, name=name, subresource=subresource)
