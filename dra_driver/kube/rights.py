"""Ask the API server which of some permissions the user lacks (SelfSubjectAccessReview, allowed by
``system:basic-user``)."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import KubernetesApiError

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Reviewer(Protocol):
    """The part of ``rest.RestClient`` that is needed here."""

    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


class NeededRight(Struct, frozen=True, kw_only=True):
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


def missing(api: Reviewer, rights: Sequence[NeededRight]) -> list[NeededRight]:
    """The missing ones of ``rights``; none for a server that does not answer such reviews, because it refuses single
    requests later."""
    return [right for right in rights if not _allowed(api, right)]


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
