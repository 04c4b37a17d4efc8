"""Which rights a drain needs, and which of them the user lacks: all of them are named before anything is changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dra_driver.errors import DraError, KubernetesApiError

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class MissingRightsError(DraError):
    """The user lacks rights; the message names each of them."""


class Reviewer(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRight:
    """One right. ``name`` and ``namespace`` are "" for all."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    cluster_wide: bool = False

    def __str__(self) -> str:
        what = "/".join(part for part in (self.resource, self.subresource) if part)
        what = f"{what}.{self.group}" if self.group else what
        if self.name:
            return f"{self.verb} {what} {self.name}"
        if self.cluster_wide:
            return f"{self.verb} {what}"
        return f"{self.verb} {what} in {'namespace ' + self.namespace if self.namespace else 'all namespaces'}"


EVICT: Final = NeededRight(verb="create", resource="pods", subresource="eviction")


def needed(node: str, *, reads_events: bool, reads_holders: bool = True) -> tuple[NeededRight, ...]:
    """What a drain or undrain of ``node`` has to be allowed to do."""
    resource = "resource.k8s.io"
    found = [
        NeededRight(verb="get", resource="nodes", name=node),
        NeededRight(verb="patch", resource="nodes", name=node),
        NeededRight(verb="list", resource="resourceslices", group=resource, cluster_wide=True),
    ]
    if reads_holders:
        found += [
            NeededRight(verb="list", resource="resourceclaims", group=resource),
            NeededRight(verb="list", resource="pods"),
        ]
    if reads_events:
        found.append(NeededRight(verb="list", resource="events", namespace="default"))
    return tuple(found)


def check(api: Reviewer, rights: Sequence[NeededRight], optional: Sequence[NeededRight] = ()) -> None:
    """Raise MissingRightsError unless the user has ``rights``. ``optional`` ones are named with them, not required.

    A server that does not answer such questions is believed to allow everything; it refuses single requests later.
    """
    missing = [right for right in rights if not _allowed(api, right)]
    if not missing:
        return
    missing += [right for right in optional if not _allowed(api, right)]
    raise MissingRightsError(
        f"the user of this kubeconfig lacks rights: {'; '.join(map(str, missing))}. Nothing was changed; ask an "
        "administrator for a ClusterRole with them (docs/upgrade-and-drain.md has one)"
    )


def _allowed(api: Reviewer, right: NeededRight) -> bool:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    spec = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    try:
        status = api.create(REVIEWS, body).get("status")
    except KubernetesApiError as error:
        if error.status in {403, 404, 405}:
            return True
        raise
    return not isinstance(status, Mapping) or status.get("allowed") is not False
