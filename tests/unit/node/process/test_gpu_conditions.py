"""Which GPUs are tainted because of their NVLink fabric, over looks and time."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.core.model.terms import GpuTerms, Terms
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.mig.manager import LIMIT, WITHHELD_S
from dra_driver.node.process.gpu_conditions import (
    GRACE_S,
    KEY,
    TAINT,
    FabricHistory,
    FabricWatch,
    PartitionWithholding,
    after_look,
    taint_of,
)
from dra_driver.node.process.terms_resolver import PublishedTerms
from tests.fakes.stand_in import present, stand_in
from tests.unit.node.process.test_terms_resolver import GPUS, OTHER, UUID, Base

NOT_STARTED, IN_PROGRESS, COMPLETED = (Fabric(state=state) for state in FabricState)
FAILED = Fabric(state=FabricState.COMPLETED, status=3)
INSTANCE = MigInstance(gi_id=1, profile_id=19, profile_name="1g.10gb", start=0, size=1, owned=True)


def gpu(fabric: Fabric | None, minor: int = 0, **changes: object) -> Gpu:
    return replace(Gpu(uuid=GpuUuid(f"GPU-{minor}"), minor=minor, fabric=fabric), **changes)


class Bench:
    """A clock, and the events that are recorded while the Node is known."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[str, str]] = []
        self.node_is_known = True
        self.watch = FabricWatch(clock=lambda: self.now)
        self.withholding = PartitionWithholding(clock=lambda: self.now)

    def look(self, *gpus: Gpu, after_s: float = 0.0) -> dict[str, str]:
        self.now += after_s
        changed = self.watch.amend(Snapshot(gpus=gpus), {})
        assert all(taint.key == KEY for terms in changed.values() for taint in terms.whole_taints)
        return {uuid: terms.whole_taints[0].value for uuid, terms in changed.items()}

    def refuse(self, times: int = LIMIT, gpu: GpuUuid = UUID) -> None:
        for start in range(times):
            self.withholding.refused(PartitionId(gpu, 19, start), "open in nv-hostengine (process 4711)")

    def amended(self, terms: Terms | None = None) -> Terms:
        return dict(self.withholding.amend(GPUS, terms or {}))

    def report(self) -> None:
        self.watch.report(self.warn)
        self.withholding.report(self.warn)

    def warn(self, reason: str, message: str) -> bool:
        if self.node_is_known:
            self.events.append((reason, message))
        return self.node_is_known


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("fabric", [NOT_STARTED, IN_PROGRESS])
def test_before_fabric_manager_is_ready_a_gpu_is_tainted_from_the_first_look(bench: Bench, fabric: Fabric) -> None:
    assert bench.look(gpu(fabric), gpu(COMPLETED, 1)) == {"GPU-0": "probing"}
    assert bench.look(gpu(COMPLETED), gpu(COMPLETED, 1)) == {}


def test_a_probe_after_the_fabric_was_ready_gets_some_time(bench: Bench) -> None:
    bench.look(gpu(COMPLETED))
    assert bench.look(gpu(IN_PROGRESS), after_s=100) == {}
    assert bench.look(gpu(IN_PROGRESS), after_s=GRACE_S - 1) == {}
    assert bench.look(gpu(IN_PROGRESS), after_s=1) == {"GPU-0": "probing"}
    assert bench.look(gpu(COMPLETED)) == {}


def test_a_gpu_without_a_fabric_or_in_mig_mode_is_not_tainted(bench: Bench) -> None:
    """An administrator's mode publishes no whole GPU. Instances do not use the fabric, which is suspended while they
    exist; the time begins after the last one."""
    assert bench.look(gpu(None)) == bench.look(gpu(None), after_s=1e6) == {}
    assert bench.look(gpu(NOT_STARTED, mig_enabled=True)) == {}
    cut = gpu(IN_PROGRESS, mig_enabled=True, mig_mode_owned=True, mig_instances=(INSTANCE,))
    assert bench.look(cut) == {}
    assert bench.look(cut, after_s=1000) == {}
    assert bench.look(gpu(IN_PROGRESS)) == {}
    assert bench.look(gpu(IN_PROGRESS), after_s=GRACE_S) == {"GPU-0": "probing"}


def test_a_failed_probe_is_named(bench: Bench) -> None:
    bench.look(gpu(COMPLETED))
    assert bench.look(gpu(FAILED)) == {"GPU-0": "status-3"}
    bench.report()
    ((_, message),) = bench.events
    assert "probe completed with NVML status 3" in message
    assert "it cannot use NVLink" in message


def test_one_event_and_remark_per_condition(bench: Bench) -> None:
    for _ in range(3):
        bench.look(gpu(IN_PROGRESS))
    bench.node_is_known = False
    bench.report()
    bench.node_is_known = True
    bench.report()
    bench.report()
    ((reason, event),) = bench.events
    assert reason == "FabricNotReady"
    assert event.startswith("gpu-0 gets no new claims as a whole: its NVLink fabric is not ready (probe in progress)")
    assert "802" in event
    assert "nvidia-fabricmanager" in event
    assert bench.watch.remarks == [event]
    assert metrics.REGISTRY.get_sample_value("dra_driver_fabric_not_ready") == 1
    bench.look(gpu(COMPLETED))
    bench.look(gpu(IN_PROGRESS), after_s=1e6)
    bench.look(gpu(IN_PROGRESS), after_s=1e6)
    bench.look(gpu(COMPLETED))  # an event that is over is not recorded
    bench.report()
    assert bench.watch.remarks == []
    assert metrics.REGISTRY.get_sample_value("dra_driver_fabric_not_ready") == 0
    assert len(bench.events) == 1


def test_a_gpu_that_is_gone_is_forgotten(bench: Bench) -> None:
    bench.look(gpu(COMPLETED))
    bench.look()
    assert bench.look(gpu(IN_PROGRESS)) == {"GPU-0": "probing"}
    terms: Terms = {GpuUuid("GPU-0"): GpuTerms(policy="p", profiles=frozenset())}
    (changed,) = bench.watch.amend(Snapshot(gpus=(gpu(IN_PROGRESS),)), terms).values()
    assert (changed.policy, changed.profiles) == ("p", frozenset()), "other terms stay"


def test_a_clock_that_jumps_back_begins_the_time_again() -> None:
    history = after_look(FabricHistory(not_ready_since=1000.0, was_ready=True), gpu(IN_PROGRESS), 5.0)
    assert history.not_ready_since == 5.0
    assert taint_of(history, IN_PROGRESS, 5.0) is None
    assert taint_of(history, IN_PROGRESS, 5.0 + GRACE_S) is not None


PARTS = tuple(PartitionId(UUID, 19, start) for start in range(7))


def test_only_the_gpu_that_refuses_is_affected(bench: Bench) -> None:
    bench.refuse(LIMIT - 1)
    assert bench.amended() == {}
    bench.refuse()
    ((gpu, changed),) = bench.amended({UUID: GpuTerms(policy="p"), OTHER: GpuTerms(policy="q")}).items()
    assert (gpu, changed.policy, changed.whole) == (UUID, "p", True)
    withheld = present(changed.withheld)
    assert (withheld.taint, withheld.refused) == (TAINT, frozenset(PARTS[:LIMIT]))
    assert "partitions of gpu-0 that do not exist yet are withheld" in withheld.reason


def test_a_creation_ends_it(bench: Bench) -> None:
    bench.refuse()
    bench.withholding.created(PARTS[0])
    assert bench.amended() == {}
    bench.refuse(LIMIT - 1)
    assert bench.amended() == {}


def test_one_event_and_remark_per_withholding_until_its_time_is_over(bench: Bench) -> None:
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
    (remark,) = bench.withholding.remarks
    assert "gpu-0" in remark
    assert metrics.REGISTRY.get_sample_value("dra_driver_partitions_withheld") == 1
    bench.now += WITHHELD_S
    assert bench.amended() == {}, "it ends by itself"
    assert bench.withholding.remarks == []
    assert metrics.REGISTRY.get_sample_value("dra_driver_partitions_withheld") == 0


def test_withholding_of_a_missing_gpu_ends(bench: Bench) -> None:
    bench.refuse(gpu=GpuUuid("GPU-9"))
    assert bench.amended() == {}
    assert bench.withholding.remarks == []
    bench.now += WITHHELD_S
    bench.amended()
    bench.report()
    assert bench.events == []


def test_published_terms_are_the_same_object_until_they_change(bench: Bench) -> None:
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

    def amend(field: str, value: object) -> Callable[[Snapshot, Terms], Terms]:
        return lambda _, terms: {UUID: replace(terms[UUID], **{field: value})}

    published = PublishedTerms(stand_in(Base()), [amend("whole", False), amend("offered", False)])
    assert published.update(GPUS) == {UUID: GpuTerms(policy="p", whole=False, offered=False)}
