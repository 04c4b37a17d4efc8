"""A real API server validates GpuPolicy by the CustomResourceDefinition as nodes validate policy files."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dra_driver.config.policy import policy_of, policy_problems
from dra_driver.core.errors import InvalidObjectError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.contract.config import samples
from tests.e2e import forms
from tests.e2e.cluster import ROOT, crd_served

POLICIES = "/apis/gpu.dra-driver.io/v1alpha1/gpupolicies"
ROUNDS = 300


@pytest.fixture(scope="module")
def api(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    with crd_served(rest, "gpupolicies"):
        yield rest


def refusal(api: RestClient, policy: Any) -> str | None:
    try:
        api.create(POLICIES, policy, dry_run=True)
    except InvalidObjectError as error:
        return str(error)
    return None


def test_the_api_server_refuses_what_nodes_refuse_and_nothing_else(api: RestClient) -> None:
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
        said = refusal(api, policy)
        assert bool(problems) == (said is not None), (policy, [str(problem) for problem in problems], said)
        refused += bool(problems)
    assert refused > ROUNDS // 5


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "policies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_accepted(api: RestClient, path: Any) -> None:
    assert refusal(api, yaml.safe_load(path.read_text())) is None


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


@pytest.mark.parametrize(("health", "expected"), HEALTH, ids=lambda value: value if isinstance(value, str) else "")
def test_health_rules_are_refused_where_they_contradict_themselves(
    api: RestClient, health: dict[str, Any], expected: str
) -> None:
    """As nodes refuse them; ``expected`` is part of what the API server says, empty where it accepts them."""
    policy = forms.policy("e2e-health", health=health)
    said = refusal(api, policy) or ""
    assert expected in said
    assert bool(said) == bool(expected) == bool(policy_problems(policy))


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


@pytest.mark.parametrize(("usage", "expected"), USAGE, ids=lambda value: value if isinstance(value, str) else "")
def test_usage_rules_that_cannot_be_followed_are_refused(api: RestClient, usage: dict[str, Any], expected: str) -> None:
    policy = forms.policy("e2e-usage", usage=usage)
    said = refusal(api, policy) or ""
    assert expected in said
    assert bool(said) == bool(expected) == bool(policy_problems(policy))


@pytest.mark.parametrize("usage", [usage for usage, expected in USAGE if not expected], ids=str)
def test_usage_rules_mean_the_same_with_and_without_the_api_servers_defaults(
    api: RestClient, usage: dict[str, Any]
) -> None:
    policy = forms.policy("e2e-usage", usage=usage)
    stored = api.create(POLICIES, policy, dry_run=True)
    assert policy_of(stored).usage == policy_of(policy).usage
