"""One suite for the health of GPUs: NVML over the C library and the simulation must tell the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DetachedError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import NvLinks
from dra_driver.core.model.health import HealthCause, HealthEvent, HealthEventKind, HealthReading, RecoveryAction
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.hardware.gpu.backend import GpuBackend
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from tests.contract.hardware.gpu.conftest import Opened, Patient
from tests.fakes.nvml.state import State
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.health.world import Node

H100, L4, V100 = 0, 2, 3
Sick = Callable[..., Patient]


@pytest.fixture
def node(node: NodeSpec) -> NodeSpec:
    """The first two GPUs are in an NVSwitch fabric."""
    joined = Fabric(state=FabricState.COMPLETED)
    links = NvLinks(peers=(), switch_links=18, clique=None)
    gpus = (replace(item, gpu=replace(item.gpu, fabric=joined, nvlinks=links)) for item in node.gpus[:2])
    return replace(node, gpus=(*gpus, *node.gpus[2:]))


@pytest.fixture
def sick(backend: GpuBackend, state: State) -> Sick:
    return lambda minor=H100: Patient(backend, state if isinstance(backend, NvmlBackend) else None, minor)


@pytest.fixture
def patient(sick: Sick) -> Patient:
    return sick()


def xid(patient: Patient, number: int, gi_id: int | None = None, count: int = 1) -> HealthEvent:
    ci_id = None if gi_id is None else 0
    return HealthEvent(
        kind=HealthEventKind.XID, gpu_uuid=patient.uuid, xid=number, gi_id=gi_id, ci_id=ci_id, count=count
    )


@pytest.mark.parametrize("is_named", [True, False])
def test_an_xid_of_a_divided_gpu_names_its_instance_or_the_whole_gpu(patient: Patient, is_named: bool) -> None:
    backend, uuid = patient.backend, patient.uuid
    backend.set_mig_mode(uuid, True)
    gi_id = backend.create_gpu_instance(uuid, 19, 2)
    backend.create_compute_instance(uuid, gi_id)
    backend.snapshot()
    patient.listen()
    named = gi_id if is_named else None
    patient.xid(94, gi_id=named)
    assert patient.events() == (xid(patient, 94, named),)


def test_a_double_bit_error_is_told(patient: Patient) -> None:
    patient.listen()
    patient.ecc()
    assert patient.events() == (HealthEvent(kind=HealthEventKind.DOUBLE_BIT_ECC, gpu_uuid=patient.uuid),)


def test_equal_events_are_one_with_a_count_and_others_stay_apart(patient: Patient, sick: Sick) -> None:
    """A kernel that faults in a loop must not fill memory; the error beside it must be seen."""
    other = sick(L4)
    patient.listen()
    patient.xid(13, times=300)
    other.xid(48)
    found = set[HealthEvent]()
    while len(found) < 2:
        found |= set(patient.events())
    assert found == {xid(patient, 13, count=300), xid(other, 48)}


def test_events_of_the_time_while_detached_are_lost_and_those_after_it_are_told(patient: Patient) -> None:
    patient.listen()
    assert patient.backend.detach("an upgrade")
    assert patient.events(0.01) == ()
    patient.xid(94)
    with pytest.raises(DetachedError):
        patient.backend.health_readings()
    patient.backend.reattach()
    patient.listen()
    patient.xid(95)
    assert patient.events() == (xid(patient, 95),)
    assert patient.events(0.01) == (), "each is told once"


def test_a_gpu_without_events_is_unmonitored_with_a_reason_and_the_others_are_heard(
    patient: Patient, sick: Sick
) -> None:
    deaf = sick(L4)
    deaf.deafen()
    patient.listen()
    unmonitored = patient.backend.health_unmonitored()
    assert list(unmonitored) == [deaf.uuid]
    assert "events" in unmonitored[deaf.uuid].lower()
    deaf.xid(48)
    patient.xid(95)
    assert patient.events() == (xid(patient, 95),)


def test_a_healthy_node_is_read_by_uuid_with_what_each_board_reports(backend: GpuBackend, sick: Sick) -> None:
    """Volta retires pages, later boards remap rows; only some have NVLinks that are always connected."""
    readings = backend.health_readings()
    assert [one.gpu_uuid for one in readings] == sorted(gpu.uuid for gpu in backend.snapshot().gpus)
    healthy: dict[str, Any] = {"recovery_action": RecoveryAction.NONE}
    h100, l4, v100 = (sick(minor) for minor in (H100, L4, V100))
    assert h100.reading() == HealthReading(
        gpu_uuid=h100.uuid, rows_pending=False, rows_failed=False, links_down=(), fabric_unhealthy="", **healthy
    )
    assert l4.reading() == HealthReading(gpu_uuid=l4.uuid, rows_pending=False, rows_failed=False, **healthy)
    assert v100.reading() == HealthReading(gpu_uuid=v100.uuid, pages_pending=False, links_down=(), **healthy)


@pytest.mark.parametrize(
    ("minor", "fall_ill", "changed"),
    [
        (H100, lambda gpu: gpu.remap(failed=False), {"rows_pending": True}),
        (H100, lambda gpu: gpu.remap(failed=True), {"rows_failed": True}),
        (V100, lambda gpu: gpu.retire(), {"pages_pending": True}),
        (H100, lambda gpu: gpu.need(RecoveryAction.NODE_REBOOT), {"recovery_action": RecoveryAction.NODE_REBOOT}),
        (H100, lambda gpu: gpu.cut_link(3), {"links_down": (3,)}),
        (H100, lambda gpu: gpu.leave_fabric(), {"fabric_unhealthy": "route unhealthy"}),
    ],
    ids=["rows-pending", "rows-failed", "pages", "recovery-action", "nvlink", "fabric"],
)
def test_what_a_gpu_reports_shows_in_its_reading_until_it_recovers(
    sick: Sick, minor: int, fall_ill: Callable[[Patient], None], changed: dict[str, Any]
) -> None:
    patient = sick(minor)
    before = patient.backend.health_readings()
    fall_ill(patient)
    ill = patient.backend.health_readings()
    assert patient.reading() == replace(next(one for one in before if one.gpu_uuid == patient.uuid), **changed)
    assert [a for a in ill if a.gpu_uuid != patient.uuid] == [b for b in before if b.gpu_uuid != patient.uuid]
    patient.recover()
    assert patient.backend.health_readings() == before


NVLINK = frozenset({HealthCause.NVLINK})


@pytest.mark.parametrize("rules", [HealthRules(), HealthRules(evicting_causes=NVLINK)], ids=["default", "evict"])
def test_links_of_a_partitioned_gpu_are_unknown_until_they_were_up_again(
    patient: Patient, sick: Sick, tmp_path: Path, rules: HealthRules
) -> None:
    """MIG takes them down. No taint, so that no pod is evicted; the other GPU of the fabric keeps its links."""
    backend, other, uuid = patient.backend, sick(1), patient.uuid
    health = Node(tmp_path, rules={uuid: rules, other.uuid: rules}).open()

    def look() -> tuple[int, ...] | None:
        health.look(backend.health_readings(), {})
        assert other.reading().links_down == ()
        return patient.reading().links_down

    assert look() == ()
    backend.set_mig_mode(uuid, True)
    gi_id = backend.create_gpu_instance(uuid, 19, 2)
    assert look() is None
    patient.cut_link(3)
    backend.destroy_gpu_instance(uuid, gi_id)
    backend.set_mig_mode(uuid, False)
    assert [look(), look()] == [None, None]
    patient.recover()
    assert look() == ()
    assert health.conditions() == ()
    patient.cut_link(3)
    assert look() == (3,)
    assert [one.cause for one in health.conditions()] == [HealthCause.NVLINK]


def test_links_to_a_partitioned_gpu_are_unknown_until_they_were_up_again(open_nvml: Opened, kind: str) -> None:
    """A direct link is down at both ends."""
    node = parse_groups("4xh100-nvl-94gb+pairs", "node-a")
    nvml, state = open_nvml(node)
    backend: GpuBackend = nvml if kind == "nvml" else SimulatedBackend(node)
    near, far, other = (Patient(backend, state if kind == "nvml" else None, minor) for minor in (0, 1, 2))

    def links() -> list[tuple[int, ...] | None]:
        return [one.reading().links_down for one in (near, far, other)]

    assert links() == [(), (), ()]
    backend.set_mig_mode(far.uuid, True)
    assert links() == [None, None, ()]
    other.cut_link(1)
    assert links() == [None, None, (1,)]
    near.cut_link(1)
    assert links() == [None, None, (1,)]
    backend.set_mig_mode(far.uuid, False)
    assert links() == [None, (), (1,)]
    near.recover()
    assert links() == [(), (), (1,)]
    near.cut_link(1)
    assert links() == [(1,), (), (1,)]


def test_a_lost_gpu_is_unreachable_until_it_answers_again_and_the_others_are_read(patient: Patient) -> None:
    before = patient.backend.health_readings()
    patient.listen()
    patient.lose()
    assert patient.events() == ()
    assert patient.backend.health_look_wanted()
    assert not patient.backend.health_look_wanted()
    ill = patient.backend.health_readings()
    assert [one.gpu_uuid for one in ill if one.unreachable] == [patient.uuid]
    lost = patient.reading()
    assert lost == HealthReading(gpu_uuid=patient.uuid, unreachable=lost.unreachable)
    assert [one for one in ill if one.unreachable is None] == [one for one in before if one.gpu_uuid != patient.uuid]
    patient.recover()
    assert patient.backend.health_readings() == before


def test_a_gpu_that_is_gone_stays_unreachable_until_it_is_forgotten(
    backend: GpuBackend, state: State, node: NodeSpec
) -> None:
    """A claim may have it: it must not vanish without a word. One that comes back is read again."""
    gone = node.gpus[V100].gpu.uuid
    before = backend.health_readings()
    less = replace(node, gpus=tuple(item for item in node.gpus if item.gpu.uuid != gone))
    replace_node = backend.replace_node if isinstance(backend, SimulatedBackend) else state.set_node
    replace_node(less)
    backend.close()
    found = {one.gpu_uuid: one.unreachable for one in backend.health_readings()}
    assert [uuid for uuid, reason in found.items() if reason] == [gone]
    assert "not on this node any more" in (found[gone] or "")
    backend.forget_gpu(gone)
    backend.forget_gpu(gone)
    assert {one.gpu_uuid for one in backend.health_readings()} == found.keys() - {gone}
    replace_node(node)
    backend.close()
    assert backend.health_readings() == before


def test_readings_and_waits_may_run_beside_each_other_and_survive_a_close(patient: Patient) -> None:
    patient.listen()
    before = patient.backend.health_readings()
    patient.backend.close()
    assert patient.backend.health_readings() == before
    patient.listen()
    patient.xid(63)
    assert patient.events() == (xid(patient, 63),)
