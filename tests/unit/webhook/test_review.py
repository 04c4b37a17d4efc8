"""One review in, one answer out."""

import json
from typing import Any

import pytest

from dra_driver.kubectl.lint import ManifestSource, known_from_catalog, lint
from dra_driver.webhook.frames import ReviewOutcome
from dra_driver.webhook.known_policies import known_policies
from dra_driver.webhook.review import answer, judge
from tests.unit.webhook.reviews import HOPPER, NO_MATCH, UNKNOWN, claim, device_class, request, review

NONE = known_policies({})
TEAM = known_policies({"teams": [{"name": "team", "string": "blue"}]})
SELECTOR = "spec.devices.requests[0].exactly.selectors[0].cel.expression"


def asked(body: bytes) -> tuple[ReviewOutcome, dict[str, Any]]:
    outcome, said = answer(body, known_from_catalog(), NONE)
    document = json.loads(said)
    assert document["kind"] == "AdmissionReview"
    assert document["response"]["uid"] == "a-uid"
    return outcome, document["response"]


def message(written: Any, operation: str = "CREATE", old: Any = None, policies: Any = NONE) -> str:
    return judge(request(written, operation, old), known_from_catalog(), policies).message


def test_a_good_claim_passes_in_silence() -> None:
    assert asked(review(claim())) == (ReviewOutcome.ALLOWED, {"uid": "a-uid", "allowed": True})


def test_a_wrong_claim_is_refused_with_the_sentence_of_lint() -> None:
    outcome, response = asked(review(claim(UNKNOWN)))
    finding = lint([ManifestSource(name="x", text=json.dumps(claim(UNKNOWN)))], known_from_catalog()).findings[0]
    assert (outcome, response["allowed"]) == (ReviewOutcome.REFUSED, False)
    assert response["status"]["code"] == 422
    assert response["status"]["message"] == f"{SELECTOR}: {finding.message}; {finding.hint} (DRA016)"


def test_a_warning_passes_and_is_told() -> None:
    outcome, response = asked(review(claim(NO_MATCH)))
    assert (outcome, response["allowed"]) == (ReviewOutcome.WARNED, True)
    assert "no device of the catalog matches" in response["warnings"][0]


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
def test_each_version_of_the_api_is_read(version: str) -> None:
    assert "no device of gpu.nvidia.com has attribute 'team'" in message(claim(UNKNOWN, version))


def test_an_attribute_of_a_policy_is_known() -> None:
    assert message(claim(UNKNOWN), policies=TEAM) == ""


def test_a_template_a_class_and_a_policy_are_checked() -> None:
    template = {**claim(), "kind": "ResourceClaimTemplate", "spec": {"spec": claim(UNKNOWN)["spec"]}}
    assert message(template).startswith("spec.spec.devices.requests[0]")
    assert message(device_class(UNKNOWN)).startswith("spec.selectors[0].cel.expression: no device of")
    policy = {
        "apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {"priority": "high"},
    }  # fmt: skip
    assert message(policy).startswith("spec.priority: ")
    assert message(policy).endswith("(DRA060)")


def test_an_old_wrong_object_keeps_its_labels_writable() -> None:
    wrong = device_class(UNKNOWN)
    assert message({**wrong, "metadata": {"name": "x", "labels": {"a": "b"}}}, "UPDATE", wrong) == ""
    assert message(wrong, "UPDATE", device_class(HOPPER)) != ""


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT", "", None, 7])
def test_nothing_is_said_of_other_operations(operation: Any) -> None:
    assert message(claim(UNKNOWN), operation) == ""


@pytest.mark.parametrize("odd", [None, [], {}, {"kind": "Pod", "apiVersion": "v1"}, {"kind": 1, "apiVersion": 2}])
def test_nothing_is_said_of_other_objects(odd: Any) -> None:
    assert message(odd) == ""


def test_odd_specs_are_no_defect() -> None:
    specs: list[Any] = [None, [], "x", 7, {"devices": 7}, {"devices": {"requests": {"a": 1}}}]
    for odd in (*specs, {"devices": {"requests": [7]}}):
        assert isinstance(message({**claim(), "spec": odd}), str)
    assert message({**claim(), "metadata": None}) == ""


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"apiVersion": "admission.k8s.io/v1"}']
)
def test_what_is_no_review_is_malformed(body: bytes) -> None:
    assert answer(body, known_from_catalog(), NONE)[0] is ReviewOutcome.MALFORMED


def test_a_uid_is_repeated_only_if_it_may_be_one() -> None:
    document = json.loads(review(claim()))
    for uid in ("", "x" * 129, 7, None):
        document["request"]["uid"] = uid
        assert answer(json.dumps(document).encode(), known_from_catalog(), NONE)[0] is ReviewOutcome.MALFORMED


@pytest.mark.parametrize("odd", ["\U0001f600", "\x7f", "\x80", "\x85", "\x9f", "\ufeff", "\uffff", "\x00", "\u2028"])
def test_no_character_hides_an_object_from_the_check(odd: str) -> None:
    """JSON has characters that YAML, which lint reads, forbids."""
    assert "has attribute 'team'" in message(claim(f'{UNKNOWN} && "{odd}" == ""'))
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", odd: 1}
    assert "DRA035" in message(claim(config=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]))


def test_status_and_managed_fields_are_not_read() -> None:
    large = {**claim(), "status": {"x": ["y"] * 500_000}, "metadata": {"name": "a", "managedFields": [{}] * 500_000}}
    assert message(large) == ""
