"""The driver's limits are the API server's."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.kube.published import limits
from dra_driver.sim.apiserver.rules.slices import device_problems

NAMES = st.text(max_size=70) | st.from_regex(r"([a-z.-]{1,70}/)?[A-Za-z0-9_-]{1,34}", fullmatch=True)


@given(NAMES)
@example("//")
@example("a.example/b/c")
def test_attribute_names_are_judged_as_the_api_server_does(name: str) -> None:
    """A name that only the driver accepts would make the slice invalid.

    The driver refuses a name with two slashes, which the API server accepts through a gap in its validation.
    """
    device = {"name": "gpu-0", "attributes": {name: {"int": 1}}}
    accepted = device_problems(device, None, "d", per_device=False) == []
    assert limits.is_attribute_name(name) == (accepted and name.count("/") < 2)


@given(NAMES, st.text(max_size=70) | st.from_regex(r"[A-Za-z0-9_.-]{0,66}", fullmatch=True))
def test_taints_are_judged_as_the_api_server_does(key: str, value: str) -> None:
    device = {"name": "gpu-0", "taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}
    assert limits.is_taint(key, value) == (device_problems(device, None, "d", per_device=False) == [])


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("é" * 32, True),
        ("é" * 33, False),
        ("\ud800", False),
        (2**63 - 1, True),
        (2**63, False),
        (True, True),
        (1.5, False),
    ],
)
def test_values_are_text_of_64_bytes_numbers_of_64_bits_or_booleans(value: object, fits: bool) -> None:
    assert limits.is_attribute_value(value) == fits
