"""Selectors and name formats, by the real server's grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import InvalidObjectError
from dra_driver.sim.apiserver.selectors import field_match, label_match, object_match
from dra_driver.sim.apiserver.validation import (
    c_identifier,
    dns_1035_label,
    dns_label,
    dns_subdomain,
    generated_name,
    label_key,
    label_value,
    path_segment,
)

LABELS = {"metadata": {"labels": {"app": "x", "tier": "web", "n": "5"}}}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True),
        ("app=x", True),
        ("app==x,tier!=db", True),
        ("app!=x", False),
        ("missing!=x", True),
        ("app in (x, y)", True),
        ("app notin (x),tier", False),
        ("missing notin (x)", True),
        ("app,!missing", True),
        ("!app", False),
        ("n>4,n<6", True),
        ("app>4", False),
    ],
)
def test_label_selectors(selector: str, expected: bool) -> None:
    match = label_match(selector)
    assert (match is None or match(LABELS)) is expected


@pytest.mark.parametrize("selector", ["a b", "=x", "app in x", "app=x y", "-a=b", ","])
def test_invalid_selectors_are_bad_requests(selector: str) -> None:
    with pytest.raises(InvalidObjectError):
        label_match(selector)


def test_selectors_of_objects() -> None:
    assert object_match({"matchLabels": {"app": "x"}})(LABELS)
    expressions = [{"key": "app", "operator": "In", "values": ["x"]}, {"key": "zone", "operator": "DoesNotExist"}]
    assert object_match({"matchExpressions": expressions})(LABELS)
    assert not object_match({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]})(LABELS)
    assert object_match({})(LABELS)
    assert not object_match(None)(LABELS)


def test_field_selectors() -> None:
    slice_ = {"spec": {"nodeName": "n1", "allNodes": True}}
    assert field_match("spec.nodeName=n1,spec.driver!=x,spec.allNodes=true")
    for selector, expected in (("spec.nodeName=n1", True), ("spec.driver=", True), ("spec.nodeName!=n1", False)):
        match = field_match(selector)
        assert match is not None
        assert match(slice_) is expected
    with pytest.raises(InvalidObjectError, match=r"field label not supported: spec\.x"):
        field_match("spec.x=1", ["spec.nodeName"])
    with pytest.raises(InvalidObjectError, match="can't understand"):
        field_match("spec.nodeName")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (dns_label, "gpu-0", ["GPU", "-a", "a-", "a.b", "", "a" * 64, "a\n"]),
        (dns_1035_label, "web", ["0web", "Web"]),
        (dns_subdomain, "gpu.example.com", ["a..b", ".a", "A", "", "a" * 254]),
        (label_key, "example.com/Name_1", ["", "/a", "a/b/c", "-a", "A.com/" + "b" * 64]),
        (label_value, "", ["-", "a b", "a" * 64]),
        (c_identifier, "driverVersion", ["1a", "a-b", "", "a" * 33]),
        (path_segment, "system:node", ["a/b", "..", "50%"]),
    ],
)
def test_name_formats(check: object, good: str, bad: list[str]) -> None:
    assert callable(check)
    assert check(good) == []
    assert [name for name in bad if not check(name)] == []


@given(st.from_regex(r"[a-z]([-a-z0-9]*[a-z0-9])?-?", fullmatch=True))
def test_generated_names_are_names(base: str) -> None:
    assert dns_label(generated_name(base)) == []
