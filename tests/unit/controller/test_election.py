"""One replica's part in the election, turn by turn, against a Lease in memory."""

import copy
from typing import Any

import pytest

from dra_driver.controller.election import Election
from dra_driver.controller.lease import LeaseTimes
from dra_driver.core.errors import AlreadyExistsError, ApiUnreachableError, ConflictError, NotFoundError

TIMES = LeaseTimes.of(15)


class Leases:
    """One Lease with optimistic locking."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] | None = None
        self.down = False

    def get(self, path: str) -> dict[str, Any]:
        self._check()
        if self.obj is None:
            raise NotFoundError(path)
        return copy.deepcopy(self.obj)

    def create(self, path: str, body: Any) -> dict[str, Any]:
        self._check()
        if self.obj is not None:
            raise AlreadyExistsError(path)
        return self._store(body, 1)

    def update(self, path: str, body: Any) -> dict[str, Any]:
        self._check()
        assert self.obj is not None
        if body["metadata"]["resourceVersion"] != self.obj["metadata"]["resourceVersion"]:
            raise ConflictError(path)
        return self._store(body, int(self.obj["metadata"]["resourceVersion"]) + 1)

    def _store(self, body: Any, version: int) -> dict[str, Any]:
        self.obj = copy.deepcopy({**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}})
        return self.obj

    def _check(self) -> None:
        if self.down:
            raise ApiUnreachableError("down")

    @property
    def holder(self) -> str:
        return str(self.obj["spec"]["holderIdentity"]) if self.obj else ""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def replica(leases: Leases, clock: Clock, name: str = "a", **options: Any) -> Election:
    return Election(leases, namespace="n", name="l", identity=name, times=TIMES, clock=clock, **options)


def test_the_first_replica_leads_and_the_second_does_not(leases: Leases, clock: Clock) -> None:
    first, second = replica(leases, clock, "a"), replica(leases, clock, "b")
    first.step()
    second.step()
    assert (first.leads(), second.leads(), leases.holder) == (True, False, "a")


def test_a_leader_that_renews_keeps_the_lease_for_ever(leases: Leases, clock: Clock) -> None:
    first, second = replica(leases, clock, "a"), replica(leases, clock, "b")
    for _ in range(50):
        first.step()
        second.step()
        assert (first.leads(), second.leads()) == (True, False)
        clock.now += TIMES.retry_s


def test_never_two_lead_when_the_leader_is_stopped_and_continues(leases: Leases, clock: Clock) -> None:
    """SIGSTOP: the leader takes no turn, but its answer changes by time alone, before the other may take over."""
    first, second = replica(leases, clock, "a"), replica(leases, clock, "b")
    first.step()
    takeover_s = None
    for tick in range(200):
        clock.now += 0.1
        if tick % 5 == 0:
            second.step()
        assert not (first.leads() and second.leads())
        if second.leads() and takeover_s is None:
            takeover_s = clock.now - 1000.0
    assert takeover_s is not None
    assert TIMES.renew_s < TIMES.duration_s <= takeover_s < TIMES.duration_s + 2
    first.step()  # it continues
    assert (first.leads(), leases.holder) == (False, "b")


def test_a_renewal_counts_from_its_begin(leases: Leases, clock: Clock) -> None:
    """An answer that took long tells others earlier than us that the record changed."""
    first = replica(leases, clock)

    class Slow(Leases):
        def update(self, path: str, body: Any) -> dict[str, Any]:
            clock.now += 3.0
            return leases.update(path, body)

        def get(self, path: str) -> dict[str, Any]:
            return leases.get(path)

    first.step()
    slow = replica(Slow(), clock, "a")
    slow.step()
    clock.now += TIMES.renew_s - 3.0 + 0.01
    assert not slow.leads()


def test_a_leader_without_an_api_server_stops_by_itself(leases: Leases, clock: Clock) -> None:
    first = replica(leases, clock)
    first.step()
    leases.down = True
    clock.now += TIMES.renew_s - 0.1
    first.step()
    assert first.leads()
    assert first.problem == "down"
    clock.now += 0.2
    assert not first.leads()


def test_a_stop_releases_the_lease_and_another_takes_it_at_once(leases: Leases, clock: Clock) -> None:
    first, second = replica(leases, clock, "a"), replica(leases, clock, "b")
    first.step()
    first.release()
    assert leases.holder == ""
    second.step()
    assert second.leads()
    first.release()
    assert leases.holder == "b", "released what another one holds"


def test_a_conflict_is_no_problem_and_no_leadership(leases: Leases, clock: Clock) -> None:
    first = replica(leases, clock, "a")

    class Racing(Leases):
        def get(self, path: str) -> dict[str, Any]:
            raise NotFoundError(path)

        def create(self, path: str, body: Any) -> dict[str, Any]:
            return leases.create(path, body)

    first.step()
    second = replica(Racing(), clock, "b")
    second.step()
    assert (second.leads(), second.problem, leases.holder) == (False, None, "a")


def test_changes_are_reported_once(leases: Leases, clock: Clock) -> None:
    changes: list[bool] = []
    first: Election = replica(leases, clock, on_change=lambda: changes.append(first.leads()))
    first.step()
    first.step()
    clock.now += 100
    leases.down = True
    first.step()
    assert changes == [True, False]


def test_how_long_it_leads_begins_again_after_a_break(leases: Leases, clock: Clock) -> None:
    first = replica(leases, clock)
    first.step()
    clock.now += 5
    first.step()
    assert first.led_for_s() == 5.0
    clock.now += 60
    assert first.led_for_s() is None
    first.step()
    assert first.led_for_s() == 0.0


def test_a_stopped_election_does_not_lead(leases: Leases, clock: Clock) -> None:
    first = replica(leases, clock)
    first.step()
    first.worker.stop(0)
    assert not first.leads()


def test_a_thread_that_hangs_is_seen(leases: Leases, clock: Clock) -> None:
    first = replica(leases, clock)
    first.step()
    assert first.worker.hung is None
    clock.now += 46
    assert "not moved for 46 s" in str(first.worker.hung)
