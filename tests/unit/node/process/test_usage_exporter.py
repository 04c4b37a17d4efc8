"""What the node process tells the usage exporter, which reads it with code of its own."""

import json
import os
import stat
from collections.abc import Container, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_driver.core.errors import GpuBusyError, StorageError
from dra_driver.core.files import lock_file
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, UsageRules
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.node.claims.entry import Entry, State
from dra_driver.node.process.usage_exporter import (
    CHECK_S,
    COOLDOWN_S,
    PAUSE_S,
    RETRY_AFTER_TIMEOUT_S,
    RETRY_S,
    WAIT_S,
    AssignmentsFile,
    ExporterLock,
    GpuChangeTracker,
    TrackedGpuControl,
)
from dra_driver.node.usage import assignments
from dra_driver.node.usage.assignments import FILE
from dra_driver.node.usage.values import AssignedGpu, Assignments
from tests.fakes.claims import GPU, device, entry, partition, sharing
from tests.fakes.simulated_gpus import SimulatedBackend

RULES = UsageRules(
    over_grant=OverGrantAction.EVICT, grace_s=5, overhead_bytes=9, idle_after_min=3, idle=IdleAction.RECLAIM
)
HEADER = Assignments(node="n", driver="gpu.nvidia.com", process_started=datetime(2026, 7, 1, tzinfo=UTC))


class Node:
    def __init__(self, folder: Path) -> None:
        self.entries: list[Entry] = [entry()]
        self.detached: str | None = None
        self.fails, self.reads, self.now = False, 0, 100.0
        self.folder = folder / "usage"
        self.changes = GpuChangeTracker(lambda: None, ExporterLock(folder / "driver.lock"))
        self.file = AssignmentsFile(
            self.folder,
            HEADER,
            entries=self.read,
            gpus=self.gpus,
            detached=lambda: self.detached,
            changes=self.changes,
            clock=lambda: self.now,
        )

    def read(self) -> list[Entry]:
        self.reads += 1
        if self.fails:
            raise StorageError("the journal is locked")
        return self.entries

    def gpus(self, changing: Container[GpuUuid]) -> tuple[AssignedGpu, ...]:
        gpu = AssignedGpu(device="gpu-0", gpu_uuid=GPU, model="NVIDIA H100", changing=GPU in changing, rules=RULES)
        return (gpu,)

    def told(self) -> Assignments:
        return assignments.decode((self.folder / FILE).read_bytes())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_exporter_reads_what_the_node_process_writes(node: Node) -> None:
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
    (node.folder / "findings").mkdir(mode=0o755, parents=True)  # as the kubelet makes folders that it mounts
    node.file.step()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (node.folder, node.folder / "findings", node.folder / FILE)]
    assert modes == [0o700, 0o700, 0o600]


def test_the_file_is_written_after_each_change_and_only_then(node: Node) -> None:
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
    with node.changes.during(GPU):
        assert node.file.step() <= COOLDOWN_S
        assert node.told().gpus[0].changing
    node.detached = "detached from the NVIDIA driver"
    node.file.step()
    assert node.told().detached == "detached from the NVIDIA driver"


def test_a_journal_that_cannot_be_read(node: Node) -> None:
    node.file.step()
    node.fails = True
    node.file.claims_changed()
    assert node.file.step() == RETRY_S
    assert len(node.told().claims) == 1
    node.fails, node.entries = False, []
    node.file.step()
    assert node.told().claims == ()


def test_a_folder_that_cannot_be_written(node: Node) -> None:
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


class Exporter:
    """An exporter with the NVIDIA driver open, according to its lock file; time passes while it is waited for.

    It lets go a moment after it is ``told``, unless it ``is_stuck``.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.told, self.is_stuck, self.waited_s = path, False, False, 0.0
        self.now = 100.0
        self._held: int | None = None

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def open(self) -> None:
        self._held = lock_file(self.path, shared=True)

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.now += seconds
        if self.told and not self.is_stuck:
            self.close()

    def clock(self) -> float:
        return self.now


class Changes:
    def __init__(self, folder: Path) -> None:
        self.now, self.begun = 100.0, 0
        self.exporter = Exporter(folder / "driver.lock")
        turn = ExporterLock(self.exporter.path, sleep=self.exporter.sleep, clock=self.exporter.clock)
        self.gpus = GpuChangeTracker(self.begin, turn, lambda: self.now)

    def begin(self) -> None:
        self.begun += 1
        self.exporter.told = True


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[Changes]:
    found = Changes(tmp_path)
    yield found
    found.exporter.close()


def test_a_gpu_is_changing_during_the_call_and_after_it(changes: Changes) -> None:
    assert changes.gpus.next_end_s() is None
    for _ in range(2):
        with changes.gpus.during(GPU):
            assert changes.gpus.current() == {GPU}
        changes.now += 1
    assert changes.begun == 1
    assert changes.gpus.current() == {GPU}
    assert changes.gpus.next_end_s() == COOLDOWN_S - 1
    changes.now += COOLDOWN_S - 1
    assert changes.gpus.current() == frozenset()
    assert changes.gpus.next_end_s() is None
    with pytest.raises(GpuBusyError), changes.gpus.during(GPU):
        raise GpuBusyError("in use")
    assert changes.begun == 2
    changes.now += COOLDOWN_S
    assert changes.gpus.current() == frozenset(), "a call that fails ends, too"


@pytest.fixture
def control(changes: Changes, backend: "Held") -> TrackedGpuControl:
    return TrackedGpuControl(backend, changes.gpus)


def test_cutting_a_gpu_is_a_change(changes: Changes, control: TrackedGpuControl, gpu: GpuUuid) -> None:
    control.set_mig_mode(gpu, True)
    gi = control.create_gpu_instance(gpu, 19, 0)
    ci = control.create_compute_instance(gpu, gi)
    assert len(control.mig_instances(gpu)) == 1
    control.destroy_compute_instance(gpu, gi, ci.ci_id)
    control.destroy_gpu_instance(gpu, gi)
    assert changes.gpus.current() == {gpu}
    assert changes.begun == 1


def test_looking_and_the_compute_mode_are_none(changes: Changes, control: TrackedGpuControl, gpu: GpuUuid) -> None:
    assert not control.mig_mode(gpu)
    control.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    assert control.compute_mode(gpu) is ComputeMode.EXCLUSIVE_PROCESS
    assert control.fabric(gpu) is not None or control.mig_instances(gpu) == ()
    assert changes.gpus.current() == frozenset()


class Held(SimulatedBackend):
    """GPUs that another process may have open, as the NVIDIA driver treats them; counts the calls that it refuses."""

    exporter: Exporter
    refused = 0

    def _in_use(self) -> None:
        if self.exporter.is_open:
            self.refused += 1
            raise GpuBusyError("In use by another client")

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        self._in_use()
        super().set_mig_mode(gpu, enabled)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        self._in_use()
        return super().create_gpu_instance(gpu, profile_id, start)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        self._in_use()
        super().destroy_gpu_instance(gpu, gi_id)


@pytest.fixture
def backend(changes: Changes) -> Held:
    gpus = Held.from_spec("1xh100-sxm5-80gb", "n")
    assert isinstance(gpus, Held)
    gpus.exporter = changes.exporter
    return gpus


@pytest.fixture
def gpu(backend: Held) -> GpuUuid:
    return backend.snapshot().gpus[0].uuid


def test_a_mode_waits_for_the_exporter_and_a_partition_only_if_the_gpu_is_busy(
    changes: Changes, control: TrackedGpuControl, gpu: GpuUuid, backend: Held
) -> None:
    changes.exporter.open()
    control.set_mig_mode(gpu, True)
    assert (control.mig_mode(gpu), backend.refused) == (True, 0), "a mode that is refused may stay pending: it waits"
    assert changes.exporter.waited_s > 0
    changes.exporter.waited_s = 0.0
    gi_id = control.create_gpu_instance(gpu, 19, 0)
    assert (backend.refused, changes.exporter.waited_s) == (0, 0)
    changes.exporter.open()
    changes.exporter.told = True
    control.destroy_gpu_instance(gpu, gi_id)
    assert backend.refused == 1
    assert changes.exporter.waited_s > 0


def test_a_stuck_exporter_delays_one_change_and_prevents_none_that_the_driver_allows(
    changes: Changes, control: TrackedGpuControl, gpu: GpuUuid, backend: Held
) -> None:
    changes.exporter.open()
    changes.exporter.is_stuck = True
    for _ in range(2):
        with pytest.raises(GpuBusyError):
            control.set_mig_mode(gpu, True)
    assert backend.refused == 2
    assert changes.exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
    with pytest.raises(GpuBusyError):
        control.create_gpu_instance(gpu, 19, 0)
    assert changes.exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)


@pytest.fixture
def exporter(changes: Changes) -> Exporter:
    return changes.exporter


@pytest.fixture
def turn(changes: Changes) -> ExporterLock:
    return changes.gpus.exporter


def test_two_changes_at_once_wait_once(turn: ExporterLock, exporter: Exporter) -> None:
    exporter.open()
    exporter.told = True
    with turn.acquired() as first:
        assert (first, exporter.is_open) == (True, False)
        waited_s = exporter.waited_s
        with turn.acquired() as has_let_go:
            assert not has_let_go
        with pytest.raises(BlockingIOError):
            exporter.open()
    assert exporter.waited_s == waited_s
    exporter.open()


@pytest.mark.parametrize("file", ["none", "of one that died", "a link", "a folder"])
def test_without_an_exporter_nothing_waits(turn: ExporterLock, exporter: Exporter, file: str) -> None:
    if file == "a link":
        exporter.path.symlink_to("/proc/self/mem")
    elif file == "a folder":
        exporter.path.mkdir()
    elif file != "none":
        exporter.open()
        exporter.close()
    with turn.acquired() as has_let_go:
        assert not has_let_go
    assert (exporter.waited_s, exporter.path.exists()) == (0, file != "none")


def test_a_stuck_exporter_is_waited_for_once_in_a_while(turn: ExporterLock, exporter: Exporter) -> None:
    exporter.open()
    exporter.is_stuck = True
    for _ in range(3):
        with turn.acquired() as has_let_go:
            assert not has_let_go
    assert exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
    exporter.now += RETRY_AFTER_TIMEOUT_S
    with turn.acquired():
        pass
    assert exporter.waited_s == pytest.approx(2 * WAIT_S, abs=0.2)


def test_it_is_known_whether_the_exporter_has_let_go(turn: ExporterLock, exporter: Exporter) -> None:
    assert turn.wait_closed()
    exporter.open()
    exporter.is_stuck = True
    assert [turn.wait_closed(), turn.wait_closed()] == [False, False]
    exporter.close()
    assert turn.wait_closed()
    exporter.open()
    exporter.told, exporter.is_stuck = True, False
    exporter.now += RETRY_AFTER_TIMEOUT_S
    assert turn.wait_closed()
    exporter.open()


def test_no_descriptor_is_left(turn: ExporterLock, exporter: Exporter) -> None:
    exporter.open()
    exporter.close()
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(ZeroDivisionError), turn.acquired():
        _ = 1 / 0
    assert len([*Path("/proc/self/fd").iterdir()]) == before
