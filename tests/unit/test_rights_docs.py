"""docs/rights.md: which part of the API server refused a request, and its reason."""

from pathlib import Path

import pytest

from tests.fakes.scripts import script

docs = script("rights_docs")

SCRIPT = Path(__file__).parents[2] / "scripts" / "rights_docs.py"

POLICY = (
    "resourceslices.resource.k8s.io \"x\" is forbidden: ValidatingAdmissionPolicy 'own' with binding 'own' denied "
    "request: the driver on node node-a may not write the pool node-b/x; check the ClusterRole of this service account"
)
RBAC = 'secrets "x" is forbidden: User "system:serviceaccount:a:b" cannot get resource "secrets" in API group ""'
NODE = 'resourceslices.resource.k8s.io "x" is forbidden: can only create ResourceSlice with the same NodeName'


@pytest.mark.parametrize(
    ("said", "by", "short"),
    [
        (POLICY, "admission policy", "the driver on node node-a may not write the pool node-b/x"),
        (RBAC, "RBAC", 'cannot get resource "secrets" in API group ""'),
        (NODE, "NodeRestriction", "can only create ResourceSlice with the same NodeName"),
    ],
)
def test_a_refusal_is_its_reason_and_its_origin(said: str, by: str, short: str) -> None:
    assert (docs.by(said), docs.short(said)) == (by, short)


def test_a_long_answer_is_cut_between_words() -> None:
    text = docs.short("is forbidden: " + "word " * 100)
    assert text.endswith("word …")
    assert len(text) <= docs.MAX_SAID + 2


def test_parts_that_are_off_have_a_section_of_their_own() -> None:
    row = {"verb": "list", "resource": "pods", "where": "all namespaces", "requests": 3}
    figures = {"version": "v1.36.2", "values": {}, "used": {}, "refused": {}}
    optional = {**figures, "values": {"drainer.enabled": True}, "used": {"drainer": [row]}}
    refused = {"refused": {"a drainer's token": [{"what": "a secret", "said": RBAC}]}}
    readers = {**figures, "used": {"person": [row]}}
    page = docs.page({**figures, "readers": readers, "optional": {**optional, **refused}})
    assert "`drainer.enabled=true`" in page
    assert page.index("### The drainer") < page.index("| list | pods |") < page.index("## Parts that only read")
    assert page.index("### The person") < page.index("## What was refused")
    assert "### To a drainer's token: 1" in page
    assert "Parts that are off" not in docs.page(figures)
