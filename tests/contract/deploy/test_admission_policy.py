"""The admission policies for slices, GpuNodes and pods, evaluated without a cluster: attacks with the credentials of
one node.

The mutation of pods (JSONPatch, Object) does not compile in this project's engine; tests/e2e has it from a real API
server.
"""

from typing import Any

import pytest
import yaml

from tests.fakes import chart
from tests.fakes.admission import Policy
from tests.harness.cel import Expression, value_of

DRIVER = "gpu.nvidia.com"
ACCOUNT = "system:serviceaccount:dra-driver:dra-driver-node"
KUBELET = "system:node:node-a"
NODE_NAME = "authentication.kubernetes.io/node-name"
OPERATIONS = ["CREATE", "UPDATE", "DELETE"]


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


@pytest.mark.parametrize("operation", OPERATIONS)
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


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("user", [ACCOUNT, KUBELET])
@pytest.mark.parametrize(("node", "named"), [("node-b", "node node-b"), (None, "no single node")])
def test_slices_of_another_node_are_denied(
    policy: Policy, user: str, operation: str, node: str | None, named: str
) -> None:
    asked = request(user, operation, node=node, pool=f"node-b/{DRIVER}")
    assert policy.says(asked, f"the driver on node node-a may not change a ResourceSlice of {named}")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_slices_of_another_driver_are_denied_to_the_account(policy: Policy, operation: str) -> None:
    asked = request(operation=operation, driver="x.example", pool="node-a/x.example")
    assert policy.says(asked, f"the driver {DRIVER} may not change a ResourceSlice of driver x.example")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_other_vendors_are_not_hurt(policy: Policy, operation: str) -> None:
    """Their drivers may use kubelet credentials, and a starting kubelet deletes the slices of all drivers."""
    asked = request(KUBELET, operation, driver="x.example", pool="any-pool")
    assert policy.denial(asked) is None
    assert policy.denial(request("system:serviceaccount:x:other", operation, node="node-b")) is None


def test_what_an_attack_left_on_the_own_node_may_be_deleted(policy: Policy) -> None:
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


ELSEWHERE = "system:serviceaccount:elsewhere:dra-driver-node"


@pytest.fixture(scope="module")
def gpu_nodes() -> Policy:
    manifest, _binding = yaml.safe_load_all((chart.ROOT / "deploy/base/gpu-nodes.yaml").read_text())
    return Policy(manifest)


def change(
    operation: str = "CREATE",
    *,
    user: str = ELSEWHERE,
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
@pytest.mark.parametrize("user", [ELSEWHERE, KUBELET])
def test_the_own_gpu_node_is_allowed(gpu_nodes: Policy, user: str, operation: str) -> None:
    asked = change(operation, user=user, ownerReferences=[{"kind": "Node", "name": "node-a"}])
    assert gpu_nodes.matches(asked)
    assert gpu_nodes.denial(asked) is None


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("user", [ELSEWHERE, KUBELET])
def test_the_gpu_node_of_another_node_is_denied(gpu_nodes: Policy, user: str, operation: str) -> None:
    asked = change(operation, user=user, name="node-b")
    assert gpu_nodes.says(asked, "the driver on node node-a may not change the GpuNode node-b")


@pytest.mark.parametrize("bound_to", [None, ""])
@pytest.mark.parametrize("name", ["node-a", ""])
def test_a_gpu_node_is_denied_to_a_token_of_no_node(gpu_nodes: Policy, bound_to: str | None, name: str) -> None:
    """A token made by hand, or a legacy one in a Secret. An empty name equals an unknown node."""
    assert "not bound to a node" in str(gpu_nodes.denial(change(bound_to=bound_to, name=name)))


def test_a_gpu_node_is_owned_by_its_node_alone(gpu_nodes: Policy) -> None:
    for owner in ({"kind": "Node", "name": "node-b"}, {"kind": "Pod", "name": "node-a"}):
        asked = change(ownerReferences=[owner])
        assert gpu_nodes.says(asked, "the GpuNode of node node-a may be owned by the Node of this name alone")


@pytest.mark.parametrize("user", ["kubernetes-admin", "system:serviceaccount:dra-driver:dra-driver-controller"])
def test_other_users_of_gpu_nodes_are_not_restricted(gpu_nodes: Policy, user: str) -> None:
    assert not gpu_nodes.matches(change("DELETE", user=user, name="node-b"))


def test_gpu_nodes_and_their_status_are_covered() -> None:
    manifest, binding = yaml.safe_load_all((chart.ROOT / "deploy/base/gpu-nodes.yaml").read_text())
    (rule,) = manifest["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["gpunodes", "gpunodes/status"]
    assert manifest["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["validationActions"] == ["Deny"]


CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}


def toleration(**values: Any) -> dict[str, Any]:
    objects = chart.objects({"podToleration": {"enabled": True, **values}})
    (found,) = [item for item in objects if item["kind"] == "MutatingAdmissionPolicy"]
    return found


def gets_it(spec: dict[str, Any], **values: Any) -> bool:
    request = {"object": value_of({"spec": spec})}
    conditions = toleration(**values)["spec"]["matchConditions"]
    return all(Expression(item["expression"], ["object"]).evaluate(request) for item in conditions)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (CLAIMS, True),
        ({}, False),
        ({"resourceClaims": []}, False),
        ({**CLAIMS, "tolerations": []}, True),
        ({**CLAIMS, "tolerations": [{"operator": "Exists"}]}, False),
        ({**CLAIMS, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, False),
        ({**CLAIMS, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "x"}]}, True),
        ({**CLAIMS, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]}, True),
        ({**CLAIMS, "tolerations": [{"key": "other", "operator": "Exists"}]}, True),
    ],
)
def test_pods_with_claims_get_the_toleration_once(spec: dict[str, Any], expected: bool) -> None:
    assert gets_it(spec) is expected


def test_the_key_and_the_selectors_of_the_toleration_are_values() -> None:
    found = toleration(key="example.com/gpus", podSelector={"matchLabels": {"a": "b"}})["spec"]
    assert 'key: "example.com/gpus"' in found["mutations"][0]["jsonPatch"]["expression"]
    assert found["matchConstraints"]["objectSelector"] == {"matchLabels": {"a": "b"}}
    assert "namespaceSelector" not in found["matchConstraints"]
    assert found["failurePolicy"] == "Ignore", "no pod is refused because of it"
    assert not gets_it(
        {**CLAIMS, "tolerations": [{"key": "example.com/gpus", "operator": "Exists"}]}, key="example.com/gpus"
    )


def one_share_each(**shared: Any) -> list[dict[str, Any]]:
    values = {"deviceClasses": {"shared": {"extendedResourceName": "example.com/share", **shared}}}
    return [item for item in chart.objects(values) if item["metadata"]["name"] == "dra-driver-one-share-each"]


@pytest.mark.parametrize(
    ("spec", "admitted"),
    [
        ({"containers": [{"name": "a"}]}, True),
        ({"containers": [{"name": "a", "resources": {"limits": {"example.com/share": "1"}}}]}, True),
        ({"containers": [{"name": "a", "resources": {"limits": {"example.com/other": "9"}}}]}, True),
        ({"containers": [{"name": "a", "resources": {"limits": {"example.com/share": "2"}}}]}, False),
        (
            {
                "containers": [{"name": "a"}],
                "initContainers": [{"name": "b", "resources": {"limits": {"example.com/share": "2"}}}],
            },
            False,
        ),
    ],
)
def test_a_container_gets_one_share(spec: dict[str, Any], admitted: bool) -> None:
    policy, _ = one_share_each()
    (rule,) = policy["spec"]["validations"]
    assert Expression(rule["expression"], ["object"]).evaluate({"object": value_of({"spec": spec})}) is admitted
    assert one_share_each(oneEach=False) == []
