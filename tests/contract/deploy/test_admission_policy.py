"""The admission policy of deploy/base, evaluated without a cluster: attacks with the credentials of one node."""

from typing import Any

import pytest

from tests.fakes import chart
from tests.fakes.admission import Policy

DRIVER = "gpu.nvidia.com"
ACCOUNT = "system:serviceaccount:dra-driver:dra-driver-node"
KUBELET = "system:node:node-a"
NODE_NAME = "authentication.kubernetes.io/node-name"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(chart.found(chart.objects(), "ValidatingAdmissionPolicy", "dra-driver-own-slices"))


def request(
    user: str = ACCOUNT,
    operation: str = "CREATE",
    *,
    bound_to: str | None = "node-a",
    node: str | None = "node-a",
    pool: str = f"node-a/{DRIVER}",
    driver: str = DRIVER,
    dry_run: bool = False,
) -> dict[str, Any]:
    """An admission request. ``bound_to`` None is a user without ``extra``."""
    who: dict[str, Any] = {"username": user}
    if bound_to is not None and user != KUBELET:
        who["extra"] = {NODE_NAME: [bound_to]} if bound_to else {"other": ["x"]}
    spec: dict[str, Any] = {"driver": driver, "pool": {"name": pool, "generation": 1_000_000, "resourceSliceCount": 1}}
    if node is not None:
        spec["nodeName"] = node
    asked: dict[str, Any] = {"operation": operation, "userInfo": who, "dryRun": dry_run}
    present = ("oldObject",) if operation == "DELETE" else ("object", "oldObject")[: 1 + (operation == "UPDATE")]
    return asked | {name: {"spec": spec} for name in present}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize("user", [ACCOUNT, KUBELET])
def test_slices_of_the_own_node_and_driver_are_allowed(policy: Policy, user: str, operation: str) -> None:
    asked = request(user, operation)
    assert policy.matches(asked)
    assert policy.denial(asked) is None


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("user", [ACCOUNT, KUBELET])
def test_the_pool_of_another_node_is_denied(policy: Policy, user: str, operation: str) -> None:
    """A slice of node-a in node-b's pool with a higher generation makes all GPUs of node-b disappear."""
    asked = request(user, operation, pool=f"node-b/{DRIVER}")
    message = f"the driver on node node-a may not write the pool node-b/{DRIVER}: its own is node-a/{DRIVER}"
    assert policy.denial(asked)
    assert policy.says(asked, message)


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize("user", [ACCOUNT, KUBELET])
@pytest.mark.parametrize(("node", "named"), [("node-b", "node node-b"), (None, "no single node")])
def test_slices_of_another_node_are_denied(
    policy: Policy, user: str, operation: str, node: str | None, named: str
) -> None:
    asked = request(user, operation, node=node, pool=f"node-b/{DRIVER}")
    assert policy.says(asked, f"the driver on node node-a may not change a ResourceSlice of {named}")


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_slices_of_another_driver_are_denied_to_the_account(policy: Policy, operation: str) -> None:
    asked = request(operation=operation, driver="x.example", pool="node-a/x.example")
    assert policy.says(asked, f"the driver {DRIVER} may not change a ResourceSlice of driver x.example")


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_other_vendors_are_not_hurt(policy: Policy, operation: str) -> None:
    """Their drivers may use kubelet credentials, and a starting kubelet deletes the slices of all drivers."""
    asked = request(KUBELET, operation, driver="x.example", pool="any-pool")
    assert policy.denial(asked) is None
    assert policy.denial(request("system:serviceaccount:x:other", operation, node="node-b")) is None


def test_what_an_attack_left_on_the_own_node_may_be_deleted(policy: Policy) -> None:
    """The pool counts for writing alone."""
    assert policy.denial(request(operation="DELETE", pool=f"node-b/{DRIVER}")) is None


@pytest.mark.parametrize("bound_to", [None, ""])
def test_a_token_that_is_not_bound_to_a_node_is_denied_with_that_reason(policy: Policy, bound_to: str | None) -> None:
    """A user without ``extra`` used to end in the evaluation error "no such key"."""
    denial = policy.denial(request(bound_to=bound_to))
    assert denial is not None
    assert denial.startswith("this token is not bound to a node")


@pytest.mark.parametrize("namespace", ["dra-driver", "gpu-driver", "kube-system"])
def test_the_account_is_matched_in_every_namespace(policy: Policy, namespace: str) -> None:
    """An overlay changes the namespace; a policy that names one would match no request."""
    user = f"system:serviceaccount:{namespace}:dra-driver-node"
    assert policy.denial(request(user, pool=f"node-b/{DRIVER}"))


def test_the_canary_pool_is_for_dry_runs_alone(policy: Policy) -> None:
    """The driver asks in it which fields the API server keeps (slices/features.py)."""
    pool = f"node-a/{DRIVER}/canary"
    assert policy.denial(request(pool=pool, dry_run=True)) is None
    assert policy.denial(request(pool=pool)) is not None
    assert policy.denial(request(pool=f"node-b/{DRIVER}/canary", dry_run=True)) is not None
