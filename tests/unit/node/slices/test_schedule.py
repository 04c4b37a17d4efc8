"""When passes are due."""

from dra_driver.node.slices.publisher import RESYNC_S, Schedule
from tests.fakes.stand_in import present


def schedule(rand: float = 1.0) -> Schedule:
    return Schedule(rand=lambda: rand)


def test_nothing_is_due_before_there_is_something_to_publish() -> None:
    """A process that waits for the NVIDIA driver must not change what an earlier one published."""
    assert schedule().due_s() is None


def test_own_changes_are_due_at_once_even_while_waiting_after_a_failure() -> None:
    """New content may make the write succeed."""
    compute_writes = schedule()
    compute_writes.failed(100.0)
    compute_writes.wanted(100.1)
    assert compute_writes.due_s() == 100.1


def test_deleted_slices_are_repaired_within_two_seconds() -> None:
    """After a restart of the kubelet the node has no devices until then."""
    for rand in (0.0, 1.0):
        compute_writes = schedule(rand)
        compute_writes.succeeded(0.0)
        compute_writes.disturbed(100.0)
        due_s = present(compute_writes.due_s())
        assert 100.2 < due_s < 102.0


def test_more_changes_do_not_delay_a_repair() -> None:
    """A busy client must not delay the repair for ever."""
    compute_writes = schedule()
    compute_writes.disturbed(100.0)
    first = compute_writes.due_s()
    compute_writes.disturbed(101.0)
    assert compute_writes.due_s() == first


def test_pauses_after_failures_grow_up_to_a_limit() -> None:
    """0.25 s at first with full jitter, 30 s at most."""
    compute_writes = schedule(0.0)
    waits = []
    for _ in range(12):
        compute_writes.failed(0.0)
        waits.append(compute_writes.due_s())
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == 30.0


def test_the_server_may_ask_for_more_time() -> None:
    """429 with Retry-After comes from an overloaded server."""
    compute_writes = schedule(0.0)
    compute_writes.failed(0.0, retry_after_s=20.0)
    assert compute_writes.due_s() == 20.0


def test_a_disturbance_does_not_shorten_the_wait_after_a_failure() -> None:
    """Otherwise every event would be another attempt against an overloaded server."""
    compute_writes = schedule(0.0)
    for _ in range(6):
        compute_writes.failed(100.0)
    compute_writes.disturbed(100.0)
    assert compute_writes.due_s() == 116.0


def test_repeated_repairs_slow_down_and_recover() -> None:
    """Two publishers that overwrite each other end at one write a minute, and are quick again after a rest."""
    compute_writes = schedule(0.0)
    now, waits = 1000.0, []
    for _ in range(12):
        compute_writes.succeeded(now)
        compute_writes.disturbed(now)
        due_s = present(compute_writes.due_s())
        waits.append(round(due_s - now, 1))
        now = due_s
        compute_writes.repaired(now, only_created=False)
    assert waits[:3] == [0.3, 0.3, 0.3]
    assert waits[-1] == 60.0
    assert compute_writes.edits(now) >= 3
    later = now + 400.0
    compute_writes.succeeded(later)
    compute_writes.disturbed(later)
    assert compute_writes.due_s() == later + 0.3
    assert compute_writes.edits(later) == 0


def test_a_pass_runs_now_and_then_without_an_event() -> None:
    """A watch that lost an event costs ten minutes at most."""
    compute_writes = schedule(0.5)
    compute_writes.succeeded(0.0)
    assert compute_writes.due_s() == RESYNC_S
