"""Ask the API server which of some permissions the user lacks (SelfSubjectAccessReview, allowed by
``system:basic-user``)."""

from collections.abc import Mapping, Sequence
from typing import Final

from dra_driver.core.errors import KubernetesApiError
from dra_driver.core.request_rights import AccessRight
from dra_driver.kube.evictions import Creator

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def missing(api: Creator, rights: Sequence[AccessRight]) -> list[AccessRight]:
    """The missing ones of ``rights``; none for a server that does not answer such reviews, because it refuses single
    requests later."""
    return [right for right in rights if not _allowed(api, right)]


def _allowed(api: Creator, right: AccessRight) -> bool:
    spec = {"resourceAttributes": right.attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    try:
        status = api.create(REVIEWS, body).get("status")
    except KubernetesApiError as error:
        if error.status in {403, 404, 405}:
            return True
        raise
    return not isinstance(status, Mapping) or status.get("allowed") is not False
