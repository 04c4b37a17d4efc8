"""What an expression looks at in a device, as far as its text tells."""

import pytest

from dra_driver.cel.attribute_refs import AttributeRefs, find_attribute_refs
from dra_driver.errors import CelSyntaxError


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
def test_names_are_told(expression: str, expected: AttributeRefs) -> None:
    """Devices that are equal in these names are equal to the expression."""
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
def test_what_is_not_plain_counts_as_everything(expression: str) -> None:
    """A wrong guess would make the scheduler's double answer for the wrong device."""
    assert find_attribute_refs(expression).everything


def test_no_expression_no_answer() -> None:
    """What does not parse reads nothing that anybody could know."""
    with pytest.raises(CelSyntaxError):
        find_attribute_refs("device.(")
