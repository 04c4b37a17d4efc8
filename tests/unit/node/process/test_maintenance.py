"""When chores run, on a fake clock."""

from itertools import pairwise

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.maintenance import Chore, Maintenance


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_chore_runs_at_its_own_interval() -> None:
    clock, done = Clock(), []
    chores = [
        Chore(name="often", every_s=1.0, work=lambda: done.append("often")),
        Chore(name="rarely", every_s=3.0, work=lambda: done.append("rarely")),
    ]
    maintenance = Maintenance("test", chores, clock)
    assert maintenance.step() == 1.0, "nothing is due at the start"
    for second in range(1, 7):
        clock.now = float(second)
        assert maintenance.step() == 1.0
    assert done == ["often", "often", "often", "rarely", "often", "often", "often", "rarely"]


def test_chores_run_together() -> None:
    """Each wake-up of a thread costs as much as most chores; but none is run much more often than it asks."""
    clock, done = Clock(), []

    def takes(name: str, seconds: float) -> None:
        done.append((name, clock.now))
        clock.now += seconds

    chores = [
        Chore(name="often", every_s=1.0, work=lambda: takes("often", 0.02)),
        Chore(name="slow", every_s=5.0, work=lambda: takes("slow", 0.2)),
        Chore(name="rarely", every_s=5.0, work=lambda: takes("rarely", 0.0)),
    ]
    maintenance = Maintenance("test", chores, clock)
    steps = 0
    while clock.now < 30.0:
        wait_s = maintenance.step()  # moves the clock, too
        clock.now += wait_s
        steps += 1
    assert steps <= 31  # not much more than once a second
    for name, every_s in (("often", 0.5), ("slow", 4.5), ("rarely", 4.5)):
        times = [at for each, at in done if each == name]
        assert all(after - before >= every_s for before, after in pairwise(times)), times
        assert len(times) >= 30 // (every_s + 0.5) - 1


def test_a_failing_chore_is_repeated_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk or a defect must not stop the check of sockets."""
    clock, done = Clock(), []

    def fails(error: Exception) -> None:
        done.append(type(error).__name__)
        raise error

    chores = [
        Chore(name="world", every_s=1.0, work=lambda: fails(StorageError("disk full"))),
        Chore(name="defect", every_s=1.0, work=lambda: fails(ZeroDivisionError())),
        Chore(name="good", every_s=1.0, work=lambda: done.append("good")),
    ]
    maintenance = Maintenance("test", chores, clock)
    counted = metrics.internal_errors_total.labels("maintenance")._value.get()
    for second in (1, 2):
        clock.now = float(second)
        maintenance.step()
    assert done == ["StorageError", "ZeroDivisionError", "good"] * 2
    assert [bool(record.exc_info) for record in caplog.records] == [False, True] * 2
    assert metrics.internal_errors_total.labels("maintenance")._value.get() == counted + 2


def test_missed_runs_of_a_slow_chore_are_skipped() -> None:
    """After a hang of a minute the chores run once, not sixty times."""
    clock, done = Clock(), []
    maintenance = Maintenance("test", [Chore(name="c", every_s=1.0, work=lambda: done.append(1))], clock)
    clock.now = 60.0
    assert maintenance.step() == 1.0
    assert done == [1]


def test_stop_ends_a_thread_that_waits() -> None:
    maintenance = Maintenance("test", [Chore(name="c", every_s=3600.0, work=lambda: None)])
    maintenance.start()
    maintenance.stop(5.0)
    assert not maintenance._thread.is_alive()


class FakeBell:
    hears_folders = True

    def ring(self) -> None:
        pass

    def wait(self, timeout_s: float) -> bool:
        raise NotImplementedError


def heard(bell: FakeBell, clock: Clock, done: list[str], hurries: list[bool]) -> Maintenance:
    chores = [
        Chore(name="soon", every_s=1.0, heard_s=5.0, work=lambda: done.append("soon"), hurries=lambda: bool(hurries)),
        Chore(name="later", every_s=10.0, work=lambda: done.append("later")),
    ]
    return Maintenance("test", chores, clock, bell=bell)


def test_a_chore_that_a_bell_wakes_rests_meanwhile_and_runs_when_it_rings() -> None:
    """The others keep their time."""
    clock, done = Clock(), list[str]()
    maintenance = heard(FakeBell(), clock, done, [])
    assert maintenance.step() == 5.0
    clock.now = 2.5
    assert maintenance.step(rung=True) == 5.5, "the next whole second after five"
    assert done == ["soon"]
    clock.now = 8.0
    maintenance.step()
    assert done == ["soon", "soon"]


def test_without_the_folders_or_in_a_hurry_the_chore_runs_at_its_short_interval() -> None:
    """No inotify instance may be left on a node; and what time alone changes rings no bell."""
    clock, done, bell, hurries = Clock(), list[str](), FakeBell(), [True]
    maintenance = heard(bell, clock, done, hurries)
    assert maintenance.step() == 1.0
    clock.now = 1.0
    hurries.clear()
    assert maintenance.step() == 5.0
    bell.hears_folders = False
    clock.now = 6.0
    assert maintenance.step() == 1.0
    assert done == ["soon", "soon"]
