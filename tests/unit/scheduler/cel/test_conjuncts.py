"""Splitting selectors into conjuncts, and the attributes and capacities that an expression reads."""

import sys

import pytest

from dra_driver.core.errors import CelSyntaxError
from dra_driver.scheduler.cel.conjuncts import AttributeRefs, find_attribute_refs, split_conjuncts


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a", ["a"]),
        ("a && b.c == 1", ["a", "b.c == 1"]),
        ("(a && (b && c)) && d", ["a", "b", "c", "d"]),
        ("a && b || c", ["a && b || c"]),
        ("a && (b || c)", ["a", "b || c"]),
        ("a && b ? c : d", ["a && b ? c : d"]),
        ("f(a && b) && x['&&'] == \"(\"", ["f(a && b)", "x['&&'] == \"(\""]),
        ("(a) == (b && c)", ["(a) == (b && c)"]),
        ("!(a && b)", ["!(a && b)"]),
        ("a // && b\n && c", ["a", "c"]),
    ],
)
def test_only_top_level_conjunctions_are_split(expression: str, parts: list[str]) -> None:
    assert list(split_conjuncts(expression)) == parts


def test_deep_parentheses_give_one_conjunct_or_a_syntax_error() -> None:
    assert len(split_conjuncts("(" * 200 + "a && b" + ")" * 200)) == 1
    with pytest.raises(CelSyntaxError):
        split_conjuncts("(" * 5000 + "a" + ")" * 5000)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "x"', AttributeRefs()),
        ("device.allowMultipleAllocations", AttributeRefs()),
        ('device.attributes["d"].type == "gpu"', AttributeRefs(attributes={("d", "type")})),
        ('device.attributes["d"]["type"] == "gpu"', AttributeRefs(attributes={("d", "type")})),
        ('has(device.attributes["d"].uuid)', AttributeRefs(attributes={("d", "uuid")})),
        ('device.attributes[?"d"].?uuid.hasValue()', AttributeRefs(attributes={("d", "uuid")})),
        ('device.attributes.d.x > device.attributes["d"].y', AttributeRefs(attributes={("d", "x"), ("d", "y")})),
        ('device.capacity["d"].memory.isGreaterThan(quantity("1"))', AttributeRefs(capacity={("d", "memory")})),
    ],
)
def test_constant_names_are_found(expression: str, expected: AttributeRefs) -> None:
    """The names are complete: devices with equal values of these names have the same result."""
    assert find_attribute_refs(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        '"d" in device.attributes',
        "has(device.attributes.d)",
        'device.attributes["d"].exists(name, name == "x")',
        'cel.bind(a, device.attributes["d"], a.x == 1)',
        'device.attributes["d"]["a" + "b"] == 1',
        "device.attributes[device.driver].x == 1",
        "[device].size() == 1",
    ],
)
def test_other_uses_of_the_device_count_as_everything(expression: str) -> None:
    """Missing a name would reuse a result for a device with another value."""
    assert find_attribute_refs(expression).everything


def test_an_expression_that_is_nested_too_deeply_is_a_syntax_error() -> None:
    """Of 249 levels, which cel-go takes, where the caller has used up much of Python's stack."""

    def split_below(frames: int) -> tuple[str, ...]:
        return split_below(frames - 1) if frames else split_conjuncts("(" * 249 + "a" + ")" * 249)

    with pytest.raises(CelSyntaxError, match="nested too deeply"):
        split_below(sys.getrecursionlimit() - 300)


def test_messages_may_be_as_deep_as_parentheses() -> None:
    assert len(split_conjuncts("foo{a:" * 249 + "1" + "}" * 249)) == 1
