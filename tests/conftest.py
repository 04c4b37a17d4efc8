"""Settings of all tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A time limit for each example fails on a machine that does much else; pytest-timeout ends what hangs.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that a test calls in its own process set up logging, to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in handlers and not type(handler).__module__.startswith("_pytest."):
            root.removeHandler(handler)
    root.setLevel(level)
