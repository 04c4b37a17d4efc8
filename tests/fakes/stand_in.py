"""Passes a fake where the driver names a class that has only one implementation of its own."""

from typing import Any


def stand_in(fake: object) -> Any:
    """The fake, for a parameter whose type is the real class; the fake has the part of it that is called."""
    return fake
