"""What tests tell the type checker: a fake stands in for a class of the driver, and a value is there."""

from typing import Any, TypeVar

T = TypeVar("T")


def stand_in(fake: object) -> Any:
    """The fake, for a parameter whose type is the real class; the fake has the part of it that is called."""
    return fake


def present(value: T | None) -> T:
    assert value is not None
    return value
