"""When periodic tasks run, on a fake clock and after a notification or a change of a directory."""

import threading
from itertools import pairwise
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.maintenance import Maintenance, PeriodicTask, Wakeup


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_task_runs_at_its_own_interval() -> None:
    clock, done = Clock(), []
    tasks = [
        PeriodicTask(name="often", every_s=1.0, work=lambda: done.append("often")),
        PeriodicTask(name="rarely", every_s=3.0, work=lambda: done.append("rarely")),
    ]
    maintenance = Maintenance("test", tasks, clock)
    assert maintenance.step() == 1.0, "nothing is due at the start"
    for second in range(1, 7):
        clock.now = float(second)
        assert maintenance.step() == 1.0
    assert done == ["often", "often", "often", "rarely", "often", "often", "often", "rarely"]
    clock.now = 60.0
    assert maintenance.step() == 1.0
    assert done[8:] == ["often", "rarely"], "after a hang of a minute they run once"


def test_tasks_run_together() -> None:
    """Each wake-up of a thread costs as much as most tasks; but none is run much more often than it asks."""
    clock, done = Clock(), []

    def takes(name: str, seconds: float) -> None:
        done.append((name, clock.now))
        clock.now += seconds

    tasks = [
        PeriodicTask(name="often", every_s=1.0, work=lambda: takes("often", 0.02)),
        PeriodicTask(name="slow", every_s=5.0, work=lambda: takes("slow", 0.2)),
        PeriodicTask(name="rarely", every_s=5.0, work=lambda: takes("rarely", 0.0)),
    ]
    maintenance = Maintenance("test", tasks, clock)
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


def test_a_failing_task_is_repeated_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    clock, done = Clock(), []

    def fails(error: Exception) -> None:
        done.append(type(error).__name__)
        raise error

    tasks = [
        PeriodicTask(name="world", every_s=1.0, work=lambda: fails(StorageError("disk full"))),
        PeriodicTask(name="defect", every_s=1.0, work=lambda: fails(ZeroDivisionError())),
        PeriodicTask(name="good", every_s=1.0, work=lambda: done.append("good")),
    ]
    maintenance = Maintenance("test", tasks, clock)
    counted = metrics.internal_errors_total.labels("maintenance")._value.get()
    for second in (1, 2):
        clock.now = float(second)
        maintenance.step()
    assert done == ["StorageError", "ZeroDivisionError", "good"] * 2
    assert [bool(record.exc_info) for record in caplog.records] == [False, True] * 2
    assert metrics.internal_errors_total.labels("maintenance")._value.get() == counted + 2


class FakeWakeup(Wakeup):
    watches = True

    @property
    def watches_directories(self) -> bool:
        return self.watches


def event_driven(wakeup: FakeWakeup, clock: Clock, done: list[str], hurries: list[bool]) -> Maintenance:
    tasks = [
        PeriodicTask(
            name="soon", every_s=1.0, resync_s=5.0, work=lambda: done.append("soon"), needs_poll=lambda: bool(hurries)
        ),
        PeriodicTask(name="later", every_s=10.0, work=lambda: done.append("later")),
    ]
    return Maintenance("test", tasks, clock, wakeup=wakeup)


def test_an_event_driven_task_runs_when_notified_and_else_at_its_resync() -> None:
    clock, done = Clock(), list[str]()
    maintenance = event_driven(FakeWakeup(), clock, done, [])
    assert maintenance.step() == 5.0
    clock.now = 2.5
    assert maintenance.step(notified=True) == 5.5, "the next whole second after five"
    assert done == ["soon"]
    clock.now = 8.0
    maintenance.step()
    assert done == ["soon", "soon"]


def test_a_task_that_needs_to_poll_runs_at_its_short_interval() -> None:
    """No inotify instance may be left on a node; and what time alone changes rings no wakeup."""
    clock, done, wakeup, hurries = Clock(), list[str](), FakeWakeup(), [True]
    maintenance = event_driven(wakeup, clock, done, hurries)
    assert maintenance.step() == 1.0
    clock.now = 1.0
    hurries.clear()
    assert maintenance.step() == 5.0
    wakeup.watches = False
    clock.now = 6.0
    assert maintenance.step() == 1.0
    assert done == ["soon", "soon"]


LONG_S, NOW_S = 20.0, 0.0


def test_notifications_and_files_that_come_and_go_end_one_wait(tmp_path: Path) -> None:
    """A socket that is removed, a file that is moved in; what is written into a file does not."""
    wakeup = Wakeup([str(tmp_path)])
    assert wakeup.watches_directories
    assert not wakeup.wait(NOW_S)
    wakeup.notify()
    wakeup.notify()
    assert wakeup.wait(LONG_S)
    assert not wakeup.wait(NOW_S)
    file = tmp_path / "dra.sock"
    file.write_text("")
    assert wakeup.wait(LONG_S)
    file.write_text("more")
    assert not wakeup.wait(NOW_S)
    file.unlink()
    assert wakeup.wait(LONG_S)
    assert not wakeup.wait(NOW_S)


def test_a_folder_that_is_replaced_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    wakeup = Wakeup([str(folder)])
    folder.rmdir()
    assert wakeup.wait(LONG_S)
    folder.mkdir()
    assert wakeup.wait(LONG_S)
    while wakeup.wait(NOW_S):
        pass
    (folder / "dra.sock").write_text("")
    assert wakeup.wait(LONG_S)


def test_file_change_runs_task_before_its_interval(tmp_path: Path) -> None:
    done = threading.Event()
    task = PeriodicTask(name="c", every_s=3600.0, resync_s=3600.0, work=done.set)
    maintenance = Maintenance("test", [task], wakeup=Wakeup([str(tmp_path)]))
    maintenance.worker.start()
    (tmp_path / "detach").write_text("")
    assert done.wait(LONG_S)
    maintenance.worker.stop(LONG_S)
    assert "test" not in {thread.name for thread in threading.enumerate()}
