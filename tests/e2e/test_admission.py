"""A real API server validates opaque parameters, GpuPolicies and pods with claims as lint and the nodes do.

Needs no node and no GPU, only an administrator; the toleration of pods needs Kubernetes 1.36. Every request is a dry
run."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dra_driver.config.policy import policy_of, policy_problems
from dra_driver.core.errors import InvalidObjectError, KubernetesApiError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.contract.config import samples
from tests.contract.deploy import opaque_manifests as opaque
from tests.e2e import forms
from tests.e2e.cluster import ROOT, crd_served, wait
from tests.fakes import chart

SUFFIX = os.urandom(3).hex()
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
ACTIVE_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def guarded(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    text = (ROOT / "deploy" / "base" / "parameters-policy.yaml").read_text()
    policy, binding = yaml.safe_load_all(text)
    name = f"{policy['metadata']['name']}-{SUFFIX}"
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = name
    rest.create(POLICIES, policy)
    try:
        rest.create(BINDINGS, binding)
        _wait_until_active(rest, name)
        yield rest
    finally:
        for path in (f"{BINDINGS}/{name}", f"{POLICIES}/{name}"):
            rest.delete(path)


def create(rest: RestClient, manifest: dict[str, Any]) -> str | None:
    """What the API server says against it; None if it would accept it."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    plural = opaque.PLURALS.get(kind)
    path = f"/apis/{version}/namespaces/default/{plural}" if plural else f"/apis/{version}/deviceclasses"
    return _answer(lambda: rest.create(path, manifest, dry_run=True))


def _answer(request: Any) -> str | None:
    try:
        request()
    except KubernetesApiError as error:
        return str(error)
    return None


def _wait_until_active(rest: RestClient, name: str) -> None:
    wrong = next(item for item in opaque.manifests() if opaque.lints(item) and item["apiVersion"].endswith("/v1"))
    wait(lambda: None if name in (create(rest, wrong) or "") else "the policy is not active", ACTIVE_WITHIN_S)


def test_a_hundred_manifests_get_the_answers_of_lint(guarded: RestClient) -> None:
    refused = 0
    for manifest in opaque.manifests():
        said = create(guarded, manifest)
        if said is not None and "no matches for kind" in said:
            continue  # this API server does not serve the beta version
        assert (said is None) == (not opaque.lints(manifest)), (manifest, said)
        sentence = opaque.node_says(manifest)
        if said is not None and sentence is not None:
            refused += 1
            _same_sentence(said, sentence)
    assert refused > opaque.COUNT // 5


def _same_sentence(said: str, expected: str) -> None:
    """Maps have no order in the API server, and the client cuts long messages."""
    sentence = said.partition("denied request: ")[2]
    assert sentence.partition(": ")[0] == expected.partition(": ")[0]
    if not sentence.endswith("…") and " more" not in expected:
        assert set(_problems(sentence)) == set(_problems(expected))


def _problems(sentence: str) -> list[str]:
    below = sentence.partition(": ")[2]
    return below.removeprefix("GpuConfig: ").removeprefix("MigDeviceConfig: ").split("; ")


def test_the_policy_has_no_type_problems(guarded: RestClient) -> None:
    """The API server checks expressions against the schema of each kind, and reports what it finds in the status."""
    policy = next(item for item in guarded.get(POLICIES)["items"] if SUFFIX in item["metadata"]["name"])
    checking = policy.get("status", {}).get("typeChecking", {})
    assert not checking.get("expressionWarnings"), checking


def test_a_wrong_class_keeps_its_labels_writable(guarded: RestClient) -> None:
    classes, name = "/apis/resource.k8s.io/v1/deviceclasses", f"e2e-opaque-{SUFFIX}"
    wrong = {"opaque": {"driver": "other.example", "parameters": {"any": "thing"}}}
    header = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    made = guarded.create(classes, {**header, "spec": {"config": [wrong]}})
    try:
        made["metadata"]["labels"] = {"team": "blue"}
        made = guarded.update(f"{classes}/{name}", made)
        made["spec"]["config"][0]["opaque"]["driver"] = opaque.DRIVER
        assert "apiVersion: expected" in (_answer(lambda: guarded.update(f"{classes}/{name}", made)) or "")
    finally:
        guarded.delete(f"{classes}/{name}")


COLLECTIONS = {
    "MutatingAdmissionPolicy": f"{ADMISSION}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{ADMISSION}/mutatingadmissionpolicybindings",
}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def tolerating(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    values = {"podToleration": {"enabled": True, "podSelector": {"matchLabels": {"e2e": SUFFIX}}}}
    made = []
    for item in chart.objects(values):
        if item["kind"] in COLLECTIONS:
            item["metadata"]["name"] += f"-{SUFFIX}"
            if "policyName" in item["spec"]:
                item["spec"]["policyName"] += f"-{SUFFIX}"
            made.append(item)
    try:
        for item in made:
            try:
                rest.create(COLLECTIONS[item["kind"]], item)
            except NotFoundError:
                pytest.skip("the API server has no MutatingAdmissionPolicy of version v1")
        wait(lambda: None if added(rest) else "the policy is not active", ACTIVE_WITHIN_S)
        yield rest
    finally:
        for item in reversed(made):
            try:
                rest.delete(f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}")
            except KubernetesApiError:
                continue


def added(rest: RestClient, **spec: Any) -> list[dict[str, Any]]:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"e2e-{SUFFIX}", "labels": {"e2e": SUFFIX}},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}],
            **spec,
        },
    }
    found = rest.create(PODS, body, dry_run=True)["spec"].get("tolerations", [])
    return [item for item in found if item.get("key") == "nvidia.com/gpu"]


def test_a_pod_with_a_claim_gets_the_toleration(tolerating: RestClient) -> None:
    assert added(tolerating) == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_a_pod_without_a_claim_does_not(tolerating: RestClient) -> None:
    assert added(tolerating, resourceClaims=[]) == []


def test_own_tolerations_stay(tolerating: RestClient) -> None:
    own = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
    assert added(tolerating, tolerations=[own])[0] == own
    assert len(added(tolerating, tolerations=[own])) == 2
    assert added(tolerating, tolerations=[{"operator": "Exists"}]) == []


ROUNDS = 300


@pytest.fixture(scope="module")
def policies(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    with crd_served(rest, "gpupolicies"):
        yield rest


def refusal(policies: RestClient, policy: Any) -> str | None:
    try:
        policies.create(paths.gpu_policies(), policy, dry_run=True)
    except InvalidObjectError as error:
        return str(error)
    return None


def test_the_api_server_refuses_what_nodes_refuse_and_nothing_else(policies: RestClient) -> None:
    refused = 0
    for seed in range(ROUNDS):
        policy = samples.broken("GpuPolicy", seed)
        if not isinstance(policy.get("spec"), dict):
            continue
        # Metadata and status are the API server's own business.
        policy = {**forms.policy("e2e-sample"), "spec": policy["spec"]}
        problems = policy_problems(policy)
        if any(problem.text == "unknown field" for problem in problems):
            continue  # dropped, or refused, as the client asks for
        said = refusal(policies, policy)
        assert bool(problems) == (said is not None), (policy, [str(problem) for problem in problems], said)
        refused += bool(problems)
    assert refused > ROUNDS // 5


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "policies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_accepted(policies: RestClient, path: Any) -> None:
    assert refusal(policies, yaml.safe_load(path.read_text())) is None


SAME_XID = "an XID of ignore.xids is in taint.xids or evict.xids, too"
SAME_CAUSE = "a cause of ignore.causes is in evict.causes, too"
HEALTH: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"taint": {"xids": [31]}, "ignore": {"xids": [63]}, "evict": {"xids": [79], "causes": ["lost"]}}, ""),
    ({"taint": {"xids": [79]}, "evict": {"xids": [79]}}, ""),
    ({"ignore": {"causes": ["xid"]}, "evict": {"xids": [79]}}, ""),
    ({"ignore": {"causes": ["unmonitored"]}, "calmSeconds": 0, "evictionGraceSeconds": 3600}, ""),
    ({"ignore": {"xids": [79]}, "taint": {"xids": [79]}}, SAME_XID),
    ({"ignore": {"xids": [1, 79]}, "evict": {"xids": [79, 2]}}, SAME_XID),
    ({"ignore": {"causes": ["lost"]}, "evict": {"causes": ["ecc", "lost"]}}, SAME_CAUSE),
    ({"evict": {"causes": ["unmonitored"]}}, "Unsupported value"),
    ({"ignore": {"causes": ["heat"]}}, "Unsupported value"),
    ({"taint": {"xids": [0]}}, "greater than or equal to 1"),
    ({"evict": {"xids": [65536]}}, "less than or equal to 65535"),
    ({"ignore": {"xids": list(range(1, 66))}}, "at most 64"),
    ({"taint": {"xids": ["79"]}}, "must be of type integer"),
    ({"calmSeconds": 86401}, "less than or equal to 86400"),
    ({"evictionGraceSeconds": -1}, "greater than or equal to 0"),
]


USAGE: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"overGrant": {}}, ""),
    ({"overGrant": {"action": "Evict", "graceSeconds": 10, "overheadPerProcess": "512Mi"}}, ""),
    ({"overGrant": {"graceSeconds": 86400, "overheadPerProcess": 0}, "idle": {"afterMinutes": 1}}, ""),
    ({"overGrant": {"overheadPerProcess": "1Ei"}, "idle": {"afterMinutes": 10080, "action": "Reclaim"}}, ""),
    ({"overGrant": {"overheadPerProcess": 268435456}}, ""),
    ({"overGrant": {"action": "Kill"}}, "Unsupported value"),
    ({"overGrant": {"action": "Reclaim"}}, "Unsupported value"),
    ({"overGrant": {"action": "evict"}}, "Unsupported value"),
    ({"overGrant": {"graceSeconds": 9}}, "greater than or equal to 10"),
    ({"overGrant": {"graceSeconds": 86401}}, "less than or equal to 86400"),
    ({"overGrant": {"graceSeconds": "60"}}, "must be of type integer"),
    ({"overGrant": {"overheadPerProcess": -1}}, "expected at least 0, and at most 1Ei"),
    ({"overGrant": {"overheadPerProcess": "2Ei"}}, "expected at least 0, and at most 1Ei"),
    ({"overGrant": {"overheadPerProcess": "much"}}, "should match"),
    ({"overGrant": ["Evict"]}, "must be of type object"),
    ({"idle": {}}, "afterMinutes: Required value"),
    ({"idle": {"action": "Reclaim"}}, "afterMinutes: Required value"),
    ({"idle": {"afterMinutes": 0}}, "greater than or equal to 1"),
    ({"idle": {"afterMinutes": 10081}}, "less than or equal to 10080"),
    ({"idle": {"afterMinutes": 1.5}}, "must be of type integer"),
    ({"idle": {"afterMinutes": 30, "action": "Evict"}}, "Unsupported value"),
]


RULES = [("health", *case) for case in HEALTH] + [("usage", *case) for case in USAGE]


@pytest.mark.parametrize(
    ("field", "rules", "expected"), RULES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_rules_that_cannot_be_followed_are_refused(
    policies: RestClient, field: str, rules: dict[str, Any], expected: str
) -> None:
    """As nodes refuse them; ``expected`` is part of what the API server says, empty where it accepts them."""
    policy = forms.policy(f"e2e-{field}", **{field: rules})
    said = refusal(policies, policy) or ""
    assert expected in said
    assert bool(said) == bool(expected) == bool(policy_problems(policy))


@pytest.mark.parametrize("usage", [usage for usage, expected in USAGE if not expected], ids=str)
def test_usage_rules_mean_the_same_with_and_without_the_api_servers_defaults(
    policies: RestClient, usage: dict[str, Any]
) -> None:
    policy = forms.policy("e2e-usage", usage=usage)
    stored = policies.create(paths.gpu_policies(), policy, dry_run=True)
    assert policy_of(stored).usage == policy_of(policy).usage
