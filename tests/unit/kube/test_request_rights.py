"""The right that a request needs, as RBAC names it."""

import pytest

from dra_driver.core.request_rights import right_in, right_of


@pytest.mark.parametrize(
    ("request_line", "named", "asked"),
    [
        ("GET /api/v1/nodes", "list nodes", "kubectl auth can-i list nodes"),
        ("GET /api/v1/nodes/a", "get nodes a", "kubectl auth can-i get nodes"),
        ("GET /api/v1/pods", "list pods in all namespaces", "kubectl auth can-i list pods -A"),
        ("GET /api/v1/namespaces/t/pods?limit=1", "list pods in namespace t", "kubectl auth can-i list pods -n t"),
        ("GET /api/v1/namespaces", "list namespaces", "kubectl auth can-i list namespaces"),
        ("GET /api/v1/namespaces/t", "get namespaces t", "kubectl auth can-i get namespaces"),
        (
            "GET /api/v1/namespaces/t/pods/p/log",
            "get pods/log p in namespace t",
            "kubectl auth can-i get pods --subresource log -n t",
        ),
        (
            "watch /apis/resource.k8s.io/v1/resourceslices",
            "watch resourceslices.resource.k8s.io",
            "kubectl auth can-i watch resourceslices.resource.k8s.io",
        ),
        (
            "POST /apis/resource.k8s.io/v1/namespaces/t/resourceclaims",
            "create resourceclaims.resource.k8s.io in namespace t",
            "kubectl auth can-i create resourceclaims.resource.k8s.io -n t",
        ),
        (
            "PATCH /apis/gpu.dra-driver.io/v1alpha1/gpunodes/a/status",
            "patch gpunodes/status.gpu.dra-driver.io a",
            "kubectl auth can-i patch gpunodes.gpu.dra-driver.io --subresource status",
        ),
        ("GET /metrics", "get /metrics", "kubectl auth can-i get /metrics"),
        ("GET /apis/resource.k8s.io", "get /apis/resource.k8s.io", "kubectl auth can-i get /apis/resource.k8s.io"),
    ],
)
def test_right_of_a_request(request_line: str, named: str, asked: str) -> None:
    right = right_of(request_line)
    assert right is not None
    assert (str(right), right.auth_can_i) == (named, asked)


@pytest.mark.parametrize("text", ["", "GET", "cannot read x", "list of things", "GET pods"])
def test_what_is_no_request_needs_no_right(text: str) -> None:
    assert right_of(text) is None
    assert right_in(text) is None


def test_right_in_an_error() -> None:
    right = right_in("GET /api/v1/nodes failed: 403 Forbidden: nodes is forbidden")
    assert str(right) == "list nodes"
