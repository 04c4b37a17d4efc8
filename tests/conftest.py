"""Settings of all tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.fakes import inotify as inotify_limit

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


@pytest.fixture
def inotify() -> None:
    """For tests that see changes by inotify; without it the driver compares folders at each look."""
    if inotify_limit.instances_are_used_up():
        pytest.skip("this user's inotify instances are used up (fs.inotify.max_user_instances)")
