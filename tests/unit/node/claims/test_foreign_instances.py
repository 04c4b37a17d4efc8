"""Instances that this driver did not create: claims use them, and the driver never destroys them."""

import shutil

from dra_driver.core.errors import NoRoomError
from dra_driver.core.model.mig import MigInstance
from tests.fakes.claims import claim, ref, result, uid
from tests.unit.node.claims.conftest import SMALL, ClaimsNode, Run, hardware, instances, simulated


def partition_of_another(node: ClaimsNode, compute: str = "full") -> MigInstance:
    """The second small instance of the first GPU, as another manager creates it."""
    node.backend = simulated()
    gpu, profile = node.gpus[0], node.profile(SMALL)
    node.backend.foreign_mig_mode(gpu.uuid, True)
    return node.backend.foreign_create(gpu.uuid, profile.profile_id, 1, compute=compute)


def test_a_foreign_instance_is_used_and_stays(node: ClaimsNode) -> None:
    """It existed before the claim and exists after it, and MIG mode stays on."""
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

    class Racing:
        """Creates a foreign instance between the inspection and the creation."""

        def __getattr__(self, name: str) -> object:
            if name == "set_mig_mode":
                return self._switched
            return getattr(backend, name)

        def _switched(self, of: object, enabled: bool) -> None:
            backend.set_mig_mode(gpu.uuid, enabled)
            if enabled:
                backend.foreign_create(gpu.uuid, profile.profile_id, 0)

    deps = h100.node.hardware_dependencies(Racing(), h100.journal)  # type: ignore[arg-type]
    racing = h100.replaced(hardware=deps)
    assert isinstance(racing.refusal(claim(1, result(h100.node.part(SMALL, 0)))), NoRoomError)
    assert len(instances(h100)) == 1
    assert h100.journal.entries() == ()


def test_a_rebuilt_journal_without_backups_treats_partitions_as_foreign(node: ClaimsNode) -> None:
    """The claim keeps its partition, which stays on the GPU after the claim."""
    node.backend = simulated()
    run = node.run()
    first = run.prepare(claim(1, result(node.part(SMALL, 0))))
    run.journal.close()
    for path in node.folder.glob("state.db*"):
        path.unlink()
    shutil.rmtree(node.folder / "made")
    again = node.run("run-2")
    assert not again.journal.rebuild_pending
    assert again.prepare(ref(1)) == first
    assert again.unprepare(ref(1)) is None
    assert len(instances(again)) == 1
    assert again.journal.uses() == ()
