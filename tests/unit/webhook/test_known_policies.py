"""Attributes of policies, and when all of them are known."""

from typing import Any

import pytest

from dra_driver.config.policy import policy_problems
from dra_driver.config.webhook_files import policies_file, policies_of
from dra_driver.kubectl.lint.policy_devices import MAX_POLICIES
from dra_driver.webhook.known_policies import MAX_FORMS, known_policies

TEAM: dict[str, Any] = {"name": "team", "string": "blue"}


def test_without_any_policy_all_is_known() -> None:
    assert (known_policies({}).complete, list(known_policies({}).sources)) == (True, [])


def test_without_the_controllers_word_nothing_is_known() -> None:
    assert not known_policies(None).complete


def test_policies_in_files_may_add_more() -> None:
    assert not known_policies({}, more_in_files=True).complete


def test_policies_that_add_the_same_are_one() -> None:
    known = known_policies({"a": [TEAM], "b": [{"name": "team", "string": "red"}], "c": [{"name": "rack", "int": 3}]})
    assert known.complete
    assert known.sources[0].text.count("GpuPolicy") == 2


def test_more_forms_than_lint_takes_are_not_all_known() -> None:
    assert MAX_FORMS == MAX_POLICIES
    many = {f"p{n}": [{"name": f"a{n}", "int": n}] for n in range(MAX_FORMS + 1)}
    assert not known_policies(many).complete
    del many["p0"]
    assert known_policies(many).complete


def test_an_attribute_of_two_types_is_not_known() -> None:
    """lint knows one type of each name."""
    assert not known_policies({"a": [TEAM], "b": [{"name": "team", "int": 1}]}).complete


def test_what_lint_gets_is_a_policy_without_problems() -> None:
    policy = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "a"}}
    assert policy_problems({**policy, "spec": {"attributes": [TEAM]}}) == []


@pytest.mark.parametrize("odd", [b"", b"null", b"[]", b"\xff", b"[" * 100_000])
def test_an_odd_file_tells_nothing(odd: bytes) -> None:
    assert policies_of(odd) is None


def test_the_file_is_read_as_it_was_written() -> None:
    assert policies_of(policies_file({"a": [TEAM]})) == {"a": [TEAM]}
    assert policies_of(policies_file(None)) is None
    assert policies_of(b'{"a": 1}') == {}
