"""What a node does when its GPUs cannot be cut: terms, events, remarks."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, Terms
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.mig.manager import LIMIT, WITHHELD_S
from dra_driver.node.process.gpu_conditions import TAINT, PartitionWithholding
from dra_driver.node.process.terms_resolver import PublishedTerms
from tests.fakes.stand_in import present, stand_in
from tests.unit.node.process.test_terms_resolver import GPUS, OTHER, UUID, Base

PARTS = tuple(PartitionId(UUID, 19, start) for start in range(7))


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.withholding = PartitionWithholding(clock=lambda: self.now)
        self.events: list[tuple[str, str]] = []
        self.node_is_known = True

    def refuse(self, times: int = LIMIT, gpu: GpuUuid = UUID) -> None:
        """Claims for the first partitions of the GPU are refused."""
        for start in range(times):
            self.withholding.refused(PartitionId(gpu, 19, start), "open in nv-hostengine (process 4711)")

    def amended(self, terms: Terms | None = None) -> Terms:
        return dict(self.withholding.amend(GPUS, terms or {}))

    def report(self) -> None:
        def warn(reason: str, message: str) -> bool:
            if self.node_is_known:
                self.events.append((reason, message))
            return self.node_is_known

        self.withholding.report(warn)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_the_gpu_that_refuses_is_affected(bench: Bench) -> None:
    """Other GPUs of the node are cut as before, and its policy stays in force."""
    bench.refuse(LIMIT - 1)
    assert bench.amended() == {}
    bench.refuse()
    ((gpu, changed),) = bench.amended({UUID: GpuTerms(policy="p"), OTHER: GpuTerms(policy="q")}).items()
    assert (gpu, changed.policy, changed.whole) == (UUID, "p", True)
    withheld = present(changed.withheld)
    assert (withheld.taint, withheld.refused) == (TAINT, frozenset(PARTS[:LIMIT]))
    assert "partitions of gpu-0 that do not exist yet are withheld" in withheld.reason


def test_a_creation_ends_it(bench: Bench) -> None:
    """The GPU can be cut again: the other partitions are offered at once."""
    bench.refuse()
    bench.withholding.created(PARTS[0])
    assert bench.amended() == {}
    bench.refuse(LIMIT - 1)
    assert bench.amended() == {}


def test_it_ends_by_itself(bench: Bench) -> None:
    """Claims try again after ten minutes."""
    bench.refuse()
    assert bench.amended() != {}
    bench.now += WITHHELD_S
    assert bench.amended() == {}
    assert bench.withholding.remarks == []


def test_one_event_per_withholding(bench: Bench) -> None:
    """It names the last refusal, and comes when the node's UID is known; repeated refusals add none."""
    bench.node_is_known = False
    bench.refuse(LIMIT + 2)
    bench.amended()
    bench.report()
    assert bench.events == []
    bench.node_is_known = True
    bench.report()
    bench.report()
    bench.refuse(2)
    bench.report()
    ((reason, message),) = bench.events
    assert reason == "PartitionsWithheld"
    assert message.startswith("MIG partitions of gpu-0 that do not exist yet are withheld from new claims for 10 min")
    assert message.endswith("the last refusal: open in nv-hostengine (process 4711)")


def test_remarks_and_metrics_say_it(bench: Bench) -> None:
    """A node that serves everything else stays ready."""
    bench.refuse()
    bench.amended()
    (remark,) = bench.withholding.remarks
    assert "gpu-0" in remark
    assert metrics.REGISTRY.get_sample_value("dra_driver_partitions_withheld") == 1
    bench.now += WITHHELD_S
    bench.amended()
    assert metrics.REGISTRY.get_sample_value("dra_driver_partitions_withheld") == 0


def test_a_gpu_that_is_gone_is_forgotten(bench: Bench) -> None:
    """The state is bounded by the GPUs of the node: it ends with its time."""
    bench.refuse(gpu=GpuUuid("GPU-9"))
    assert bench.amended() == {}
    assert bench.withholding.remarks == []
    bench.now += WITHHELD_S
    bench.amended()
    bench.report()
    assert bench.events == []


def test_published_terms_are_the_same_object_until_they_change(bench: Bench) -> None:
    """The inventory publisher compares by identity, every five seconds."""
    published = PublishedTerms(stand_in(Base()), [bench.withholding.amend])
    first = published.update(GPUS)
    assert published.update(GPUS) is first
    bench.refuse()
    second = published.update(GPUS)
    assert second is not first
    assert published.update(GPUS) is second
    bench.now += WITHHELD_S
    assert published.update(GPUS) == first


def test_amendments_add_up() -> None:
    """Two conditions of one GPU are both published."""

    def amend(field: str, value: object) -> Callable[[Snapshot, Terms], Terms]:
        return lambda _, terms: {UUID: replace(terms[UUID], **{field: value})}

    published = PublishedTerms(stand_in(Base()), [amend("whole", False), amend("offered", False)])
    assert published.update(GPUS) == {UUID: GpuTerms(policy="p", whole=False, offered=False)}
