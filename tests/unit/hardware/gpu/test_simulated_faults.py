"""Faults of simulated GPUs, and the rules for their MIG instances."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    ConfigurationError,
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    NoRoomError,
)
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.health import HealthEvent, HealthEventKind, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, MigProfile
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.catalog import models
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated.faults import (
    MAX_LENGTH,
    MAX_ORDERS,
    FailureMode,
    FaultKind,
    GpuFault,
    HardwareFault,
    events_of,
    format_orders,
    health_of,
    parse_orders,
    without_device,
)
from dra_driver.hardware.gpu.simulated.hardware import is_open
from dra_driver.hardware.gpu.simulated.spec import parse_document, parse_groups
from dra_driver.kube.own_node import MAX_VALUE
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.raising import fails

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


@pytest.mark.parametrize(("head", "names"), [("| fault |", FaultKind), ("| trouble |", FailureMode)])
def test_the_tables_in_the_documentation_are_complete(head: str, names: type[StrEnum]) -> None:
    section = DOCUMENT.read_text().partition(head)[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([a-z -]+)` \|", section, re.M)) == sorted(names)


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


PART = "gpu-1-mig-1g10gb-19-0"
TEXT = f"gpu-0 xid=79, {PART} xid=94*2, gpu-12 row-remap=pending"


def test_what_is_written_is_read_again() -> None:
    assert format_orders(parse_orders(TEXT)) == TEXT
    assert parse_orders(f" {TEXT.replace(', ', ',,  ')} , ") == parse_orders(TEXT)
    assert parse_orders("") == parse_orders(" , ") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-0", "DEVICE FAULT such as gpu-0 xid=79 expected"),
        ("gpu-0 xid=79 gpu-1 ecc", "several joined by commas"),
        ("node ecc", "a device such as gpu-0"),
        ("gpu-1000 ecc", "a device such as gpu-0"),
        ("gpu-0 fire", "a fault such as xid=79"),
        (f"{PART} lost", "lost is a fault of a whole GPU: gpu-1 expected"),
        ("gpu-0 ecc," * (MAX_ORDERS + 1), f"at most {MAX_ORDERS} faults expected, not {MAX_ORDERS + 1}"),
        ("x" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH} characters expected"),
    ],
)
def test_a_wrong_annotation_is_refused_with_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        parse_orders(text)
    assert len(str(caught.value)) < 300


def test_an_annotation_that_was_cut_is_never_read() -> None:
    """Half an order could be another one."""
    assert MAX_LENGTH < MAX_VALUE


def test_a_gpu_recovers_with_its_partitions_and_a_partition_alone() -> None:
    orders = parse_orders(f"gpu-1 lost, {PART} ecc, gpu-12 ecc")
    assert format_orders(without_device(orders, "gpu-1")) == "gpu-12 ecc"
    assert format_orders(without_device(orders, PART)) == "gpu-1 lost, gpu-12 ecc"


@pytest.fixture
def backend() -> SimulatedBackend:
    return SimulatedBackend(parse_groups("2xh100-sxm5-80gb+mig", "n"))


@pytest.fixture
def gpu(backend: SimulatedBackend) -> GpuUuid:
    return backend.snapshot().gpus[0].uuid


def test_a_gpu_that_hangs_is_left_out_and_its_calls_wait_a_bounded_time() -> None:
    slept: list[float] = []
    backend = SimulatedBackend(parse_groups("2xl4-24gb", "n"), sleep=slept.append)
    gpu = backend.snapshot().gpus[0].uuid
    backend.set_troubles(gpu, FailureMode.HANGS)
    found = backend.snapshot()
    assert [one.label for one in found.left_out] == [gpu]
    assert "has not returned" in found.left_out[0].reason
    with pytest.raises(DeviceLostError, match="has not returned"):
        backend.compute_mode(gpu)
    assert sum(slept) == pytest.approx(faults.HANG_S, abs=0.1)
    assert backend.compute_mode(found.gpus[0].uuid) is ComputeMode.DEFAULT


def test_a_gpu_with_trouble_is_seen_and_fails_as_its_trouble_says(backend: SimulatedBackend, gpu: GpuUuid) -> None:
    """UNKNOWN of the firmware, an instance that a second process subscribed to, placements that are Not Supported."""
    gi_id = backend.create_gpu_instance(gpu, 19, 0)
    before = backend.snapshot()
    backend.set_troubles(gpu, FailureMode.CALLS_FAIL)
    assert backend.snapshot() == before
    with pytest.raises(DeviceLostError, match=r"compute_mode of GPU .* 999"):
        backend.compute_mode(gpu)
    backend.set_troubles(gpu, FailureMode.SUBSCRIBED)
    with pytest.raises(GpuBusyError, match="another process"):
        backend.destroy_gpu_instance(gpu, gi_id)
    backend.set_troubles(gpu, FailureMode.NO_PLACEMENTS)
    backend.destroy_gpu_instance(gpu, gi_id)
    assert [(one.mig_capable, bool(one.mig_profiles)) for one in backend.snapshot().gpus] == [
        (True, False),
        (True, True),
    ]


def test_troubles_can_be_described_and_are_added_to_those_that_are_set() -> None:
    node = parse_document("gpus: [{model: l4-24gb, troubles: [unbound]}, {model: l4-24gb}]", "n")
    backend = SimulatedBackend(node)
    assert [gpu.minor for gpu in backend.snapshot().gpus] == [1]
    assert backend.troubles(node.gpus[0].gpu.uuid) == {FailureMode.UNBOUND}


def test_an_unknown_trouble_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with fails(ConfigurationError, match=r"gpus\[0\]\.troubles.*smokes"):
        parse_document("gpus: [{model: l4-24gb, troubles: [smokes]}]", "n")
    file = tmp_path / "state.json"
    backend = SimulatedBackend(parse_groups("1xl4-24gb", "n"), state_file=file)
    backend.set_troubles(backend.snapshot().gpus[0].uuid, FailureMode.HANGS)
    file.write_text(json.dumps(json.loads(file.read_text())).replace('["hangs"]', '["smokes"]'))
    with pytest.raises(DriverUnavailableError, match="smokes"):
        backend.snapshot()


@pytest.mark.parametrize("give_up", [lambda b: b.detach("upgrade"), lambda b: b.close()])
def test_the_driver_is_in_use_until_the_last_process_gives_it_up(
    tmp_path: Path, give_up: Callable[[SimulatedBackend], object]
) -> None:
    file = tmp_path / "state.json"
    backends = [SimulatedBackend(parse_groups("1xl4-24gb", "n"), state_file=file) for _ in range(2)]
    assert not is_open(file)
    for backend in backends:
        backend.snapshot()
    assert is_open(file)
    give_up(backends[0])
    assert is_open(file)
    give_up(backends[1])
    assert not is_open(file)
    backends[0].reattach()
    assert not is_open(file)
    backends[0].snapshot()
    assert is_open(file)
    backends[0].close()


MIG_MODELS = sorted(key for key, model in models().items() if model.mig is not None)
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


def board(key: str) -> tuple[SimulatedBackend, Gpu]:
    backend = SimulatedBackend.from_spec(f"1x{key}+mig", "n")
    return backend, backend.snapshot().gpus[0]


def profile(gpu: Gpu, name: str) -> MigProfile:
    return next(found for found in gpu.mig_profiles if found.name == name)


def make(backend: SimulatedBackend, gpu: Gpu, name: str, start: int) -> int:
    gi_id = backend.create_gpu_instance(gpu.uuid, profile(gpu, name).profile_id, start)
    backend.create_compute_instance(gpu.uuid, gi_id)
    return gi_id


def breaks_a_rule(gpu: Gpu, taken: Iterable[tuple[MigProfile, int]]) -> bool:
    taken = list(taken)
    slices = Counter(slot for found, start in taken for slot in range(start, start + found.memory_slices))
    per_profile = Counter(found.profile_id for found, _ in taken)
    whole = next(found for found in gpu.mig_profiles if found.memory_slices == gpu.memory_slices)
    return (
        any(count > 1 for count in slices.values())
        or sum(found.compute_slices for found, _ in taken) > whole.compute_slices
        or any(
            count > (found.max_instances if (found := gpu.profile(pid)) else 0) for pid, count in per_profile.items()
        )
        or any(
            (total := getattr(whole, engine)) is not None
            and sum(getattr(found, engine) or 0 for found, _ in taken) > total
            for engine in ENGINES
        )
    )


def layout(gpu: Gpu, instances: Iterable[MigInstance]) -> list[tuple[MigProfile, int]]:
    return [
        (found, instance.start) for instance in instances if (found := gpu.profile(instance.profile_id)) is not None
    ]


@pytest.mark.parametrize("key", MIG_MODELS)
def test_a_walk_of_makes_and_removals_obeys_the_rules_at_every_step(key: str) -> None:
    backend, gpu = board(key)
    choices = [(found, start) for found in gpu.mig_profiles for start in found.starts]
    walk = random.Random(key)  # noqa: S311 - the same walk every time
    outcomes: Counter[bool] = Counter()
    for _ in range(80):
        before = backend.mig_instances(gpu.uuid)
        if before and walk.random() < 0.4:
            gone = walk.choice(before)
            backend.destroy_compute_instance(gpu.uuid, gone.gi_id, 0)
            backend.destroy_gpu_instance(gpu.uuid, gone.gi_id)
            assert backend.mig_instances(gpu.uuid) == tuple(i for i in before if i != gone)
            continue
        found, start = walk.choice(choices)
        refused = breaks_a_rule(gpu, [*layout(gpu, before), (found, start)])
        outcomes[refused] += 1
        if refused:
            with pytest.raises(NoRoomError, match=r"no room for .*: "):
                backend.create_gpu_instance(gpu.uuid, found.profile_id, start)
            assert backend.mig_instances(gpu.uuid) == before
        else:
            make(backend, gpu, found.name, start)
        now = backend.mig_instances(gpu.uuid)
        assert [instance.start for instance in now] == sorted(instance.start for instance in now)
        assert len({instance.gi_id for instance in now}) == len(now)
        assert all(instance.device is not None and not instance.owned for instance in now)
    assert outcomes[True] > 5
    assert outcomes[False] > 5
    for instance in backend.mig_instances(gpu.uuid):
        backend.destroy_compute_instance(gpu.uuid, instance.gi_id, 0)
        backend.destroy_gpu_instance(gpu.uuid, instance.gi_id)
    assert backend.snapshot().gpus[0] == gpu


@pytest.mark.parametrize(
    ("key", "wanted", "refused"),
    [
        ("h100-sxm5-80gb", [("3g.40gb", 0), ("3g.40gb", 4)], ("1g.10gb", 6)),
        ("h100-sxm5-80gb", [("1g.10gb", start) for start in range(7)], ("1g.10gb", 0)),
        ("h100-sxm5-80gb", [("1g.20gb", 6), ("2g.20gb", 0), ("2g.20gb", 2)], ("3g.40gb", 4)),
        ("a100-sxm4-40gb", [("1g.5gb+me", 0)], ("1g.5gb+me", 1)),
        ("a100-sxm4-80gb", [("4g.40gb", 0), ("3g.40gb", 4)], ("1g.10gb+me", 6)),
        ("a30-24gb", [("2g.12gb+me", 0)], ("1g.6gb+me", 2)),
        ("b300", [("1g.34gb+me", 0)], ("1g.34gb+me", 6)),
        ("rtx-pro-6000-blackwell-se-96gb", [("1g.24gb+me.all", 0), ("1g.24gb-me", 3)], ("1g.24gb", 6)),
        ("rtx-pro-6000-blackwell-se-96gb", [("1g.24gb", 0)], ("2g.48gb+me.all", 6)),
    ],
)
def test_known_layouts_fit_and_one_more_does_not(
    key: str, wanted: list[tuple[str, int]], refused: tuple[str, int]
) -> None:
    """Memory, compute slices and the one set of media engines, from NVIDIA's tables of what goes together."""
    backend, gpu = board(key)
    for name, start in wanted:
        make(backend, gpu, name, start)
    with pytest.raises(NoRoomError):
        backend.create_gpu_instance(gpu.uuid, profile(gpu, refused[0]).profile_id, refused[1])


@pytest.mark.parametrize(
    ("key", "name", "ids"),
    [
        ("a100-sxm4-40gb", "1g.5gb", {0: 7, 6: 13}),
        ("a100-sxm4-40gb", "2g.10gb", {0: 3, 2: 4, 4: 5}),
        ("a100-sxm4-40gb", "1g.10gb", {6: 6}),
        ("a100-sxm4-40gb", "3g.20gb", {0: 1, 4: 2}),
        ("a100-sxm4-40gb", "7g.40gb", {0: 0}),
        ("a30-24gb", "1g.6gb", {0: 3, 3: 6}),
        ("a30-24gb", "2g.12gb", {0: 1, 2: 2}),
        ("rtx-pro-6000-blackwell-se-96gb", "1g.24gb", {0: 3, 9: 6}),
    ],
)
def test_gpu_instances_get_the_ids_that_drivers_give(key: str, name: str, ids: dict[int, int]) -> None:
    """Ids are in device files and capability numbers, and are not 0, 1, 2."""
    backend, gpu = board(key)
    assert {start: make(backend, gpu, name, start) for start in ids} == ids
