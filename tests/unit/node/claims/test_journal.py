"""The journal: states, assignments, and two runs with one file."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.terms import Strategy
from dra_driver.node.claims.entry import (
    AssignedDevice,
    AssignedShare,
    AssignedSharing,
    AttemptToken,
    Blocked,
    Entry,
    OwnerId,
    State,
)
from dra_driver.node.claims.journal import Journal
from tests.fakes.claims import POOL, gpu, ref, uid
from tests.fakes.stand_in import present
from tests.harness.raising import fails

SHARES = ("aaaaaaaa-0000-0000-0000-000000000000", "bbbbbbbb-0000-0000-0000-000000000000")
TENTH = AssignedShare(memory=8 * 2**30, percent=10, count=1, total_memory=80 * 2**30, max_shares=None)


def assigned(minor: int = 0, *, admin: bool = False, share: str | None = None) -> AssignedDevice:
    return AssignedDevice(
        request="gpu",
        pool=POOL,
        device=DeviceName(f"gpu-{minor}"),
        share_id=share,
        admin_access=admin,
        gpu_uuid=gpu(minor).uuid,
        sharing=AssignedSharing(strategy=Strategy.TIME_SLICING, share=TENTH) if share else None,
    )


def open_journal(folder: Path, owner: str = "run-1", boot_id: str = "boot-1") -> Journal:
    return Journal.open(folder / "state.db", boot_id=boot_id, owner=OwnerId(owner), now=lambda: 1700000000.5)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(open_journal(tmp_path)) as journal:
        yield journal


@pytest.fixture
def other(tmp_path: Path, journal: Journal) -> Iterator[Journal]:
    with closing(open_journal(tmp_path, "run-2")) as other:
        yield other


def stored(journal: Journal, number: int = 1) -> Entry:
    """The entry of a claim that has to be in the journal."""
    return present(journal.entry(uid(number)))


def begun(journal: Journal, number: int, *devices: AssignedDevice) -> AttemptToken:
    attempt = journal.begin(ref(number), devices or (assigned(),))
    assert isinstance(attempt, AttemptToken)
    return attempt


def prepared(journal: Journal, number: int, *devices: AssignedDevice) -> AttemptToken:
    attempt = begun(journal, number, *devices)
    assert journal.finish(uid(number), attempt)
    return attempt


def test_states_follow_one_another(journal: Journal) -> None:
    attempt = begun(journal, 1)
    assert journal.finish(uid(1), attempt)
    assert [entry.state for entry in journal.entries()] == [State.PREPARED]
    attempt_to_undo = present(journal.start_unprepare(uid(1)))
    assert [entry.state for entry in journal.entries()] == [State.UNPREPARING]
    assert journal.forget(uid(1), attempt_to_undo)
    assert journal.entries() == ()
    assert journal.count_claims() == 0


def test_a_device_is_assigned_once_from_the_first_step_to_the_last(journal: Journal) -> None:
    attempt = begun(journal, 1)
    for step in (
        lambda: None,
        lambda: journal.finish(uid(1), attempt),
        lambda: journal.start_unprepare(uid(1)),
    ):
        step()
        blocked = journal.begin(ref(2), [assigned()])
        assert isinstance(blocked, Blocked)
        assert [entry.ref for entry in blocked.by] == [ref(1)]
    assert journal.entry(uid(2)) is None


def test_a_blocked_claim_gets_none_of_its_devices(journal: Journal) -> None:
    prepared(journal, 1, assigned(0))
    assert isinstance(journal.begin(ref(2), [assigned(1), assigned(0)]), Blocked)
    prepared(journal, 3, assigned(1))


def test_admin_access_neither_blocks_nor_is_blocked(journal: Journal) -> None:
    prepared(journal, 1, assigned(admin=True))
    prepared(journal, 2, assigned())
    prepared(journal, 3, assigned(admin=True))
    assert journal.count_claims() == 3


def test_a_second_begin_of_a_claim_is_blocked_by_its_own_entry(journal: Journal, other: Journal) -> None:
    begun(journal, 1)
    blocked = other.begin(ref(1), [assigned()])
    assert isinstance(blocked, Blocked)
    assert [entry.ref for entry in blocked.by] == [ref(1)]


def test_an_attempt_that_was_overtaken_finishes_nothing(journal: Journal, other: Journal) -> None:
    slow = begun(journal, 1)
    undoing = present(other.start_unprepare(uid(1)))
    assert not journal.finish(uid(1), slow)
    assert not journal.forget(uid(1), slow)
    assert other.forget(uid(1), undoing)
    again = begun(other, 1)
    assert not journal.finish(uid(1), slow)
    assert other.finish(uid(1), again)


def test_undoing_can_be_limited_to_one_attempt(journal: Journal, other: Journal) -> None:
    first = begun(journal, 1)
    assert journal.start_unprepare(uid(1), only=AttemptToken(owner=OwnerId("run-9"), number=1)) is None
    assert stored(journal).state is State.PREPARING
    assert other.start_unprepare(uid(1), only=first) is not None


def test_only_entries_of_earlier_boots_are_dropped(tmp_path: Path, journal: Journal) -> None:
    prepared(journal, 1)
    assert journal.drop_older_boots() == ()
    journal.close()
    with closing(open_journal(tmp_path, "run-2", boot_id="boot-2")) as rebooted:
        assert rebooted.drop_older_boots() == (uid(1),)
        assert rebooted.count_claims() == 0


def test_an_unknown_boot_drops_nothing(tmp_path: Path, journal: Journal) -> None:
    prepared(journal, 1)
    with closing(open_journal(tmp_path, "run-2", boot_id="")) as unknown:
        assert unknown.drop_older_boots() == ()
        prepared(unknown, 2, assigned(1))
    assert journal.drop_older_boots() == ()


def test_entries_survive_an_end_without_close(tmp_path: Path, journal: Journal) -> None:
    prepared(journal, 1)
    begun(journal, 2, assigned(1))
    with closing(open_journal(tmp_path, "run-2")) as again:
        states = [(entry.ref, entry.state) for entry in again.entries()]
    assert states == [(ref(1), State.PREPARED), (ref(2), State.PREPARING)]


def test_inside_exclusive_the_journal_can_be_read(journal: Journal) -> None:
    prepared(journal, 1)
    with journal.exclusive():
        assert journal.uids() == {uid(1)}
        assert journal.entry(uid(2)) is None
    prepared(journal, 2, assigned(1))


def test_an_adopted_claim_does_not_get_an_assigned_device(journal: Journal) -> None:
    assert journal.adopt(ref(1), [assigned()]) is None
    blocked = journal.adopt(ref(2), [assigned()])
    assert isinstance(blocked, Blocked)
    assert stored(journal).state is State.PREPARED


def test_a_new_journal_has_its_rebuild_pending(tmp_path: Path, journal: Journal) -> None:
    assert journal.rebuild_pending
    with closing(open_journal(tmp_path, "run-2")) as again:
        assert again.rebuild_pending
        again.note_rebuilt()
    assert not journal.rebuild_pending


def test_a_closed_journal_raises_a_storage_error(journal: Journal) -> None:
    journal.close()
    journal.close()
    with fails(StorageError, "JournalUnavailable"):
        journal.entry(uid(1))


def test_tidying_up_loses_nothing_and_empties_the_log(tmp_path: Path, journal: Journal) -> None:
    prepared(journal, 1)
    before = (tmp_path / "state.db").read_bytes()
    journal.tidy()
    assert (tmp_path / "state.db").read_bytes() != before
    assert journal.uids() == {uid(1)}


def test_hostile_text_stays_text(journal: Journal) -> None:
    name = "x'); DROP TABLE claim; --"
    assert isinstance(journal.begin(ref(1, name), [assigned()]), AttemptToken)
    assert stored(journal).ref.name == name
