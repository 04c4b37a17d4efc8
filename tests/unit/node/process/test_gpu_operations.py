"""Guarded operations of a GPU on simulated hardware: requests, policies, refused, hanging and raced."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    CommandError,
    DeviceLostError,
    GpuBusyError,
    HardwareError,
    ResetRequiredError,
)
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu, NvLinkPeer, NvLinks
from dra_driver.core.model.gpu_operation import (
    DONE_EVENT,
    FAILED_EVENT,
    OPERATION_ANNOTATION,
    Operation,
    OperationRequest,
    requests_of,
    text_of,
)
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms
from dra_driver.hardware.gpu.backend import MIG_MODE, ModeAnswer
from dra_driver.hardware.gpu.reset import TIMEOUT
from dra_driver.node.claims import PrepareGate
from dra_driver.node.process.gpu_operations import DAILY, GATE
from dra_driver.node.process.operation_record import Step
from dra_driver.node.process.operation_rules import why_unverified
from tests.fakes.operation_stage import NUMBER, OFF, ON, KilledError, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_mig_mode_of_an_a100_is_switched_on_with_a_reset(stage: Stage) -> None:
    stage.notes[stage.gpu, MIG_MODE] = "on"
    stage.ask()
    stage.run()
    assert stage.modes == ON
    assert stage.result == (DONE_EVENT, f"switching MIG mode on of {stage.gpu} (request {NUMBER}): done")
    assert (stage.tainted, stage.gate.closed, stage.gpus.detached) == ([], None, None)
    assert stage.notes == {}, "the mode is the administrator's now"
    assert not stage.gpus.mig_mode(stage.other)
    stage.events.clear()
    stage.boot()
    stage.run()
    assert stage.events == [], "a number is used once"
    stage.ask(Operation.MIG_OFF, "cd34")
    stage.run()
    assert stage.modes == OFF


def test_newer_gpus_need_no_reset(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "2xh100-sxm5-80gb")
    stage.reset = lambda gpu, within_s: pytest.fail("reset")
    stage.ask()
    stage.run()
    assert stage.modes == ON


def test_the_operation_waits_for_claims_of_its_gpu(stage: Stage) -> None:
    stage.uses = [stage.gpu, stage.other]
    stage.ask()
    for _ in range(5):
        stage.operations.step()
    assert stage.tainted == [stage.gpu]
    assert stage.gate.closed is None, "other claims of the node are still prepared"
    assert "waiting for 1 device of claims" in stage.operations.remarks[0]
    stage.uses = [stage.other]
    stage.run()
    assert stage.modes == ON


def test_a_withdrawn_request_ends_while_it_waits(stage: Stage) -> None:
    stage.uses = [stage.gpu]
    stage.ask()
    stage.operations.step()
    stage.operations.step()
    stage.annotations.clear()
    stage.run()
    assert "withdrawn" in stage.result[1]
    assert (stage.modes, stage.tainted) == (OFF, [])


@pytest.mark.parametrize(
    ("obstacle", "text"),
    [
        (lambda stage: setattr(stage, "open_in", ("dcgm (process 7)",)), "open in dcgm"),
        (lambda stage: setattr(stage, "open_in", None), "cannot be listed"),
        (lambda stage: stage.labels.update({"nvidia.com/mig.config.state": "pending"}), "MIG manager is at work"),
        (lambda stage: stage.gpus.detach("an upgrade", 1.0), "an upgrade"),
    ],
)
def test_obstacles_are_named_and_waited_for(stage: Stage, obstacle: Callable[[Stage], object], text: str) -> None:
    stage.ask()
    stage.operations.step()
    obstacle(stage)
    for _ in range(3):
        stage.operations.step()
        assert stage.gate.closed is None, "prepares are admitted while it waits"
    assert text in stage.operations.remarks[0]


def _with_instance(stage: Stage) -> None:
    stage.gpus.foreign_mig_mode(stage.gpu, True)
    stage.gpus.foreign_create(stage.gpu, 19, 0)


REFUSED: dict[str, Callable[[Stage], object]] = {
    "Fabric Manager does not run": lambda stage: setattr(stage, "fabric_manager", False),
    "Fabric Manager may not run": lambda stage: setattr(stage, "fabric_manager", None),
    "sysfs has no `reset`": lambda stage: setattr(stage, "sysfs", False),
    "remove them with nvidia-smi mig -dci": _with_instance,
    "another recovery first: node-reboot": lambda stage: stage.gpus.inject(stage.gpu, "recovery-action=node-reboot"),
    "MIG mode on is pending, which this driver did not request": lambda stage: stage.gpus.request_mig_mode(
        stage.gpu, True
    ),
    "the health of the GPU is unknown": lambda stage: setattr(stage, "is_stale", True),
    "does not answer": lambda stage: stage.gpus.inject(stage.gpu, "xid=79"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_an_impossible_request_is_refused_at_once(stage: Stage, text: str) -> None:
    REFUSED[text](stage)
    before = stage.gpus.mig_modes(stage.gpu) if "answer" not in text else None
    stage._refresh()
    stage.ask(Operation.MIG_OFF if before is not None and before.current else Operation.MIG_ON)
    stage.run()
    reason, found = stage.result
    assert (reason, text in found, "changed nothing" in found or "nothing was changed" in found) == (
        FAILED_EVENT,
        True,
        True,
    ), found
    assert stage.tainted == []


BREAKS: dict[str, HardwareError] = {
    "open in another process": GpuBusyError("open in another process"),
    "cannot reset": ResetRequiredError("this machine cannot reset the GPU"),
    "status 255": CommandError("nvidia-smi ended with status 255"),
}


@pytest.mark.parametrize("text", BREAKS)
def test_a_refused_reset_is_undone(stage: Stage, text: str) -> None:
    tries: list[GpuUuid] = []

    def refuse(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        raise BREAKS[text]

    stage.reset = refuse
    stage.ask()
    stage.run()
    reason, found = stage.result
    assert reason == FAILED_EVENT
    assert "undone, the GPU is as before" in found
    assert text in found
    assert (stage.modes, stage.tainted, stage.gate.closed) == (OFF, [], None)
    assert len(tries) == (2 if "open" in text else 1), "only a busy GPU is tried once more"


def test_a_reset_that_hangs_keeps_the_taint_until_a_reboot(stage: Stage) -> None:
    """No second reset is started: the first may hang in the kernel."""
    tries: list[GpuUuid] = []

    def hang(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        raise CommandError("the reset did not end within 120 s", reason=TIMEOUT)

    stage.reset = hang
    stage.ask(Operation.RESET)
    stage.run()
    assert "a reboot of the node is needed" in stage.result[1]
    assert (stage.tainted, len(tries), stage.gate.closed) == ([stage.gpu], 1, None)
    stage.boot()
    stage.run()
    assert (stage.tainted, len(tries)) == ([stage.gpu], 1)
    stage.boot_id = "boot-2"
    stage.boot()
    stage.run()
    assert (stage.tainted, stage.result[0]) == ([], DONE_EVENT)


def test_a_mode_that_cannot_be_written_back_keeps_the_taint(stage: Stage) -> None:
    class Stubborn:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            if enabled:
                return stage.gpus.request_mig_mode(gpu, True)
            raise DeviceLostError("Unknown Error")

    stage.control, stage.reset = Stubborn(), _refuse
    stage.boot()
    stage.ask()
    stage.run()
    assert "could not be written back" in stage.result[1]
    assert stage.tainted == [stage.gpu]
    stage.gpus.request_mig_mode(stage.gpu, False)  # by an administrator
    stage.run()
    assert stage.tainted == []


def test_a_write_back_without_effect_keeps_the_taint(stage: Stage) -> None:
    class Deaf:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            return stage.gpus.request_mig_mode(gpu, True)

    stage.control, stage.reset = Deaf(), _refuse
    stage.boot()
    stage.ask()
    stage.run()
    assert "the next reset or reboot switches MIG mode on" in stage.result[1]
    assert stage.tainted == [stage.gpu]


def _refuse(gpu: GpuUuid, within_s: float) -> None:
    raise CommandError("refused")


def test_a_reset_without_effect_is_tried_once_more_and_undone(stage: Stage) -> None:
    """nvidia-smi may end with status 0 and do nothing (vCenter)."""
    stage.reset = lambda gpu, within_s: None
    stage.ask()
    stage.run(most=400)
    assert "MIG mode is off and pending on, expected on" in stage.result[1]
    assert (stage.modes, stage.tainted) == (OFF, [])


def test_a_machine_that_cannot_reset_says_that_a_reboot_is_needed(stage: Stage) -> None:
    class Passthrough:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            answer = stage.gpus.request_mig_mode(gpu, enabled)
            return ModeAnswer.NEEDS_REBOOT if enabled else answer

    stage.control = Passthrough()
    stage.boot()
    stage.ask()
    stage.run()
    assert "a reboot of the node is needed, because this machine cannot reset" in stage.result[1]
    assert stage.modes == OFF


def test_a_process_that_opens_the_gpu_after_the_detach_stops_the_reset(stage: Stage) -> None:
    detach = stage._detach

    def raced() -> None:
        detach()
        stage.open_in = ("python (process 9)",) if stage.gpus.detached is not None else ()

    stage._detach = raced  # type: ignore[method-assign]
    stage.boot()
    stage.reset = lambda gpu, within_s: pytest.fail("reset")
    stage.ask()
    stage.run()
    assert "open in python (process 9)" in stage.result[1]
    assert stage.modes == OFF


def test_a_reset_repairs_a_gpu_that_needs_it(stage: Stage) -> None:
    stage.gpus.inject(stage.gpu, "xid=48", "row-remap=pending")
    stage.ask(Operation.RESET)
    stage.run()
    assert stage.result == (DONE_EVENT, f"the reset of {stage.gpu} (request {NUMBER}): done")
    assert stage.repaired == [stage.gpu]
    readings = {reading.gpu_uuid: reading for reading in stage.gpus.health_readings()}
    assert readings[stage.gpu].recovery_action == "none"


def test_a_policy_switches_the_mode_when_the_gpu_is_free(stage: Stage) -> None:
    stage.terms = {stage.gpu: GpuTerms(policy="sevenths", mig_mode=True)}
    stage.uses = [stage.gpu]
    for _ in range(3):
        stage.operations.step()
    assert stage.modes == OFF
    stage.uses = []
    stage.run()
    assert stage.modes == ON
    assert not stage.gpus.mig_mode(stage.other)
    assert "policy sevenths" in "".join(text for _, _, text in stage.events)


def test_a_policy_gives_up_after_three_attempts_a_day(stage: Stage) -> None:
    stage.terms = {stage.gpu: GpuTerms(policy="sevenths", mig_mode=True)}
    tries: list[GpuUuid] = []

    def refuse(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        raise CommandError("refused")

    stage.reset = refuse
    for _ in range(8):
        stage.run()
    assert len(tries) == DAILY
    assert "3 times within a day" in stage.operations.remarks[0]
    stage.now += 2 * 86_400
    stage.reset = stage.gpus.reset
    stage.run()
    assert stage.modes == ON


def test_a_policy_resets_only_what_the_driver_wants_reset(stage: Stage) -> None:
    rules = GpuTerms(policy="healing", health=HealthRules(resets_when_free=True))
    stage.terms = {stage.gpu: rules, stage.other: rules}
    stage.run()
    assert stage.events == []
    stage.gpus.inject(stage.gpu, "xid=48")
    stage.gpus.inject(stage.other, "recovery-action=drain-p2p")
    stage.run()
    assert [reason for _, reason, _ in stage.events] == ["GpuOperationBegun", DONE_EVENT]
    assert stage.repaired == [stage.gpu]


def test_requests_are_read_and_written() -> None:
    request = OperationRequest(operation=Operation.RESET, gpu=GpuUuid("GPU-1"), number="a1")
    assert requests_of(text_of([request, replace(request, number="b2")]))[0] == (request, replace(request, number="b2"))
    assert requests_of("reset/GPU-1/a1, burn/GPU-1/x,mig-on/GPU-2")[1] == ("burn/GPU-1/x", "mig-on/GPU-2")
    assert (requests_of(None), text_of([])) == (((), ()), None)


def test_prepares_stay_paused_while_the_gpu_changes(stage: Stage) -> None:
    """Also after a restart, before the first step."""
    seen: list[str | None] = []

    def reset(gpu: GpuUuid, within_s: float) -> None:
        seen.append(stage.gate.closed)
        raise KilledError

    stage.reset = reset
    stage.ask()
    with pytest.raises(KilledError):
        stage.run()
    stage.boot()
    seen.append(stage.gate.closed)
    assert len(seen) == 2
    assert all(reason and "guarded operation" in reason for reason in seen)
    stage.reset = stage.gpus.reset
    stage.run()
    assert (stage.modes, stage.gate.closed) == (ON, None)


def test_a_reset_that_repairs_nothing_is_tried_twice(stage: Stage) -> None:
    tries: list[GpuUuid] = []
    stage.gpus.inject(stage.gpu, "row-remap=pending")
    stage.reset = lambda gpu, within_s: tries.append(gpu)
    stage.ask(Operation.RESET)
    stage.run(most=900)
    assert len(tries) == 2
    assert "still asks for a reset" in stage.result[1]


def test_linked_gpus_before_ampere_are_not_reset_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "2xv100-sxm2-16gb")
    linked = NvLinks(peers=(NvLinkPeer(pci_bus_id="0000:66:00.0", links=2),))
    stage.last = replace(stage.last, gpus=tuple(replace(gpu, nvlinks=linked) for gpu in stage.last.gpus))
    stage.ask(Operation.RESET)
    stage.run()
    assert "together with the GPUs at its NVLinks" in stage.result[1]


def test_a_waiting_operation_does_not_delay_another_gpu(stage: Stage) -> None:
    """A policy can wait for days, until the claims of its GPU end."""
    stage.terms = {stage.gpu: GpuTerms(policy="sevenths", mig_mode=True)}
    stage.uses = [stage.gpu]
    for _ in range(3):
        stage.operations.step()
    assert stage.tainted == [stage.gpu]
    stage.annotations[OPERATION_ANNOTATION] = f"mig-on/{stage.other}/{NUMBER}"
    for _ in range(20):
        stage.operations.step()
    assert stage.gpus.mig_mode(stage.other)
    assert stage.result[0] == DONE_EVENT
    assert (stage.tainted, stage.gate.closed) == ([stage.gpu], None)


def test_two_free_gpus_are_changed_one_after_the_other(stage: Stage) -> None:
    changing: list[int] = []

    def reset(gpu: GpuUuid, within_s: float) -> None:
        steps = [record.step for record in stage.operations._records.values()]
        changing.append(sum(step not in (Step.WAITING, Step.BLOCKED) for step in steps))
        stage.gpus.reset(gpu, within_s)

    stage.reset = reset
    stage.annotations[OPERATION_ANNOTATION] = f"mig-on/{stage.gpu}/a1,mig-on/{stage.other}/a2"
    stage.run()
    assert changing == [1, 1]
    assert stage.gpus.mig_mode(stage.gpu)
    assert stage.gpus.mig_mode(stage.other)


def test_a_request_replaces_a_waiting_operation_of_a_policy(stage: Stage) -> None:
    stage.terms = {stage.gpu: GpuTerms(policy="sevenths", mig_mode=True)}
    stage.uses = [stage.gpu]
    for _ in range(3):
        stage.operations.step()
    stage.ask()
    stage.operations.step()
    stage.uses = []
    stage.run()
    assert stage.result == (DONE_EVENT, f"switching MIG mode on of {stage.gpu} (request {NUMBER}): done")


def test_processes_that_cannot_be_listed_stop_the_reset(stage: Stage) -> None:
    detach = stage._detach

    def raced() -> None:
        detach()
        stage.open_in = None if stage.gpus.detached is not None else ()

    stage._detach = raced  # type: ignore[method-assign]
    stage.boot()
    stage.reset = lambda gpu, within_s: pytest.fail("reset")
    stage.ask()
    stage.run()
    assert "cannot be listed" in stage.result[1]
    assert stage.modes == OFF


def test_an_unknown_node_starts_nothing(stage: Stage) -> None:
    """Without the Node's labels, another manager of MIG could be at work."""
    stage.ask()
    stage.operations.step()
    stage.is_known = False
    for _ in range(4):
        stage.operations.step()
    assert (stage.modes, stage.tainted) == (OFF, [stage.gpu])
    assert "the Node was not read" in stage.operations.remarks[0]


def test_a_reset_after_which_the_driver_asks_for_a_reboot_is_no_success(stage: Stage) -> None:
    tries: list[GpuUuid] = []

    def reset(gpu: GpuUuid, within_s: float) -> None:
        tries.append(gpu)
        stage.gpus.inject(gpu, "recovery-action=node-reboot")

    stage.reset = reset
    stage.ask(Operation.RESET)
    stage.run(most=900)
    assert (stage.result[0], len(tries), stage.repaired) == (FAILED_EVENT, 1, [])
    assert "a reboot of the node is needed" in stage.result[1]


def test_a_request_for_a_blocked_gpu_is_answered(stage: Stage) -> None:
    def hang(gpu: GpuUuid, within_s: float) -> None:
        raise CommandError("the reset did not end within 120 s", reason=TIMEOUT)

    stage.reset = hang
    stage.ask(Operation.RESET)
    stage.run()
    stage.ask(Operation.MIG_ON, "cd34")
    stage.run()
    assert "(request cd34): refused, nothing was changed: the reset is blocked" in stage.result[1]
    assert stage.tainted == [stage.gpu]
    count = len(stage.events)
    stage.boot()
    stage.run()
    assert len(stage.events) == count, "it is answered once"


def test_the_end_of_a_blocked_operation_reports_the_mode(stage: Stage) -> None:
    class Deaf:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            return stage.gpus.request_mig_mode(gpu, True)

    stage.control, stage.reset = Deaf(), _refuse
    stage.boot()
    stage.ask()
    stage.run()
    stage.gpus.request_mig_mode(stage.gpu, False)
    stage.run()
    assert stage.result[0] == FAILED_EVENT, "MIG mode was requested on"
    assert "MIG mode is off" in stage.result[1]


def test_a_driver_upgrade_after_the_reset_delays_the_verification(stage: Stage) -> None:
    """An administrator's request keeps the driver closed."""

    def reset(gpu: GpuUuid, within_s: float) -> None:
        stage.gpus.reset(gpu, within_s)
        stage._detach = lambda: None  # type: ignore[method-assign]

    stage.reset = reset
    stage.ask()
    for _ in range(300):
        stage.operations.step()
    assert stage.tainted == [stage.gpu]
    assert stage.events[-1][1] == "GpuOperationBegun"
    stage.gpus.reattach()
    stage.run()
    assert (stage.modes, stage.result[0]) == (ON, DONE_EVENT)


def test_a_newer_gpu_in_use_is_not_reset_for_its_mode(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "2xh100-sxm5-80gb")

    class Busy:
        def __getattr__(self, name: str) -> object:
            return getattr(stage.gpus, name)

        def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
            return ModeAnswer.IN_USE if enabled else stage.gpus.request_mig_mode(gpu, enabled)

    stage.control, stage.reset = Busy(), lambda gpu, within_s: pytest.fail("reset")
    stage.boot()
    stage.ask()
    stage.run()
    assert "this GPU needs no reset" in stage.result[1]
    assert stage.modes == OFF


def test_a_reset_is_verified_when_the_fabric_is_ready_again(stage: Stage) -> None:
    """CUDA fails on the GPU until then (802). A fabric that was down before the reset delays nothing."""
    gpu = replace(stage.last.gpus[0], fabric=Fabric(state=FabricState.IN_PROGRESS))
    (reading, _) = stage.gpus.health_readings()

    def lacks(gpu: Gpu, *, ready: bool) -> str | None:
        return why_unverified(Operation.RESET, gpu, None, reading, fabric_was_ready=ready)

    assert "fabric is not ready" in str(lacks(gpu, ready=True))
    assert lacks(gpu, ready=False) is None
    assert lacks(replace(gpu, fabric=Fabric(state=FabricState.COMPLETED)), ready=True) is None


def test_unreadable_requests_are_reported(stage: Stage) -> None:
    stage.annotations[OPERATION_ANNOTATION] = "mig-on/gpu-0/a1"
    stage.run()
    assert "mig-on/gpu-0/a1" in stage.operations.remarks[0]


def test_the_gate_stays_closed_while_one_of_two_holds_it() -> None:
    gate = PrepareGate()
    gate.close("an upgrade")
    gate.close("an operation", by=GATE)
    gate.open()
    assert gate.closed == "an operation"
    gate.open(by=GATE)
    assert gate.closed is None


def test_a_pending_mode_is_not_the_wanted_mode(stage: Stage) -> None:
    gpu = replace(stage.gpus.snapshot().gpus[0], mig_enabled=True, mig_instances=())
    modes = {(True, False): "on and pending off", (False, True): "off and pending on", None: "unknown"}
    for seen, words in modes.items():
        found = why_unverified(Operation.MIG_ON, gpu, seen, None, fabric_was_ready=False)
        assert found == f"MIG mode is {words}, expected on"
    assert why_unverified(Operation.MIG_ON, gpu, (True, True), None, fabric_was_ready=False) is None
