"""What the inventory publisher does with new snapshots, missing files and a missing driver, and in which order."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DraError, DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, Taint, Terms
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.inventory_publisher import (
    FIRST_S,
    KEEP_S,
    SECOND_PUBLISHER,
    UNAVAILABLE,
    InventoryPublisher,
)
from dra_driver.node.process.terms_resolver import DetachTaint
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.fakes.stand_in import stand_in

SNAPSHOT = SimulatedBackend.from_spec("2xh100-sxm5-80gb", "node-a").snapshot()
OTHER = Snapshot(driver_version="580.65.06")
NOTHING = Snapshot()


class Files:
    """Driver files that exist or not; records calls in a shared list."""

    def __init__(self, happened: list[str]) -> None:
        self.error: DraError | None = None
        self.happened = happened
        self.base_is_there = True

    def refresh(self) -> bool:
        self.happened.append("files")
        return self._written()

    def check_base(self) -> bool:
        self.happened.append("base")
        return self._written()

    def _written(self) -> bool:
        if self.error is not None:
            raise self.error
        before, self.base_is_there = self.base_is_there, True
        return not before


class Slices:
    def __init__(self, happened: list[str]) -> None:
        self.offered: list[Snapshot] = []
        self.terms: list[Terms] = []
        self.happened = happened

    def set_snapshot(self, snapshot: Snapshot, terms: Terms) -> None:
        self.happened.append("slices")
        self.offered.append(snapshot)
        self.terms.append(terms)


class Policies:
    """Terms that a test may replace."""

    def __init__(self) -> None:
        self.terms: Terms = {}
        self.is_known = True
        self.has_answer = True
        self.seen: list[Snapshot] = []
        self.taint = DetachTaint()
        self.tainted: dict[str, Terms] = {}

    def update(self, snapshot: Snapshot) -> Terms:
        self.seen.append(snapshot)
        self.is_known = self.has_answer
        tainted = self.taint.amend(snapshot, self.terms)
        return self.tainted.setdefault(str(self.taint.value), tainted) if tainted else self.terms


@dataclass
class Hardware:
    """The state of the newest read; before the first one there is a problem, but no failure."""

    problem: str | None = "the GPUs have not been read yet"
    failing: bool = False

    def fails(self) -> None:
        self.problem, self.failing = "no NVML", True

    def works(self) -> None:
        self.problem, self.failing = None, False


class Node:
    """A publisher with all its dependencies."""

    def __init__(self) -> None:
        self.now = 100.0
        self.happened: list[str] = []
        self.hardware = Hardware()
        self.files, self.slices = Files(self.happened), Slices(self.happened)
        self.policies = Policies()
        # Whether a detach is requested and done; whether a second publisher exists, and the Node is known.
        self.detach = SimpleNamespace(taint_value=None, is_detached=False)
        self.conflict = SimpleNamespace(conflict=None, is_known=True)
        self.held: list[GpuUuid] | DraError = []
        self.publisher = InventoryPublisher(
            stand_in(self.hardware),
            stand_in(self.files),
            stand_in(self.slices),
            stand_in(self.policies),
            detach=stand_in(self.detach),
            conflict=stand_in(self.conflict),
            taint=self.policies.taint,
            held=self.held_gpus,
            driver_root=lambda: self.happened.append("root"),
            clock=lambda: self.now,
        )

    def held_gpus(self) -> list[GpuUuid]:
        if isinstance(self.held, DraError):
            raise self.held
        return self.held

    def sees(self, snapshot: Snapshot) -> None:
        self.hardware.works()
        self.publisher.changed(snapshot)

    def after(self, seconds: float) -> list[Snapshot]:
        """The snapshots published so far when the chore runs after ``seconds``."""
        self.now += seconds
        self.publisher.check()
        return self.slices.offered


@pytest.fixture
def node() -> Node:
    return Node()


def test_new_terms_are_published_with_the_former_inventory(node: Node) -> None:
    node.sees(SNAPSHOT)
    node.policies.terms = hidden = {SNAPSHOT.gpus[0].uuid: GpuTerms(offered=False)}
    assert node.after(5.0) == [SNAPSHOT, SNAPSHOT]
    assert node.slices.terms == [{}, hidden]
    assert node.after(5.0) == [SNAPSHOT, SNAPSHOT], "said once"


def test_no_device_is_published_until_the_drivers_files_are_found(node: Node) -> None:
    node.files.error = DriverUnavailableError("no libcuda")
    node.sees(SNAPSHOT)
    assert node.policies.seen == [SNAPSHOT], "a claim's error names the missing files, not unknown terms"
    assert (node.after(1.0), node.publisher.problem) == ([], "no libcuda")
    node.files.error = None
    assert (node.after(1.0), node.publisher.problem) == ([SNAPSHOT], None)


def test_files_that_are_missing_for_a_short_time_withdraw_no_devices(node: Node) -> None:
    node.sees(SNAPSHOT)
    node.files.error = StorageError("disk full")
    node.sees(OTHER)
    assert node.after(KEEP_S - 1) == [SNAPSHOT, OTHER]
    assert node.publisher.problem == "disk full"


def test_devices_that_no_container_can_get_are_withdrawn_and_come_back(node: Node) -> None:
    """Every pod placed on them would wait more than a minute between two tries."""
    node.sees(SNAPSHOT)
    node.files.error = StorageError("disk full")
    assert node.after(5.0) == [SNAPSHOT]
    assert node.after(KEEP_S) == [SNAPSHOT, NOTHING]
    assert metrics.withdrawn._value.get() == 1
    node.sees(OTHER)
    assert node.after(5.0) == [SNAPSHOT, NOTHING], "still nothing to get"
    node.files.error = None
    assert node.after(5.0) == [SNAPSHOT, NOTHING, OTHER]
    assert metrics.withdrawn._value.get() == 0


@pytest.mark.parametrize(("fails", "after_s"), [(True, FIRST_S), (False, KEEP_S)], ids=["no driver", "slow first read"])
def test_pool_is_published_without_devices_when_there_is_no_driver(node: Node, fails: bool, after_s: float) -> None:
    """Slices of an earlier run would attract pods. Without persistence mode the driver takes seconds per GPU."""
    if fails:
        node.hardware.fails()
    assert node.after(after_s - 0.1) == []
    assert node.after(0.2) == [NOTHING]
    assert node.after(60.0) == [NOTHING], "said once"
    node.sees(SNAPSHOT)
    assert node.slices.offered == [NOTHING, SNAPSHOT]


def test_a_reloaded_driver_moves_no_pods_and_a_missing_one_does(node: Node) -> None:
    node.sees(SNAPSHOT)
    for _ in range(3):
        node.hardware.fails()
        node.after(1.0)
        assert node.after(KEEP_S - 1) == [SNAPSHOT]
        node.hardware.works()
        assert node.after(1.0) == [SNAPSHOT]
    node.hardware.fails()
    node.after(1.0)
    assert node.after(KEEP_S) == [SNAPSHOT, NOTHING]
    node.hardware.works()
    assert node.after(1.0) == [SNAPSHOT, NOTHING, SNAPSHOT]


def test_base_document_that_vanished_comes_back(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.after(1.0)
    assert node.happened == [], "before the first look nothing is known that could be written"
    node.sees(SNAPSHOT)
    node.files.base_is_there = False
    node.after(5.0)
    assert node.files.base_is_there
    assert "written again" in caplog.text
    assert node.happened == ["root", "files", "slices", "base"], "a search of the driver root is not free"


def test_simulated_root_and_driver_files_come_before_slices(node: Node) -> None:
    """A GPU that a spec file loses disappears from nvidia-smi too, before the files are searched."""
    node.sees(SNAPSHOT)
    assert node.happened == ["root", "files", "slices"]
    node.sees(NOTHING)
    assert "root" not in node.happened[3:], "without a driver there is nothing to show"


FIRST, SECOND = SNAPSHOT.gpus
SUBSET = replace(SNAPSHOT, gpus=(FIRST,))


def test_gpus_that_claims_have_stay_published_and_tainted_without_a_driver(node: Node) -> None:
    node.sees(SNAPSHOT)
    node.held = [FIRST.uuid]
    node.hardware.fails()
    node.after(1.0)
    assert node.after(KEEP_S) == [SNAPSHOT, SUBSET]
    taint = Taint(key=DETACHED_TAINT, value=UNAVAILABLE, effect="NoSchedule")
    assert node.slices.terms[-1][FIRST.uuid].taints == (taint,)
    assert node.policies.seen[-1] is SNAPSHOT, "terms of a GPU that is withdrawn are not forgotten"
    assert metrics.withdrawn._value.get() == 0
    node.held = StorageError("disk")
    assert node.after(5.0) == [SNAPSHOT, SUBSET, SNAPSHOT], "any of them may be in use"
    assert node.slices.terms[-1][SECOND.uuid].taints
    node.held = []
    assert node.after(5.0)[3:] == [NOTHING]
    node.hardware.works()
    assert node.after(5.0)[3:] == [NOTHING, SNAPSHOT]
    assert node.slices.terms[-1] == {}


def test_a_detach_taints_and_withdraws_nothing_however_long_it_takes(node: Node) -> None:
    node.sees(SNAPSHOT)
    node.detach.taint_value = "requested"
    assert node.after(1.0) == [SNAPSHOT, SNAPSHOT]
    node.detach.is_detached = True
    node.hardware.problem = "detached"
    node.conflict.conflict = "another driver, which counts less"
    del node.happened[:]
    assert node.after(10 * KEEP_S) == [SNAPSHOT, SNAPSHOT]
    assert node.happened == [], "a search for driver files could load the driver again"
    assert node.slices.terms[-1][FIRST.uuid].taints[0].value == "requested"
    node.detach.taint_value, node.detach.is_detached, node.conflict.conflict = None, False, None
    node.hardware.works()
    assert node.after(1.0) == [SNAPSHOT, SNAPSHOT, SNAPSHOT]
    assert node.slices.terms[-1] == {}


def test_a_look_that_ends_after_the_detach_searches_no_driver_files(node: Node) -> None:
    node.sees(OTHER)
    node.detach.taint_value, node.detach.is_detached = "requested", True
    del node.happened[:]
    node.sees(SNAPSHOT)
    assert node.happened == ["slices"]
    node.detach.taint_value, node.detach.is_detached = None, False
    node.after(1.0)
    assert "files" in node.happened


def test_the_taint_stays_until_the_new_drivers_files_are_found(node: Node) -> None:
    node.sees(SNAPSHOT)
    node.detach.taint_value = "driver-upgrade"
    node.after(1.0)
    node.detach.taint_value = None
    node.files.error = DriverUnavailableError("no libcuda")
    node.after(1.0)
    assert node.policies.taint.value == "driver-upgrade"
    node.files.error = None
    node.after(1.0)
    assert node.policies.taint.value is None


def test_a_process_that_starts_detached_leaves_the_slices_as_they_are(node: Node) -> None:
    """It knows no GPUs; a second process of a rolling update publishes them, tainted."""
    node.detach.taint_value, node.detach.is_detached = "requested", True
    assert node.after(10 * KEEP_S) == []


def test_devices_that_something_else_offers_are_withdrawn_and_come_back(node: Node) -> None:
    """Each could be given to two pods; GPUs that claims have stay, for what reads slices."""
    node.sees(SNAPSHOT)
    node.conflict.conflict = "a device plugin offers nvidia.com/gpu: 2"
    assert node.after(1.0) == [SNAPSHOT, NOTHING], "who decides has waited"
    node.held = [FIRST.uuid]
    assert node.after(1.0)[-1] == SUBSET
    assert node.policies.taint.value == SECOND_PUBLISHER
    node.conflict.conflict = None
    assert node.after(1.0)[-1] == SNAPSHOT
    assert node.policies.taint.value is None


def test_nothing_is_withdrawn_before_the_gpus_are_known(node: Node) -> None:
    node.conflict.conflict = "a device plugin offers nvidia.com/gpu: 2"
    node.held = [FIRST.uuid]
    assert node.after(1.0) == []
    node.sees(SNAPSHOT)
    assert node.slices.offered == [SUBSET]


def test_a_run_waits_for_the_node_and_the_policies_before_it_publishes(node: Node) -> None:
    """A drained GPU would lose its taint."""
    node.conflict.is_known = False
    node.sees(SNAPSHOT)
    assert node.after(KEEP_S) == []
    node.conflict.is_known = True
    node.policies.is_known = node.policies.has_answer = False
    assert node.after(0.1) == [], "with the default terms a reserved GPU would be offered to all"
    node.policies.has_answer = True
    assert node.after(0.1) == [SNAPSHOT], "it has asked for the policies"
    node.conflict.is_known = False
    node.sees(OTHER)
    assert node.slices.offered == [SNAPSHOT, OTHER], "only the first time"
