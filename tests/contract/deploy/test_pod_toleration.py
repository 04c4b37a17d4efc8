"""The opt-in policy that gives pods with claims the toleration of GPU nodes: who gets it, evaluated without a cluster.

The mutation itself (JSONPatch, Object) does not compile in this project's engine; tests/e2e has it from a real API
server.
"""

from typing import Any

import pytest

from dra_driver.scheduler.cel import Expression, value_of
from tests.fakes import chart

CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}


def policy(**values: Any) -> dict[str, Any]:
    objects = chart.objects({"podToleration": {"enabled": True, **values}})
    (found,) = [item for item in objects if item["kind"] == "MutatingAdmissionPolicy"]
    return found


def gets_it(spec: dict[str, Any], **values: Any) -> bool:
    request = {"object": value_of({"spec": spec})}
    conditions = policy(**values)["spec"]["matchConditions"]
    return all(Expression(item["expression"], ["object"]).evaluate(request) for item in conditions)


def test_it_is_off_as_delivered() -> None:
    assert not [item for item in chart.objects() if item["kind"].startswith("Mutating")]


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
def test_pods_with_claims_get_it_once(spec: dict[str, Any], expected: bool) -> None:
    assert gets_it(spec) is expected


def test_the_key_and_the_selectors_are_values() -> None:
    found = policy(key="example.com/gpus", podSelector={"matchLabels": {"a": "b"}})["spec"]
    assert 'key: "example.com/gpus"' in found["mutations"][0]["jsonPatch"]["expression"]
    assert found["matchConstraints"]["objectSelector"] == {"matchLabels": {"a": "b"}}
    assert "namespaceSelector" not in found["matchConstraints"]
    assert not gets_it(
        {**CLAIMS, "tolerations": [{"key": "example.com/gpus", "operator": "Exists"}]}, key="example.com/gpus"
    )


def test_a_pod_is_never_refused_because_of_it() -> None:
    assert policy()["spec"]["failurePolicy"] == "Ignore"


def test_a_key_that_is_none_is_refused() -> None:
    """It ends in an expression."""
    assert "at '/podToleration/key'" in chart.refusal({"podToleration": {"key": 'x"] || true'}})
