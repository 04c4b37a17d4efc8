"""Reasons and fields of errors."""

import pytest

from dra_driver.core.errors import DetachedError, UnknownDeviceError
from tests.harness.raising import fails


def test_reason_defaults_to_the_name_of_the_class() -> None:
    assert UnknownDeviceError("no such device", device="gpu-9").reason == "UnknownDevice"
    assert DetachedError("driver upgrade").fields == {"because": "driver upgrade"}


@pytest.mark.parametrize("expected", [{"reason": "Other"}, {"device": "gpu-8"}, {"pool": "p"}])
def test_fails_refuses_another_reason_or_field(expected: dict[str, str]) -> None:
    with pytest.raises(AssertionError), fails(UnknownDeviceError, **expected):
        raise UnknownDeviceError("no such device", device="gpu-9")


def test_fails_accepts_a_subset_of_the_fields() -> None:
    with fails(UnknownDeviceError, device="gpu-9"):
        raise UnknownDeviceError("no such device", device="gpu-9", pool="p")
