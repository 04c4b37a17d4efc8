"""The journal is lost or damaged while GPUs have partitions, shares and settings: the driver still knows its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, DeviceLostError, DraError, StorageError
from dra_driver.core.model.claim import AllocatedClaim
from dra_driver.core.model.terms import GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.node.claims.waiting import ClaimBusyError
from tests.fakes.claims import claim, ref, result, share_result, uid
from tests.fakes.fuse import Fuse, Fused
from tests.fakes.stand_in import present
from tests.unit.node.claims.conftest import HALF, SMALL, ClaimsNode, Run, simulated
from tests.unit.node.claims.test_kill_hardware import gpu_with_a_time_slice, gpus_under_mps, partition_under_mps

OUTAGE = ApiUnreachableError("connection refused")


def damage_journal(node: ClaimsNode) -> None:
    """Overwrite the journal with bytes that cannot be read."""
    for journal in node.opened:
        journal.close()
    for path in node.folder.glob("state.db-*"):
        path.unlink()
    (node.folder / "state.db").write_bytes(b"damaged" * 1000)


def partitions(node: ClaimsNode) -> list[AllocatedClaim]:
    two = [result(node.part(SMALL, 0)), result(node.part(HALF, 4), request="b")]
    return [claim(1, *two), claim(2, result(node.part(SMALL, 1))), claim(3, result(node.part("7g.80gb", 0, 1)))]


def one_partition(node: ClaimsNode) -> list[AllocatedClaim]:
    return [claim(1, result(node.part(SMALL, 0)))]


def shares(_: ClaimsNode) -> list[AllocatedClaim]:
    return [claim(number, share_result(number, "10Gi", 10)) for number in (1, 2)]


MPS = SharingTerms(strategy=Strategy.MPS)
SLICED = SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.LONG)
FORMS: dict[str, tuple[Callable[[ClaimsNode], list[AllocatedClaim]], SharingTerms | None]] = {
    "partitions": (partitions, None),
    "partition under MPS": (lambda node: [partition_under_mps(node)], None),
    "GPUs under MPS": (lambda node: [gpus_under_mps(node)], None),
    "time slice": (lambda node: [gpu_with_a_time_slice(node)], None),
    "MPS shares": (shares, MPS),
    "time-sliced shares": (shares, SLICED),
}


def prepared(
    node: ClaimsNode, what: Callable[[ClaimsNode], list[AllocatedClaim]], sharing: SharingTerms | None = None
) -> list[AllocatedClaim]:
    """A node with two H100 on which claims have been prepared."""
    node.backend = simulated()
    if sharing is not None:
        node.terms = {node.gpus[0].uuid: GpuTerms(sharing=sharing)}
    run = node.run("run-1")
    claims = what(node)
    for each in claims:
        run.prepare(each)
    return claims


@pytest.fixture(params=FORMS.values(), ids=list(FORMS))
def claims(node: ClaimsNode, request: pytest.FixtureRequest) -> list[AllocatedClaim]:
    """The claims that have been prepared on the node."""
    return prepared(node, *request.param)


def is_untouched(node: ClaimsNode) -> bool:
    modes = {node.simulation.compute_mode(gpu.uuid) for gpu in node.gpus}
    return node.is_whole_again() and modes == {ComputeMode.DEFAULT} and not list((node.folder / "made").iterdir())


@pytest.mark.parametrize("lose", [ClaimsNode.lose_journal, damage_journal])
def test_claims_continue_and_their_end_restores_the_gpus(
    node: ClaimsNode, claims: list[AllocatedClaim], lose: Callable[[ClaimsNode], None]
) -> None:
    before = {each.ref.uid: node.opened[-1].entry(each.ref.uid) for each in claims}
    answers = {each.ref.uid: node.writer.files[each.ref.uid] for each in claims}
    asked = list(node.sharing.asked)
    lose(node)
    run = node.run("run-2")
    assert not run.journal.rebuild_pending
    for each in claims:
        assert present(run.journal.entry(each.ref.uid)).devices == present(before[each.ref.uid]).devices
        run.prepare(each.ref)
    assert node.writer.files == answers
    assert node.sharing.asked == asked, "nothing is set or started again while containers run"
    for each in claims:
        assert run.unprepare(each.ref) is None
    assert is_untouched(node)


def test_a_start_reclaims_what_no_claim_needs(node: ClaimsNode, claims: list[AllocatedClaim]) -> None:
    for each in claims:
        node.api.remove(each.ref)
    node.lose_journal()
    run = node.run("run-2")
    assert is_untouched(node)
    assert node.writer.files == {}
    run.prepare(claim(9))


def test_nothing_is_reclaimed_while_the_api_server_does_not_answer(
    node: ClaimsNode, claims: list[AllocatedClaim]
) -> None:
    """Containers may use it; when the API server answers, nothing has changed for them."""
    there, asked, running = node.gpus, list(node.sharing.asked), dict(node.sharing.running)
    node.lose_journal()
    node.api.outage = OUTAGE
    run = node.run("run-2")
    run.service.reclaim_orphans()
    run.service.maintain()
    assert node.gpus == there
    assert (node.sharing.asked, node.sharing.running) == (asked, running)
    assert run.journal.uses() == () or all(use.created_by_driver for use in run.journal.uses())
    node.api.outage = None
    run.service.recover()
    assert run.journal.uids() == {each.ref.uid for each in claims}
    assert (node.sharing.asked, node.gpus) == (asked, there)


def test_a_pod_can_end_while_the_api_server_is_away(node: ClaimsNode, claims: list[AllocatedClaim]) -> None:
    node.lose_journal()
    node.api.outage = OUTAGE
    run = node.run("run-2")
    for each in claims:
        assert run.unprepare(each.ref) is None
        node.api.remove(each.ref)
    assert all(not gpu.mig_instances for gpu in node.gpus)
    node.api.outage = None
    run.service.recover()
    assert is_untouched(node)


def test_a_share_that_begins_or_ends_during_a_rebuild_keeps_the_others(node: ClaimsNode) -> None:
    prepared(node, shares, MPS)
    node.lose_journal()
    node.api.outage = OUTAGE
    run = node.run("run-2")
    node.api.outage = None
    answer = run.answer(claim(3, share_result(3, "10Gi", 10)))
    assert isinstance(answer, ClaimBusyError) or not isinstance(answer, DraError)
    assert run.unprepare(ref(3)) is None
    assert node.sharing.asked == [f"start {node.gpus[0].uuid}"]
    run.service.recover()
    assert {uid(1), uid(2)} <= run.journal.uids()


def test_a_partition_of_an_unknown_claim_stays_until_the_claim_is_known(node: ClaimsNode) -> None:
    prepared(node, partitions)
    node.lose_journal()
    node.api.outage = OUTAGE
    run = node.run("run-2")
    node.api.outage = None
    there = node.gpus
    for wanted in (claim(8, result(node.part(HALF, 0))), claim(9)):
        error = run.refusal(wanted)
        assert isinstance(error, ClaimBusyError)
        assert error.reason == "OwnershipUnknown"
    assert node.gpus == there


def test_a_replaced_partition_is_not_adopted_as_the_drivers_own(node: ClaimsNode) -> None:
    prepared(node, lambda node: [claim(1, result(node.part(SMALL, 0))), claim(2, result(node.part(SMALL, 1)))])
    node.lose_journal()
    node.api.remove(ref(2))
    (file,) = (node.folder / "made").iterdir()
    backup = json.loads(file.read_text())
    for each in backup["partitions"]:
        each["live"]["gi"] += 40  # a simulated instance's ids follow from its place, so the backup's are changed
    file.write_text(json.dumps(backup))
    there = node.gpus[0].mig_instances
    run = node.run("run-2")
    assert run.journal.entry(uid(1)) is None
    assert "was prepared before the journal was lost" in str(run.refusal(ref(1)))
    assert run.unprepare(ref(1)) is None
    run.service.maintain()
    assert node.gpus[0].mig_instances == there
    assert run.journal.uses() == ()


def test_a_foreign_instance_in_a_partitions_place_survives_unprepare(partitioned: Run) -> None:
    (device,) = partitioned.entry(1).devices
    partition = present(device.partition)
    moved = replace(partition, live=replace(present(partition.live), gi_id=40))
    partitioned.journal.forget(uid(1), present(partitioned.journal.start_unprepare(uid(1))))
    assert partitioned.journal.adopt(ref(1), [replace(device, partition=moved)]) is None
    assert partitioned.unprepare(ref(1)) is None
    assert len(partitioned.node.gpus[0].mig_instances) == 1


def test_a_repeated_prepare_reports_a_missing_partition(node: ClaimsNode) -> None:
    """The adopted claim's pod learns why it cannot continue, and can end."""
    prepared(node, one_partition)
    gpu, (ours,) = node.gpus[0].uuid, node.gpus[0].mig_instances
    node.lose_journal()
    node.simulation.foreign_destroy(gpu, ours.gi_id)
    run = node.run("run-2")
    assert not run.journal.rebuild_pending
    assert isinstance(run.refusal(ref(1)), DeviceLostError)
    assert run.unprepare(ref(1)) is None
    assert is_untouched(node)


def test_a_claim_without_a_file_is_adopted_by_its_partition(node: ClaimsNode) -> None:
    (wanted,) = prepared(node, one_partition)
    file = node.writer.files.pop(uid(1))
    node.lose_journal()
    run = node.run("run-2")
    assert node.writer.files == {uid(1): file}
    assert run.unprepare(wanted.ref) is None
    assert is_untouched(node)


def test_backups_of_an_earlier_boot_do_not_count(node: ClaimsNode) -> None:
    """An instance that exists after a reboot was created by an administrator."""
    prepared(node, one_partition)
    node.lose_journal()
    node.api.remove(ref(1))
    node.run("run-2", boot_id="boot-2")
    assert len(node.gpus[0].mig_instances) == 1


def test_a_backup_that_cannot_be_read_is_ignored(node: ClaimsNode, caplog: pytest.LogCaptureFixture) -> None:
    prepared(node, one_partition)
    node.lose_journal()
    (file,) = (node.folder / "made").iterdir()
    for damage in (b"", b"[]", b"\xff", b'{"gpu": 3}', file.read_bytes().replace(str(uid(1)).encode(), b"../../etc")):
        caplog.clear()
        file.write_bytes(damage)
        run = node.run("run-2")
        assert run.prepare(ref(1))
        assert "cannot read a GPU state backup" in caplog.text
        node.lose_journal()


def test_a_backup_is_private_and_written_before_the_gpu_changes(node: ClaimsNode) -> None:
    fuse, seen, made = Fuse(), list[str](), node.folder / "made"
    node.backend = simulated()
    node.wrap = lambda each: Fused(each, fuse, {"set_mig_mode", "create_gpu_instance"})
    run = node.run()
    fuse.step = lambda: seen.append("".join(file.read_text() for file in made.iterdir()))  # type: ignore[method-assign]
    run.prepare(claim(1, result(node.part(SMALL, 0))))
    assert [str(uid(1)) in text and "mig-mode" in text for text in seen] == [True] * 4
    (file,) = made.iterdir()
    assert (file.stat().st_mode & 0o777, made.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_partition_is_created_without_space_for_its_backup(node: ClaimsNode) -> None:
    node.backend = simulated()
    run = node.run()
    (node.folder / "made").write_text("in the way")
    error = run.refusal(claim(1, result(node.part(SMALL, 0))))
    assert isinstance(error, StorageError)
    assert "plugin directory" in str(error)
    assert node.is_whole_again()
    assert run.journal.entries() == ()


def test_a_whole_gpu_writes_no_backup(run: Run, tmp_path: Path) -> None:
    run.prepare(claim(1))
    assert run.unprepare(ref(1)) is None
    assert not (run.node.folder / "made").exists()


def test_wrong_backups_are_rewritten_from_a_good_journal(node: ClaimsNode) -> None:
    prepared(node, one_partition)
    (file,) = (node.folder / "made").iterdir()
    good = file.read_bytes()
    file.unlink()
    (file.parent / "GPU-gone.json").write_bytes(good)
    (file.parent / "GPU-gone.json.0011.tmp").write_bytes(b"{")
    node.run("run-2")
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == good


def test_a_claim_that_is_prepared_again_before_the_rebuild_is_adopted(
    node: ClaimsNode, claims: list[AllocatedClaim]
) -> None:
    """Preparing it anew, and failing, would destroy what its containers use."""
    there, asked, files = node.gpus, list(node.sharing.asked), dict(node.writer.files)
    node.lose_journal()
    node.api.outage = OUTAGE
    run = node.run("run-2")
    node.api.outage = None
    node.provider.failure = StorageError("the disk is full")
    for each in claims:
        assert isinstance(run.refusal(each.ref), StorageError)
    node.provider.failure = None
    assert (node.gpus, node.sharing.asked, node.writer.files) == (there, asked, files)
    for each in claims:
        run.prepare(each.ref)
        assert run.unprepare(each.ref) is None
    run.service.recover()
    assert is_untouched(node)


@pytest.mark.parametrize("terms", [MPS, SLICED])
def test_shares_are_adopted_although_the_policy_has_changed(node: ClaimsNode, terms: SharingTerms) -> None:
    """The GPU's present state says how it is shared; the new policy waits for the end of the shares."""
    claims = prepared(node, shares, terms)
    node.lose_journal()
    node.terms = {}
    run = node.run("run-2")
    assert run.journal.uids() == {each.ref.uid for each in claims}
    assert {use.sharing for use in run.journal.uses()} == {terms}
    for each in claims:
        run.prepare(each.ref)
        assert run.unprepare(each.ref) is None
    assert is_untouched(node)
