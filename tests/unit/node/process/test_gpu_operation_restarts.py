"""Guarded operations of a GPU that are interrupted: killed, stopped, rebooted, a lost GPU, a full disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    CommandError,
    DeviceLostError,
    GpuBusyError,
)
from dra_driver.core.model.gpu_operation import (
    DONE_EVENT,
    FAILED_EVENT,
    OPERATION_ANNOTATION,
    Operation,
)
from dra_driver.core.model.health import HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ModeAnswer
from dra_driver.node.process.operation_record import FILE, MAX_FINISHED
from dra_driver.node.process.operation_rules import why_silent
from tests.fakes.operation_stage import OFF, ON, KilledError, Stage
from tests.fakes.stand_in import stand_in


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize("point", range(12))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", [Operation.MIG_ON, Operation.RESET])
def test_a_process_killed_at_every_step_is_continued(
    tmp_path: Path, operation: Operation, point: int, when: str
) -> None:
    """Killed before or after the n-th write of the record or change of the hardware; the next process ends it."""
    stage, calls = Stage(tmp_path), 0

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == point + 1 and when == "before":
                raise KilledError
            answer = call(*arguments, **options)
            if calls == point + 1:
                raise KilledError
            return answer

        return wrapped

    class Control:
        def __getattr__(self, name: str) -> object:
            found = getattr(stage.gpus, name)
            return dying(found) if name == "request_mig_mode" else found

    stage.control = Control()
    stage.reset = stand_in(dying(stage.gpus.reset))
    stage.boot()
    file = stage.operations._tools.file
    file.save = stand_in(dying(file.save))  # type: ignore[method-assign]
    stage.gpus.inject(stage.gpu, "recovery-action")
    stage.ask(operation)
    try:
        stage.run()
    except KilledError:
        stage.control, stage.reset = stage.gpus, stand_in(stage.gpus.reset)
        stage.boot()
        recorded = json.loads((tmp_path / FILE).read_text()).get("records", {}) if (tmp_path / FILE).exists() else {}
        assert list(stage.operations.amend(stage.last, {})) == list(recorded), "the taint stays over the restart"
        stage.run()
    else:
        assert calls <= point, "every step was reached"
    assert stage.modes == (ON if operation is Operation.MIG_ON else OFF)
    assert (stage.tainted, stage.gate.closed, stage.gpus.detached) == ([], None, None)
    assert stage.result[0] == DONE_EVENT


def test_a_full_disk_changes_nothing(stage: Stage) -> None:
    (stage.folder / FILE).mkdir()
    stage.ask()
    for _ in range(4):
        stage.operations.worker._on_error  # noqa: B018
        with pytest.raises(Exception, match="cannot write"):
            stage.operations.step()
    assert stage.modes == OFF


def test_a_record_that_cannot_be_read_is_set_aside(stage: Stage) -> None:
    (stage.folder / FILE).write_text("{")
    stage.boot()
    assert (stage.folder / "gpu-operations.unreadable").exists()
    stage.ask(number="cd34")
    stage.run()
    assert stage.modes == OFF, "the request may have run already"
    assert stage.result[0] == FAILED_EVENT
    assert "cannot be read" in stage.operations.remarks[0]
    stage.ask(number="ef56")
    stage.run()
    assert stage.modes == ON


@pytest.mark.parametrize(
    "content", ['{"version":2}', '{"version":1,"records":{"GPU-1":{"operation":"burn","by":"x"}}}', "\x00" * 9]
)
def test_records_of_another_version_are_reported(stage: Stage, content: str) -> None:
    """A downgrade may find them. Each damaged file could have kept a GPU tainted."""
    (stage.folder / FILE).write_text(content)
    stage.boot()
    stage.run()
    assert stage.result[0] == FAILED_EVENT
    assert "nvidia-smi" in stage.result[1]
    stage.run()
    assert len(stage.events) == 1


def test_finished_operations_of_any_uuid_are_bounded(stage: Stage) -> None:
    for number in range(MAX_FINISHED + 9):
        stage.annotations[OPERATION_ANNOTATION] = f"reset/GPU-{number}/a{number}"
        stage.run()
    kept = json.loads((stage.folder / FILE).read_text())["finished"]
    assert len(kept) == MAX_FINISHED
    assert f"GPU-{MAX_FINISHED + 8}" in kept


def test_a_mode_that_took_effect_in_a_reboot_is_only_verified(stage: Stage) -> None:
    """The mode of an A100 is stored on the board: a reboot applies a pending one."""

    def power_cut(gpu: GpuUuid, within_s: float) -> None:
        raise KilledError

    stage.reset = power_cut
    stage.ask()
    with pytest.raises(KilledError):
        stage.run()
    stage.gpus.reattach()
    stage.gpus.reset(stage.gpu, 1.0)
    stage.boot_id, stage.reset = "boot-2", lambda gpu, within_s: pytest.fail("reset")
    stage.boot()
    stage.run()
    assert (stage.modes, stage.result[0]) == (ON, DONE_EVENT)


def test_a_pending_mode_is_applied_by_a_reset_after_a_restart(stage: Stage) -> None:
    """It is not requested again: a second request could be answered differently."""

    def dies(gpu: GpuUuid, within_s: float) -> None:
        raise KilledError

    class Once:
        asked = 0

        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            self.asked += 1
            return stage.gpus.request_mig_mode(gpu, enabled)

    stage.control, stage.reset = Once(), dies
    stage.boot()
    stage.ask()
    with pytest.raises(KilledError):
        stage.run()
    stage.reset = stage.gpus.reset
    stage.boot()
    stage.run()
    assert (stage.modes, stage.control.asked) == (ON, 1)


def test_a_step_that_kills_the_process_twice_is_not_repeated(stage: Stage) -> None:
    def dies(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        raise KilledError

    tries: list[GpuUuid] = []
    stage.reset = dies
    stage.ask(Operation.RESET)
    for _ in range(2):
        with pytest.raises(KilledError):
            stage.run()
        stage.gpus.inject(stage.gpu, "recovery-action")
        stage.boot()
    stage.run()
    assert len(tries) == 2
    assert "2 attempts failed" in stage.result[1]


def test_a_healthy_gpu_is_reset_again_when_the_process_died_before_it(stage: Stage) -> None:
    """It looks the same before and after a reset."""
    tries: list[GpuUuid] = []

    def dies(gpu: GpuUuid, within_s: float) -> None:
        raise KilledError

    stage.reset = dies
    stage.ask(Operation.RESET)
    with pytest.raises(KilledError):
        stage.run()
    stage.reset = lambda gpu, within_s: tries.append(gpu)
    stage.boot()
    stage.run()
    assert tries == [stage.gpu]
    assert stage.result[0] == DONE_EVENT


def test_a_reboot_counts_as_the_reset(stage: Stage) -> None:
    def dies(gpu: GpuUuid, within_s: float) -> None:
        raise KilledError

    stage.reset = dies
    stage.ask(Operation.RESET)
    with pytest.raises(KilledError):
        stage.run()
    stage.reset, stage.boot_id = lambda gpu, within_s: pytest.fail("reset"), "boot-2"
    stage.boot()
    stage.run()
    assert stage.result[0] == DONE_EVENT


@pytest.mark.parametrize("operation", [Operation.MIG_ON, Operation.RESET])
@pytest.mark.parametrize("moment", ["detach", "busy", "verify"])
def test_a_stop_of_the_process_leaves_the_operation_to_the_next(
    stage: Stage, operation: Operation, moment: str
) -> None:
    """An upgrade of the DaemonSet neither fails the operation nor repeats the reset."""
    tries: list[GpuUuid] = []

    def reset(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        if moment == "busy":
            stage.operations._stopping.set()
            raise GpuBusyError("in use")
        stage.gpus.reset(gpu, within_s)
        if moment == "verify":
            stage.is_stale = True
            stage.operations._stopping.set()

    stage.reset = reset
    stage.gpus.inject(stage.gpu, "recovery-action")
    detach = stage._detach
    if moment == "detach":
        stage._detach = stage.operations._stopping.set  # type: ignore[method-assign]
    stage.ask(operation)
    while not stage.operations._stopping.is_set():
        stage.operations.step()
    if moment == "verify":
        stage.operations.step()
    assert [event for event in stage.events if event[1] == FAILED_EVENT] == []
    assert stage.held == [stage.gpu]
    stage._detach, stage.is_stale = detach, False  # type: ignore[method-assign]

    def succeed(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        stage.gpus.reset(gpu, within_s)

    stage.reset = succeed
    stage.boot()
    stage.run()
    assert stage.result[0] == DONE_EVENT
    assert len(tries) == {"detach": 1, "busy": 2, "verify": 1}[moment]


def test_a_gpu_that_is_lost_in_its_reset_keeps_the_taint(stage: Stage) -> None:
    tries: list[GpuUuid] = []

    def lose(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        stage.gpus.inject(gpu, "xid=79")

    stage.reset = lose
    stage.ask(Operation.RESET)
    stage.run(most=900)
    assert len(tries) == 1
    assert "a reboot of the node is needed, because" in stage.result[1]
    assert "does not answer" in stage.result[1]
    assert (stage.held, stage.gate.closed) == ([stage.gpu], None)


def test_a_gpu_that_is_lost_while_its_mode_changes_keeps_the_taint(stage: Stage) -> None:
    def lose(gpu: GpuUuid, within_s: float) -> None:
        stage.gpus.inject(gpu, "xid=79")
        raise DeviceLostError("the GPU fell off the bus")

    stage.reset = lose
    stage.ask()
    stage.run(most=900)
    assert "a reboot of the node is needed, because" in stage.result[1]
    assert (stage.held, stage.gate.closed) == ([stage.gpu], None)


def test_a_gpu_that_is_lost_during_a_restart_does_not_pause_the_node(stage: Stage) -> None:
    def dies(gpu: GpuUuid, within_s: float) -> None:
        raise KilledError

    stage.reset = dies
    stage.ask()
    with pytest.raises(KilledError):
        stage.run()
    stage.gpus.reattach()
    stage.gpus.inject(stage.gpu, "xid=79")
    stage.boot()
    stage.run(most=900)
    assert (stage.held, stage.gate.closed) == ([stage.gpu], None)
    assert stage.result[0] == FAILED_EVENT


def test_prepares_are_admitted_when_a_restart_has_to_wait_again(stage: Stage) -> None:
    class Dies:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            raise KilledError

    stage.control = Dies()
    stage.boot()
    stage.ask()
    with pytest.raises(KilledError):
        stage.run()
    stage.control = stage.gpus
    stage.labels = {"nvidia.com/mig.config.state": "pending"}
    stage.boot()
    for _ in range(3):
        stage.operations.step()
    assert stage.gate.closed is None
    stage.labels = {}
    stage.run()
    assert stage.modes == ON


def test_a_listed_gpu_that_does_not_answer_is_not_released(stage: Stage) -> None:
    """The inventory keeps the last values of a GPU whose calls hang."""
    gpu = stage.last.gpus[0]
    hangs = HealthReading(gpu_uuid=gpu.uuid, unreachable="a call has not returned", hangs=True)
    assert "a call has not returned" in str(why_silent(gpu, hangs))
    assert why_silent(gpu, replace(hangs, needs_reset=True)) is None
    assert why_silent(gpu, HealthReading(gpu_uuid=gpu.uuid)) is None


class PersistenceMode:
    def __init__(self, gpu: GpuUuid, *, refuses: str = "") -> None:
        self.on, self.gpu, self.refuses = True, gpu, refuses

    def is_on(self, gpu: GpuUuid) -> bool | None:
        return self.on if gpu == self.gpu else None

    def switch(self, gpu: GpuUuid, on: bool) -> None:
        if self.refuses == str(on):
            raise CommandError("Unknown Error")
        self.on = on


@pytest.mark.parametrize("moment", ["before", "after", "never", "refused"])
def test_persistence_mode_is_off_for_the_reset_only(stage: Stage, moment: str) -> None:
    """Also after a kill on either side of the reset, and after a refused one."""
    mode = PersistenceMode(stage.gpu)
    seen: list[bool] = []

    def reset(gpu: GpuUuid, within_s: float) -> None:
        seen.append(mode.on)
        if moment == "refused":
            raise CommandError("refused")
        if moment != "before":
            stage.gpus.reset(gpu, within_s)
        if moment != "never":
            raise KilledError

    stage.persistence, stage.reset = mode, reset
    stage.boot()
    stage.ask()
    try:
        stage.run()
    except KilledError:
        assert not mode.on
        stage.reset = stage.gpus.reset
        stage.boot()
        stage.run()
    assert seen == [False]
    assert mode.on
    assert stage.result[0] == (FAILED_EVENT if moment == "refused" else DONE_EVENT)


def test_persistence_mode_that_stays_off_is_reported(stage: Stage) -> None:
    stage.persistence = PersistenceMode(stage.gpu, refuses="True")
    stage.boot()
    stage.ask()
    stage.run()
    assert "done; persistence mode is off, and was on before" in stage.result[1]
