"""Pauses after failures in a row."""

from dra_driver.core.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    """A component that fails for hours tries twice a minute, and at once after it worked."""
    backoff = Backoff(first_s=1.0, longest_s=5.0)
    assert [backoff.next_s() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.next_s() == 1.0


def test_jitter_shortens_a_pause_to_half_at_most() -> None:
    """Otherwise all nodes of a cluster come back at the same moment."""
    assert Backoff(first_s=1.0, longest_s=5.0, rand=lambda: 1.0).next_s() == 0.5
    assert Backoff(first_s=1.0, longest_s=5.0, rand=lambda: 0.0).next_s() == 1.0


def test_a_count_of_a_month_costs_nothing() -> None:
    """2 to the power of that count would have millions of digits."""
    backoff = Backoff(first_s=0.5, longest_s=30.0)
    backoff.failures = 10**9
    assert backoff.next_s() == 30.0
