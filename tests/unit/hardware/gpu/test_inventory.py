"""The inventory's threads: notifications, errors that they survive, and their end."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.gpu.inventory import THREAD_NAME, Inventory
from tests.fakes.simulated_gpus import SimulatedBackend

WAIT_S = 10.0
NEVER_S = 3600.0

Start = Callable[..., Inventory]


class ScriptedBackend:
    """Answers each look with the next item: a snapshot, or an error to raise; the last one for ever."""

    def __init__(self, *answers: Snapshot | Exception) -> None:
        self.answers = list(answers)
        self.looks = 0
        self.closed = threading.Event()
        self.delivered = threading.Event()  # set when an event was handed out, and so everything queued before it
        self.events: queue.SimpleQueue[bool | Exception] = queue.SimpleQueue()

    def open(self) -> None:
        pass

    def snapshot(self) -> Snapshot:
        answer = self.answers[min(self.looks, len(self.answers) - 1)]
        self.looks += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed.set()
        self.events.put(False)

    def wait_for_event(self, timeout_s: float) -> bool:
        try:
            event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return False
        if isinstance(event, Exception):
            raise event
        if event:
            self.delivered.set()
        return event


def looks(*specs: str) -> list[Snapshot]:
    return [SimulatedBackend.from_spec(spec, "n").snapshot() for spec in specs]


ONE, TWO = looks("1xl4-24gb", "2xl4-24gb")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Inventory] = []

    def make(
        backend: ScriptedBackend | SimulatedBackend, poll_interval_s: float = NEVER_S, **retry: float
    ) -> Inventory:
        inventory = Inventory(backend, poll_interval_s, **retry)
        started.append(inventory)
        inventory.start()
        return inventory

    yield make
    for inventory in started:
        inventory.stop()


def told(inventory: Inventory) -> "queue.Queue[Snapshot]":
    heard: queue.Queue[Snapshot] = queue.Queue()
    inventory.subscribe(heard.put)
    return heard


def test_before_the_first_look_it_is_empty_and_says_why() -> None:
    inventory = Inventory(ScriptedBackend(ONE), NEVER_S)
    assert inventory.current() == Snapshot()
    assert inventory.problem == "the GPUs have not been read yet"
    assert not inventory.wait_first(0)


def test_subscribers_get_the_first_snapshot_at_once_and_late_ones_too(start: Start) -> None:
    inventory = start(ScriptedBackend(ONE))
    assert told(inventory).get(timeout=WAIT_S) == ONE
    assert inventory.wait_first(WAIT_S)
    assert told(inventory).get(timeout=WAIT_S) == ONE
    assert inventory.current() == ONE
    assert inventory.problem is None


def test_subscribers_get_every_change_once_and_nothing_without_a_change(start: Start) -> None:
    backend = ScriptedBackend(ONE)
    inventory = start(backend, poll_interval_s=0.001)
    heard = told(inventory)
    first = heard.get(timeout=WAIT_S)
    backend.answers += [ONE] * (backend.looks + 5) + [TWO]
    assert [first, heard.get(timeout=WAIT_S)] == [ONE, TWO]
    inventory.stop()
    assert heard.empty()


def test_a_refresh_looks_before_the_interval_is_over(start: Start) -> None:
    backend = SimulatedBackend.from_spec("2xl4-24gb", "n")
    inventory = start(backend)
    heard = told(inventory)
    assert len(heard.get(timeout=WAIT_S).gpus) == 2
    backend.mark_lost(0, "gone")
    inventory.refresh()
    assert [gpu.minor for gpu in heard.get(timeout=WAIT_S).gpus] == [1]


def counted(place: metrics.Place) -> float:
    return float(metrics.internal_errors_total.labels(place)._value.get())


def test_the_event_thread_survives_an_unexpected_error(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    backend = ScriptedBackend(ONE)
    inventory = start(backend, retry_min_s=0.001, retry_max_s=0.002)
    heard = told(inventory)
    assert heard.get(timeout=WAIT_S) == ONE
    before = counted("gpu-events")
    for _ in range(3):
        backend.events.put(ZeroDivisionError("a defect in the backend"))
    backend.answers = [TWO]
    backend.events.put(True)
    assert backend.delivered.wait(WAIT_S)
    assert heard.get(timeout=WAIT_S) == TWO
    assert (counted("gpu-events"), inventory.problem) == (before + 3, None)
    assert caplog.text.count("ZeroDivisionError: a defect in the backend") == 3


def test_errors_of_the_event_thread_are_retried_with_growing_pauses(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ScriptedBackend(ONE)
    inventory = start(backend, retry_min_s=0.001, retry_max_s=0.004)
    assert inventory.wait_first(WAIT_S)
    for _ in range(4):
        backend.events.put(ZeroDivisionError())
    backend.events.put(True)
    assert backend.delivered.wait(WAIT_S)
    pauses = [record.__dict__["retry_s"] for record in caplog.records if "gpu-events" in record.getMessage()]
    assert pauses == [0.001, 0.002, 0.004, 0.004]


def test_an_equal_snapshot_stays_the_same_object() -> None:
    first, equal, other = looks("1xt4-16gb", "1xt4-16gb", "2xt4-16gb")
    inventory = Inventory(ScriptedBackend(first, equal, other), NEVER_S)
    seen = []
    for _ in range(3):
        inventory._poll()
        seen.append(inventory.current())
    assert seen[0] is seen[1] is first
    assert seen[2] is other


def test_a_missing_driver_is_retried_until_it_is_there(start: Start) -> None:
    backend = ScriptedBackend(DriverUnavailableError("no"), ValueError("a defect"), DriverUnavailableError("no"), TWO)
    inventory = start(backend, retry_min_s=0.001, retry_max_s=0.002)
    assert told(inventory).get(timeout=WAIT_S) == TWO
    assert inventory.problem is None
    assert backend.looks >= 4


def test_an_unexpected_error_of_a_look_is_counted_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A defect must not pass for a driver that is not installed yet."""
    inventory = Inventory(ScriptedBackend(DriverUnavailableError("no"), ValueError("a defect")), NEVER_S)
    before = counted("gpu-inventory")
    inventory._poll()
    assert counted("gpu-inventory") == before
    inventory._poll()
    assert counted("gpu-inventory") == before + 1
    assert inventory.problem == "reading the GPUs failed: ValueError: a defect"
    assert "ValueError: a defect" in caplog.text


def test_pauses_double_up_to_the_longest_and_start_over_after_a_success() -> None:
    trouble = DriverUnavailableError("no")
    inventory = Inventory(ScriptedBackend(*[trouble] * 7, ONE, trouble), 10.0, retry_min_s=1.0, retry_max_s=30.0)
    pauses = [inventory._poll() for _ in range(9)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 10.0, 1.0]


def test_a_subscriber_that_fails_does_not_affect_the_others(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    before = counted("gpu-subscriber")
    inventory = start(ScriptedBackend(ONE, TWO))
    failed = threading.Event()

    def fail(_: Snapshot) -> None:
        failed.set()
        raise RuntimeError("a defect in the subscriber")

    inventory.subscribe(fail)
    heard = told(inventory)
    assert heard.get(timeout=WAIT_S) in (ONE, TWO)
    assert failed.wait(WAIT_S)
    inventory.stop()
    assert "RuntimeError: a defect in the subscriber" in caplog.text
    assert counted("gpu-subscriber") > before


def test_a_left_out_gpu_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    backend = SimulatedBackend.from_spec("2xl4-24gb", "n")
    backend.mark_lost(1, "XID 79")
    inventory = Inventory(backend, NEVER_S)
    with caplog.at_level(logging.WARNING):
        inventory._poll()
        inventory._poll()
    records = [record for record in caplog.records if record.getMessage() == "GPU left out of the inventory"]
    assert [record.__dict__["reason"] for record in records] == ["XID 79"]


def test_stop_ends_the_thread_and_closes_the_backend(start: Start) -> None:
    backend = ScriptedBackend(ONE)
    inventory = start(backend)
    assert inventory.wait_first(WAIT_S)
    assert THREAD_NAME in {thread.name for thread in threading.enumerate()}
    inventory.stop()
    inventory.stop()
    assert backend.closed.is_set()
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(RuntimeError):
        inventory.start()
    never_started = ScriptedBackend(ONE)
    Inventory(never_started, NEVER_S).stop()
    assert never_started.closed.is_set()


def test_stop_may_be_called_from_a_callback(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A subscriber that gives up must not wait for its own thread."""
    backend = ScriptedBackend(ONE)
    inventory = start(backend)
    inventory.subscribe(lambda _: inventory.stop())
    assert backend.closed.wait(WAIT_S)
    assert "subscriber" not in caplog.text
