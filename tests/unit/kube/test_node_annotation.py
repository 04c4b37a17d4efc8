"""One annotation of a Node is changed, whatever the rest of the object is."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube.node_annotation import change_annotation

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


def test_fields_that_are_not_needed_may_be_of_any_form() -> None:
    api = OneNode({"metadata": {"name": "n", "resourceVersion": "7", "annotations": {"a": "1"}}, **ODD})
    assert change_annotation(api, "n", "b", lambda found: found["a"] + "2") == ("12", True)
    assert api.patches == [{"metadata": {"resourceVersion": "7", "annotations": {"b": "12"}}}]


@pytest.mark.parametrize("metadata", [None, [], {"name": "n", "generation": "3"}])
def test_metadata_that_do_not_fit_are_an_error_that_names_the_request(metadata: Any) -> None:
    with pytest.raises(KubernetesApiError, match=r"^GET /api/v1/nodes/n: metadata"):
        change_annotation(OneNode({"metadata": metadata}), "n", "b", lambda _: "")
