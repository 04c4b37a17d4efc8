"""Partitions after a reboot, on a lost GPU, without a claim in the journal, and those of another manager."""

import shutil

import pytest

from dra_driver.core.errors import (
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    NoRoomError,
    UnknownDeviceError,
)
from dra_driver.core.model.mig import MigInstance
from dra_driver.core.model.terms import Form
from tests.fakes.claims import claim, ref, result, uid
from tests.unit.node.claims.conftest import SMALL, ClaimsNode, Run, hardware, instances, simulated


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
    """The GPU does not answer before a reset; if it returns with the partition, the driver removes that one."""
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
    """An older version, running beside this one in an update, deletes only the claim's row in the journal."""
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
    assert "of a claim that has ended cannot be removed yet" in str(error)
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
    """An administrator creates an instance in the same place first: tearing the claim down must not destroy it."""
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
