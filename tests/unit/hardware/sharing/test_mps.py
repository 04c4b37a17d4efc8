"""A daemon is ready when clients can connect, gone when nothing is left, and whatever happened, the next call knows."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config.parameters import MpsLimits
from dra_driver.core.errors import DeviceLostError, InvalidParametersError, MpsUnavailableError, StorageError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.hardware.gpu.backend import COMPUTE_MODE, ComputeMode
from dra_driver.hardware.sharing import mps
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.hardware.sharing.mps_files import MAX_DAEMONS, DaemonState, DaemonStatus, MpsDaemon
from tests.fakes.fuse import Killed
from tests.fakes.sharing import Clock, FakeControl, FakeHost, Mortality, MortalNotes
from tests.harness.raising import fails

G1, G2 = (GpuUuid(f"GPU-00000000-0000-0000-0000-00000000000{number}") for number in (1, 2))
M1 = "MIG-00000000-0000-0000-0000-000000000001"
DAEMON = MpsDaemon(id="one", devices=(G1, G2), gpus=(G1, G2), default_percentage=50)
EXCLUSIVE, DEFAULT = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT


class World:
    """A node process' half with a host that answers while it sleeps."""

    def __init__(self, root: Path) -> None:
        self.mortality = Mortality()
        self.host = FakeHost(root / "mps").live()
        self.clock = Clock(self.host.work)
        self.clock.mortality = self.mortality
        self.control, self.notes = FakeControl(self.mortality), MortalNotes(self.mortality)
        self.client = MpsClient(root / "mps", self.control, self.notes, sleep=self.clock.sleep, clock=self.clock)

    @property
    def folder(self) -> Path:
        return self.host.folders.of(DAEMON.id).path

    def is_clean(self) -> bool:
        modes = {self.control.compute_mode(gpu) for gpu in (G1, G2)}
        return modes == {DEFAULT} and not self.notes.values and not self.folder.exists()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_daemon_is_made_ready_and_undone(world: World) -> None:
    world.client.ensure(DAEMON, within_s=10.0)
    assert world.control.modes == {G1: EXCLUSIVE, G2: EXCLUSIVE}
    assert world.notes.values == {(G1, COMPUTE_MODE): "DEFAULT", (G2, COMPUTE_MODE): "DEFAULT"}
    assert world.client.daemons() == ("one",)
    assert world.client.daemon("one") == DAEMON
    found = world.client.directories("one")
    assert (found.pipe, found.shm) == (world.folder / "pipe", Path("/dev/shm/test-mps/one"))
    world.client.release("one", DAEMON.gpus, within_s=10.0)
    assert world.is_clean()
    assert world.client.daemons() == ()


def test_a_repeat_of_either_changes_nothing(world: World) -> None:
    world.client.ensure(DAEMON, within_s=10.0)
    written, now = (world.folder / "desired.json").stat().st_mtime_ns, world.clock.now
    world.client.ensure(DAEMON, within_s=10.0)
    assert (world.folder / "desired.json").stat().st_mtime_ns == written
    assert world.clock.now == now, "nothing had to be waited for"
    world.client.release("one", DAEMON.gpus, within_s=10.0)
    world.client.release("one", DAEMON.gpus, within_s=10.0)
    assert world.is_clean()


def test_partitions_keep_their_gpus_compute_mode(world: World) -> None:
    world.client.ensure(MpsDaemon(id="one", devices=(M1,)), within_s=10.0)
    world.client.release("one", (), within_s=10.0)
    assert world.control.calls == []


def test_without_a_host_nothing_is_done_and_the_message_says_what_to_install(world: World) -> None:
    world.host.die()
    with fails(MpsUnavailableError, "HostMissing", match=r"mpsHost\.enabled=true"):
        world.client.ensure(DAEMON, within_s=10.0)
    assert world.is_clean()
    assert world.control.calls == []
    assert world.clock.now < 1000.0 + mps.HOST_GRACE_S + 0.1, "a missing host is not waited for until the end"


def test_a_host_that_is_being_restarted_is_waited_for(world: World) -> None:
    world.host.die()

    def restart() -> None:
        world.clock.while_asleep = world.host.work
        world.host.live()

    world.clock.while_asleep = restart
    world.client.ensure(DAEMON, within_s=10.0)
    assert world.client.daemons() == ("one",)


@pytest.mark.parametrize(
    ("dies", "said"), [(True, "no dra-driver mps-host runs on this node"), (False, "mps-host has not taken it up")]
)
def test_a_host_that_dies_or_hangs_meanwhile_is_named_as_the_cause(world: World, dies: bool, said: str) -> None:
    world.clock.while_asleep = world.host.die if dies else lambda: None
    with pytest.raises(MpsUnavailableError, match=said):
        world.client.ensure(DAEMON, within_s=2.0)
    assert world.is_clean()


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("starting", "its program runs and has not answered yet", "starting, its program runs and has not answered"),
        ("failed", "its program ended with status 1", "failed, its program ended with status 1"),
        ("stopping", "it was released", "stopping, it was released"),
    ],
)
def test_a_daemon_that_is_not_ready_in_time_is_taken_back(
    world: World, state: DaemonState, reason: str, said: str
) -> None:
    world.host.state, world.host.reason = state, reason
    with fails(MpsUnavailableError, "NotReady", match="MPS daemon one"):
        world.client.ensure(DAEMON, within_s=3.0)
    assert world.is_clean()
    assert world.clock.now < 1000.0 + 3.0 + mps.UNDO_S + 0.2


def test_a_daemon_that_failed_again_is_not_waited_for_any_longer(world: World) -> None:
    world.host.state, world.host.reason, world.host.restarts = "failed", "nvidia-cuda-mps-control is not below /", 1
    with fails(MpsUnavailableError, "DaemonFailed", match="nvidia-cuda-mps-control"):
        world.client.ensure(DAEMON, within_s=60.0)
    assert world.clock.now < 1001.0


def test_readiness_of_another_generation_does_not_count(world: World) -> None:
    """A status that is left over from other limits says nothing about these."""
    folder = world.host.folders.of("one")
    folder.make()
    world.clock.while_asleep = lambda: folder.write_status(DaemonStatus(generation="old", state="ready", shm="/x"))
    with fails(MpsUnavailableError, "NotReady"):
        world.client.ensure(DAEMON, within_s=1.0)


def test_a_failed_call_leaves_a_daemon_that_others_use(world: World) -> None:
    """The second share of a GPU must not end the work of the first."""
    world.client.ensure(DAEMON, within_s=10.0)
    world.host.state = "failed"
    world.host.work()
    with pytest.raises(MpsUnavailableError):
        world.client.ensure(DAEMON, within_s=1.0)
    assert world.client.daemon("one") == DAEMON
    assert world.control.modes == {G1: EXCLUSIVE, G2: EXCLUSIVE}
    other = MpsDaemon(id="one", devices=DAEMON.devices, gpus=DAEMON.gpus, default_percentage=20)
    with pytest.raises(MpsUnavailableError):
        world.client.ensure(other, within_s=1.0)
    assert world.client.daemon("one") == DAEMON


@pytest.mark.parametrize("problem", ["control", "notes", "folder"])
def test_what_fails_on_the_way_is_taken_back(world: World, problem: str) -> None:
    if problem == "control":
        world.control.problem = DeviceLostError("gone")
    elif problem == "notes":
        world.notes.full = True
    else:
        world.folder.parent.mkdir(parents=True, exist_ok=True)
        world.folder.write_text("in the way")
    with pytest.raises((DeviceLostError, StorageError)):
        world.client.ensure(DAEMON, within_s=5.0)
    world.control.problem, world.notes.full = None, False
    if problem == "folder":
        world.folder.unlink()
    world.client.release("one", DAEMON.gpus, within_s=5.0)
    assert world.is_clean()


def test_a_gpu_is_under_one_daemon_at_most(world: World) -> None:
    world.client.ensure(DAEMON, within_s=5.0)
    with fails(MpsUnavailableError, "GpuTaken", match="one .* two"):
        world.client.ensure(MpsDaemon(id="two", devices=(G2,), gpus=(G2,)), within_s=5.0)
    assert world.client.daemons() == ("one",)
    assert world.control.modes == {G1: EXCLUSIVE, G2: EXCLUSIVE}


def test_the_number_of_daemons_is_bounded(world: World) -> None:
    for number in range(MAX_DAEMONS):
        (world.host.folders.daemons / f"other-{number}").mkdir()
    with pytest.raises(MpsUnavailableError, match=f"at most {MAX_DAEMONS} are run"):
        world.client.ensure(DAEMON, within_s=1.0)


def test_a_release_waits_until_the_daemon_is_gone(world: World) -> None:
    """Its folders may not go, nor the compute mode change, while it runs."""
    world.client.ensure(DAEMON, within_s=5.0)
    world.host.ends_daemons = False
    with fails(MpsUnavailableError, "DaemonStuck", match=r"2\.0 s"):
        world.client.release("one", (), within_s=2.0)
    assert world.control.modes == {G1: EXCLUSIVE, G2: EXCLUSIVE}
    assert (world.folder / "pipe").is_dir()
    assert world.client.daemons() == ("one",)
    world.host.ends_daemons = True
    world.client.release("one", (), within_s=2.0)
    assert world.is_clean()


def test_a_release_without_a_host_does_not_wait(world: World) -> None:
    world.client.ensure(DAEMON, within_s=5.0)
    (world.folder / "pipe/from-a-container").mkdir()
    (world.folder / "pipe/from-a-container/file").write_text("x")
    world.host.die()
    now = world.clock.now
    world.client.release("one", (), within_s=5.0)
    assert world.is_clean()
    assert world.clock.now == now


def test_directories_before_the_first_start_are_an_error(world: World) -> None:
    with fails(MpsUnavailableError, "NotStarted"):
        world.client.directories("one")


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc"])
def test_an_id_cannot_lead_anywhere_else(world: World, name: str) -> None:
    for call in (
        lambda: world.client.release(name, (), within_s=1.0),
        lambda: world.client.directories(name),
        lambda: world.client.daemon(name),
    ):
        with pytest.raises(ValueError, match="cannot name an MPS daemon"):
            call()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["ensure", "release"])
@pytest.mark.parametrize("then", ["ensure", "release"])
def test_a_death_at_any_step_is_put_right_by_the_next_process(
    tmp_path: Path, call: str, after: bool, then: str
) -> None:
    """A kill -9 between any two changes loses no compute mode and leaves no daemon without a record."""
    died = 0
    while True:
        world = World(tmp_path / f"{died}")
        world.control.modes[G2] = ComputeMode.PROHIBITED
        if call == "release":
            world.client.ensure(DAEMON, within_s=5.0)
        world.mortality.count, world.mortality.at, world.mortality.after = 0, died + 1, after
        try:
            if call == "ensure":
                world.client.ensure(DAEMON, within_s=5.0)
            else:
                world.client.release("one", (), within_s=5.0)
        except Killed:
            died += 1
            world.mortality.at = None
            if then == "ensure":
                world.client.ensure(DAEMON, within_s=5.0)
                assert world.control.modes == {G1: EXCLUSIVE, G2: EXCLUSIVE}
            gpus = DAEMON.gpus if call == "ensure" else ()
            world.client.release("one", gpus, within_s=5.0)
            assert world.client.daemons() == (), f"died at {died}"
            assert world.control.compute_mode(G1) is DEFAULT
            assert world.control.compute_mode(G2) is ComputeMode.PROHIBITED, f"died at {died}"
            assert not world.notes.values
            world.host.die()
            continue
        world.host.die()
        break
    assert died >= 5


UID = ClaimUid("0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e")


def limits(**changes: Any) -> MpsLimits:
    return MpsLimits(**changes)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("2Gi", 2048), ("10M", 9), ("1G", 953), ("1Mi", 1), ("1048576", 1), ("1.5Gi", 1536), ("2097151", 1),
        ("1e10", 9536),
    ],
)  # fmt: skip
def test_memory_is_whole_mebibytes_rounded_down(text: str, mib: int) -> None:
    """The values of NVIDIA's driver for the same words (`Megabyte` in sharing.go)."""
    assert mps.whole_mib(text, "f") == mib


@pytest.mark.parametrize("text", ["0", "1048575", "-1Gi", "1M", "lots", "", "1e300", "17Ti"])
def test_memory_that_no_daemon_could_be_told_names_its_field(text: str) -> None:
    with pytest.raises(InvalidParametersError, match=r"^sharing\.x: "):
        mps.whole_mib(text, "sharing.x")


@given(st.integers(2**20, 2**40))
def test_a_limit_is_never_more_than_was_asked_for(count: int) -> None:
    mib = mps.whole_mib(str(count), "f")
    assert mib * 2**20 <= count < (mib + 1) * 2**20


def test_limits_are_by_default_position_and_uuid() -> None:
    daemon = mps.group_daemon(
        UID,
        gpus=(G2, G1),
        partitions=(),
        limits=limits(default_percentage=50, default_memory="10Gi", per_device={"1": "4Gi"}),
    )
    assert daemon.devices == daemon.gpus == (G1, G2)
    assert daemon.default_percentage == 50
    assert daemon.memory_limits == {G1: 10240, G2: 4096}
    assert mps.memory_limits(limits(per_device={"0": "1Gi", G2: "2Gi"}), (G1, G2)) == {G1: 1024, G2: 2048}
    daemon = mps.group_daemon(UID, gpus=(), partitions=(M1,), limits=limits(per_device={M1: "1Gi"}))
    assert (daemon.devices, daemon.gpus, daemon.memory_limits) == ((M1,), (), {M1: 1024})


@pytest.mark.parametrize("key", ["2", "-1", "1.0", "", "GPU-1", "٠", "0x0", "9" * 5000])
def test_a_key_that_names_nothing_says_what_would(key: str) -> None:
    with fails(InvalidParametersError, "UnknownDevice", match=f"0 to 1, .*{G1}") as told:
        mps.memory_limits(limits(per_device={key: "1Gi"}), (G1, G2))
    assert len(str(told.value)) < 400


def test_two_limits_for_one_device_are_a_contradiction() -> None:
    """NVIDIA's driver takes either, at random."""
    with pytest.raises(InvalidParametersError, match=f"'0' and '{G1}' both name {G1}, with 1024Mi and 2048Mi"):
        mps.memory_limits(limits(per_device={"0": "1Gi", G1: "2Gi"}), (G1,))
    assert mps.memory_limits(limits(per_device={"0": "1Gi", G1: "1Gi"}), (G1,)) == {G1: 1024}


def test_each_group_of_a_claim_has_a_daemon_of_its_own() -> None:
    one, two = mps.group_daemon_id(UID, [G1]), mps.group_daemon_id(UID, [G2])
    assert one != two
    assert one.startswith(UID)
    assert mps.group_daemon_id(UID, [G1, G2]) == mps.group_daemon_id(UID, [G2, G1])
