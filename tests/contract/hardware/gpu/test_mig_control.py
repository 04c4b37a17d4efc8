"""What ``GpuControl`` promises, checked for NVML over the fake library and for the simulation."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError, GpuBusyError, MigUnsupportedError, NoRoomError, ResetRequiredError
from dra_driver.core.model.gpu import NO_LINKS, Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.gpu.backend import ComputeMode, GpuBackend, MigModes, ModeAnswer
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from tests.contract.hardware.gpu.conftest import Opened
from tests.fakes.nvml.state import State
from tests.fakes.simulated_gpus import SimulatedBackend

H100, A100_ON, A100, L4 = range(4)
SPEC = "1xh100-sxm5-80gb,1xa100-sxm4-40gb+mig,1xa100-sxm4-40gb,1xl4-24gb"
MIG_BOARDS = ("a30-24gb", "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb")


class Player:
    """Plays the hardware and other people on the node, for either backend, by the GPU's minor."""

    def __init__(self, backend: GpuBackend, state: State | None) -> None:
        self.backend, self.state = backend, state
        self.uuids = [gpu.uuid for gpu in backend.snapshot().gpus]

    @property
    def simulated(self) -> SimulatedBackend:
        assert isinstance(self.backend, SimulatedBackend)
        return self.backend

    def set_busy(self, minor: int, busy: bool) -> None:
        if self.state is not None:
            self.state.configure(minor, clients=int(busy))
        else:
            self.simulated.set_busy(self.uuids[minor], "another process" if busy else None)

    def use(self, minor: int, gi_id: int, in_use: bool) -> None:
        if self.state is not None:
            self.state.use(minor, gi_id, in_use)
        else:
            self.simulated.set_in_use(self.uuids[minor], gi_id, in_use)

    def create(self, minor: int, profile_id: int, start: int, compute: str = "full") -> None:
        if self.state is not None:
            self.state.foreign_create(minor, profile_id, start, compute)
        else:
            self.simulated.foreign_create(self.uuids[minor], profile_id, start, compute)

    def destroy(self, minor: int, gi_id: int) -> None:
        if self.state is not None:
            self.state.foreign_destroy(minor, gi_id)
        else:
            self.simulated.foreign_destroy(self.uuids[minor], gi_id)

    def lose(self, minor: int) -> None:
        if self.state is not None:
            self.state.lose(minor)
        else:
            self.simulated.mark_lost(minor, "lost on purpose")


@pytest.fixture
def stage(open_nvml: Opened, tmp_path: Path) -> Callable[[str, str], Player]:

    def build(kind: str, spec: str) -> Player:
        node = parse_groups(spec, "node-a")
        if kind == "simulated":
            return Player(SimulatedBackend(node, state_file=tmp_path / "simulated-state"), None)
        return Player(*open_nvml(node))

    return build


@pytest.fixture
def player(stage: Callable[[str, str], Player], kind: str) -> Player:
    return stage(kind, SPEC)


@pytest.fixture
def backend(player: Player) -> GpuBackend:
    return player.backend


@pytest.fixture
def h100(player: Player) -> GpuUuid:
    return player.uuids[H100]


def look(backend: GpuBackend, uuid: GpuUuid) -> Gpu:
    found = backend.snapshot().gpu_by_uuid(uuid)
    assert found is not None
    return found


def make(backend: GpuBackend, uuid: GpuUuid, profile_id: int, start: int) -> MigInstance:
    gi_id = backend.create_gpu_instance(uuid, profile_id, start)
    backend.create_compute_instance(uuid, gi_id)
    return next(one for one in backend.mig_instances(uuid) if one.gi_id == gi_id)


def test_mig_mode_goes_on_and_off_and_shows_in_the_next_look(backend: GpuBackend, h100: GpuUuid) -> None:
    before = look(backend, h100)
    assert not backend.mig_mode(h100)
    backend.set_mig_mode(h100, True)
    assert backend.mig_mode(h100)
    assert look(backend, h100).mig_enabled
    assert look(backend, h100).mig_profiles == before.mig_profiles
    backend.set_mig_mode(h100, True)
    backend.set_mig_mode(h100, False)
    assert look(backend, h100) == before


def test_a_partition_is_made_in_two_steps_and_seen_after_each(backend: GpuBackend, h100: GpuUuid) -> None:
    """A GPU instance without a compute instance is what a death between the steps leaves; it has to be found."""
    backend.set_mig_mode(h100, True)
    with pytest.raises(DeviceLostError):  # another program destroyed the GPU instance between the steps
        backend.create_compute_instance(h100, 7)
    gi_id = backend.create_gpu_instance(h100, 9, 4)
    (half,) = backend.mig_instances(h100)
    assert (half.gi_id, half.profile_id, half.profile_name, half.start, half.size) == (gi_id, 9, "3g.40gb", 4, 4)
    assert (half.compute, half.device, half.owned) == ((), None, False)
    made = backend.create_compute_instance(h100, gi_id)
    (whole,) = backend.mig_instances(h100)
    assert whole.device == made
    assert made.spans
    assert str(made.uuid).startswith("MIG-")
    with pytest.raises(NoRoomError):
        backend.create_compute_instance(h100, gi_id)
    assert look(backend, h100).mig_instances == (whole,)


def test_a_partition_made_again_has_the_same_uuid_and_its_neighbour_another(backend: GpuBackend, h100: GpuUuid) -> None:
    """What is written about a partition must not be taken for that of another one."""
    backend.set_mig_mode(h100, True)
    first, second = make(backend, h100, 19, 0), make(backend, h100, 19, 1)
    assert first.device
    assert second.device
    assert first.device.uuid != second.device.uuid
    backend.destroy_compute_instance(h100, first.gi_id, first.device.ci_id)
    backend.destroy_gpu_instance(h100, first.gi_id)
    assert make(backend, h100, 19, 0) == first


def test_destroying_what_is_gone_is_success(backend: GpuBackend, h100: GpuUuid) -> None:
    """Unprepare is repeated after a crash, and an administrator may have been faster."""
    backend.set_mig_mode(h100, True)
    made = make(backend, h100, 0, 0)
    for _ in range(2):
        backend.destroy_compute_instance(h100, made.gi_id, 0)
    for _ in range(2):
        backend.destroy_gpu_instance(h100, made.gi_id)
        backend.destroy_compute_instance(h100, made.gi_id, 0)
    backend.set_mig_mode(h100, False)
    backend.destroy_compute_instance(h100, made.gi_id, 0)
    backend.destroy_gpu_instance(h100, made.gi_id)
    assert backend.mig_instances(h100) == ()


@pytest.mark.parametrize(
    ("existing", "wanted"),
    [((9, 0), (9, 0)), ((9, 0), (19, 3)), ((20, 0), (20, 1)), ((0, 0), (19, 6))],
    ids=["taken", "overlapping", "a second media extension", "whole"],
)
def test_an_instance_that_does_not_fit_is_refused_and_changes_nothing(
    backend: GpuBackend, h100: GpuUuid, existing: tuple[int, int], wanted: tuple[int, int]
) -> None:
    backend.set_mig_mode(h100, True)
    make(backend, h100, *existing)
    before = backend.mig_instances(h100)
    with pytest.raises(NoRoomError):
        backend.create_gpu_instance(h100, *wanted)
    assert backend.mig_instances(h100) == before


@pytest.mark.parametrize(("profile_id", "start"), [(19, 7), (14, 1), (99, 0), (0, 4)])
def test_a_profile_or_placement_that_the_gpu_lacks_is_named(
    backend: GpuBackend, h100: GpuUuid, profile_id: int, start: int
) -> None:
    backend.set_mig_mode(h100, True)
    with pytest.raises(MigUnsupportedError, match=rf"{h100}.*{profile_id}.*{start}"):
        backend.create_gpu_instance(h100, profile_id, start)


def test_nothing_can_be_made_while_mig_mode_is_off(backend: GpuBackend, h100: GpuUuid) -> None:
    with pytest.raises(MigUnsupportedError, match="off"):
        backend.create_gpu_instance(h100, 19, 0)
    with pytest.raises((MigUnsupportedError, DeviceLostError)):
        backend.create_compute_instance(h100, 7)
    assert backend.mig_instances(h100) == ()


def test_a_gpu_instance_in_use_stays_and_says_so(backend: GpuBackend, player: Player, h100: GpuUuid) -> None:
    backend.set_mig_mode(h100, True)
    made = make(backend, h100, 19, 2)
    with pytest.raises(GpuBusyError):
        backend.destroy_gpu_instance(h100, made.gi_id)
    player.use(H100, made.gi_id, True)
    with pytest.raises(GpuBusyError):
        backend.destroy_compute_instance(h100, made.gi_id, 0)
    assert backend.mig_instances(h100) == (made,)
    player.use(H100, made.gi_id, False)
    backend.destroy_compute_instance(h100, made.gi_id, 0)
    backend.destroy_gpu_instance(h100, made.gi_id)
    assert backend.mig_instances(h100) == ()


def test_mig_mode_stays_while_a_process_has_the_gpu_open(backend: GpuBackend, player: Player, h100: GpuUuid) -> None:
    player.set_busy(H100, True)
    with pytest.raises(GpuBusyError):
        backend.set_mig_mode(h100, True)
    assert not backend.mig_mode(h100)
    player.set_busy(H100, False)
    backend.set_mig_mode(h100, True)
    assert backend.mig_mode(h100)


def test_mig_mode_stays_on_while_any_instance_exists(backend: GpuBackend, player: Player, h100: GpuUuid) -> None:
    """Switching it off would remove a partition of another claim, in use or not."""
    backend.set_mig_mode(h100, True)
    player.create(H100, 19, 3, "none")
    with pytest.raises(GpuBusyError):
        backend.set_mig_mode(h100, False)
    assert backend.mig_mode(h100)
    assert len(backend.mig_instances(h100)) == 1


@pytest.mark.parametrize(("minor", "enabled"), [(A100, True), (A100_ON, False)])
def test_a_board_that_needs_a_reset_keeps_its_mode(
    backend: GpuBackend, player: Player, minor: int, enabled: bool
) -> None:
    with pytest.raises(ResetRequiredError):
        backend.set_mig_mode(player.uuids[minor], enabled)
    assert backend.mig_mode(player.uuids[minor]) is not enabled
    if player.state is not None:
        assert player.state.modes(minor) == (int(not enabled), int(not enabled)), "a change is left pending"


def test_a_gpu_without_mig_says_so_and_lists_nothing(backend: GpuBackend, player: Player) -> None:
    uuid = player.uuids[L4]
    with pytest.raises(MigUnsupportedError, match=uuid):
        backend.mig_mode(uuid)
    with pytest.raises(MigUnsupportedError, match=uuid):
        backend.set_mig_mode(uuid, True)
    with pytest.raises(MigUnsupportedError, match=uuid):
        backend.create_gpu_instance(uuid, 19, 0)
    gpu = look(backend, uuid)
    assert (gpu.mig_capable, gpu.mig_profiles, gpu.mig_instances, gpu.mig_resetless) == (False, (), (), None)


def test_instances_of_others_are_listed_with_what_is_in_them(backend: GpuBackend, player: Player) -> None:
    player.create(A100_ON, 9, 4)
    player.create(A100_ON, 14, 0, "partial")
    player.create(A100_ON, 19, 2, "none")
    seen = look(backend, player.uuids[A100_ON]).mig_instances
    assert seen == backend.mig_instances(player.uuids[A100_ON])
    assert [(one.profile_name, one.start, one.size) for one in seen] == [
        ("2g.10gb", 0, 2),
        ("1g.5gb", 2, 1),
        ("3g.20gb", 4, 4),
    ]
    assert [len(one.compute) for one in seen] == [1, 0, 1]
    assert [one.device is not None for one in seen] == [False, False, True]


def test_a_lost_gpu_answers_every_call_with_that_and_harms_no_other(
    backend: GpuBackend, player: Player, h100: GpuUuid
) -> None:
    player.lose(H100)
    for call in (
        lambda: backend.mig_mode(h100),
        lambda: backend.set_mig_mode(h100, True),
        lambda: backend.mig_instances(h100),
        lambda: backend.create_gpu_instance(h100, 19, 0),
        lambda: backend.create_compute_instance(h100, 7),
        lambda: backend.destroy_compute_instance(h100, 7, 0),
        lambda: backend.destroy_gpu_instance(h100, 7),
        lambda: backend.compute_mode(h100),
        lambda: backend.set_compute_mode(h100, ComputeMode.EXCLUSIVE_PROCESS),
    ):
        with pytest.raises(DeviceLostError, match=h100):
            call()
    stranger = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")  # a journal may be older than the board
    with pytest.raises(DeviceLostError, match=stranger):
        backend.mig_instances(stranger)
    assert make(backend, player.uuids[A100_ON], 19, 6).device
    assert [item.label for item in backend.snapshot().left_out] == [h100]


def test_compute_mode_is_set_and_read_but_not_with_mig_mode_on(backend: GpuBackend, h100: GpuUuid) -> None:
    """MPS wants EXCLUSIVE_PROCESS on a whole GPU; in MIG mode the GPU itself has none."""
    assert backend.compute_mode(h100) is ComputeMode.DEFAULT
    backend.set_compute_mode(h100, ComputeMode.EXCLUSIVE_PROCESS)
    assert backend.compute_mode(h100) is ComputeMode.EXCLUSIVE_PROCESS
    backend.set_compute_mode(h100, ComputeMode.DEFAULT)
    backend.set_mig_mode(h100, True)
    with pytest.raises(MigUnsupportedError):
        backend.set_compute_mode(h100, ComputeMode.EXCLUSIVE_PROCESS)


def test_an_event_comes_for_changes_by_any_process_and_only_then(backend: GpuBackend, player: Player) -> None:
    uuid = player.uuids[A100_ON]
    backend.wait_for_event(0.02)
    assert not backend.wait_for_event(0.02)
    player.create(A100_ON, 19, 0)
    assert backend.wait_for_event(5)
    make(backend, uuid, 19, 1)
    assert backend.wait_for_event(5)
    while backend.wait_for_event(0.02):
        pass
    backend.snapshot()
    assert not backend.wait_for_event(0.02), "looking is no change"


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_every_placement_of_every_profile_can_be_made_alone(
    stage: Callable[[str, str], Player], kind: str, board: str
) -> None:
    player = stage(kind, f"1x{board}+mig")
    (gpu,) = player.backend.snapshot().gpus
    uuids = set()
    for profile in gpu.mig_profiles:
        for start in profile.starts:
            made = make(player.backend, gpu.uuid, profile.profile_id, start)
            assert (made.profile_id, made.profile_name, made.start) == (profile.profile_id, profile.name, start)
            assert made.size == profile.memory_slices
            assert made.device
            uuids.add(made.device.uuid)
            player.backend.destroy_compute_instance(gpu.uuid, made.gi_id, made.device.ci_id)
            player.backend.destroy_gpu_instance(gpu.uuid, made.gi_id)
    assert player.backend.mig_instances(gpu.uuid) == ()
    assert len(uuids) > len(gpu.mig_profiles) / 2


def unlinked(snapshot: Snapshot) -> Snapshot:
    """As a driver with MIG on, which names no NVLink."""
    return replace(snapshot, gpus=tuple(replace(gpu, nvlinks=NO_LINKS) for gpu in snapshot.gpus))


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_both_backends_number_and_name_the_same_partitions_alike(
    stage: Callable[[str, str], Player], board: str
) -> None:
    nvml, simulated = stage("nvml", f"1x{board}+mig").backend, stage("simulated", f"1x{board}+mig").backend
    (gpu,) = nvml.snapshot().gpus
    assert unlinked(simulated.snapshot()) == nvml.snapshot()
    for start in next(p for p in gpu.mig_profiles if p.memory_slices == 1).starts:
        profile_id = next(p.profile_id for p in gpu.mig_profiles if p.memory_slices == 1)
        assert make(nvml, gpu.uuid, profile_id, start) == make(simulated, gpu.uuid, profile_id, start)
    assert unlinked(simulated.snapshot()) == nvml.snapshot()


def test_a_requested_mode_is_set_or_stays_pending(backend: GpuBackend, player: Player) -> None:
    """A guarded operation continues what stays pending; it is written back with the present mode."""
    h100, a100 = player.uuids[H100], player.uuids[A100]
    assert backend.request_mig_mode(h100, True) is ModeAnswer.DONE
    assert backend.mig_modes(h100) == MigModes(current=True, pending=True)
    assert backend.request_mig_mode(h100, True) is ModeAnswer.DONE
    assert backend.request_mig_mode(a100, True) is ModeAnswer.NEEDS_RESET
    assert backend.mig_modes(a100) == MigModes(current=False, pending=True)
    assert not backend.mig_mode(a100)
    backend.request_mig_mode(a100, False)
    assert backend.mig_modes(a100).is_settled
    player.set_busy(A100, True)
    assert backend.request_mig_mode(a100, True) is ModeAnswer.IN_USE
    assert backend.mig_modes(a100) == MigModes(current=False, pending=True)


def test_no_mode_is_requested_beside_instances_or_without_mig(backend: GpuBackend, player: Player) -> None:
    player.create(A100_ON, 19, 0)
    with pytest.raises(GpuBusyError):
        backend.request_mig_mode(player.uuids[A100_ON], False)
    assert backend.mig_modes(player.uuids[A100_ON]) == MigModes(current=True, pending=True)
    for call in (backend.mig_modes, lambda gpu: backend.request_mig_mode(gpu, True)):
        with pytest.raises(MigUnsupportedError):
            call(player.uuids[L4])
