"""Paths, names, waits and the server's version."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths
from dra_driver.kube.discovery import server_version
from dra_driver.kube.node_annotation import change_annotation
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
        ("a", True, True, True),
        ("a-b", True, True, True),
        ("a.b", False, True, True),
        ("a/b.c", False, False, True),
        ("a" * 63, True, True, True),
        ("a" * 64, False, True, True),
        ("a" * 254, False, False, False),
        ("A", False, False, False),
        ("-a", False, False, False),
        ("a-", False, False, False),
        ("a\n", False, False, False),
        ("", False, False, False),
        ("a//b", False, False, False),
        ("a..b", False, False, False),
        ("/a", False, False, False),
    ],
)
def test_names(text: str, label: bool, subdomain: bool, pool: bool) -> None:
    assert (is_label(text), is_subdomain(text), is_pool_name(text)) == (label, subdomain, pool)


class Api:
    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer

    def get(self, path: str, query: Any = None) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_the_servers_version_is_read_with_its_suffixes() -> None:
    """Managed clusters say "36+"."""
    found = server_version(Api({"major": "1", "minor": "36+", "gitVersion": "v1.36.2-eks-1"}))
    assert (found.major, found.minor, str(found)) == (1, 36, "v1.36.2-eks-1")


@pytest.mark.parametrize("answer", [{}, {"major": 1, "minor": 2, "gitVersion": "x"}, {"major": "one", "minor": "1"}])
def test_a_version_that_is_none_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(KubernetesApiError, match="GET /version"):
        server_version(Api(answer))


ODD = {"spec": {"taints": [{"key": "a"}]}, "status": {"conditions": [{"type": "Ready"}]}}


class OneNode:
    """An API server that has one Node, and keeps what is changed."""

    def __init__(self, node: Mapping[str, object]) -> None:
        self.node = node
        self.patches: list[Mapping[str, object]] = []

    def get(self, path: str) -> Mapping[str, object]:
        return self.node

    def merge_patch(self, path: str, body: Mapping[str, object]) -> None:
        self.patches.append(body)


@pytest.mark.parametrize("metadata", [None, [], {"name": "n", "generation": "3"}])
def test_metadata_that_do_not_fit_are_an_error_that_names_the_request(metadata: Any) -> None:
    with pytest.raises(KubernetesApiError, match=r"^GET /api/v1/nodes/n: metadata"):
        change_annotation(OneNode({"metadata": metadata}), "n", "b", lambda _: "")
