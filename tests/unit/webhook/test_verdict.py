"""Only what is certainly wrong refuses an object."""

import pytest
from msgspec.structs import replace

from dra_driver.kubectl.lint import Finding
from dra_driver.kubectl.lint.rules import RULES
from dra_driver.webhook.verdict import BY_ATTRIBUTES, LEFT_OUT, MAX_PROBLEMS, MAX_WARNINGS, REFUSING, sentence, verdict


def finding(rule: str, severity: str | None = None, message: str = "wrong", path: str = "spec.x") -> Finding:
    level = severity or RULES[rule].severity
    return Finding(rule=rule, severity=level, message=message, file="object", path=path)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", sorted(REFUSING))
def test_an_error_of_these_rules_refuses(rule: str) -> None:
    found = verdict([finding(rule, "error")], attributes_known=True)
    assert (found.message, list(found.warnings)) == (f"spec.x: wrong ({rule})", [])


@pytest.mark.parametrize("rule", sorted(REFUSING))
def test_a_warning_of_the_same_rules_is_told(rule: str) -> None:
    found = verdict([finding(rule, "warning")], attributes_known=True)
    assert (found.message, list(found.warnings)) == ("", [f"spec.x: wrong ({rule})"])


@pytest.mark.parametrize("rule", sorted(RULES.keys() - REFUSING - LEFT_OUT))
def test_an_error_of_any_other_rule_is_a_warning(rule: str) -> None:
    """It depends on the cluster: other drivers, boards that are newer than the catalog."""
    found = verdict([finding(rule, "error")], attributes_known=True)
    assert (found.message, len(found.warnings)) == ("", 1)


@pytest.mark.parametrize("rule", sorted(LEFT_OUT))
def test_what_others_check_is_left_out(rule: str) -> None:
    assert verdict([finding(rule, "error")], attributes_known=True).message == ""
    assert verdict([finding(rule, "warning")], attributes_known=True).warnings == []


def test_remarks_are_left_out() -> None:
    assert verdict([finding("DRA042")], attributes_known=True).warnings == []


@pytest.mark.parametrize("rule", ["DRA003", "DRA004", "DRA005", "DRA010"])
def test_an_object_of_a_newer_api_is_never_refused(rule: str) -> None:
    """The API server accepted the field, so it means something that this version does not know."""
    found = verdict([finding(rule, "error"), finding("DRA032", "error")], attributes_known=True)
    assert (found.message, list(found.warnings)) == ("", ["spec.x: wrong (DRA032)"])


@pytest.mark.parametrize("rule", sorted(BY_ATTRIBUTES))
def test_attributes_that_may_exist_are_not_called_unknown(rule: str) -> None:
    found = verdict([finding(rule, "error")], attributes_known=False)
    assert (found.message, list(found.warnings)) == ("", [f"spec.x: wrong ({rule})"])
    assert verdict([finding("DRA032", "error")], attributes_known=False).message


def test_a_place_is_said_once() -> None:
    """As node and admission policy say it: the entry, then the field below it."""
    found = finding(
        "DRA035", message="sharing.strategy: expected 'MPS'", path="spec.config[0].parameters.sharing.strategy"
    )
    assert sentence(found) == "spec.config[0].parameters: sharing.strategy: expected 'MPS' (DRA035)"
    assert sentence(replace(found, path="", hint="write MPS")).endswith("; write MPS (DRA035)")


def test_messages_and_warnings_are_bounded() -> None:
    many = [finding("DRA032", message=f"problem {n} " + "x" * 590) for n in range(20)]
    said = verdict(many, attributes_known=True).message
    assert said.count("(DRA032)") == MAX_PROBLEMS
    assert said.endswith(f"; and {20 - MAX_PROBLEMS} more")
    warned = verdict([replace(each, severity="warning") for each in many], attributes_known=True).warnings
    assert (len(warned), warned[-1]) == (MAX_WARNINGS + 1, f"and {20 - MAX_WARNINGS} more")
    assert sum(map(len, warned)) < 4096
