"""When objects of the page are collected, and when not."""

import pytest

from dra_driver.kubectl.web.reading import BUILT_BEFORE_SWEEP, Heap


class Calls:
    """A collector that does nothing and notes what it was asked for."""

    def __init__(self) -> None:
        self.is_on = True
        self.said: list[str] = []

    def disable(self) -> None:
        self.is_on = False

    def enable(self) -> None:
        self.is_on = True

    def freeze(self) -> None:
        self.said.append("freeze")

    def unfreeze(self) -> None:
        self.said.append("unfreeze")

    def collect(self) -> int:
        self.said.append("collect")
        return 0


def test_nothing_is_collected_while_something_is_built_and_it_is_exempt_then() -> None:
    """Two threads may build at a time: collection is on again after both."""
    calls = Calls()
    heap = Heap(calls)
    with heap.building():
        with heap.building():
            assert not calls.is_on
        assert not calls.is_on
    assert calls.is_on
    assert calls.said == ["freeze", "freeze"]


def test_a_build_that_fails_leaves_collection_on() -> None:
    """The next request must not find it off."""
    calls = Calls()
    with pytest.raises(ZeroDivisionError), Heap(calls).building():
        raise ZeroDivisionError
    assert calls.is_on


def test_a_page_that_is_looked_at_for_hours_does_not_grow_without_end() -> None:
    """All is looked at after some builds, and the count begins anew."""
    calls = Calls()
    heap = Heap(calls)
    for _ in range(2 * BUILT_BEFORE_SWEEP):
        with heap.building():
            pass
    assert calls.said.count("collect") == 2
    assert calls.said[-3:] == ["unfreeze", "collect", "freeze"]
