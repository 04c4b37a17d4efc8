"""Claims for MIG partitions: created and destroyed, after a reboot, on a lost GPU, orphaned, or of another manager."""

import shutil

import pytest

from dra_driver.core.errors import (
    ClaimError,
    DeviceInUseError,
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    NoRoomError,
    StorageError,
    UnknownDeviceError,
)
from dra_driver.core.model.mig import MigInstance
from dra_driver.core.model.terms import Form
from dra_driver.node.claims.entry import State
from dra_driver.node.claims.waiting import GpuLockedError
from dra_driver.node.claims.workflow.cdi_document import fresh_snapshot, places_of_claim
from dra_driver.node.claims.workflow.teardown import MOST_S
from tests.fakes.claims import claim, ref, result, uid
from tests.fakes.stand_in import present
from tests.unit.node.claims.conftest import HALF, SMALL, ClaimsNode, Run, hardware, instances, simulated


def test_a_partition_is_created_and_its_container_gets_only_it(h100: Run) -> None:
    answer = h100.prepare(claim(1, result(h100.node.part(SMALL, 2))))
    (made,) = instances(h100)
    assert (made.profile_name, made.start) == (SMALL, 2)
    assigned = present(h100.entry(1).devices[0].partition)
    live, device = present(assigned.live), present(made.device)
    assert (assigned.created_by_driver, live.gi_id, live.uuid) == (True, made.gi_id, device.uuid)
    assert f"_MIG_{made.gi_id}_0_UUID={device.uuid}" in h100.node.writer.files[uid(1)].decode()
    assert answer[0].device == h100.node.part(SMALL, 2)
    assert h100.node.gpus[0].mig_enabled
    assert not h100.node.gpus[1].mig_enabled


def test_unprepare_of_the_last_partition_switches_mig_mode_off(partitioned: Run) -> None:
    partitioned.prepare(claim(2, result(partitioned.node.part(HALF, 4))))
    assert partitioned.unprepare(ref(1)) is None
    assert [one.profile_name for one in instances(partitioned)] == [HALF]
    assert partitioned.unprepare(ref(2)) is None
    assert partitioned.node.is_whole_again()
    assert partitioned.journal.uses() == ()
    assert uid(2) not in partitioned.node.writer.files


def test_a_failure_at_the_second_partition_removes_the_first(h100: Run) -> None:
    hardware(h100).fail_next("create_compute_instance", NoRoomError("injected-1"), skip=1)
    error = h100.refusal(claim(1, result(h100.node.part(SMALL, 0)), result(h100.node.part(SMALL, 1), request="b")))
    assert "injected-1" in str(error)
    assert h100.node.is_whole_again()
    assert h100.journal.entries() == ()
    assert h100.node.writer.files == {}


def test_a_file_that_cannot_be_written_leaves_no_partition(h100: Run) -> None:
    h100.node.writer.failure = StorageError("the disk is full")
    assert isinstance(h100.refusal(claim(1, result(h100.node.part(SMALL, 0)))), StorageError)
    h100.node.writer.failure = None
    h100.service.maintain()
    assert h100.node.is_whole_again()
    assert h100.journal.entries() == ()


def test_a_partition_in_use_keeps_its_claim_until_it_is_free(partitioned: Run) -> None:
    gpu, (made,) = partitioned.node.gpus[0].uuid, instances(partitioned)
    hardware(partitioned).set_in_use(gpu, made.gi_id)
    error = partitioned.unprepare(ref(1))
    assert isinstance(error, GpuBusyError)
    assert "nvidia-smi" in str(error)
    assert partitioned.entry(1).state is State.UNPREPARING
    busy = partitioned.refusal(claim(2))
    assert isinstance(busy, GpuBusyError)
    assert f"devices that claim default/claim-1 (uid {uid(1)}) no longer needs cannot be freed yet" in str(busy)
    hardware(partitioned).set_in_use(gpu, made.gi_id, False)
    assert partitioned.unprepare(ref(1)) is None
    assert partitioned.node.is_whole_again()


def test_many_partitions_in_use_take_no_longer_than_one(h100: Run) -> None:
    """Waiting for each in turn would keep the GPU locked, and a worker busy, long after the kubelet gave up."""
    parts = [h100.node.part(SMALL, start) for start in range(5)]
    h100.prepare(claim(1, *(result(part, request=f"r-{at}") for at, part in enumerate(parts))))
    for made in instances(h100)[:-1]:
        hardware(h100).set_in_use(h100.node.gpus[0].uuid, made.gi_id)
    before = h100.node.clock.now()
    assert isinstance(h100.unprepare(ref(1)), GpuBusyError)
    assert h100.node.clock.now() - before < MOST_S + 1
    assert len(instances(h100)) == len(parts) - 1  # the unused partition is destroyed


def test_maintenance_frees_a_partition_that_was_busy(partitioned: Run) -> None:
    """The kubelet tries again too, unless the pod was deleted by force."""
    gpu, (made,) = partitioned.node.gpus[0].uuid, instances(partitioned)
    hardware(partitioned).set_in_use(gpu, made.gi_id)
    assert isinstance(partitioned.unprepare(ref(1)), GpuBusyError)
    hardware(partitioned).set_in_use(gpu, made.gi_id, False)
    partitioned.service.maintain()
    assert partitioned.node.is_whole_again()
    assert partitioned.journal.entries() == ()


def test_a_mode_that_could_not_be_switched_off_is_switched_off_later(partitioned: Run) -> None:
    gpu = partitioned.node.gpus[0].uuid
    hardware(partitioned).set_busy(gpu, "dcgm")
    assert partitioned.unprepare(ref(1)) is None
    assert partitioned.node.gpus[0].mig_enabled
    assert partitioned.journal.gpus_with_note("mig-mode") == (gpu,)
    hardware(partitioned).set_busy(gpu, None)
    partitioned.service.maintain()
    assert partitioned.node.is_whole_again()


def test_a_whole_gpu_claim_switches_a_leftover_mig_mode_off(partitioned: Run) -> None:
    """The scheduler may allocate the whole GPU as soon as the last partition is gone."""
    gpu = partitioned.node.gpus[0].uuid
    hardware(partitioned).set_busy(gpu, "dcgm")
    assert partitioned.unprepare(ref(1)) is None
    partitioned.node.clock.after(1.0, lambda: hardware(partitioned).set_busy(gpu, None))
    partitioned.prepare(claim(2))
    assert not partitioned.node.gpus[0].mig_enabled
    assert partitioned.journal.noted_gpus() == {}


def test_a_whole_gpu_that_stays_busy_is_refused_and_free_again(partitioned: Run) -> None:
    hardware(partitioned).set_busy(partitioned.node.gpus[0].uuid, "dcgm")
    assert partitioned.unprepare(ref(1)) is None
    assert isinstance(partitioned.refusal(claim(2)), GpuBusyError)
    assert partitioned.journal.entry(uid(2)) is None
    assert uid(2) not in partitioned.node.writer.files


def test_forms_of_one_gpu_exclude_each_other(h100: Run) -> None:
    h100.prepare(claim(1, result(h100.node.part(HALF, 0)), name="train"))
    whole = h100.refusal(claim(2))
    assert isinstance(whole, DeviceInUseError)
    assert f"beside {h100.node.part(HALF, 0)}: which is prepared for claim default/train" in str(whole)
    assert isinstance(h100.refusal(claim(3, result(h100.node.part(SMALL, 3)))), DeviceInUseError)
    h100.prepare(claim(4, result(h100.node.part(SMALL, 4))))
    assert h100.unprepare(ref(1, "train")) is None
    h100.prepare(claim(5, result(h100.node.part(SMALL, 3))))


def test_an_unknown_profile_is_refused_with_the_gpus_profiles(h100: Run) -> None:
    error = h100.refusal(claim(1, result("gpu-0-mig-1g5gb-77-0")))
    assert isinstance(error, UnknownDeviceError)
    assert "it has no MIG profile 77; it has" in str(error)
    assert SMALL in str(error)
    error = h100.refusal(claim(2, result(h100.node.part(HALF, 0).removesuffix("0") + "1")))
    assert f"its {HALF} begins at memory slices 0, 4" in str(error)
    assert "device gpu-7-mig-1g10gb-19-0 of claim" in str(h100.refusal(claim(3, result("gpu-7-mig-1g10gb-19-0"))))


def test_admin_access_creates_no_partition(h100: Run) -> None:
    name = h100.node.part(SMALL, 0)
    error = h100.refusal(claim(1, result(name, admin_access=True)))
    assert error.reason == "PartitionMissing"
    h100.prepare(claim(2, result(name)))
    h100.prepare(claim(3, result(name, admin_access=True)))
    h100.prepare(claim(4, result("gpu-0", admin_access=True)))
    assert h100.unprepare(ref(3)) is None
    assert len(instances(h100)) == 1
    assert h100.unprepare(ref(2)) is None
    assert isinstance(h100.refusal(ref(3)), ClaimError)
    assert h100.node.is_whole_again()


def test_admin_access_finds_a_partition_that_was_created_a_moment_ago(h100: Run) -> None:
    """The inventory reads the GPUs only after it was told of the change; the pod would wait a minute for a new try."""
    name = h100.node.part(SMALL, 0)
    before = h100.deps.snapshot()
    h100.prepare(claim(1, result(name)))
    after = h100.deps.snapshot()
    h100.node.outdated = before
    (first,) = h100.prepare(claim(2, result(name, admin_access=True)))
    assert h100.prepare(claim(2, result(name, admin_access=True))) == (first,), "the same again"
    h100.node.outdated = None
    assert h100.unprepare(ref(1)) is None
    h100.node.outdated = after
    assert h100.refusal(claim(3, result(name, admin_access=True))).reason == "PartitionMissing"
    assert isinstance(h100.refusal(ref(2)), DeviceLostError)


def test_admin_access_waits_for_a_partition_that_is_being_created(h100: Run) -> None:
    wanted, deps = claim(1, result(h100.node.part(SMALL, 0), admin_access=True)), h100.deps
    places = places_of_claim(wanted, deps.snapshot())
    with deps.gpu_locks.acquire([h100.node.gpus[0].uuid], 0.0), pytest.raises(GpuLockedError):
        fresh_snapshot(deps, wanted.ref, places, deps.snapshot(), within_s=0.0)


def test_a_repeat_gives_the_same_answer_or_reports_a_missing_partition(h100: Run) -> None:
    wanted = claim(1, result(h100.node.part(SMALL, 0)))
    first = h100.prepare(wanted)
    del h100.node.writer.files[uid(1)]
    assert h100.prepare(wanted) == first
    assert uid(1) in h100.node.writer.files
    hardware(h100).foreign_destroy(h100.node.gpus[0].uuid, instances(h100)[0].gi_id)
    error = h100.refusal(wanted)
    assert isinstance(error, DeviceLostError)
    assert h100.node.part(SMALL, 0) in str(error)
    assert h100.unprepare(ref(1)) is None
    assert h100.node.is_whole_again()


def test_a_missing_file_is_not_written_for_a_partition_that_is_gone(partitioned: Run) -> None:
    """It would name the device nodes of the next instance in that place."""
    partitioned.node.writer.files.clear()
    hardware(partitioned).foreign_destroy(partitioned.node.gpus[0].uuid, instances(partitioned)[0].gi_id)
    (problem,) = partitioned.service.rewrite_missing_files()
    assert "gpu-0-mig-" in problem
    assert partitioned.node.writer.files == {}


def test_a_gpu_that_needs_a_reset_for_mig_gets_no_partition(node: ClaimsNode) -> None:
    node.backend = simulated("1xa100-sxm4-40gb")
    run = node.run()
    error = run.refusal(claim(1, result(node.part("1g.5gb", 0))))
    assert "reset" in str(error)
    assert node.is_whole_again()
    assert run.journal.entries() == ()


def test_a_run_that_may_not_change_gpus_refuses_partitions(node: ClaimsNode) -> None:
    node.backend = simulated()
    run = node.run()
    bare = run.replaced(hardware=None)
    assert bare.refusal(claim(1, result(node.part(SMALL, 0)))).reason == "HardwareNotPermitted"
    bare.prepare(claim(2))


@pytest.mark.parametrize("left", [True, False])
def test_after_a_reboot_partitions_are_looked_for(node: ClaimsNode, left: bool) -> None:
    node.backend = simulated()
    run = node.run()
    run.prepare(claim(1, result(node.part(SMALL, 0))))
    if not left:
        node.backend = simulated()
    again = node.run("run-2", boot_id="boot-2")
    assert again.journal.entries() == ()
    assert node.is_whole_again()
    again.prepare(ref(1))
    assert len(instances(again)) == 1


def test_after_a_reboot_without_a_driver_entries_wait(partitioned: Run) -> None:
    node = partitioned.node
    node.simulation.fail_next("mig_instances", DriverUnavailableError("not loaded"), times=0)
    again = node.run("run-2", boot_id="boot-2")
    assert again.journal.entry(uid(1)) is not None
    assert isinstance(again.refusal(ref(1)), DriverUnavailableError)
    node.simulation.clear_faults()
    again.service.maintain()
    assert again.journal.entries() == ()
    assert node.is_whole_again()


def test_a_lost_gpu_does_not_keep_its_pods_from_ending(partitioned: Run) -> None:
    hardware(partitioned).mark_lost(0, "fallen off the bus")
    assert partitioned.unprepare(ref(1)) is None
    assert partitioned.journal.entries() == ()
    assert partitioned.journal.uses()[0].created_by_driver
    hardware(partitioned).restore(0)
    partitioned.service.maintain()
    assert partitioned.node.is_whole_again()
    assert partitioned.journal.uses() == ()


def test_a_gpu_that_fails_to_answer_once_is_not_taken_for_lost(partitioned: Run) -> None:
    """Otherwise its partition would stay until the next maintenance."""
    hardware(partitioned).fail_next("destroy_compute_instance", DeviceLostError("no answer"))
    assert isinstance(partitioned.unprepare(ref(1)), DeviceLostError)
    assert partitioned.unprepare(ref(1)) is None
    assert partitioned.node.is_whole_again()
    assert partitioned.journal.uses() == ()


def test_after_a_reboot_without_its_gpu_a_partition_waits(partitioned: Run) -> None:
    node = partitioned.node
    for minor in range(2):
        node.simulation.mark_lost(minor, "fallen off the bus")
    again = node.run("run-2", boot_id="boot-2")
    assert again.journal.entries() == ()
    assert isinstance(again.refusal(ref(1)), UnknownDeviceError)
    for minor in range(2):
        node.simulation.restore(minor)
    again.service.maintain()
    assert again.journal.entries() == ()
    assert node.is_whole_again()


def test_a_partition_whose_claim_an_older_version_freed_is_removed(partitioned: Run) -> None:
    partitioned.journal._connection.execute("DELETE FROM claim WHERE uid = ?", (uid(1),))
    assert partitioned.journal.entries() == ()
    (use,) = partitioned.journal.uses()
    assert (use.form, use.created_by_driver) == (Form.PARTITION, True)
    partitioned.service.maintain()
    assert partitioned.node.is_whole_again()
    assert partitioned.journal.orphaned_partitions() == ()


def test_an_orphaned_partition_is_removed_for_a_new_claim(partitioned: Run) -> None:
    partitioned.journal._connection.execute("DELETE FROM claim WHERE uid = ?", (uid(1),))
    partitioned.prepare(claim(2))
    assert partitioned.node.is_whole_again()
    assert partitioned.unprepare(ref(2)) is None
    partitioned.prepare(claim(3, result(partitioned.node.part(SMALL, 0))))
    partitioned.journal._connection.execute("DELETE FROM claim WHERE uid = ?", (uid(3),))
    partitioned.prepare(claim(3, result(partitioned.node.part(SMALL, 0))))
    assert partitioned.unprepare(ref(3)) is None
    assert partitioned.node.is_whole_again()


def test_an_orphaned_partition_is_removed_for_its_engines(h100: Run) -> None:
    """The scheduler counts them as free; a GPU has at most one ``+me`` partition, in any place."""
    media = f"{SMALL}+me"
    h100.prepare(claim(1, result(h100.node.part(media, 3))))
    h100.journal._connection.execute("DELETE FROM claim WHERE uid = ?", (uid(1),))
    h100.prepare(claim(2, result(h100.node.part(media, 5))))
    assert [one.start for one in instances(h100)] == [5]
    assert h100.journal.orphaned_partitions() == ()


def test_the_error_names_a_busy_orphaned_partition_that_has_the_engines(h100: Run) -> None:
    media = f"{SMALL}+me"
    h100.prepare(claim(1, result(h100.node.part(media, 3))))
    h100.journal._connection.execute("DELETE FROM claim WHERE uid = ?", (uid(1),))
    (orphan,) = instances(h100)
    hardware(h100).set_in_use(h100.node.gpus[0].uuid, orphan.gi_id)
    error = h100.refusal(claim(2, result(h100.node.part(media, 5))))
    assert isinstance(error, GpuBusyError)
    assert error.reason == "OrphanBusy"
    assert instances(h100) == (orphan,)
    hardware(h100).set_in_use(h100.node.gpus[0].uuid, orphan.gi_id, False)
    h100.prepare(claim(2, result(h100.node.part(media, 5))))


def partition_of_another(node: ClaimsNode, compute: str = "full") -> MigInstance:
    """The second small instance of the first GPU, as another manager creates it."""
    node.backend = simulated()
    gpu, profile = node.gpus[0], node.profile(SMALL)
    node.backend.foreign_mig_mode(gpu.uuid, True)
    return node.backend.foreign_create(gpu.uuid, profile.profile_id, 1, compute=compute)


def test_a_foreign_instance_is_used_and_stays(node: ClaimsNode) -> None:
    made = partition_of_another(node)
    run = node.run()
    run.prepare(claim(1, result(node.part(SMALL, 1))))
    assert run.journal.uses()[0].created_by_driver is False
    assert f"_MIG_{made.gi_id}_0_" in node.writer.files[uid(1)].decode()
    assert run.unprepare(ref(1)) is None
    assert instances(run) == (made,)
    assert node.gpus[0].mig_enabled


def test_an_unusable_foreign_instance_is_reported_and_stays(node: ClaimsNode) -> None:
    """An incomplete foreign instance is where the claim's partition would be."""
    made = partition_of_another(node, compute="none")
    run = node.run()
    error = run.refusal(claim(1, result(node.part(SMALL, 1))))
    assert isinstance(error, NoRoomError)
    assert f"GPU instance {made.gi_id} is in its place" in str(error)
    assert instances(run) == (made,)
    assert run.journal.entries() == ()


def test_a_foreign_instance_that_appears_during_prepare_stays(h100: Run) -> None:
    gpu, profile = h100.node.gpus[0], h100.node.profile(SMALL)
    backend = hardware(h100)

    switch = backend.set_mig_mode

    def race(of: object, enabled: bool) -> None:
        switch(gpu.uuid, enabled)
        if enabled:
            backend.foreign_create(gpu.uuid, profile.profile_id, 0)

    backend.set_mig_mode = race  # type: ignore[method-assign, assignment]
    assert isinstance(h100.refusal(claim(1, result(h100.node.part(SMALL, 0)))), NoRoomError)
    assert len(instances(h100)) == 1
    assert h100.journal.entries() == ()


def test_a_rebuilt_journal_without_backups_treats_partitions_as_foreign(node: ClaimsNode) -> None:
    node.backend = simulated()
    run = node.run()
    first = run.prepare(claim(1, result(node.part(SMALL, 0))))
    node.lose_journal()
    shutil.rmtree(node.folder / "made")
    again = node.run("run-2")
    assert not again.journal.rebuild_pending
    assert again.prepare(ref(1)) == first
    assert again.unprepare(ref(1)) is None
    assert len(instances(again)) == 1
    assert again.journal.uses() == ()
