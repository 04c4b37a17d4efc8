"""The process is killed between any two steps that are persisted or change a GPU: nothing is lost, doubled or left.

Killing is an exception that nothing in the driver catches, raised before or after a chosen step; afterwards a new run
opens the same journal and finds the same hardware, as after ``kill -9``. A power cut loses more, so the intent is
durable first (tests/contract/node/claims/test_durability.py shows the syncs).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dra_driver.core.model.claim import AllocatedClaim, OpaqueConfig
from dra_driver.core.model.terms import GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.node.claims.entry import State
from tests.fakes.claims import claim, ref, result, share_result, uid
from tests.fakes.fuse import Fuse, Fused, Killed
from tests.fakes.node_process import memory_folder
from tests.unit.node.claims.conftest import ClaimsNode, Run, config, simulated, slicing

JOURNAL = {"begin", "amend", "finish", "start_unprepare", "forget", "adopt", "set_gpu_note", "clear_gpu_note"}
MAINTENANCE = {"drop_older_boots", "drop_older_notes", "forget_orphaned_partition", "note_rebuilt", "write_all_backups"}
FILES = {"write_metadata", "write_claim", "remove_claim", "remove_orphans"}
GPU = {
    "set_mig_mode",
    "create_gpu_instance",
    "create_compute_instance",
    "destroy_compute_instance",
    "destroy_gpu_instance",
    "set_compute_mode",
}
SHARING = {"set", "reset", "ensure", "release"}
STEPS = frozenset(JOURNAL | MAINTENANCE | FILES | GPU | SHARING)
HARDWARE = GPU | SHARING


def mps_config(kind: str) -> OpaqueConfig:
    return config(kind, {"strategy": "MPS"})


def slice_config() -> OpaqueConfig:
    return config("GpuConfig", slicing("Long"))


class KillableNode:
    """A node with two H100 whose process can be killed. Claims 8 and 9 are prepared before and stay."""

    def __init__(self, folder: Path, shared: SharingTerms | None = None) -> None:
        folder.mkdir()
        self.fuse = Fuse()
        self.claims_node = ClaimsNode(folder, backend=simulated(), wrap=lambda each: Fused(each, self.fuse, STEPS))
        self.runs = 0
        if shared is not None:
            self.claims_node.terms = {self.claims_node.gpus[0].uuid: GpuTerms(sharing=shared)}
        self.run = self.start()

    def start(self) -> Run:
        self.runs += 1
        return self.claims_node.run(f"run-{self.runs}")

    def until_killed(self, call: Callable[[], object], steps: int) -> bool:
        """Whether the process was killed; it is started again then."""
        self.fuse.left = steps
        try:
            call()
        except Killed:
            return True
        finally:
            self.fuse.left = None
        return False

    def check(self) -> None:
        """Assert that journal, files and hardware agree."""
        journal, claims_node = self.run.journal, self.claims_node
        assert {entry.state for entry in journal.entries()} <= {State.PREPARED}
        assert journal.uids() == claims_node.writer.claim_uids()
        assert journal.uids() == {uid for uid, _ in claims_node.writer.metadata_files}
        assert journal.orphaned_partitions() == ()
        assigned = [h.device.partition for h in journal.assignments() if h.device.partition is not None]
        there = [
            (gpu.uuid, one.profile_id, one.start, one.gi_id) for gpu in claims_node.gpus for one in gpu.mig_instances
        ]
        noted = [(p.id.gpu_uuid, p.id.profile_id, p.id.start, p.live.gi_id if p.live else None) for p in assigned]
        assert sorted(set(noted)) == sorted(there)  # claims may share a partition
        cut = {gpu.uuid for gpu in claims_node.gpus if gpu.mig_enabled}
        assert cut == set(journal.gpus_with_note("mig-mode")) == {p.id.gpu_uuid for p in assigned}
        shared = [(h.device.gpu_uuid, h.device.sharing) for h in journal.assignments() if h.device.sharing is not None]
        assert set(claims_node.sharing.running) == {s.daemon.id for _, s in shared if s.daemon is not None}
        sliced = {(gpu, s.interval) for gpu, s in shared if s.interval is not Interval.DEFAULT}
        assert set(claims_node.sharing.slices.items()) == sliced
        for gpu in claims_node.gpus:
            exclusive = any(gpu.uuid in daemon.gpus for daemon in claims_node.sharing.running.values())
            mode = claims_node.simulation.compute_mode(gpu.uuid)
            assert (mode is ComputeMode.EXCLUSIVE_PROCESS) == exclusive


def partition(node: ClaimsNode) -> AllocatedClaim:
    return claim(1, result(node.part("1g.10gb", 0)))


def four_partitions(node: ClaimsNode) -> AllocatedClaim:
    places = (("3g.40gb", 4, 0), ("2g.20gb", 2, 0), ("1g.10gb", 0, 0), ("7g.80gb", 0, 1))
    return claim(1, *(result(node.part(*each), request=f"r{at}") for at, each in enumerate(places)))


def partition_under_mps(node: ClaimsNode) -> AllocatedClaim:
    return claim(1, result(node.part("2g.20gb", 2)), configs=[mps_config("MigDeviceConfig")])


def gpus_under_mps(_: ClaimsNode) -> AllocatedClaim:
    return claim(1, result("gpu-0"), result("gpu-1", request="b"), configs=[mps_config("GpuConfig")])


def gpu_with_a_time_slice(_: ClaimsNode) -> AllocatedClaim:
    return claim(1, configs=[slice_config()])


def share(_: ClaimsNode) -> AllocatedClaim:
    return claim(1, share_result(1, "10Gi", 10))


MPS = SharingTerms(strategy=Strategy.MPS)
SLICED = SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.SHORT)
CASES: list[Any] = [  # the claim, how its GPU is shared, and claims beside it
    pytest.param(partition, None, ("1g.10gb",), marks=pytest.mark.slow),
    (four_partitions, None, ()),
    (partition_under_mps, None, ()),
    (gpus_under_mps, None, ()),
    (gpu_with_a_time_slice, None, ()),
    (share, MPS, ("share",)),
    (share, SLICED, ("share",)),
]


def beside(node: KillableNode, what: Sequence[str]) -> None:
    """Prepare other claims on the same GPU."""
    for number, each in enumerate(what, 8):
        other = share_result(number, "5Gi", 5) if each == "share" else result(node.claims_node.part(each, 6))
        node.run.prepare(claim(number, other))


@pytest.fixture
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        yield Path(folder)


@pytest.mark.parametrize("lost", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "journal-lost"])
@pytest.mark.parametrize("what", ["prepare", "unprepare"])
@pytest.mark.parametrize(("wanted", "shared", "others"), CASES)
def test_every_step_can_be_the_last(  # noqa: PLR0917 - pytest hands them over by name
    memory: Path,
    what: str,
    lost: bool,
    wanted: Callable[[ClaimsNode], AllocatedClaim],
    shared: SharingTerms | None,
    others: Sequence[str],
) -> None:
    """The next start keeps answered claims and nothing else, and the claim can be prepared and unprepared.

    Also when the journal is lost with the process; then a claim that was half done may be taken for prepared.
    """
    steps, killed = 0, True
    while killed:
        node = KillableNode(memory / str(steps), shared)
        beside(node, others)
        before = node.run.journal.uids()
        node.claims_node.api.put(wanted(node.claims_node))
        if what == "unprepare":
            node.run.prepare(ref(1))
        call = node.run.service.prepare if what == "prepare" else node.run.service.unprepare
        killed = node.until_killed(lambda call=call: call([ref(1)]), steps)  # type: ignore[misc]
        if killed:
            if lost:
                node.claims_node.lose_journal()
            # The next start may be killed as well; another one follows.
            node.until_killed(node.start, steps % 7)
            node.run = node.start()
        node.check()
        assert before <= node.run.journal.uids() <= before | {uid(1)}
        node.run.prepare(ref(1))
        node.check()
        assert node.run.unprepare(ref(1)) is None
        node.check()
        for number in range(8, 8 + len(others)):
            assert node.run.unprepare(ref(number)) is None
        assert node.claims_node.is_whole_again()
        for journal in node.claims_node.opened:
            journal.close()
        steps += 1
    assert steps >= 7, "intent, file and result each have a before and an after"


class Recorder:
    """Passes every call on to ``target``; ``calls`` has the name and the keyword arguments of each, in order."""

    def __init__(self, target: Any, calls: list[tuple[str, dict[str, Any]]]) -> None:
        self._target = target
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((name, kwargs))
            return found(*args, **kwargs)

        return call


@pytest.mark.parametrize(
    "wanted",
    [
        lambda node: claim(1, result(node.part("1g.10gb", 0))),
        lambda node: claim(1, result("gpu-0"), configs=[mps_config("GpuConfig")]),
        lambda node: claim(1, configs=[slice_config()]),
        lambda node: claim(1, share_result(1, "10Gi", 10, device="gpu-1")),
    ],
    ids=["partition", "GPU under MPS", "time-sliced GPU", "share"],
)
def test_begin_is_durable_before_hardware_changes(
    tmp_path: Path, wanted: Callable[[ClaimsNode], AllocatedClaim]
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    node = ClaimsNode(tmp_path, backend=simulated(), wrap=lambda each: Recorder(each, calls))
    node.terms = {node.gpus[1].uuid: GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))}
    node.run().prepare(wanted(node))
    names = [name for name, _ in calls]
    begin = names.index("begin")
    assert calls[begin][1] == {"durable": True}
    assert begin < min(at for at, name in enumerate(names) if name in HARDWARE)
    node.opened[0].close()
