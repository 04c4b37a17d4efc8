"""Simulated hardware outlives processes, is shared by them, reports changes, fails on request, and follows its spec."""

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import (
    ConfigurationError,
    DraError,
    DriverUnavailableError,
    GpuBusyError,
    NoRoomError,
    StorageError,
)
from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from dra_driver.hardware.gpu.simulated.state import StateStore
from tests.fakes.simulated_gpus import SimulatedBackend

SPEC = "2xh100-sxm5-80gb+mig"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def node() -> NodeSpec:
    return parse_groups(SPEC, "n")


def attach(file: Path) -> SimulatedBackend:
    return SimulatedBackend.from_spec(SPEC, "n", file)


UUID, OTHER = (item.gpu.uuid for item in node().gpus)


def edit(file: Path, change: Any) -> None:
    raw = json.loads(file.read_text())
    change(raw)
    new = file.with_suffix(".edited")
    new.write_text(json.dumps(raw))
    new.replace(file)


def test_instances_modes_and_faults_outlive_the_process(file: Path) -> None:
    """The node process may be killed at any step; hardware does not forget."""
    first = attach(file)
    first.create_compute_instance(UUID, first.create_gpu_instance(UUID, 9, 4))
    first.set_mig_mode(OTHER, False)
    first.fail_next("mig_mode", GpuBusyError("as ordered"))
    second = attach(file)
    with pytest.raises(GpuBusyError, match="as ordered"):
        second.mig_mode(UUID)
    assert second.snapshot() == first.snapshot()
    assert [len(gpu.mig_instances) for gpu in second.snapshot().gpus] == [1, 0]
    assert not second.mig_mode(OTHER)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_file_is_made_at_the_first_change_and_deleting_it_is_a_reboot(file: Path) -> None:
    backend = attach(file)
    described = backend.snapshot()
    assert not file.exists()
    backend.create_gpu_instance(UUID, 19, 0)
    file.unlink()
    assert backend.snapshot() == described


def test_of_many_at_once_each_placement_is_made_by_one(file: Path) -> None:
    refused: list[DraError] = []

    def work() -> None:
        backend = attach(file)
        for start in range(7):
            try:
                backend.create_gpu_instance(UUID, 19, start)
            except NoRoomError as error:
                refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [instance.start for instance in attach(file).mig_instances(UUID)] == list(range(7))
    assert len(refused) == 21


def test_an_instance_removed_from_the_file_counts_as_destroyed(file: Path) -> None:
    backend = attach(file)
    backend.create_compute_instance(UUID, backend.create_gpu_instance(UUID, 19, 0))
    foreign = {"profile": 9, "start": 4, "gi": 2, "compute": [{"ci": 0}]}
    edit(file, lambda raw: raw["gpus"][UUID].update(instances=[foreign]))
    (found,) = backend.mig_instances(UUID)
    assert (found.profile_name, found.start, found.device is not None) == ("3g.40gb", 4, True)


def test_a_changed_description_is_in_force_again(tmp_path: Path, file: Path) -> None:
    spec = tmp_path / "spec.yaml"
    gpus = ["{model: h100-sxm5-80gb, migEnabled: true}", "{model: h100-sxm5-80gb, migEnabled: true}"]
    spec.write_text(f"gpus: [{', '.join(gpus)}]")
    backend = SimulatedBackend.from_spec(str(spec), "n", file)
    for uuid in (UUID, OTHER):
        backend.create_gpu_instance(uuid, 19, 0)
    gpus[0] = "{model: h100-sxm5-80gb, migEnabled: true, instances: [{profile: 3g.40gb, start: 4}]}"
    spec.write_text(f"gpus: [{', '.join(gpus)}]")
    first, second = backend.snapshot().gpus
    assert [instance.profile_name for instance in first.mig_instances] == ["3g.40gb"]
    assert [instance.profile_name for instance in second.mig_instances] == ["1g.10gb"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"version": 2}',
        '{"version": 1, "faults": [{}]}',
        '{"version": 1, "gpus": {"UUID": {"migMode": true}}}',
        '{"version": 1, "gpus": {"UUID": {"migMode": true, "instances": [{"profile": 1, "start": 0, "gi": 7}]}}}',
        '{"version": 1, "gpus": {"UUID": {"migMode": true, "instances": [{"profile": 19, "start": 0, "gi": 15}]}}}',
    ],
)
def test_an_unreadable_file_makes_the_driver_unavailable(file: Path, content: str) -> None:
    """A guess would publish instances that do not exist."""
    content = content.replace("UUID", UUID)
    file.write_text(content)
    backend = attach(file)
    with pytest.raises(DriverUnavailableError, match="simulated driver: the state"):
        backend.snapshot()
    with pytest.raises(DriverUnavailableError, match="simulated driver: the state"):
        backend.create_gpu_instance(UUID, 19, 0)
    assert file.read_text() == content
    file.unlink()
    assert backend.create_gpu_instance(UUID, 19, 0) == 7


def test_a_state_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    backend = SimulatedBackend(node(), state_file=tmp_path / "missing" / "state.json")
    with pytest.raises(DriverUnavailableError, match="cannot lock"):
        backend.create_gpu_instance(UUID, 19, 0)
    assert backend.mig_instances(UUID) == ()


@pytest.mark.parametrize("in_file", [True, False])
def test_faults_strike_the_calls_that_they_name_and_then_are_gone(file: Path, in_file: bool) -> None:
    backend = SimulatedBackend(node(), state_file=file if in_file else None)
    backend.fail_next("create_gpu_instance", NoRoomError("on order"), gpu=UUID, skip=1, times=2)
    backend.create_gpu_instance(UUID, 19, 0)
    backend.create_gpu_instance(OTHER, 19, 0)
    for _ in range(2):
        with pytest.raises(NoRoomError, match="on order"):
            backend.create_gpu_instance(UUID, 19, 1)
    assert len(backend.mig_instances(UUID)) == 1
    backend.fail_next("create_gpu_instance", DriverUnavailableError("connection lost"), after=True)
    with pytest.raises(DriverUnavailableError, match="connection lost"):
        backend.create_gpu_instance(UUID, 19, 1)
    assert len(backend.mig_instances(UUID)) == 2


def test_lasting_faults_end_when_they_are_cleared_and_slow_calls_only_wait() -> None:
    """``times`` 0 is for ever; without an error the call succeeds after the delay."""
    slept: list[float] = []
    backend = SimulatedBackend(node(), sleep=slept.append)
    backend.fail_next("snapshot", DriverUnavailableError(""), times=0)
    for _ in range(3):
        with pytest.raises(DriverUnavailableError, match="failed with the injected DriverUnavailableError"):
            backend.snapshot()
    backend.clear_faults()
    backend.fail_next("snapshot", delay_s=2.5)
    slept.clear()
    assert len(backend.snapshot().gpus) == 2
    assert slept == [2.5]


def test_listeners_run_before_the_call_returns_and_only_after_a_change() -> None:
    """The driver root is rewritten there: what prepare hands out next is in it."""
    told: list[Snapshot] = []
    backend = SimulatedBackend.from_spec(SPEC, "n", on_change=told.append)
    gi_id = backend.create_gpu_instance(UUID, 19, 0)
    assert [len(snapshot.gpus[0].mig_instances) for snapshot in told] == [1]
    backend.set_mig_mode(UUID, True)
    backend.destroy_compute_instance(UUID, gi_id, 0)
    with pytest.raises(NoRoomError):
        backend.create_gpu_instance(UUID, 19, 0)
    assert len(told) == 1
    backend.destroy_gpu_instance(UUID, gi_id)
    backend.announce()
    assert told[1:] == [backend.snapshot()] * 2


def test_a_listener_that_fails_does_not_undo_the_change(caplog: pytest.LogCaptureFixture) -> None:

    def fail(_: Snapshot) -> None:
        raise StorageError("disk full")

    backend = SimulatedBackend(node(), on_change=fail)
    backend.create_gpu_instance(UUID, 19, 0)
    assert len(backend.mig_instances(UUID)) == 1
    assert "callback for a change of simulated GPUs failed" in caplog.text


@pytest.mark.parametrize("in_file", [True, False])
def test_each_change_is_one_event_and_faults_are_none(file: Path, in_file: bool) -> None:
    backend = SimulatedBackend(node(), state_file=file if in_file else None)
    assert not backend.wait_for_event(0)
    backend.fail_next("mig_mode", NoRoomError("x"))
    assert not backend.wait_for_event(0)
    backend.create_gpu_instance(UUID, 19, 0)
    backend.create_gpu_instance(UUID, 19, 1)
    assert backend.wait_for_event(0)
    assert not backend.wait_for_event(0)
    backend.fail_next("wait_for_event", DriverUnavailableError("gone"))
    with pytest.raises(DriverUnavailableError, match="gone"):
        backend.wait_for_event(0)


@pytest.mark.parametrize("same_process", [True, False])
def test_a_waiting_thread_is_woken_by_a_change(file: Path, same_process: bool) -> None:
    backend = attach(file)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(backend.wait_for_event(20)))
    waiter.start()
    (backend if same_process else attach(file)).create_gpu_instance(UUID, 19, 0)
    waiter.join(10)
    assert answers == [True]


def test_a_lock_that_is_never_released_ends_in_an_error(file: Path) -> None:
    impatient = StateStore(file, lock_timeout_s=0.01)
    expected = pytest.raises(DriverUnavailableError, match=r"kept .* locked for 0\.01 s")
    with StateStore(file).locked(), expected, impatient.locked():
        pytest.fail("two processes hold the lock")


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("gpus: [{model: l4-24gb, count: 2}]")
    backend = SimulatedBackend.from_spec(str(file), "n")
    first = backend.snapshot()
    assert len(first.gpus) == 2
    file.write_text("gpus: [{model: l4-24gb}, {model: l4-24gb, lost: gone}, {model: t4-16gb}]")
    second = backend.snapshot()
    assert [gpu.minor for gpu in second.gpus] == [0, 2]
    assert second.gpus[0] == first.gpus[0]
    assert second.left_out[0].label == first.gpus[1].uuid


@pytest.mark.parametrize(
    "broken", ["gpus: [", "gpus: [{model: nothing}]", None, "driverUnavailable: why not\ngpus: []"]
)
def test_a_file_that_breaks_while_running_is_a_driver_that_went_away(tmp_path: Path, broken: str | None) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("gpus: [{model: l4-24gb}]")
    backend = SimulatedBackend.from_spec(str(file), "n")
    good = backend.snapshot()
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    for look in (backend.snapshot, backend.open):
        with pytest.raises(DriverUnavailableError, match="simulated driver: "):
            look()
    file.write_text("gpus: [{model: l4-24gb}] # right again")
    assert backend.snapshot() == good


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the simulated GPUs from"),
        (b"gpus: [{model: x}]", "gpus[0].model: unknown"),
        (b"\xff\xfe", "cannot read the simulated GPUs from"),
        (b"# " + b"x" * 1024 * 1024, "more than 1048576 characters"),
    ],
)
def test_a_wrong_file_at_start_is_a_configuration_error_with_its_name(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "node.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        SimulatedBackend.from_spec(str(file), "n")
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
