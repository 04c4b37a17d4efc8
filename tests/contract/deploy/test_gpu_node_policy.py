"""The admission policy for GpuNodes, evaluated without a cluster: attacks with the credentials of one node."""

from typing import Any

import pytest
import yaml

from tests.fakes import chart
from tests.fakes.admission import Policy

ACCOUNT = "system:serviceaccount:elsewhere:dra-driver-node"
KUBELET = "system:node:node-a"
NODE_NAME = "authentication.kubernetes.io/node-name"
OPERATIONS = ["CREATE", "UPDATE", "DELETE"]


@pytest.fixture(scope="module")
def policy() -> Policy:
    manifest, _binding = yaml.safe_load_all((chart.ROOT / "deploy/base/gpu-nodes.yaml").read_text())
    return Policy(manifest)


def request(
    operation: str = "CREATE",
    *,
    user: str = ACCOUNT,
    bound_to: str | None = "node-a",
    name: str = "node-a",
    **meta: Any,
) -> dict[str, Any]:
    """An admission request. ``bound_to`` None is a user without ``extra``, "" one with other keys."""
    who: dict[str, Any] = {"username": user}
    if bound_to is not None and user != KUBELET:
        who["extra"] = {NODE_NAME: [bound_to]} if bound_to else {"other": ["x"]}
    stored = {"metadata": {"name": name, **meta}}
    asked: dict[str, Any] = {"operation": operation, "userInfo": who}
    present = ("oldObject",) if operation == "DELETE" else ("object", "oldObject")[: 1 + (operation == "UPDATE")]
    return asked | dict.fromkeys(present, stored)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("user", [ACCOUNT, KUBELET])
def test_the_own_gpu_node_is_allowed(policy: Policy, user: str, operation: str) -> None:
    asked = request(operation, user=user, ownerReferences=[{"kind": "Node", "name": "node-a"}])
    assert policy.matches(asked)
    assert policy.denial(asked) is None


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("user", [ACCOUNT, KUBELET])
def test_that_of_another_node_is_denied(policy: Policy, user: str, operation: str) -> None:
    """The owner of one node would tell the controller what every other node has."""
    asked = request(operation, user=user, name="node-b")
    assert policy.says(asked, "the driver on node node-a may not change the GpuNode node-b")


@pytest.mark.parametrize("bound_to", [None, ""])
@pytest.mark.parametrize("name", ["node-a", ""])
def test_a_token_that_is_bound_to_no_node_is_denied(policy: Policy, bound_to: str | None, name: str) -> None:
    """A token made by hand, or a legacy one in a Secret. An empty name equals an unknown node."""
    assert "not bound to a node" in str(policy.denial(request(bound_to=bound_to, name=name)))


def test_a_gpu_node_is_owned_by_its_node_alone(policy: Policy) -> None:
    for owner in ({"kind": "Node", "name": "node-b"}, {"kind": "Pod", "name": "node-a"}):
        asked = request(ownerReferences=[owner])
        assert policy.says(asked, "the GpuNode of node node-a may be owned by the Node of this name alone")


@pytest.mark.parametrize("user", ["kubernetes-admin", "system:serviceaccount:dra-driver:dra-driver-controller"])
def test_others_are_not_restricted_by_it(policy: Policy, user: str) -> None:
    """An administrator may delete a GpuNode; RBAC says who may."""
    assert not policy.matches(request("DELETE", user=user, name="node-b"))


def test_both_the_object_and_its_status_are_covered() -> None:
    """Rights to a subresource are apart from those to the object."""
    manifest, binding = yaml.safe_load_all((chart.ROOT / "deploy/base/gpu-nodes.yaml").read_text())
    (rule,) = manifest["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["gpunodes", "gpunodes/status"]
    assert manifest["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["validationActions"] == ["Deny"]
