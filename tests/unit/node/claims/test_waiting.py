"""Locks of claims and GPUs, liveness of runs, opening the service, and the gate that pauses prepares.

Two `GpuLocks` in one directory act like two processes.
"""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, DetachedError, StorageError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.node.claims.entry import OwnerId, State
from dra_driver.node.claims.processes import ProcessRegistry, read_boot_id
from dra_driver.node.claims.waiting import (
    ClaimLocks,
    GpuLocks,
    MonotonicClock,
    PrepareGate,
    PreparesPausedError,
    RetryPolicy,
)
from dra_driver.node.claims.workflow.service import Claims, open_claims
from tests.fakes.claims import (
    NAMES,
    POOL,
    FakeCdiProvider,
    FakeCdiWriter,
    FakeClaims,
    claim,
    gpu,
    machine,
    ref,
    result,
    share_result,
    uid,
)
from tests.fakes.fuse import Fuse, Fused
from tests.harness.raising import fails
from tests.unit.node.claims.conftest import ClaimsNode, Run, config, mode, shared, simulated, slicing


def test_a_claim_lock_has_one_holder() -> None:
    locks, seen = ClaimLocks(), []

    def ask() -> None:
        for number in (1, 2):
            with locks.acquire(uid(number), 0.0) as acquired:
                seen.append(acquired)

    with locks.acquire(uid(1), 0.0) as acquired:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(10)
    assert acquired
    assert seen == [False, True]


def test_no_lock_stays_behind() -> None:
    locks = ClaimLocks()
    with locks.acquire(uid(1), 0.0), locks.acquire(uid(1), 0.0) as second:
        assert not second
        assert len(locks) == 1
    assert len(locks) == 0


def test_a_lock_is_released_when_the_work_fails() -> None:
    locks = ClaimLocks()
    with pytest.raises(ZeroDivisionError), locks.acquire(uid(1), 0.0):
        _ = 1 / 0
    with locks.acquire(uid(1), 0.0) as acquired:
        assert acquired


def test_wake_all_ends_a_wait() -> None:
    clock = MonotonicClock()
    begin = clock.now()
    waiter = threading.Thread(target=clock.wait, args=(60.0,))
    waiter.start()
    while waiter.is_alive():
        clock.wake_all()
        waiter.join(0.001)
    assert clock.now() - begin < 30


ONE, TWO = gpu(1).uuid, gpu(2).uuid


@pytest.mark.parametrize("same_process", [True, False])
def test_a_lock_has_one_holder(tmp_path: Path, same_process: bool) -> None:
    first = GpuLocks(tmp_path)
    second = first if same_process else GpuLocks(tmp_path)
    with first.acquire((ONE,), 1.0) as acquired:
        assert acquired
        with second.acquire((ONE,), 0.0) as also:
            assert not also
        with second.acquire((TWO,), 0.0) as other:
            assert other
    with second.acquire((ONE,), 0.0) as now:
        assert now


def test_several_locks_are_acquired_all_or_none(tmp_path: Path) -> None:
    here, there = GpuLocks(tmp_path), GpuLocks(tmp_path)
    with there.acquire((TWO,), 0.0), here.acquire((TWO, ONE, TWO), 0.0) as acquired:
        assert not acquired
        with there.acquire((ONE,), 0.0) as free:
            assert free


def test_locks_are_taken_in_one_order(tmp_path: Path) -> None:
    """Two claims that name the same GPUs in different orders never wait for each other."""
    with GpuLocks(tmp_path).acquire((ONE,), 0.0), GpuLocks(tmp_path).acquire((TWO, ONE), 0.0) as acquired:
        assert not acquired
    assert [path.name for path in tmp_path.iterdir()] == [f"{ONE}.lock"], "the second GPU was locked before the first"


def test_a_wait_ends_when_the_lock_is_released(tmp_path: Path) -> None:
    locks, inside, done = GpuLocks(tmp_path), threading.Event(), threading.Event()

    def other() -> None:
        with locks.acquire((ONE,), 1.0):
            inside.set()
            done.wait(5.0)

    thread = threading.Thread(target=other, name="other")
    thread.start()
    assert inside.wait(5.0)
    timer = threading.Timer(0.02, done.set)
    timer.start()
    with locks.acquire((ONE, TWO), 5.0) as acquired:
        assert acquired
    thread.join()
    timer.join()


def test_an_exception_releases_the_locks(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    with pytest.raises(KeyError), locks.acquire((ONE,), 0.0):
        raise KeyError
    with GpuLocks(tmp_path).acquire((ONE,), 0.0) as acquired:
        assert acquired


def test_files_are_private_and_stay_in_their_folder(tmp_path: Path) -> None:
    """A UUID comes from a journal that may be damaged."""
    folder = tmp_path / "made" / "locks"
    with GpuLocks(folder).acquire((GpuUuid("../../escape"), ONE), 0.0) as acquired:
        assert acquired
    assert sorted(path.name for path in folder.iterdir()) == [f"{ONE}.lock", "______escape.lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_created_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("")
    locks = GpuLocks(tmp_path / "locks")
    for _ in range(2):
        with pytest.raises(StorageError, match=f"cannot lock GPU {ONE}"), locks.acquire((ONE,), 0.0):
            pass


WHY = "this node gives its NVIDIA driver up (asked by annotation)"


def test_a_new_claim_waits_in_its_call_and_is_refused_with_the_reason(run: Run) -> None:
    run.deps.gate.close(WHY)
    error = run.refusal(claim(1))
    assert isinstance(error, PreparesPausedError)
    assert str(error) == f"claim {ref(1)} is not prepared: {WHY}; the kubelet tries again"
    assert (run.journal.entries(), run.node.writer.files, run.node.api.reads) == ((), {}, 0)
    assert "waited" in run.node.events


def test_a_claim_that_waits_is_prepared_when_the_gate_opens(run: Run) -> None:
    run.deps.gate.close(WHY)
    run.node.clock.after(5.0, run.deps.gate.open)
    assert run.prepare(claim(1))


def test_a_prepared_claim_is_answered_without_driver_and_snapshot(h100: Run) -> None:
    """A restarted kubelet asks again while its pods run; also when this process started detached."""
    node = h100.node
    devices = result("gpu-0"), result(node.part("1g.10gb", 0, 1), request="part")
    first = h100.prepare(claim(1, *devices))
    h100.deps.gate.close(WHY)
    assert node.simulation.detach("test")
    detached = h100.replaced(snapshot=Snapshot)
    assert detached.prepare(ref(1)) == first


def test_a_prepared_claim_without_its_file_is_refused(run: Run) -> None:
    """The container would not start; writing the file could need the driver."""
    run.prepare(claim(1))
    run.deps.gate.close(WHY)
    run.node.writer.files.clear()
    assert "its CDI file is missing" in str(run.refusal(ref(1)))


def test_an_incomplete_entry_is_refused_and_kept(run: Run) -> None:
    """Tearing it down would need the hardware."""
    run.prepare(claim(1))
    run.node.writer.failure = StorageError("read-only")
    run.unprepare(ref(1))
    run.node.writer.failure = None
    run.deps.gate.close(WHY)
    assert isinstance(run.refusal(claim(1)), PreparesPausedError)
    assert run.entry(1).state is State.UNPREPARING


def test_an_unprepare_of_a_whole_gpu_needs_no_driver(h100: Run) -> None:
    h100.prepare(claim(1))
    h100.deps.gate.close(WHY)
    h100.node.simulation.detach("test")
    assert h100.unprepare(ref(1)) is None
    assert h100.journal.entries() == ()


def test_a_partition_of_a_claim_that_ended_is_removed_when_the_driver_is_back(h100: Run) -> None:
    node = h100.node
    h100.prepare(claim(1, result(node.part("1g.10gb", 0))))
    h100.deps.gate.close(WHY)
    node.simulation.detach("test")
    assert h100.unprepare(ref(1)) is None
    assert (h100.journal.entries(), len(h100.journal.orphaned_partitions())) == ((), 1)
    h100.service.reclaim_orphans()
    assert len(h100.journal.orphaned_partitions()) == 1
    node.simulation.reattach()
    h100.deps.gate.open()
    h100.service.reclaim_orphans()
    assert h100.journal.orphaned_partitions() == ()
    assert node.is_whole_again()


def test_a_detach_in_the_middle_of_a_partition_leaves_nothing_behind(h100: Run) -> None:
    node, backend = h100.node, h100.node.simulation
    create = backend.create_compute_instance

    def detached_meanwhile(gpu: object, gi_id: int) -> object:
        backend.detach("too slow", 0.0)
        raise DetachedError("too slow")

    backend.create_compute_instance = detached_meanwhile  # type: ignore[method-assign, assignment]
    assert isinstance(h100.answer(claim(1, result(node.part("1g.10gb", 0)))), DetachedError)
    backend.create_compute_instance = create  # type: ignore[method-assign]
    backend.reattach()
    h100.prepare(ref(1))
    h100.unprepare(ref(1))
    assert node.is_whole_again()


@pytest.mark.parametrize(("within_s", "deadline"), [(None, 140), (100, 140), (30, 128), (1, 100)])
def test_a_call_ends_before_the_kubelets_deadline(within_s: float | None, deadline: float) -> None:
    assert RetryPolicy().budget(100, within_s).deadline == deadline


def test_the_gate_waits_for_attempts_in_work() -> None:
    gate, inside, leave = PrepareGate(), threading.Event(), threading.Event()

    def work() -> None:
        with gate.work():
            inside.set()
            leave.wait(5.0)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(5.0)
    gate.close(WHY)
    assert not gate.wait_idle(0.0)
    leave.set()
    assert gate.wait_idle(5.0)
    thread.join()


def test_prepares_and_unprepares_count_as_work(node: ClaimsNode) -> None:
    """Between two of their hardware calls the driver must stay, and a container must not start without it."""
    fuse, idle = Fuse(), list[bool]()
    node.backend = simulated()
    node.wrap = lambda each: Fused(each, fuse, {"create_gpu_instance", "destroy_gpu_instance", "write_claim"})
    run = node.run()
    fuse.step = lambda: idle.append(run.deps.gate.wait_idle(0.0))  # type: ignore[method-assign]
    run.prepare(claim(1, result(node.part("1g.10gb", 0))))
    run.unprepare(ref(1))
    run.prepare(claim(2))
    assert idle == [False] * 8
    assert run.deps.gate.wait_idle(0.0)


def test_shares_and_settings_of_claims_that_ended_are_restored_when_the_driver_is_back(node: ClaimsNode) -> None:
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", slicing("Long"))]))
    run.deps.gate.close(WHY)
    node.simulation.detach("test")
    assert run.unprepare(ref(1)) is None
    assert run.unprepare(ref(2)) is None
    assert run.journal.entries() == ()
    assert run.journal.noted_gpus(), "what needs the driver is recorded"
    node.simulation.reattach()
    run.deps.gate.open()
    run.service.reclaim_orphans()
    assert node.is_whole_again()
    assert mode(run) is ComputeMode.DEFAULT


def test_a_run_is_alive_until_it_ends(tmp_path: Path) -> None:
    first, second = ProcessRegistry.register(tmp_path, "one"), ProcessRegistry.register(tmp_path, "two")
    assert second.is_alive(first.own)
    assert second.is_alive(first.own)
    assert second.is_alive(second.own)
    first.close()
    first.close()
    assert not second.is_alive(first.own)
    assert not second.is_alive(OwnerId("never-was"))
    second.close()


def test_concurrent_checks_do_not_make_a_dead_run_look_alive(tmp_path: Path) -> None:
    dead = tmp_path / "owner-dead.lock"
    asker, other = ProcessRegistry.register(tmp_path, "one"), ProcessRegistry.register(tmp_path, "two")
    dead.write_text("")
    assert not asker.is_alive(OwnerId("dead"))
    assert not other.is_alive(OwnerId("dead"))
    asker.close()
    other.close()


def test_a_run_whose_file_cannot_be_opened_counts_as_alive(tmp_path: Path) -> None:
    """Its claims stay: a teardown would end a living run's containers during an update."""
    asker = ProcessRegistry.register(tmp_path, "one")
    (tmp_path / "owner-linked.lock").symlink_to(tmp_path / "elsewhere")  # opening it fails with ELOOP
    assert asker.is_alive(OwnerId("linked"))
    asker.close()


def test_files_of_dead_runs_are_swept_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "owner-dead.lock").write_text("")
    living = ProcessRegistry.register(tmp_path, "living")
    ProcessRegistry.register(tmp_path, "new").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner-living.lock"]
    living.close()


def test_an_unusable_directory_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with fails(StorageError, "NotRegistered"):
        ProcessRegistry.register(tmp_path / "file" / "below", "one")


def test_a_sweep_that_comes_late_leaves_the_file_of_a_living_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened the file that another sweep removes; the run's next file of that name is another one."""
    path, real, runs = tmp_path / "owner-new.lock", fcntl.flock, [ProcessRegistry.register(tmp_path, "asks")]
    path.write_text("")  # created, and not locked yet

    def flock(descriptor: int, operation: int) -> None:
        if len(runs) == 1 and os.fstat(descriptor).st_ino == path.stat().st_ino:
            path.unlink()
            runs.append(runs[0])  # once
            runs[1] = ProcessRegistry.register(tmp_path, "new")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    runs.append(ProcessRegistry.register(tmp_path, "late"))
    assert runs[0].is_alive(OwnerId("new"))
    for run in runs:
        run.close()


def test_runs_that_start_together_do_not_sweep_each_other_away(tmp_path: Path) -> None:
    """A file that was created but not locked yet looks dead; its run must still register."""
    for attempt in range(5):
        registered: list[ProcessRegistry] = []
        gate = threading.Barrier(4)

        def start(number: int, attempt: int = attempt, gate: threading.Barrier = gate) -> None:
            gate.wait(10)
            registered.append(ProcessRegistry.register(tmp_path, f"run-{attempt}-{number}"))  # noqa: B023 - joined below

        threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(registered) == 4
        assert all(one.is_alive(other.own) for one in registered for other in registered)
        assert len(list(tmp_path.glob("owner-*"))) == 4
        for one in registered:
            one.close()


def open_at(folder: Path, api: FakeClaims, writer: FakeCdiWriter) -> Claims:
    return open_claims(
        folder,
        pool=POOL,
        names=NAMES,
        reader=api,
        writer=writer,  # type: ignore[arg-type]
        provider=FakeCdiProvider(),
        snapshot=lambda: machine(2),
    )


def test_a_closed_service_opens_again_with_all_claims(tmp_path: Path) -> None:
    api, writer = FakeClaims(claim(1)), FakeCdiWriter()
    folder = tmp_path / "plugins" / "gpu.nvidia.com"
    first = open_at(folder, api, writer)
    first.service.recover()
    answer = first.service.prepare([ref(1)])
    first.close()
    first.close()
    assert sorted(path.name for path in folder.iterdir()) == ["claim-names", "state.db", "state.db.lock"]
    again = open_at(folder, api, writer)
    again.service.recover()
    api.remove(ref(1))
    assert again.service.prepare([ref(1)]) == answer
    again.close()


def test_a_start_that_fails_leaves_no_living_run_behind(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises((StorageError, ConfigurationError)):
        open_at(tmp_path, FakeClaims(), FakeCdiWriter())
    assert list(tmp_path.glob("owner-*")) == []


def test_the_boot_id_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert read_boot_id() == read_boot_id() != ""
    assert read_boot_id(tmp_path / "missing") == ""
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    assert read_boot_id(tmp_path / "odd") == ""
