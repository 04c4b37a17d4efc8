"""The admission policy for opaque parameters, evaluated without a cluster, answers as lint and the node do."""

from typing import Any

import pytest

from tests.contract.config import samples
from tests.contract.deploy import opaque_manifests as opaque
from tests.fakes import chart
from tests.fakes.admission import Policy
from tests.fakes.scripts import script

admission = script("parameters_policy")
PLACE = "spec.devices.config[0].opaque.parameters: "


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return chart.found(chart.objects(), "ValidatingAdmissionPolicy", "dra-driver-parameters")


@pytest.fixture(scope="module")
def policy(manifest: dict[str, Any]) -> Policy:
    return Policy(manifest)


def request(written: dict[str, Any], operation: str = "CREATE", old: dict[str, Any] | None = None) -> dict[str, Any]:
    resource = {"resource": opaque.PLURALS.get(written["kind"], "deviceclasses")}
    return {"operation": operation, "resource": resource, "object": written, "oldObject": old}


def claim(*parameters: Any) -> dict[str, Any]:
    configs = [{"opaque": {"driver": opaque.DRIVER, "parameters": each}} for each in parameters]
    return {"kind": "ResourceClaim", "spec": {"devices": {"config": configs}}}


def test_a_hundred_manifests_get_the_answer_of_lint_and_the_sentence_of_the_node(policy: Policy) -> None:
    refused = 0
    for written in opaque.manifests():
        denial, said = policy.denial(request(written)), opaque.node_says(written)
        assert (denial is None) == (not opaque.lints(written)), written
        assert _unordered(denial) == _unordered(said), written
        refused += denial is not None
    assert 30 <= refused <= 70
    assert policy.most_cost < 100_000  # a tenth of the API server's limit


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_verdicts_equal_those_of_the_node_on_odd_parameters(policy: Policy, kind: str) -> None:
    for seed in range(100, 140):
        written = claim(samples.broken(kind, seed))
        assert (policy.denial(request(written)) is None) == (opaque.node_says(written) is None), written


def test_characters_that_a_terminal_obeys_are_not_repeated(policy: Policy) -> None:
    """Who may create claims must not write to the terminal of who reads the events."""
    said = policy.denial(request(claim({"apiVersion": "\x1b[2J", "kind": "GpuConfig"})))
    assert said is not None
    assert said.startswith(PLACE + "wrong, in a text")
    assert said.isprintable()


def test_many_problems_are_counted(policy: Policy) -> None:
    written = claim({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"} | {f"x{n}": 1 for n in range(9)})
    said = policy.denial(request(written))
    assert said is not None
    assert said.count("unknown field") == 5
    assert said.endswith("; and 4 more")


def test_the_full_number_of_entries_of_the_largest_size_is_within_the_cost(manifest: dict[str, Any]) -> None:
    """Beyond its limit the policy would fail, and a policy that ignores its failures would accept everything."""
    policy = Policy(manifest)
    large = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"} | {f"field-{n}": [n] for n in range(600)}
    assert policy.denial(request(claim(*[large] * admission.MOST_CONFIGS))) is not None
    assert policy.most_cost < 1_000_000


def test_updates_are_looked_at_where_a_class_spec_changed(policy: Policy) -> None:
    """An old wrong object must still get new labels and lose its finalizer."""
    wrong = {"kind": "DeviceClass", "spec": {"config": claim({})["spec"]["devices"]["config"]}}
    assert policy.denial(request(wrong, "UPDATE", old={**wrong, "metadata": {"labels": {}}})) is None
    assert policy.denial(request(wrong, "UPDATE", old={"kind": "DeviceClass", "spec": {}})) is not None


def test_it_is_asked_about_new_claims_and_templates_only(manifest: dict[str, Any]) -> None:
    """Claims cannot change, and an update of one, such as its finalizer's, must never wait for a policy."""
    asked = {
        (operation, resource)
        for rule in manifest["spec"]["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    assert asked == {("CREATE", name) for name in (*opaque.PLURALS.values(), "deviceclasses")} | {
        ("UPDATE", "deviceclasses")
    }
    assert manifest["spec"]["failurePolicy"] == "Ignore"


def _unordered(said: str | None) -> Any:
    return None if said is None else sorted(said.split("; "))
