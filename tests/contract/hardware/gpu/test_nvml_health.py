"""Events and health through NVML, next to everything else that happens to GPUs and sessions."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.health import HealthReading, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.nvml.events import FLOOD, MAX_DIFFERENT, HealthEvents
from dra_driver.hardware.gpu.nvml.health import fabric_trouble
from dra_driver.hardware.gpu.nvml.session import SLICE_S, Session
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from tests.contract.hardware.gpu.conftest import LONG_S, WAIT, Call, Patient, readers, until, waiting
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State


@pytest.fixture
def node(node: NodeSpec) -> NodeSpec:
    """The first two GPUs are in an NVSwitch fabric."""
    fabric = Fabric(state=FabricState.COMPLETED)
    joined = (replace(item, gpu=replace(item.gpu, fabric=fabric)) for item in node.gpus[:2])
    return replace(node, gpus=(*joined, *node.gpus[2:]))


@pytest.fixture
def patient(nvml: NvmlBackend, state: State) -> Patient:
    return Patient(nvml, state)


@pytest.fixture
def eager(nvml_library: Path, state: State, tmp_path: Path) -> Iterator[HealthEvents]:
    """One that tries GPUs again after 50 ms that were left out."""
    session = Session(str(nvml_library), None, str(tmp_path / "sys"))
    yield HealthEvents(session, lambda *_: contextlib.nullcontext(), lambda *_: False, again_s=0.05)
    session.close()


def until_heard(eager: HealthEvents, state: State, index: int, number: int) -> None:

    def heard() -> bool:
        state.xid(index, number)
        return any(one.xid == number for one in eager.wait(0.05))

    until(heard)


def test_a_gpu_that_floods_is_left_out_and_the_errors_of_others_are_heard(patient: Patient, state: State) -> None:
    """Ten thousand XIDs a second: memory stays flat, no core is lost, and nothing of another GPU."""
    other = Patient(patient.backend, state, 2)
    patient.listen()
    state.configure(0, flood=13)
    state.xid(2, 48)
    seen: Counter[tuple[str, int | None]] = Counter()

    def all_told() -> bool:
        for one in patient.events(0.05):
            seen[one.gpu_uuid, one.xid] += one.count
        return (other.uuid, 48) in seen and patient.uuid in patient.backend.health_unmonitored()

    until(all_told)
    assert seen[patient.uuid, 13] >= FLOOD
    assert "over 1000 errors a second" in patient.backend.health_unmonitored()[patient.uuid]
    patient.listen()
    asked = state.calls(WAIT)
    other.xid(62)
    assert [(one.gpu_uuid, one.xid) for one in patient.events()] == [(other.uuid, 62)]
    assert state.calls(WAIT) - asked <= 3


def test_a_gpu_that_flooded_is_heard_again_later(eager: HealthEvents, state: State) -> None:
    assert eager.wait(0.01) == ()
    state.configure(0, flood=13)
    until(lambda: eager.wait(0.05) != () and bool(eager.unmonitored(())))
    state.configure(0, flood=0)
    until_heard(eager, state, 0, 48)


def test_different_errors_without_end_are_bounded(patient: Patient, state: State) -> None:
    patient.listen()
    for number in range(2 * MAX_DIFFERENT):
        state.xid(0, number)
    assert 0 < len(patient.events()) <= MAX_DIFFERENT


@pytest.mark.parametrize("code", [codes.UNKNOWN, codes.GPU_IS_LOST, codes.INVALID_ARGUMENT])
def test_a_wait_that_fails_at_once_is_not_repeated_in_a_hurry(patient: Patient, state: State, code: int) -> None:
    """NVIDIA's own drivers spin there."""
    patient.listen()
    asked = state.calls(WAIT)
    state.inject(WAIT, code)
    begin = time.monotonic()
    assert patient.events(0.3) == ()
    assert state.calls(WAIT) - asked == 1
    assert time.monotonic() - begin >= 0.3


def test_a_lost_gpu_that_answers_again_is_heard_again(eager: HealthEvents, state: State) -> None:
    assert eager.wait(0.01) == ()
    state.lose(0)
    assert eager.wait(LONG_S) == ()
    assert eager.take_look()
    assert eager.wait(0.02) == ()
    assert not eager.take_look(), "it is in the set still, and ends every wait"
    until_heard(eager, state, 2, 48)
    state.lose(0, False)
    until_heard(eager, state, 0, 62)


def test_trouble_of_the_driver_is_raised_and_the_next_wait_begins_a_new_session(patient: Patient, state: State) -> None:
    patient.listen()
    state.inject(WAIT, codes.LIB_RM_VERSION_MISMATCH, times=1)
    with pytest.raises(DriverUnavailableError):
        patient.events()
    patient.listen()
    patient.xid(48)
    assert [one.xid for one in patient.events()] == [48]


def test_our_own_waiting_does_not_keep_a_gpu_from_switching_its_mode(
    patient: Patient, nvml: NvmlBackend, state: State
) -> None:
    """An event set is a client of the GPU. The wait is interrupted: a claim waits for the mode."""
    waits = state.calls(WAIT)
    call = Call(state, None, lambda: patient.events(LONG_S))
    until(lambda: state.calls(WAIT) > waits)
    begin = time.monotonic()
    nvml.set_mig_mode(patient.uuid, True)
    assert time.monotonic() - begin < SLICE_S, "it waited for the end of a wait"
    waits = state.calls(WAIT)
    until(lambda: state.calls(WAIT) > waits)
    state.xid(0, 48)
    answer = call.result()
    assert isinstance(answer, tuple)
    assert [one.xid for one in answer] == [48]


def test_both_sets_are_waited_for_at_once(patient: Patient, nvml: NvmlBackend, state: State) -> None:
    """An XID is not taken for a change of instances, nor the reverse."""
    waits = state.calls(WAIT)
    changes = Call(state, None, lambda: nvml.wait_for_event(LONG_S))
    errors = Call(state, None, lambda: patient.events(LONG_S))
    until(lambda: state.calls(WAIT) >= waits + 2)
    patient.xid(48)
    assert isinstance(errors.result(), tuple)
    assert not changes.done
    state.foreign_mode(0, True)
    assert changes.result() is True


def test_a_driver_without_event_sets_leaves_all_gpus_unmonitored_and_costs_nothing(
    patient: Patient, nvml: NvmlBackend, state: State
) -> None:
    state.inject("nvmlEventSetCreate", codes.NOT_SUPPORTED)
    assert patient.events(0.3) == ()
    readings = nvml.health_readings()
    assert set(nvml.health_unmonitored()) == {one.gpu_uuid for one in readings}
    assert "nvmlEventSetCreate" in nvml.health_unmonitored()[patient.uuid]
    assert state.calls("nvmlEventSetCreate") == 1


def test_a_gpu_that_never_answered_health_is_unreachable_after_three_looks(nvml: NvmlBackend, state: State) -> None:
    uuid = nvml.snapshot().gpus[0].uuid
    state.inject("nvmlDeviceGetHandleByIndex_v2", codes.UNKNOWN, device=0)
    looks = [{one.gpu_uuid: one.unreachable for one in nvml.health_readings()}[uuid] for _ in range(4)]
    assert looks[:3] == [None, None, None]
    assert looks[3] is not None


def test_ids_of_an_instance_mean_nothing_on_a_gpu_that_is_not_divided(patient: Patient, state: State) -> None:
    """NVIDIA's mock of NVML tells 0 and 0 there; a driver that believes it misses the error."""
    patient.listen()
    state.xid(0, 48, gi_id=0, ci_id=0)
    ((found),) = patient.events()
    assert (found.gi_id, found.ci_id) == (None, None)


def test_an_event_of_the_recovery_action_asks_for_a_look(patient: Patient, state: State) -> None:
    patient.listen()
    state.configure(0, recovery_action=2)
    state.tell(0, codes.RECOVERY_ACTION)
    assert patient.events() == ()
    assert patient.backend.health_look_wanted()
    assert patient.reading().recovery_action is RecoveryAction.NODE_REBOOT


def test_a_gpu_whose_driver_does_not_know_the_recovery_action_has_none(patient: Patient, state: State) -> None:
    state.configure(0, recovery_action=-1)
    assert patient.reading().recovery_action is None
    state.configure(0, recovery_action=99)
    assert patient.reading().recovery_action is RecoveryAction.UNKNOWN


def test_remapped_rows_stay_as_they_were_while_instances_exist(patient: Patient, nvml: NvmlBackend) -> None:
    """NVML says Not Supported then; the row is no healthier."""
    patient.remap(failed=False)
    assert patient.reading().rows_pending is True
    nvml.set_mig_mode(patient.uuid, True)
    gi_id = nvml.create_gpu_instance(patient.uuid, 19, 0)
    assert patient.reading().rows_pending is True
    nvml.destroy_gpu_instance(patient.uuid, gi_id)
    patient.recover()
    assert patient.reading().rows_pending is False


def test_a_property_that_fails_once_keeps_its_value_and_a_gpu_that_fails_is_kept_for_three_looks(
    patient: Patient, state: State
) -> None:
    """A GPU under load answers single calls with Unknown; a taint for that would come and go."""
    patient.need(RecoveryAction.NODE_REBOOT)
    before = patient.reading()
    for function in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetNvLinkState"):
        state.inject(function, codes.UNKNOWN)
    assert patient.reading() == before
    state.clear_faults()
    state.inject("nvmlDeviceGetHandleByIndex_v2", codes.UNKNOWN, device=0)
    assert [patient.reading() == before for _ in range(4)] == [True, True, True, False]
    assert "NVML code 999" in (patient.reading().unreachable or "")
    assert patient.reading().passing


NEEDED = {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlInitWithFlags"}
OF_FUNCTION = {
    "nvmlDeviceGetFieldValues": {"recovery_action"},
    "nvmlDeviceGetRemappedRows": {"rows_pending", "rows_failed"},
    "nvmlDeviceGetRetiredPagesPendingStatus": {"pages_pending"},
    "nvmlDeviceGetNvLinkState": {"links_down"},
    "nvmlDeviceGetMigMode": {"links_down"},
    "nvmlDeviceGetGpuFabricInfoV": {"fabric_unhealthy"},
}


@pytest.mark.parametrize("code", [codes.UNKNOWN, codes.INVALID_ARGUMENT, codes.TIMEOUT])
def test_one_call_that_always_fails_leaves_the_rest_readable(nvml: NvmlBackend, state: State, code: int) -> None:
    """From the first look on, so that there is no last answer."""
    before = nvml.health_readings()
    asked = {name for name in state.functions() if state.calls(name)} - NEEDED
    assert asked >= OF_FUNCTION.keys()
    for function in asked:
        for one in before:
            nvml.forget_gpu(one.gpu_uuid)
        state.inject(function, code)
        for _ in range(4):
            found = nvml.health_readings()
        unread = dict.fromkeys(OF_FUNCTION.get(function, ()))
        expected = [replace(one, **unread) for one in before]
        if function == "nvmlDeviceGetRemappedRows":  # these boards are asked for pages then
            found = tuple(replace(one, pages_pending=was.pages_pending) for one, was in zip(found, before, strict=True))
        assert list(found) == expected, function
        state.clear_faults()


def test_a_link_that_always_fails_leaves_the_others_readable(patient: Patient, state: State) -> None:
    state.inject("nvmlDeviceGetNvLinkState", codes.UNKNOWN, device=0, skip=2, times=1)
    assert patient.reading().links_down == ()
    state.inject("nvmlDeviceGetNvLinkState", codes.UNKNOWN, device=0, skip=2, times=1)
    patient.cut_link(3)
    assert patient.reading().links_down == (3,)


def test_the_word_that_no_recovery_is_needed_is_not_kept_when_it_cannot_be_read(patient: Patient, state: State) -> None:
    assert patient.reading().recovery_action is RecoveryAction.NONE
    state.inject("nvmlDeviceGetFieldValues", codes.UNKNOWN)
    assert patient.reading().recovery_action is None
    state.clear_faults()
    assert patient.reading().recovery_action is RecoveryAction.NONE
    state.inject("nvmlDeviceGetHandleByIndex_v2", codes.UNKNOWN, device=0)
    assert patient.reading().recovery_action is None


def test_a_gpu_that_needs_a_reset_is_unreachable_with_the_next_step(patient: Patient, state: State) -> None:
    """NVML refuses every call then."""
    patient.reading()
    state.inject("nvmlDeviceGetUUID", codes.RESET_REQUIRED, device=0)
    assert "kubectl dra gpu reset" in (patient.reading().unreachable or "")
    assert (patient.reading().passing, patient.reading().needs_reset) == (False, True)


def test_a_lost_gpu_needs_no_reset_but_a_reboot(patient: Patient, state: State) -> None:
    patient.reading()
    state.inject("nvmlDeviceGetUUID", codes.GPU_IS_LOST, device=0)
    assert not patient.reading().needs_reset


def test_a_gpu_that_hangs_is_told_as_such_and_the_others_are_read(impatient: NvmlBackend, state: State) -> None:
    patient = Patient(impatient, state, 2)
    before = impatient.health_readings()
    state.hang("nvmlDeviceGetUUID", device=2)
    assert not [one for one in impatient.health_readings() if one.unreachable and not one.hangs], "slow is not lost"

    def only_it_hangs() -> bool:
        found = impatient.health_readings()
        others = [one for one in found if one.gpu_uuid != patient.uuid]
        return len(others) < len(found) and others == [one for one in before if one.gpu_uuid != patient.uuid]

    until(lambda: patient.reading().hangs and only_it_hangs())
    hanging = patient.reading()
    assert hanging == HealthReading(gpu_uuid=patient.uuid, unreachable=hanging.unreachable, hangs=True)
    assert "an NVML call has not returned" in (hanging.unreachable or "")
    impatient.snapshot()
    until(lambda: readers() == 1)
    state.release()
    until(lambda: readers() == 0 and impatient.health_readings() == before)


def test_a_link_that_was_never_up_is_told_only_in_a_fabric_whose_other_gpus_have_it(
    patient: Patient, nvml: NvmlBackend, state: State
) -> None:
    """Without NVSwitches a bridge may be missing, so it is not known."""
    state.configure(0, links_down=1 << 5)
    state.configure(3, links_down=1 << 2)
    assert patient.reading().links_down == (5,)
    assert Patient(nvml, state, 3).reading().links_down is None


ALL_DOWN = (1 << 18) - 1


def switch_fast(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    nvml.set_mig_mode(uuid, True)
    nvml.set_mig_mode(uuid, False)


def switch_elsewhere(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    """By another program; the library names no link then."""
    state.foreign_mode(0, True)
    state.inject("nvmlDeviceGetNvLinkState", codes.NOT_SUPPORTED, device=0)
    nvml.health_readings()
    state.clear_faults()
    state.foreign_mode(0, False)


def leave_pending(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    state.configure(0, mig_pending=1)
    assert {one.gpu_uuid: one.links_down for one in nvml.health_readings()}[uuid] is None
    state.configure(0, mig_pending=0)


@pytest.mark.parametrize("switch", [switch_fast, switch_elsewhere, leave_pending])
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen up before", "new process"])
def test_links_are_unknown_after_mig_however_it_came_and_went(
    patient: Patient, nvml: NvmlBackend, state: State, switch: Callable[..., None], is_seen: bool
) -> None:
    """Also in a fabric, whose other GPU has its links up: they train for seconds."""
    if not is_seen:
        state.configure(0, links_down=ALL_DOWN, mig_pending=1)
    nvml.health_readings()
    state.configure(0, mig_pending=0)
    switch(nvml, state, patient.uuid)
    state.configure(0, links_down=ALL_DOWN)
    assert patient.reading().links_down is None
    state.configure(0, links_down=1 << 3)
    assert patient.reading().links_down is None
    state.configure(0, links_down=0)
    assert patient.reading().links_down == ()
    state.configure(0, links_down=1 << 3)
    assert patient.reading().links_down == (3,)


def test_links_that_failed_before_mig_are_not_up_because_nothing_is_known(patient: Patient, state: State) -> None:
    patient.cut_link(3)
    assert patient.reading().links_down == (3,)
    state.configure(0, mig_pending=1)
    assert patient.reading().links_down is None
    state.configure(0, mig_pending=0)
    assert patient.reading().links_down is None


def test_links_are_unknown_while_the_mig_mode_was_never_read(patient: Patient, state: State) -> None:
    state.inject("nvmlDeviceGetMigMode", codes.UNKNOWN)
    assert patient.reading().links_down is None
    state.clear_faults()
    assert patient.reading().links_down == ()
    state.inject("nvmlDeviceGetMigMode", codes.UNKNOWN)
    assert patient.reading().links_down == ()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ""),
        (0b10101010, ""),
        (1, "degraded bandwidth"),
        (1 << 2 | 1 << 4 | 1 << 6, "route recovery, route unhealthy, access timeouts"),
        (1 << 8, ""),
        (5 << 8, "insufficient NVLinks"),
        (15 << 8, "incorrect configuration 15"),
    ],
)
def test_the_fabrics_health_mask_is_told_in_words(mask: int, words: str) -> None:
    """Pairs of bits in which 1 is the trouble and 2 its absence, and four bits of configuration (nvml.h)."""
    assert fabric_trouble(mask) == words


def test_a_look_at_eight_gpus_makes_a_bounded_number_of_calls(
    patient: Patient, nvml: NvmlBackend, state: State
) -> None:
    """It is repeated every ten seconds on every node."""
    nvml.health_readings()
    before = {name: state.calls(name) for name in state.functions()}
    nvml.health_readings()
    calls = sum(state.calls(name) for name in state.functions()) - sum(before.values())
    assert calls <= 7 * 8 + 3 * 18 + 10


def test_a_mode_switched_by_another_program_ends_the_wait_and_events_go_on_after_the_next_look(
    nvml: NvmlBackend, state: State
) -> None:
    """The GPU is bound again then, and its registration is lost."""
    nvml.snapshot()
    waiter = waiting(nvml, state)
    state.foreign_mode(0, True)
    assert waiter.result() is True
    nvml.snapshot()
    waiter = waiting(nvml, state)
    state.foreign_create(0, 19, 0)
    assert waiter.result() is True


def test_waiting_for_changes_does_not_keep_a_gpu_from_switching_its_mode(
    nvml: NvmlBackend, state: State, uuid: GpuUuid
) -> None:
    """An event set is a client of the GPU; it is freed meanwhile and created again."""
    waiter = waiting(nvml, state)
    registered = state.calls("nvmlDeviceRegisterEvents")
    nvml.set_mig_mode(uuid, True)
    gi_id = nvml.create_gpu_instance(uuid, 19, 0)
    until(lambda: waiter.answer is not None or state.calls("nvmlDeviceRegisterEvents") > registered)
    waits = state.calls("nvmlEventSetWait_v2")
    until(lambda: waiter.answer is not None or state.calls("nvmlEventSetWait_v2") > waits)
    nvml.destroy_gpu_instance(uuid, gi_id)
    assert waiter.result() is True


def test_looks_and_changes_do_not_wait_for_the_one_who_waits(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    waiter = waiting(nvml, state, timeout_s=2.0)
    for _ in range(10):
        nvml.snapshot()
        nvml.compute_mode(uuid)
    assert waiter.answer is None, "it has ended before them"
    assert waiter.result() is False


@pytest.mark.parametrize(
    "function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"]
)
def test_without_events_it_sleeps_and_says_that_nothing_happened(
    nvml: NvmlBackend, state: State, function: str
) -> None:
    state.inject(function, codes.NOT_SUPPORTED)
    begin = time.monotonic()
    assert nvml.wait_for_event(0.3) is False
    assert 0.25 < time.monotonic() - begin < 2
    assert state.calls(function) <= 7  # once per GPU


def test_a_node_whose_gpus_have_no_mig_is_not_listened_to(nvml: NvmlBackend, state: State) -> None:
    state.set_node(parse_groups("8xl4-24gb", "node-a"))
    assert nvml.wait_for_event(0.05) is False
    assert state.calls("nvmlEventSetWait_v2") == 0


def test_a_gpu_that_is_lost_ends_the_wait_and_does_not_end_the_events_of_the_others(
    nvml: NvmlBackend, state: State
) -> None:
    """Its loss shows in the next look; NVML then fails every wait with it in the set at once."""
    state.foreign_mode(1, True)
    waiter = waiting(nvml, state)
    state.lose(0)
    assert waiter.result() is True
    assert nvml.wait_for_event(0.02) is False
    waiter = waiting(nvml, state)
    state.foreign_create(1, 19, 0)
    assert waiter.result() is True


def test_event_sets_are_freed(nvml: NvmlBackend, state: State) -> None:
    """Each is an open file in the driver, and a new one is made after every change of a mode."""
    for enabled in (True, False) * 10:
        nvml.snapshot()
        nvml.wait_for_event(0.002)
        state.foreign_mode(0, enabled)
    assert state.calls("nvmlEventSetCreate") > 10
    assert state.calls("nvmlEventSetCreate") - state.calls("nvmlEventSetFree") <= 1


def test_closing_ends_the_wait_and_the_session_stays_closed(nvml: NvmlBackend, state: State) -> None:
    waiter = waiting(nvml, state)
    nvml.close()
    assert waiter.result() is False
    opened = state.calls("nvmlInitWithFlags")
    time.sleep(0.01)
    assert state.calls("nvmlInitWithFlags") == opened == 1
