"""What an expression looks at in a device, as far as its text tells."""

import pytest

from dra_driver.cel.attribute_refs import Reads, reads
from dra_driver.errors import CelSyntaxError


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "x"', Reads()),
        ("device.allowMultipleAllocations", Reads()),
        ('device.attributes["d"].type == "gpu"', Reads(attributes={("d", "type")})),
        ('device.attributes["d"]["type"] == "gpu"', Reads(attributes={("d", "type")})),
        ('has(device.attributes["d"].uuid)', Reads(attributes={("d", "uuid")})),
        ('device.attributes[?"d"].?uuid.hasValue()', Reads(attributes={("d", "uuid")})),
        ('device.attributes.d.x > device.attributes["d"].y', Reads(attributes={("d", "x"), ("d", "y")})),
        ('device.capacity["d"].memory.isGreaterThan(quantity("1"))', Reads(capacity={("d", "memory")})),
    ],
)
def test_names_are_told(expression: str, expected: Reads) -> None:
    """Devices that are equal in these names are equal to the expression."""
    assert reads(expression) == expected


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
    assert reads(expression).everything


def test_no_expression_no_answer() -> None:
    """What does not parse reads nothing that anybody could know."""
    with pytest.raises(CelSyntaxError):
        reads("device.(")
