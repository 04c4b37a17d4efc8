"""Disagreements between the records of a node, and files that cannot be read."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.finding import Status
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import DeviceName, GpuUuid, MigUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import Strategy
from dra_driver.diagnose.node_state.findings import find_disagreements
from dra_driver.diagnose.node_state.state import (
    CdiState,
    DaemonState,
    JournalState,
    MpsState,
    NodeState,
    Places,
    SocketState,
    read_state,
)
from dra_driver.hardware.gpu.backend import MIG_MODE
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.node.claims.entry import (
    AssignedDevice,
    AssignedPartition,
    AssignedSharing,
    AttemptToken,
    Entry,
    InstanceIds,
    OrphanedPartition,
    OwnerId,
    State,
)
from dra_driver.node.claims.inspection import GpuNote, JournalContent
from dra_driver.node.claims.journal.backups import GpuStateBackup, PartitionBackup
from tests.fakes.claims import POOL, ref, uid

GPU = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")
PART = PartitionId(GPU, 19, 0)
PARTITION = AssignedPartition(
    id=PART,
    profile_name="1g.10gb",
    size=1,
    created_by_driver=True,
    live=InstanceIds(gi_id=7, ci_id=0, uuid=MigUuid("MIG-1")),
)
DAEMON = MpsDaemon(id="one", devices=(GPU,), gpus=(GPU,))
NOTE = GpuNote(gpu=GPU, key=MIG_MODE, value="on", boot_id="boot")


def device(**more: object) -> AssignedDevice:
    of = AssignedDevice(
        request="gpu", pool=POOL, device=DeviceName("gpu-0"), share_id=None, admin_access=False, gpu_uuid=GPU
    )
    return replace(of, **more)


def entry(state: State = State.PREPARED, *, boot_id: str = "boot", **more: object) -> Entry:
    return Entry(
        ref=ref(1),
        state=state,
        attempt=AttemptToken(owner=OwnerId("run"), number=1),
        boot_id=boot_id,
        changed_at=0.0,
        devices=(device(**more),),
    )


def node(content: JournalContent | None, **more: object) -> NodeState:
    """A node whose node process runs and on which all agrees, but for what is given."""
    plugin = Path("/plugins/gpu.nvidia.com")
    claims = frozenset(each.ref.uid for each in content.entries) if content else frozenset()
    found = NodeState(
        plugin=plugin,
        exists=True,
        boot_id="boot",
        journal=JournalState(path=plugin / "state.db", content=content),
        cdi=CdiState(folder=Path("/cdi"), base=True, claims=claims),
        mps=MpsState(),
        runs=frozenset({"run"}),
        named=claims,
        sockets=(SocketState(path=plugin / "dra.sock", served=True),),
    )
    return replace(found, **more)


ONE = JournalContent(entries=(entry(),))
PARTITIONED = JournalContent(entries=(entry(partition=PARTITION),), notes=(NOTE,))
UNDER_MPS = JournalContent(entries=(entry(sharing=AssignedSharing(strategy=Strategy.MPS, daemon=DAEMON)),))
ORPHAN = OrphanedPartition(uid=uid(2), position=0, partition=PARTITION)
BACKUP = GpuStateBackup(
    gpu=GPU, boot_id="boot", partitions=(PartitionBackup(orphan=ORPHAN, device=DeviceName("gpu-0-mig")),)
)
READY = MpsState(daemons=(DaemonState(id="one", wanted=True, status="ready"),), mounts=("one",))


@pytest.mark.parametrize(
    "state",
    [
        node(JournalContent()),
        node(ONE),
        node(PARTITIONED, backups=(BACKUP,)),
        node(UNDER_MPS, mps=READY),
        node(ONE, gpus={GPU: Gpu(uuid=GPU, minor=0, mig_enabled=False)}),
        node(None, cdi=CdiState(folder=Path("/cdi"))),
    ],
)
def test_a_node_on_which_all_agrees_has_no_problem(state: NodeState) -> None:
    assert [found for found in find_disagreements(state) if found.status is Status.WARN] == []


PENDING = JournalContent(rebuild_pending=True)
JOURNAL = node(None).journal.path


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (node(None, journal=JournalState(path=JOURNAL, problem="it is damaged")), "JournalUnreadable"),
        (node(None, cdi=node(ONE).cdi), "NoJournal"),
        (node(PENDING), "JournalNew"),
        (node(ONE, cdi=CdiState(folder=Path("/cdi"), base=True)), "NoCdiFile"),
        (node(JournalContent(), cdi=node(ONE).cdi), "NoJournalEntry"),
        (node(ONE, cdi=replace(node(ONE).cdi, base=False)), "NoBaseDocument"),
        (node(ONE, cdi=replace(node(ONE).cdi, problems=("it is no CDI file",))), "CdiFileUnusable"),
        (node(JournalContent(entries=(entry(boot_id="before"),))), "EarlierBoot"),
        (node(JournalContent(entries=(entry(State.PREPARING),)), runs=frozenset({"other"})), "ProcessEnded"),
        (node(JournalContent(notes=(NOTE,))), "ChangeNotNeeded"),
        (node(JournalContent(orphans=(ORPHAN,))), "OrphanedPartition"),
        (node(PARTITIONED), "NoPartitionBackup"),
        (node(PARTITIONED, backups=(BACKUP,), gpus={}), "DeviceMissing"),
        (
            node(PARTITIONED, backups=(BACKUP,), gpus={GPU: Gpu(uuid=GPU, minor=0, mig_enabled=True)}),
            "DeviceMissing",
        ),
        (
            node(
                JournalContent(entries=(entry(),), notes=(NOTE,)), gpus={GPU: Gpu(uuid=GPU, minor=0, mig_enabled=False)}
            ),
            "MigModeOff",
        ),
        (node(ONE, hardware_problem="no driver"), "GpusUnreadable"),
        (node(UNDER_MPS, mps=replace(READY, host_problem="no MPS host runs")), "MpsHostFailed"),
        (node(UNDER_MPS), "DaemonNotRequested"),
        (node(ONE, mps=READY), "DaemonNotNeeded"),
        (
            node(UNDER_MPS, mps=replace(READY, daemons=(DaemonState(id="one", wanted=True, status="failed"),))),
            "DaemonNotReady",
        ),
        (node(JournalContent(), mps=MpsState(mounts=("one",))), "MountLeft"),
        (node(ONE, sockets=()), "NoSocketServed"),
        (node(ONE, runs=frozenset()), "OtherDriver"),
        (node(ONE, health_problem="health.json is not JSON"), "HealthUnreadable"),
    ],
)
def test_contradiction_is_one_problem(state: NodeState, reason: str) -> None:
    problems = [found for found in find_disagreements(state) if found.status is Status.WARN]
    assert [found.reason for found in problems] == [reason], problems
    assert problems[0].fix


def test_journal_rebuild_reports_claims_without_names() -> None:
    """Only these claims keep the rebuild from its end when the API server answers."""
    (found,) = find_disagreements(node(PENDING, cdi=node(ONE).cdi))
    assert str(uid(1)) in found.fix


def test_notes_are_not_problems() -> None:
    notes = [
        node(ONE, named=frozenset()),
        node(JournalContent(), journal=replace(node(JournalContent()).journal, set_aside=(Path("/state.db.damaged"),))),
        node(JournalContent(), runs=frozenset(), sockets=(SocketState(path=Path("/dra.sock"), served=False),)),
        node(None, exists=False),
    ]
    assert [[found.status is Status.WARN for found in find_disagreements(each)] for each in notes] == [[False]] * 4


def test_no_restart_is_advised_for_a_host_that_hangs() -> None:
    """A restart would end its clients."""
    for lives, advice in ((True, "do not"), (False, "start")):
        mps = replace(READY, host_problem="it makes no progress", host_lives=lives)
        (found,) = [each for each in find_disagreements(node(UNDER_MPS, mps=mps)) if each.status is Status.WARN]
        assert found.fix.startswith(advice)


@pytest.mark.parametrize(
    ("text", "sick", "has_problem"),
    [
        pytest.param(None, None, False, id="no file"),
        pytest.param('{"gpus": {}}', 0, False, id="no faults"),
        pytest.param('{"gpus": {"a": []}}', 1, False, id="one"),
        pytest.param('{"gpus": 5}', None, True, id="another type"),
        pytest.param('{"gpus": []}', None, True, id="a list"),
        pytest.param("{}", None, True, id="no GPUs"),
        pytest.param("{", None, True, id="no JSON"),
    ],
)
def test_saved_faults_that_cannot_be_read_are_a_problem(
    tmp_path: Path, text: str | None, sick: int | None, has_problem: bool
) -> None:
    folders = dict.fromkeys(("plugin", "registry", "cdi", "run", "shm"), tmp_path)
    places = Places(driver="gpu.example.com", **folders)
    if text is not None:
        places.health.write_text(text)
    state = read_state(places)
    assert (state.sick_gpus, bool(state.health_problem)) == (sick, has_problem)
