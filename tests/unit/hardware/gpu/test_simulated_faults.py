"""Faults of simulated GPUs by name."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.model.health import HealthEvent, HealthEventKind, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.faults import FaultKind, GpuFault, HardwareFault, events_of, health_of
from dra_driver.hardware.gpu.simulated.spec import parse_groups

DOCUMENT = Path(__file__).parents[4] / "docs" / "simulated-gpus.md"
GPU = GpuUuid("GPU-1")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("xid=79", "xid=79"),
        ("xid=13*2000", "xid=13*2000"),
        ("ecc", "ecc"),
        ("lost*1", "lost"),
        ("row-remap", "row-remap=pending"),
        ("row-remap=failed", "row-remap=failed"),
        ("recovery-action", "recovery-action=gpu-reset"),
        ("nvlink", "nvlink=0"),
        ("nvlink=17", "nvlink=17"),
    ],
)
def test_a_fault_is_written_in_one_form(text: str, written: str) -> None:
    """And what is written is read again."""
    assert str(HardwareFault.parse(text)) == written
    assert HardwareFault.parse(written) == HardwareFault.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a fault such as xid=79, ecc, lost"),
        ("fire", "a fault such as xid=79, ecc, lost"),
        ("XID=79", "a fault such as"),
        ("xid", "a number from 1 to 9999"),
        ("xid=0", "a number from 1 to 9999"),
        ("xid=10000", "a number from 1 to 9999"),
        ("xid=7\u0669", "a fault such as"),
        ("lost=now", "lost without a value"),
        ("row-remap=maybe", "row-remap=pending or row-remap=failed"),
        ("recovery-action=none", "one of bus-reset, drain-and-reset"),
        ("nvlink=18", "from 0 to 17"),
        ("ecc*0", "1 to 1000000 times"),
        ("ecc*1000001", "1 to 1000000 times"),
        ("x" * 5000, "not 'xxx"),
    ],
)
def test_a_wrong_fault_is_refused_with_what_is_expected(text: str, expected: str) -> None:
    """It comes from an annotation that anyone with rights on the Node can write: bounded, and a short answer."""
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        HardwareFault.parse(text)
    assert len(str(caught.value)) < 300


def test_an_instances_fault_leaves_its_gpu_healthy() -> None:
    """Its event names the instance. That no recovery is needed would end it, so it is not said."""
    fault = GpuFault(gpu=GPU, fault=HardwareFault.parse("xid=95*3"), gi_id=4)
    assert health_of([fault]) == replace(health_of([]), recovery_action=None)
    ((event, count),) = events_of([fault]).items()
    assert (event.kind, event.xid, event.gi_id, event.ci_id, count) == (HealthEventKind.XID, 95, 4, 0, 3)


def test_an_error_of_a_program_needs_no_recovery_and_others_need_a_reset() -> None:
    """NVML asks for none after a kernel that faulted."""
    found = {
        number: health_of([GpuFault(gpu=GPU, fault=HardwareFault.parse(f"xid={number}"))]) for number in (13, 79, 95)
    }
    assert found[13] == health_of([])
    assert found[79].lost == "it has fallen off the bus (simulated XID 79)"
    assert found[95].recovery_action is RecoveryAction.GPU_RESET


def test_the_table_of_faults_in_the_documentation_is_complete() -> None:
    """And lists no other name."""
    section = DOCUMENT.read_text().partition("| fault |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `([a-z-]+)` \|", section, re.M)
    assert sorted(named) == sorted(FaultKind)


class Counted(SimulatedBackend):
    """Counts looks for events."""

    looks = 0

    def _new_events(self) -> tuple[HealthEvent, ...]:
        self.looks += 1
        return super()._new_events()


def test_a_wait_looks_for_events_after_changes_alone(tmp_path: Path) -> None:
    """A node of simulated GPUs asks once a second for its whole life; other processes change its GPUs."""
    node, file = parse_groups("1xh100-sxm5-80gb", "node"), tmp_path / "state"
    waits, other = Counted(node, state_file=file), SimulatedBackend(node, state_file=file)
    for _ in range(3):
        assert waits.wait_for_health_events(0.0) == ()
    assert waits.looks == 1
    other.inject(node.gpus[0].gpu.uuid, "xid=48")
    assert [event.xid for event in waits.wait_for_health_events(0.0)] == [48]
    assert waits.health_look_wanted()
    waits.wait_for_health_events(0.0)
    assert waits.looks == 2
