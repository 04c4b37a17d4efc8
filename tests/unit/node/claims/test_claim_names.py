"""The names of claims beside the journal: a rebuild reads its claims one by one, without the right to list all."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dra_driver.core.errors import ApiUnreachableError, ClaimError, DraError, ServerBusyError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.journal.backups import ClaimNames
from dra_driver.node.claims.workflow.rebuild import READ_AT_ONCE
from dra_driver.node.claims.workflow.recover import recover
from tests.fakes.claims import FakeClaims, claim, ref, result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run, simulated


def names(node: ClaimsNode) -> list[str]:
    """The lines of the file, without empty ones."""
    path = node.folder / "claim-names"
    return [line for line in path.read_text().splitlines() if line] if path.exists() else []


def line(number: int) -> str:
    return f"{uid(number)} default/claim-{number} ."


def test_every_recorded_claim_has_its_name_outside_of_the_journal(h100: Run) -> None:
    h100.prepare(claim(1, result("gpu-1")))
    h100.prepare(claim(2, result(h100.node.part("1g.10gb", 0))))
    assert names(h100.node) == [line(1), line(2)]
    assert (h100.node.folder / "claim-names").stat().st_mode & 0o777 == 0o600


def test_names_of_claims_that_are_gone_are_forgotten_later(run: Run) -> None:
    run.prepare(claim(1))
    run.prepare(claim(2, result("gpu-1")))
    run.unprepare(ref(1))
    assert names(run.node) == [line(1), line(2)]
    run.service.maintain()
    assert names(run.node) == [line(2)]


def test_a_start_writes_the_names_that_an_earlier_version_did_not(node: ClaimsNode) -> None:
    node.run("run-1").prepare(claim(1))
    (node.folder / "claim-names").unlink()
    node.run("run-2").journal.close()
    assert names(node) == [line(1)]
    node.lose_journal()
    assert node.run("run-3").journal.uids() == {uid(1)}


@pytest.mark.parametrize(
    "torn", ["garbage", uid(1), f"{uid(1)} ", f"{uid(1)} defau", f"{uid(1)} default/clai", f"{uid(1)} default/claim-1 "]
)
def test_a_torn_line_is_no_name_and_hides_none(tmp_path: Path, torn: str) -> None:
    """A process may die while it writes; half of a name may be the name of another claim."""
    path = tmp_path / "claim-names"
    path.write_text(torn)
    found = ClaimNames(path)
    assert found.find([uid(1)]) == {}
    found.add(ref(2))
    assert found.find([uid(1), uid(2)]) == {uid(2): ref(2)}
    found.keep([ref(1)], [uid(2)])
    assert path.read_text() == f"{line(1)}\n{line(2)}\n"


def test_a_claim_without_a_name_keeps_its_files_until_its_pod_ends(node: ClaimsNode) -> None:
    first = node.run("run-1")
    first.prepare(claim(1))
    first.prepare(claim(2, result("gpu-1")))
    answer = first.prepare(claim(3, result("gpu-2")))
    (node.folder / "claim-names").write_text(line(2) + "\n")
    node.lose_journal()
    run = node.run("run-2")
    assert run.journal.uids() == {uid(2)}
    (problem,) = [each for each in recover(run.deps).problems if uid(1) in each]
    assert f"claim_{uid(1)}.json stays until its pod ends" in problem
    assert run.prepare(ref(3)) == answer, "the kubelet's call has the name"
    assert set(node.writer.files) == {uid(1), uid(2), uid(3)}
    assert run.unprepare(ref(1)) is None
    assert recover(run.deps).problems == ()
    assert not run.journal.rebuild_pending


def test_a_partition_that_outlives_its_claim_keeps_the_name(node: ClaimsNode) -> None:
    """Else a journal that is lost then could not know that the claim is over."""
    node.backend = simulated()
    run = node.run("run-1")
    run.prepare(claim(1, result(node.part("1g.10gb", 0))))
    node.backend.mark_lost(0, "fallen off the bus")
    assert run.unprepare(ref(1)) is None
    run.service.recover()
    assert names(node) == [line(1)]
    node.api.remove(ref(1))
    node.lose_journal()
    node.backend.restore(0)
    again = node.run("run-2")
    assert not again.journal.rebuild_pending
    assert node.is_whole_again()
    again.service.recover()
    assert names(node) == []


class Counting(FakeClaims):
    """Notes how many claims are read at once."""

    def __init__(self, *claims: AllocatedClaim) -> None:
        super().__init__(*claims)
        self.at_once: list[int] = []

    def ask_all(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Callable[[], dict[ClaimUid, AllocatedClaim | DraError]]:
        self.at_once.append(len(refs))
        return super().ask_all(refs, within_s=within_s)


@pytest.fixture
def counting(node: ClaimsNode) -> Counting:
    """The reads of a node that has lost the journal of 20 claims."""
    node.api = counting = Counting()
    run = node.run("run-1")
    for number in range(20):
        run.prepare(claim(number, result("gpu-0", admin_access=True)))
    node.lose_journal()
    counting.at_once.clear()
    return counting


def test_a_rebuild_reads_few_claims_at_once(node: ClaimsNode, counting: Counting) -> None:
    """210 claims of 327 KB made a list of all refuse, and 180 took 203 MiB."""
    assert len(node.run("run-2").journal.uids()) == 20
    assert (sum(counting.at_once), max(counting.at_once)) == (20, READ_AT_ONCE)


def test_a_rebuild_asks_no_more_after_an_error_of_the_api_server(node: ClaimsNode, counting: Counting) -> None:
    """A server that is down would cost every claim its time limit, and the start waits for it."""
    counting.outage = ApiUnreachableError("down")
    assert node.run("run-2").journal.rebuild_pending
    assert counting.at_once == [READ_AT_ONCE]


class Failing(FakeClaims):
    """Answers reads of claim 0 with ``error`` while it is set."""

    error: DraError | None = None

    def read(self, of: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim:
        if self.error is not None and of == ref(0):
            raise self.error
        return super().read(of, within_s=within_s)


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (ClaimError("claim is malformed"), False),  # it cannot be adopted now or later
        (ServerBusyError("GET claim: 500 no matching key was found", status=500), True),  # it cannot be decrypted
    ],
)
def test_a_claim_that_cannot_be_read_does_not_stop_the_others(node: ClaimsNode, error: DraError, stays: bool) -> None:
    node.api = api = Failing()
    run = node.run("run-1")
    for number in range(2 * READ_AT_ONCE):
        run.prepare(claim(number, result("gpu-0", admin_access=True)))
    node.lose_journal()
    api.error = error
    again = node.run("run-2")
    assert again.journal.uids() == {uid(number) for number in range(1, 2 * READ_AT_ONCE)}
    assert (again.journal.rebuild_pending, uid(0) in node.writer.claim_uids()) == (stays, stays), "its pod may run"
    assert ("no matching key" in str(again.service.recover().problems)) is stays
    api.error = None
    again.service.recover()
    assert (again.journal.rebuild_pending, uid(0) in again.journal.uids()) == (False, stays)


def test_names_that_cannot_be_written_fail_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "claim-names").mkdir()
    found = ClaimNames(tmp_path / "claim-names")
    found.add(ref(1))
    found.keep([ref(1)], [])
    assert caplog.text.count("cannot write names of claims") == 2
    assert found.find([uid(1)]) == {}


def test_no_other_text_becomes_a_line(tmp_path: Path) -> None:
    found = ClaimNames(tmp_path / "claim-names")
    found.add(ClaimRef(namespace="default", name="x", uid=ClaimUid("../a\nb")))
    assert (tmp_path / "claim-names").read_text() == "\n"
