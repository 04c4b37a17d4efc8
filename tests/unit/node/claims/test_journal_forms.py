"""Partitions, shares and GPU notes in the journal, also beside a process of an older version."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.model.ids import MigUuid
from dra_driver.core.model.mig import PartitionId, partition_name
from dra_driver.core.model.terms import Interval, SharingTerms, Strategy, Use
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.node.claims.entry import (
    AssignedDevice,
    AssignedPartition,
    AssignedSharing,
    AttemptToken,
    Blocked,
    InstanceIds,
    State,
)
from dra_driver.node.claims.journal import Journal
from tests.fakes.claims import POOL, gpu, ref, uid
from tests.fakes.stand_in import present
from tests.unit.node.claims.test_journal import SHARES, TENTH, assigned, begun, open_journal, prepared, stored
from tests.unit.node.claims.test_journal_file import change, is_set_aside, open_at

GPU = gpu(0).uuid
OTHER = gpu(1).uuid
LIVE = InstanceIds(gi_id=9, ci_id=0, uuid=MigUuid("MIG-00000000-0000-0000-0000-000000000009"))
SHARE = SHARES[0]
# As released before there were partitions and shares.
OLD_SCHEMA = """
CREATE TABLE claim (
  uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('preparing', 'prepared', 'unpreparing')),
  owner TEXT NOT NULL, attempt INTEGER NOT NULL, boot_id TEXT NOT NULL, changed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE device (
  uid TEXT NOT NULL REFERENCES claim (uid) ON DELETE CASCADE,
  position INTEGER NOT NULL, request TEXT NOT NULL, pool TEXT NOT NULL, device TEXT NOT NULL,
  share_id TEXT NOT NULL, admin INTEGER NOT NULL CHECK (admin IN (0, 1)), gpu_uuid TEXT NOT NULL,
  PRIMARY KEY (uid, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX holder ON device (pool, device, share_id) WHERE admin = 0;
CREATE TABLE note (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 1;
"""


class OlderProcess:
    """The statements of the version before partitions and shares, on the same file."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA foreign_keys = ON")

    def prepare(self, number: int, device: str) -> None:
        entry = (uid(number), "default", f"claim-{number}", "prepared", "old", 1, "boot-1", 1.5)
        self.connection.execute("INSERT INTO claim VALUES (?, ?, ?, ?, ?, ?, ?, ?)", entry)
        row = (uid(number), 0, "gpu", POOL, device, "", 0, gpu(int(device.rpartition("-")[2])).uuid)
        self.connection.execute("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def forget(self, number: int) -> None:
        self.connection.execute("DELETE FROM claim WHERE uid = ?", (uid(number),))

    def is_content(self) -> bool:
        """Whether its own checks at its start pass."""
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        foreign = self.connection.execute("PRAGMA foreign_key_check").fetchone()
        notes = self.connection.execute("SELECT key FROM note WHERE key <> 'rebuild-pending'").fetchone()
        return version == 1 and foreign is None and notes is None


def partition(
    start: int = 0, size: int = 1, *, created_by_driver: bool = True, live: InstanceIds | None = LIVE
) -> AssignedPartition:
    return AssignedPartition(
        id=PartitionId(GPU, 19, start),
        profile_name="1g.10gb",
        size=size,
        created_by_driver=created_by_driver,
        live=live,
    )


def cut(part: AssignedPartition, *, admin: bool = False, sharing: AssignedSharing | None = None) -> AssignedDevice:
    name = partition_name(0, part.profile_name, part.id.profile_id, part.id.start)
    return replace(assigned(admin=admin), device=name, partition=part, sharing=sharing)


def shared(strategy: Strategy = Strategy.MPS) -> AssignedDevice:
    daemon = MpsDaemon(id=GPU, devices=(GPU,), gpus=(GPU,)) if strategy is Strategy.MPS else None
    interval = Interval.DEFAULT if daemon else Interval.LONG
    share = replace(TENTH, max_shares=4)
    sharing = AssignedSharing(strategy=strategy, interval=interval, share=share, daemon=daemon)
    return replace(assigned(share=SHARE), sharing=sharing)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(open_journal(tmp_path)) as journal:
        yield journal


@pytest.fixture
def older(tmp_path: Path, journal: Journal) -> Iterator[OlderProcess]:
    older = OlderProcess(tmp_path / "state.db")
    yield older
    older.connection.close()


DAEMON = MpsDaemon(id="a-1", devices=("MIG-1",), default_percentage=0, memory_limits={"MIG-1": 4096})
DEVICES = [
    (cut(partition()),),
    (cut(partition(live=None)), assigned(1)),
    (cut(partition(created_by_driver=False)),),
    (cut(partition(), sharing=AssignedSharing(strategy=Strategy.MPS, daemon=DAEMON)),),
    (shared(),),
    (shared(Strategy.TIME_SLICING), assigned(1, admin=True)),
    (cut(partition(created_by_driver=False), admin=True),),
]


@pytest.mark.parametrize("devices", DEVICES)
def test_everything_that_unprepare_needs_comes_back(
    journal: Journal, tmp_path: Path, devices: tuple[AssignedDevice, ...]
) -> None:
    begun(journal, 1, *devices)
    with closing(open_journal(tmp_path, "run-2")) as again:
        entry = stored(again)
    assert (entry.ref, entry.state, entry.devices) == (ref(1), State.PREPARING, devices)
    assert (entry.boot_id, entry.changed_at) == ("boot-1", 1700000000.5)


def test_details_that_become_known_are_stored_with_the_result(journal: Journal) -> None:
    attempt = begun(journal, 1, cut(partition(live=None)))
    assert journal.amend(uid(1), attempt, (cut(partition(created_by_driver=False, live=None)),))
    assert not journal.uses()[0].created_by_driver
    assert journal.finish(uid(1), attempt, (cut(partition()),))
    entry = stored(journal)
    assert (entry.state, entry.devices) == (State.PREPARED, (cut(partition()),))
    assert not journal.amend(uid(1), attempt, (cut(partition(created_by_driver=False)),)), "it is prepared"
    journal.start_unprepare(uid(1))
    assert not journal.finish(uid(1), attempt, (cut(partition(created_by_driver=False)),))
    assert journal.uses()[0].created_by_driver


def test_uses_include_every_state_but_no_admin_access(journal: Journal) -> None:
    begun(journal, 1, cut(partition()))
    prepared(journal, 2, assigned(1))
    prepared(journal, 3, cut(partition(3, created_by_driver=False), admin=True))
    assert [(use.form, use.partition, use.created_by_driver) for use in journal.uses()] == [
        ("partition", PartitionId(GPU, 19, 0), True),
        ("whole", None, False),
    ]
    journal.start_unprepare(uid(1))
    assert len(journal.uses()) == 2


def test_created_partitions_are_listed_from_the_intent_until_they_are_destroyed(journal: Journal) -> None:
    """A partition that is missing in the list would be published as foreign; a partition that a claim only uses is
    foreign.
    """
    begun(journal, 1, cut(partition(0, live=None)))
    prepared(journal, 2, cut(partition(1)))
    prepared(journal, 3, cut(partition(2, created_by_driver=False)))
    prepared(journal, 4, assigned(1))
    created = {PartitionId(GPU, 19, start) for start in (0, 1)}
    assert journal.created_partitions() == created
    undoing = present(journal.start_unprepare(uid(2)))
    assert journal.created_partitions() == created
    assert journal.forget(uid(2), undoing, partitions_left=True)
    assert journal.created_partitions() == created, "the driver has to destroy an orphaned partition"
    (orphan,) = journal.orphaned_partitions()
    journal.forget_orphaned_partition(orphan)
    assert journal.created_partitions() == {PartitionId(GPU, 19, 0)}


def test_the_use_of_a_share_has_its_terms(journal: Journal) -> None:
    begun(journal, 1, shared(Strategy.TIME_SLICING))
    terms = SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.LONG, max_shares=4)
    assert journal.uses() == (Use(gpu_uuid=GPU, form=shared().form, sharing=terms),)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (assigned(0), cut(partition()), False),
        (assigned(0), shared(), False),
        (cut(partition()), shared(), False),
        (cut(partition(0, 4)), cut(partition(3)), False),
        (cut(partition(0, 4)), cut(partition(4)), True),
        (assigned(1), cut(partition()), True),
        (assigned(share=SHARES[0]), assigned(share=SHARES[0]), False),
        (assigned(share=SHARES[0]), assigned(share=SHARES[1]), True),
    ],
)
def test_a_gpu_has_one_form_at_a_time(
    journal: Journal, one: AssignedDevice, other: AssignedDevice, together: bool
) -> None:
    for first, second in ((one, other), (other, one)):
        prepared(journal, 1, first)
        answer = journal.begin(ref(2), [second])
        assert isinstance(answer, AttemptToken) == together
        if isinstance(answer, Blocked):
            assert [entry.ref for entry in answer.by] == [ref(1)]
        for number in (1, 2):
            undoing = journal.start_unprepare(uid(number))
            assert undoing is None or journal.forget(uid(number), undoing)


def test_a_claims_own_shares_count_against_it(journal: Journal) -> None:
    big = replace(TENTH, memory=50 * 2**30)
    sharing = AssignedSharing(strategy=Strategy.TIME_SLICING, share=big)
    both = [
        replace(assigned(share=share_id), request=request, sharing=sharing)
        for request, share_id in zip("ab", SHARES, strict=True)
    ]
    answer = journal.begin(ref(1), both)
    assert isinstance(answer, Blocked)
    assert "requests 50Gi of memory where 30Gi of 80Gi are left" in present(answer.conflict).shortage


def test_notes_are_separate_per_gpu_and_other_runs_see_them(journal: Journal, tmp_path: Path) -> None:
    """Each run sees what another one set, changed and cleared. `test_durability.py` checks that they are synced."""
    assert journal.gpu_note(GPU, "mig-mode") is None
    journal.set_gpu_note(GPU, "mig-mode", "on")
    journal.set_gpu_note(GPU, "compute-mode", "DEFAULT")
    journal.set_gpu_note(OTHER, "mig-mode", "off")
    journal.set_gpu_note(OTHER, "mig-mode", "on")
    with closing(open_journal(tmp_path, "run-2")) as again:
        assert again.gpu_note(OTHER, "mig-mode") == "on"
        assert again.gpus_with_note("mig-mode") == (GPU, OTHER)
        assert again.noted_gpus() == {GPU: {"mig-mode", "compute-mode"}, OTHER: {"mig-mode"}}
        again.clear_gpu_note(GPU, "mig-mode")
        again.clear_gpu_note(GPU, "mig-mode")
    assert journal.gpus_with_note("mig-mode") == (OTHER,)


def test_notes_about_what_a_reboot_resets_are_dropped_after_one(journal: Journal, tmp_path: Path) -> None:
    for key in ("mig-mode", "time-slice"):
        journal.set_gpu_note(GPU, key, "x")
    journal.drop_older_notes(["time-slice"])
    with closing(open_journal(tmp_path, "run-2", boot_id="boot-2")) as rebooted:
        rebooted.set_gpu_note(OTHER, "time-slice", "x")
        rebooted.drop_older_notes(["time-slice"])
        assert rebooted.noted_gpus() == {GPU: {"mig-mode"}, OTHER: {"time-slice"}}


def test_entries_of_an_earlier_boot_that_changed_hardware_stay(journal: Journal, tmp_path: Path) -> None:
    prepared(journal, 1, assigned(1))
    prepared(journal, 2, cut(partition()))
    with closing(open_journal(tmp_path, "run-2", boot_id="boot-2")) as rebooted:
        assert rebooted.drop_older_boots() == (uid(1),)
        assert rebooted.uids() == {uid(2)}


def test_a_file_of_an_older_version_is_used(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD_SCHEMA)
    older = OlderProcess(path)
    older.prepare(1, "gpu-1")
    with closing(open_journal(tmp_path, "run-2")) as journal:
        assert journal.set_aside is None
        entry = stored(journal)
        assert (entry.state, entry.devices) == (State.PREPARED, (assigned(1),))
        prepared(journal, 2, cut(partition()))
        assert isinstance(journal.begin(ref(3), [assigned(1)]), Blocked)
        assert older.is_content()
    older.connection.close()


def test_a_process_of_an_older_version_keeps_working(journal: Journal, older: OlderProcess) -> None:
    prepared(journal, 1, cut(partition()))
    older.prepare(2, "gpu-1")
    assert isinstance(journal.begin(ref(3), [assigned(1)]), Blocked)
    older.forget(2)
    prepared(journal, 3, assigned(1))
    assert older.is_content()


def test_a_partition_whose_claim_an_older_process_frees_is_orphaned(journal: Journal, older: OlderProcess) -> None:
    prepared(journal, 1, cut(partition()))
    prepared(journal, 2, cut(partition(5, created_by_driver=False)))
    for number in (1, 2):
        older.forget(number)
    assert older.is_content()
    (orphan,) = journal.orphaned_partitions()
    assert orphan.partition == partition()
    assert [(use.partition, use.created_by_driver) for use in journal.uses()] == [(PartitionId(GPU, 19, 0), True)]
    blocked = journal.begin(ref(3), [assigned(0)])
    assert isinstance(blocked, Blocked)
    assert (blocked.by, blocked.orphaned_partitions) == ((), (orphan,))
    begun(journal, 4, cut(partition(1)))
    journal.forget_orphaned_partition(orphan)
    journal.forget_orphaned_partition(orphan)
    assert journal.orphaned_partitions() == ()


def test_an_orphaned_partition_that_its_claim_has_again_is_not_forgotten(journal: Journal) -> None:
    prepared(journal, 1, cut(partition()))
    row = journal._connection.execute("SELECT * FROM device").fetchone()
    journal._connection.execute("DELETE FROM claim")
    (orphan,) = journal.orphaned_partitions()
    claim = (uid(1), "default", "claim-1", "prepared", "run-1", 1, "boot-1", 1.5)
    journal._connection.execute("INSERT INTO claim VALUES (?, ?, ?, ?, ?, ?, ?, ?)", claim)
    journal._connection.execute("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    journal.forget_orphaned_partition(orphan)
    assert stored(journal).devices == (cut(partition()),)


BROKEN = [
    ("UPDATE mig SET size = ?", 0),
    ("UPDATE mig SET start = ?", -1),
    ("UPDATE mig SET profile = ?", "big"),
    ("UPDATE mig SET made = ?", 2),
    ("UPDATE mig SET gi = ?", "x"),
    ("UPDATE mig SET mig_uuid = CAST(? AS TEXT)", b"\xff"),
    ("DELETE FROM mig WHERE size = ?", 1),
    ("UPDATE mig SET uid = ?", "../../etc"),
    ("UPDATE sharing SET strategy = ?", "Magic"),
    ("UPDATE sharing SET interval = ?", "Forever"),
    ("UPDATE sharing SET percent = ?", 101),
    ("UPDATE sharing SET memory = ?", "much"),
    ("UPDATE sharing SET daemon = ?", "{}"),
    ("UPDATE sharing SET daemon = ?", "[" * 5000),
    ("UPDATE sharing SET daemon = ?", '{"id":"../x","devices":["GPU-1"],"gpus":[],"memoryLimitsMiB":{}}'),
    ("UPDATE sharing SET uid = ?", uid(9)),
    ("UPDATE gpu_note SET value = ?", b"\xff"),
]


@pytest.mark.parametrize(("statement", "value"), BROKEN)
def test_a_detail_that_this_driver_never_wrote_is_damage(statement: str, value: object, tmp_path: Path) -> None:
    """Otherwise a partition would be destroyed at the wrong placement, or a foreign daemon would be stopped."""
    path = tmp_path / "state.db"
    with closing(open_at(path)) as journal:
        prepared(journal, 1, cut(partition()))
        prepared(journal, 2, replace(shared(), gpu_uuid=OTHER, device=gpu(1).device_name))
        journal.set_gpu_note(GPU, "mig-mode", "on")
    change(path, statement, value)
    assert is_set_aside(path)
