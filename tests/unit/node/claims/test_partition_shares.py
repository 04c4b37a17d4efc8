"""Claims share MIG devices by their policy: the first claim creates the partition, the last one destroys it."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dra_driver.core.errors import ApiUnreachableError, DeviceInUseError, InvalidParametersError, StorageError
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice
from dra_driver.core.model.terms import Form, GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.kube.published import ALL_PERCENT
from tests.fakes.claims import claim, ref, result, share_result, uid
from tests.fakes.node_process import memory_folder
from tests.fakes.stand_in import present
from tests.unit.node.claims.conftest import (
    SMALL,
    ClaimsNode,
    Run,
    config,
    file,
    instances,
    mode,
    mps,
    simulated,
    slicing,
)
from tests.unit.node.claims.test_kill_hardware import KillableNode


def share_partitions(node: ClaimsNode, strategy: Strategy | None) -> None:
    sharing = None if strategy is None else SharingTerms(strategy=strategy)
    node.terms = {gpu.uuid: GpuTerms(policy="p", partition_sharing=sharing) for gpu in node.gpus}


def share(node: ClaimsNode, number: int, memory: str = "2Gi", percent: int = 10, start: int = 0) -> AllocatedDevice:
    return share_result(number, memory, percent, device=node.part(SMALL, start), request=f"r{number}")


def of(node: ClaimsNode, number: int, memory: str = "2Gi", percent: int = 10) -> AllocatedClaim:
    return claim(number, share(node, number, memory, percent))


def destroy(node: ClaimsNode) -> None:
    """Remove the partitions of the first GPU behind the driver's back."""
    gpu = node.gpus[0]
    for made in gpu.mig_instances:
        for compute in made.compute:
            node.simulation.destroy_compute_instance(gpu.uuid, made.gi_id, compute.ci_id)
        node.simulation.destroy_gpu_instance(gpu.uuid, made.gi_id)


@pytest.fixture(params=list(Strategy))
def run(node: ClaimsNode, request: pytest.FixtureRequest) -> Run:
    node.backend = simulated()
    share_partitions(node, request.param)
    return node.run()


@pytest.mark.parametrize("leaving", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
def test_the_first_claim_creates_and_the_last_destroys_in_any_order(run: Run, leaving: tuple[int, ...]) -> None:
    for number in (1, 2, 3):
        run.prepare(of(run.node, number))
    (made,) = instances(run)
    device = present(made.device).uuid
    assert all(str(device) in file(run, number) for number in (1, 2, 3))
    for number in leaving[:-1]:
        assert run.unprepare(ref(number)) is None
        assert instances(run) == (made,)
        run.service.maintain()
        assert instances(run) == (made,)
        assert len(run.journal.created_partitions()) == 1
    assert run.unprepare(ref(leaving[-1])) is None
    assert run.node.is_whole_again()
    assert run.journal.uses() == ()


def test_shares_under_mps_have_limits_and_one_daemon_of_the_partition(node: ClaimsNode) -> None:
    node.backend = simulated()
    share_partitions(node, Strategy.MPS)
    run = node.run()
    for number, percent in ((1, 20), (2, 30)):
        run.prepare(of(node, number, "3Gi", percent))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3072M" in file(run, number)
        assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}" in file(run, number)
    (made,) = instances(run)
    assert list(node.sharing.running) == [present(made.device).uuid]
    assert mode(run) is ComputeMode.DEFAULT, "the mode is of the whole GPU"
    assert run.unprepare(ref(1)) is None
    assert list(node.sharing.running) == [present(made.device).uuid]
    assert run.unprepare(ref(2)) is None
    assert node.is_whole_again()


def test_time_sliced_partitions_change_no_setting_of_their_gpu(node: ClaimsNode) -> None:
    """The time slice is the whole GPU's (nvidia-smi compute-policy)."""
    node.backend = simulated()
    sharing = SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.LONG)
    node.terms = {node.gpus[0].uuid: GpuTerms(partition_sharing=sharing)}
    run = node.run()
    run.prepare(of(node, 1))
    assert "CUDA_MPS" not in file(run, 1)
    assert node.sharing.asked == []


def test_shared_and_exclusive_partitions_exist_on_one_gpu(run: Run) -> None:
    node = run.node
    run.prepare(of(node, 1))
    run.prepare(claim(2, share(node, 2, start=1)))
    run.prepare(claim(3, result(node.part(SMALL, 2))))
    assert len(instances(run)) == 3
    assert isinstance(run.refusal(claim(4, share(node, 4, start=2))), DeviceInUseError), "claim 3 has it alone"
    assert isinstance(run.refusal(claim(5, result(node.part(SMALL, 0)))), DeviceInUseError)
    assert isinstance(run.refusal(claim(6, result(node.part("2g.20gb", 0)))), DeviceInUseError)
    assert isinstance(run.refusal(claim(7, result("gpu-0"))), DeviceInUseError)


def test_amounts_count_for_each_partition(run: Run) -> None:
    run.prepare(of(run.node, 1, "6Gi", 40))
    error = run.refusal(of(run.node, 2, "6Gi", 40))
    assert isinstance(error, DeviceInUseError)
    assert "requests 6Gi of memory where" in str(error)
    run.prepare(claim(2, share(run.node, 2, "6Gi", 40, start=1)))
    error = run.refusal(of(run.node, 3, "1Gi", 61))
    assert f"requests 61 percent of compute where 60 of {ALL_PERCENT} are left" in str(error)


def test_a_claim_that_consumed_all_has_the_partition_alone(run: Run) -> None:
    run.prepare(of(run.node, 1, "1Ti", ALL_PERCENT))
    (use,) = run.journal.uses()
    assert (use.form, use.of_shared, use.sharing) == (Form.PARTITION, True, None)
    assert isinstance(run.refusal(of(run.node, 2)), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    assert run.node.is_whole_again()


def test_two_shares_of_one_claim_create_the_partition_once(node: ClaimsNode) -> None:
    """Two containers with nvidia.com/gpu.shared: 1 each are two requests, which the scheduler puts on one device."""
    node.backend = simulated()
    share_partitions(node, Strategy.TIME_SLICING)
    run = node.run()
    both = claim(1, share(node, 1), share(node, 2))
    run.prepare(both)
    (made,) = instances(run)
    assert [present(device.partition).created_by_driver for device in run.entry(1).devices] == [True, False]
    assert all(present(present(d.partition).live).uuid == present(made.device).uuid for d in run.entry(1).devices)
    assert run.unprepare(ref(1)) is None
    assert node.is_whole_again()


def test_only_a_config_that_agrees_with_the_policy_is_accepted(node: ClaimsNode) -> None:
    node.backend = simulated()
    share_partitions(node, Strategy.TIME_SLICING)
    run = node.run()
    agrees = config("MigDeviceConfig", {"strategy": "TimeSlicing"})
    run.prepare(claim(1, share(node, 1), configs=[agrees]))
    error = run.refusal(claim(2, share(node, 2), configs=[config("MigDeviceConfig", mps())]))
    assert isinstance(error, InvalidParametersError)
    assert error.reason == "SharingConflict"
    wrong_kind = config("GpuConfig", slicing("Long"), "r3")
    assert isinstance(run.refusal(claim(3, share(node, 3), configs=[wrong_kind])), InvalidParametersError)


def test_a_partition_of_another_manager_is_shared_and_stays(node: ClaimsNode) -> None:
    node.backend = simulated()
    backend, gpu, profile = node.simulation, node.gpus[0].uuid, node.profile(SMALL)
    backend.set_mig_mode(gpu, True)
    backend.create_compute_instance(gpu, backend.create_gpu_instance(gpu, profile.profile_id, 0))
    share_partitions(node, Strategy.TIME_SLICING)
    run = node.run()
    for number in (1, 2):
        run.prepare(of(node, number))
    for number in (1, 2):
        assert run.unprepare(ref(number)) is None
    assert len(instances(run)) == 1


def test_another_strategy_waits_until_the_partition_is_free(run: Run) -> None:
    run.prepare(of(run.node, 1))
    (sharing,) = {present(use.sharing).strategy for use in run.journal.uses()}
    (other,) = set(Strategy) - {sharing}
    share_partitions(run.node, other)
    assert isinstance(run.refusal(of(run.node, 2)), DeviceInUseError)


def test_a_share_does_not_join_a_claim_that_is_being_unprepared(run: Run) -> None:
    """Its partition may be destroyed a moment later."""
    run.prepare(of(run.node, 1))
    run.node.writer.failure = StorageError("injected")
    assert run.unprepare(ref(1)) is not None
    run.node.writer.failure = None
    run.prepare(of(run.node, 2))  # undoes the rest of claim 1, whose unprepare failed, and creates the partition again
    assert run.journal.uids() == {uid(2)}
    assert len(instances(run)) == 1


def test_share_of_a_partition_destroyed_in_use_is_refused(run: Run) -> None:
    """It would create the partition again, and the claims that had it would seem to have the new one."""
    run.prepare(of(run.node, 1))
    destroy(run.node)
    assert isinstance(run.refusal(of(run.node, 2)), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    run.prepare(of(run.node, 2))


def test_the_creator_can_end_while_the_gpu_cannot_be_reached(node: ClaimsNode) -> None:
    """Its record of the partition passes to the claim that stays; it does not become an orphan that is destroyed."""
    node.backend = simulated()
    share_partitions(node, Strategy.TIME_SLICING)
    run = node.run()
    for number in (1, 2):
        run.prepare(of(node, number))
    token = run.journal.start_unprepare(uid(1))
    assert run.journal.forget(uid(1), present(token), partitions_left=True)
    run.service.reclaim_orphans()
    assert len(instances(run)) == 1
    assert present(run.entry(2).devices[0].partition).created_by_driver
    assert run.unprepare(ref(2)) is None
    assert node.is_whole_again()


@pytest.mark.parametrize("ended", [(), (1,), (2,), (1, 2)])
def test_lost_journal_keeps_a_shared_partition_until_its_last_claim(run: Run, ended: tuple[int, ...]) -> None:
    node = run.node
    for number in (1, 2):
        run.prepare(of(node, number))
    node.lose_journal()
    for number in ended:
        node.api.remove(ref(number))
    again = node.run("run-2")
    left = [number for number in (1, 2) if number not in ended]
    for number in left:
        assert len(instances(again)) == 1
        again.prepare(ref(number))
    for number in left:
        assert len(instances(again)) == 1
        assert again.unprepare(ref(number)) is None
    again.service.reclaim_orphans()
    assert node.is_whole_again()


def test_claim_that_ends_before_the_rebuild_leaves_the_partition(run: Run) -> None:
    """Claims that the new journal does not know yet may use it."""
    node = run.node
    for number in (1, 2):
        run.prepare(of(node, number))
    running = dict(node.sharing.running)
    adopted = run.entry(1).devices
    node.lose_journal()
    node.api.outage = ApiUnreachableError("injected")
    again = node.run("run-2")
    assert again.journal.adopt(ref(1), adopted) is None
    assert again.unprepare(ref(1)) is None
    assert len(instances(again)) == 1
    assert node.sharing.running == running
    node.api.outage = None
    node.api.remove(ref(1))
    again.service.recover()
    assert len(instances(again)) == 1
    assert again.unprepare(ref(2)) is None
    assert node.is_whole_again()


def test_after_a_reboot_both_claims_are_prepared_on_a_new_partition(run: Run) -> None:
    node = run.node
    for number in (1, 2):
        run.prepare(of(node, number))
    destroy(node)
    node.sharing.running.clear()
    again = node.run("run-2", boot_id="boot-2")
    for number in (2, 1):
        again.prepare(ref(number))
    assert len(instances(again)) == 1
    for number in (2, 1):
        assert again.unprepare(ref(number)) is None
    assert node.is_whole_again()


@pytest.fixture
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        yield Path(folder)


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("what", ["prepare first", "prepare second", "unprepare first", "unprepare second"])
def test_a_process_may_die_at_every_step_of_two_claims_that_share(memory: Path, what: str, strategy: Strategy) -> None:
    """The partition exists exactly while a claim is prepared, and its creation belongs to one of them."""
    verb, which = what.split()
    steps, killed = 0, True
    while killed:
        node = KillableNode(memory / str(steps))
        share_partitions(node.claims_node, strategy)
        number = 1 if which == "first" else 2
        for each in (1, 2):
            node.claims_node.api.put(of(node.claims_node, each))
        for each in (1, 2) if verb == "unprepare" else range(1, number):
            node.run.prepare(ref(each))
        call = node.run.service.prepare if verb == "prepare" else node.run.service.unprepare
        killed = node.until_killed(lambda call=call, number=number: call([ref(number)]), steps)  # type: ignore[misc]
        if killed:
            node.until_killed(node.start, steps % 7)
            node.run = node.start()
        node.check()
        for each in (1, 2):
            node.run.prepare(ref(each))
            node.check()
        assert len(instances(node.run)) == 1
        for each in (number, 3 - number):
            assert node.run.unprepare(ref(each)) is None
            node.check()
        assert node.claims_node.is_whole_again()
        for journal in node.claims_node.opened:
            journal.close()
        steps += 1
    assert steps >= 7
