"""Paths, names, waits, versions, and the RBAC permission that a request needs."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.core.errors import ApiUnreachableError, ForbiddenError, KubernetesApiError, ServerBusyError
from dra_driver.core.request_rights import right_in, right_of
from dra_driver.kube import paths
from dra_driver.kube.discovery import server_version
from dra_driver.kube.node_annotation import change_annotation
from dra_driver.kube.reflector import MOST_BEHIND, NewestVersion
from dra_driver.kube.shapes import is_label, is_pool_name, is_subdomain


def test_paths_are_those_of_the_api() -> None:
    """A wrong path is a 404 that looks like a missing object."""
    assert paths.resource_slices() == "/apis/resource.k8s.io/v1/resourceslices"
    assert paths.resource_slices("a") == "/apis/resource.k8s.io/v1/resourceslices/a"
    assert paths.resource_claim("n", "c") == "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/c"
    assert paths.resource_claims() == "/apis/resource.k8s.io/v1/resourceclaims"
    assert paths.node("n") == "/api/v1/nodes/n"
    assert paths.events("n", "e") == "/api/v1/namespaces/n/events/e"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    """Quoting does not help against these three."""
    with pytest.raises(ValueError, match="not the name"):
        paths.node(name)


@pytest.mark.parametrize(
    ("text", "label", "subdomain", "pool"),
    [
        ("a", True, True, True), ("a-b", True, True, True), ("a.b", False, True, True),
        ("a/b.c", False, False, True), ("a" * 63, True, True, True), ("a" * 64, False, True, True),
        ("a" * 254, False, False, False), ("A", False, False, False), ("-a", False, False, False),
        ("a-", False, False, False), ("a\n", False, False, False), ("", False, False, False),
        ("a//b", False, False, False), ("a..b", False, False, False), ("/a", False, False, False),
    ],
)  # fmt: skip
def test_names(text: str, label: bool, subdomain: bool, pool: bool) -> None:
    assert (is_label(text), is_subdomain(text), is_pool_name(text)) == (label, subdomain, pool)


class Api:
    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def get(self, path: str, query: Any = None) -> dict[str, Any]:
        return self.answer

    def merge_patch(self, path: str, body: Mapping[str, object]) -> None:
        raise NotImplementedError


def test_the_servers_version_is_read_with_its_suffixes() -> None:
    """Managed clusters say "36+"."""
    found = server_version(Api({"major": "1", "minor": "36+", "gitVersion": "v1.36.2-eks-1"}))
    assert (found.major, found.minor, str(found)) == (1, 36, "v1.36.2-eks-1")


@pytest.mark.parametrize("answer", [{}, {"major": 1, "minor": 2, "gitVersion": "x"}, {"major": "one", "minor": "1"}])
def test_a_version_that_is_none_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(KubernetesApiError, match="GET /version"):
        server_version(Api(answer))


@pytest.mark.parametrize("metadata", [None, [], {"name": "n", "generation": "3"}])
def test_metadata_that_do_not_fit_are_an_error_that_names_the_request(metadata: Any) -> None:
    with pytest.raises(KubernetesApiError, match=r"^GET /api/v1/nodes/n: metadata"):
        change_annotation(Api({"metadata": metadata}), "n", "b", lambda _: "")


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
    assert str(right_in("GET /api/v1/nodes failed: 403 Forbidden: nodes is forbidden")) == "list nodes"


BEHIND = ServerBusyError("Too large resource version", status=504)


def asked(newest: NewestVersion) -> str:
    return newest.query().get("resourceVersion", "")


def test_the_first_list_is_current_and_later_ones_are_not_older_than_what_was_seen() -> None:
    newest = NewestVersion()
    assert newest.query() == {}
    for version in ("9", "10", "8", "", "x", "٣"):
        newest.saw(version)
    assert newest.query() == {"resourceVersion": "10", "resourceVersionMatch": "NotOlderThan"}
    newest.forget()
    assert newest.query() == {}


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ApiUnreachableError("refused"), "7"),
        (ServerBusyError("too many requests", status=429), "7"),
        (ServerBusyError("starting", status=503), "7"),
        (BEHIND, "7"),
        (ForbiddenError("no", status=403), ""),
        (KubernetesApiError("bad request", status=400), ""),
    ],
)
def test_a_busy_server_is_not_asked_for_more(error: KubernetesApiError, kept: str) -> None:
    """A current list costs the most just when the server is behind."""
    newest = NewestVersion()
    newest.saw("7")
    newest.failed(error)
    assert asked(newest) == kept


def test_only_a_version_that_the_server_does_not_reach_is_given_up() -> None:
    """etcd was restored from a backup: the versions that come now are lower and do not count as progress."""
    newest = NewestVersion()
    newest.saw("700")
    for _ in range(MOST_BEHIND - 1):
        newest.failed(BEHIND)
        newest.saw("12")
    assert asked(newest) == "700"
    newest.failed(BEHIND)
    assert asked(newest) == ""
    newest = NewestVersion()  # of a server that catches up
    newest.saw("7")
    for version in range(8, 8 + 3 * MOST_BEHIND):
        newest.failed(BEHIND)
        newest.saw(str(version))
    assert asked(newest) == str(7 + 3 * MOST_BEHIND)
