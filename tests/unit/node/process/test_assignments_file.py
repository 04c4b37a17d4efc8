"""What the node process tells the usage exporter, which reads it with code of its own."""

import json
import stat
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, UsageRules
from dra_driver.node.claims.entry import Entry, State
from dra_driver.node.process.usage_exporter import (
    CHECK_S,
    COOLDOWN_S,
    FILE,
    PAUSE_S,
    RETRY_S,
    VERSION,
    AssignmentsFile,
    ExporterLock,
    GpuChangeTracker,
    ReportedGpu,
)
from dra_driver.node.usage import assignments
from dra_driver.node.usage.values import Assignments
from tests.fakes.entries import GPU, device, entry, partition, sharing

RULES = UsageRules(
    over_grant=OverGrantAction.EVICT, grace_s=5, overhead_bytes=9, idle_after_min=3, idle=IdleAction.RECLAIM
)
HEADER = {"version": VERSION, "node": "n", "driver": "gpu.nvidia.com", "processStarted": "2026-07-01T00:00:00Z"}


class Node:
    def __init__(self, folder: Path) -> None:
        self.entries: list[Entry] = [entry()]
        self.detached: str | None = None
        self.fails, self.reads, self.now = False, 0, 100.0
        self.folder = folder / "usage"
        gpus = [ReportedGpu(device=DeviceName("gpu-0"), gpu_uuid=GPU, model="NVIDIA H100", rules=RULES)]
        self.changes = GpuChangeTracker(lambda: None, ExporterLock(folder / "driver.lock"))
        self.file = AssignmentsFile(
            self.folder,
            HEADER,
            entries=self.read,
            gpus=lambda: gpus,
            detached=lambda: self.detached,
            changes=self.changes,
            clock=lambda: self.now,
        )

    def read(self) -> list[Entry]:
        self.reads += 1
        if self.fails:
            raise StorageError("the journal is locked")
        return self.entries

    def told(self) -> Assignments:
        return assignments.decode((self.folder / FILE).read_bytes())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_exporter_reads_what_the_node_process_writes(node: Node) -> None:
    """Every field, for a whole GPU, a share and a partition, with the rules of the GPU."""
    node.entries = [
        entry("u2", device(share_id="s1", sharing=sharing(2**30)), device(partition=partition(gi_id=7), request="mig")),
        entry("u1", device(admin_access=True)),
        entry("u3", state=State.PREPARING),
    ]
    node.file.claims_changed()
    assert node.file.step() == CHECK_S
    found = node.told()
    assert [claim.ref.uid for claim in found.claims] == ["u1", "u2"]
    (admin,), (shared, cut) = found.claims[0].devices, found.claims[1].devices
    assert (admin.admin_access, admin.form, admin.uuid, admin.gi_id) == (True, Form.WHOLE, GPU, None)
    assert (shared.form, shared.share_id, shared.memory_bytes, shared.percent) == (Form.SHARE, "s1", 2**30, 20)
    assert (cut.form, cut.gi_id, cut.uuid, cut.profile) == (Form.PARTITION, 7, "MIG-x", "1g.10gb")
    assert (found.gpus[0].rules, found.gpus[0].model) == (RULES, "NVIDIA H100")
    assert found.claims[0].prepared.isoformat() == "2026-07-01T12:00:00+00:00"


def test_the_files_are_roots_alone(node: Node) -> None:
    """Names of claims and programs are not for every user of the node."""
    (node.folder / "findings").mkdir(mode=0o755, parents=True)  # as the kubelet makes folders that it mounts
    node.file.step()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (node.folder, node.folder / "findings", node.folder / FILE)]
    assert modes == [0o700, 0o700, 0o600]


def test_an_unchanged_file_is_not_written_again(node: Node) -> None:
    """And the journal is read when claims changed alone."""
    node.file.step()
    before = (node.folder / FILE).stat().st_ino
    node.file.step()
    node.file.worker.wake()
    node.file.step()
    assert ((node.folder / FILE).stat().st_ino, node.reads) == (before, 1)
    node.entries = []
    node.file.claims_changed()
    node.file.step()
    assert node.told().claims == ()


def test_a_gpu_that_is_cut_and_a_driver_that_is_given_up(node: Node) -> None:
    """The exporter leaves them alone; it is told when that is over."""
    with node.changes.during(GPU):
        assert node.file.step() <= COOLDOWN_S
        assert node.told().gpus[0].changing
    node.detached = "this node has given its NVIDIA driver up"
    node.file.step()
    assert node.told().detached == "this node has given its NVIDIA driver up"


def test_a_journal_that_cannot_be_read(node: Node) -> None:
    """What was told stays, and it is read again soon."""
    node.file.step()
    node.fails = True
    node.file.claims_changed()
    assert node.file.step() == RETRY_S
    assert len(node.told().claims) == 1
    node.fails, node.entries = False, []
    node.file.step()
    assert node.told().claims == ()


def test_a_folder_that_cannot_be_written(node: Node) -> None:
    """It is tried again; a file that was removed comes back."""
    node.folder.write_text("in the way")
    assert node.file.step() == RETRY_S
    node.folder.unlink()
    assert node.file.step() == CHECK_S
    (node.folder / FILE).unlink()
    node.file.step()
    assert json.loads((node.folder / FILE).read_text())["node"] == "n"


def test_changes_within_the_pause_are_written_together_except_of_gpus(node: Node) -> None:
    """Reading the journal takes time that prepares need; the exporter has to close a GPU immediately."""
    node.file.claims_changed()
    node.file._turn()
    node.file.claims_changed()
    node.now += PAUSE_S / 2
    assert node.file._turn() == pytest.approx(PAUSE_S / 2)
    assert node.reads == 1
    with node.changes.during(GPU):
        node.file._turn()
        assert (node.told().gpus[0].changing, node.reads) == (True, 2)
    node.now += PAUSE_S
    node.file.claims_changed()
    node.file._turn()
    assert node.reads == 3
