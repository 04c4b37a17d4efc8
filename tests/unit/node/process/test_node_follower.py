"""What the node process follows of its Node and of other publishers, and GPUs that an annotation of the Node drains."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.node_follower import (
    NAME,
    OFFER_AFTER_S,
    TAINT,
    YIELD_S,
    DrainTaint,
    NodeFollower,
    SecondPublisher,
    SecondPublisherFile,
    WithdrawalState,
    found_in,
    judge,
)
from dra_driver.node.slices.untrusted_slice import OtherPool
from tests.fakes.stand_in import stand_in

NODE = OwnNode(name="node-a")


class Surroundings:
    """An inventory with one GPU, and a publisher that notes the GPUs it was asked about."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(gpus=(Gpu(uuid=GpuUuid("GPU-1"), minor=0),))
        self.asked: list[set[str]] = []
        self.noticed = 0
        self.others: tuple[OtherPool, ...] = ()

    def current(self) -> Snapshot:
        return self.snapshot

    def other_pools(self, gpus: Collection[str]) -> tuple[OtherPool, ...]:
        self.asked.append(set(gpus))
        return self.others

    def wait_listed(self, timeout_s: float) -> bool:
        return True


class Own:
    """The Node of this process, once it is known."""

    def __init__(self, node: OwnNode | None) -> None:
        self.node = node
        self.problem = None if node is not None else "the Node has not been read"

    def current(self) -> OwnNode | None:
        return self.node

    def wait_first(self, timeout_s: float) -> bool:
        return self.node is not None


class Follower:
    """A follower that looks every second, on a clock."""

    def __init__(self, node: OwnNode | None = NODE) -> None:
        self.now = 0.0
        self.around, self.node = Surroundings(), Own(node)
        around = stand_in(self.around)
        self.follower = NodeFollower(
            stand_in(self.node),
            stand_in(None),
            around,
            around,
            "gpu.nvidia.com",
            folder=Path("/nonexistent"),
            allow_second=False,
            clock=self.clock,
        )
        self.looks()

    def clock(self) -> float:
        return self.now

    def looks(self, seconds: int = 1) -> int:
        before = len(self.around.asked)
        for _ in range(seconds):
            self.now += 1.0
            self.follower.look()
        return len(self.around.asked) - before


def test_a_second_publisher_is_remembered_while_no_gpu_can_be_read() -> None:
    at = Follower(None)
    at.around.snapshot = Snapshot()
    at.looks()
    assert at.around.asked[-2:] == [{"GPU-1"}, {"GPU-1"}]


def annotate(at: Follower) -> None:
    at.node.node = OwnNode(name="node-a", annotations={DRAIN_ANNOTATION: "all"})


def replace_gpu(at: Follower) -> None:
    at.around.snapshot = Snapshot(gpus=(Gpu(uuid=GpuUuid("GPU-2"), minor=0),))


def publish(at: Follower) -> None:
    at.around.noticed += 1


@pytest.mark.parametrize("change", [annotate, replace_gpu, publish])
def test_each_change_is_looked_at_once(change: Callable[[Follower], None]) -> None:
    at = Follower()
    change(at)
    assert (at.looks(), at.looks(100)) == (1, 0)
    at.node.node = OwnNode(name="node-a", annotations={DRAIN_ANNOTATION: "GPU-9"})
    at.looks()
    at.follower.amend(at.around.snapshot, {})
    assert (at.looks(), at.looks()) == (1, 0), "an unknown GPU is reported after the GPUs were compared"


def test_a_second_publisher_is_followed_until_its_time_is_over() -> None:
    at = Follower()
    at.looks(20)
    publish(at)
    at.around.others = (OtherPool(driver="other", pool="node-a", gpus=frozenset({"GPU-1"})),)
    at.looks(9)
    assert at.follower.conflict is None
    assert at.looks(3) > 0
    assert at.follower.conflict is not None
    assert at.looks(100) == 0


FIRST, SECOND = GpuUuid("GPU-0"), GpuUuid("GPU-1")
SNAPSHOT = Snapshot(
    gpus=(Gpu(uuid=FIRST, minor=0), Gpu(uuid=SECOND, minor=1)), left_out=(LeftOutGpu(label="GPU-2", reason="lost"),)
)
RESERVED = Taint(key="gpu.dra-driver.io/reserved", value="p", effect="NoSchedule")
TERMS: Terms = {FIRST: GpuTerms(policy="p", taints=(RESERVED,))}


class Node:
    """The own Node, whose annotation a test sets."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}
        self.is_known = True
        self.told: list[tuple[str, str, str]] = []
        self.undrained: list[list[GpuUuid]] = []
        self.drain = DrainTaint(
            stand_in(lambda: self if self.is_known else None),
            lambda *event: self.told.append((event[0], event[1], event[2])),
            lambda gpus: self.undrained.append(sorted(gpus)),
        )

    def asks(self, value: str | None) -> bool:
        self.annotations = {} if value is None else {DRAIN_ANNOTATION: value}
        return self.drain.look()

    def tainted(self) -> dict[GpuUuid, tuple[Taint, ...]]:
        return {gpu: terms.taints for gpu, terms in self.drain.amend(SNAPSHOT, TERMS).items()}


@pytest.fixture
def node() -> Node:
    return Node()


def test_drained_gpus_are_tainted_and_others_are_not(node: Node) -> None:
    assert not node.drain.look()
    assert node.tainted() == {}
    assert node.asks(FIRST)
    assert not node.drain.look(), "said once"
    assert node.tainted() == {FIRST: (RESERVED, TAINT)}
    assert node.asks("all")
    assert node.tainted() == {FIRST: (RESERVED, TAINT), SECOND: (TAINT,)}
    node.is_known = False
    assert not node.drain.look(), "an API server that is away ends no drain"
    assert set(node.tainted()) == {FIRST, SECOND}
    node.is_known = True
    assert node.asks(None)
    assert node.tainted() == {}
    assert [reason for _, reason, _ in node.told] == ["GpusDrained", "GpusDrained", "GpusUndrained"]


def test_gpus_whose_drain_has_ended_are_given_back_and_no_others(node: Node) -> None:
    node.asks("all")
    node.tainted()
    node.asks(SECOND)
    assert node.undrained == [[FIRST]]
    node.tainted()
    node.asks(None)
    assert node.undrained == [[FIRST], [SECOND]]
    node.tainted()
    node.asks(FIRST)
    assert len(node.undrained) == 2


def test_what_is_no_gpu_of_the_node_is_said_once(node: Node) -> None:
    node.asks(f"gpu-1,{SECOND},GPU-of-another-node,GPU-2")
    assert set(node.tainted()) == {SECOND}
    node.drain.look()
    node.drain.look()
    (warning,) = [message for kind, _, message in node.told if kind == "Warning"]
    assert "gpu-1, GPU-of-another-node" in warning
    assert "GPU-2" not in warning
    assert len(node.drain.remarks) == 2
    node.asks(None)
    node.tainted()
    assert node.drain.remarks == []


FOUND = ("a device plugin",)
ACME, NVIDIA = "gpu.acme.example", "gpu.nvidia.com"
OFFERED, WITHDRAWN = WithdrawalState(), WithdrawalState(withdrawn=True, found=FOUND)


def after(standing: WithdrawalState, *looks: tuple[float, tuple[str, ...]]) -> WithdrawalState:
    for now, found in looks:
        standing = judge(standing, found, now)
    return standing


def test_devices_are_withdrawn_when_it_stays() -> None:
    """Ten seconds: a device plugin that is being removed does not end an installation."""
    assert not after(OFFERED, (0.0, FOUND), (9.9, FOUND)).withdrawn
    assert after(OFFERED, (0.0, FOUND), (10.0, FOUND)).withdrawn
    assert not after(OFFERED, (0.0, FOUND), (9.0, ()), (10.0, FOUND), (19.0, FOUND)).withdrawn, "it was gone meanwhile"
    assert after(WITHDRAWN, (0.0, ()), (59.9, ())).withdrawn, "one that restarts has allocatable 0 for some seconds"
    assert after(WITHDRAWN, (0.0, ()), (60.0, ())) == OFFERED
    assert after(WITHDRAWN, (0.0, ()), (59.0, FOUND), (60.0, ()), (119.0, ())).withdrawn


def test_a_process_that_starts_beside_it_offers_nothing() -> None:
    """Otherwise each restart would offer the devices for ten seconds."""
    assert judge(OFFERED, FOUND, 0.0, at_once=True).withdrawn
    assert not judge(OFFERED, (), 0.0, at_once=True).withdrawn
    assert judge(WITHDRAWN, (), 0.0, at_once=True).withdrawn


@pytest.mark.parametrize(
    ("allocatable", "counts"),
    [
        ({"nvidia.com/gpu": "8"}, True),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "3"}, True),
        ({"nvidia.com/gpu.shared": "4"}, True),
        ({"nvidia.com/mig-3g.40gb.shared": "1"}, True),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "0"}, False),
        ({"nvidia.com/hostdev": "8", "amd.com/gpu": "8", "cpu": "8"}, False),
        ({"nvidia.com/gpu": "no number"}, True),
    ],
)
def test_a_device_plugin_is_seen_in_allocatable(allocatable: Mapping[str, str], *, counts: bool) -> None:
    """Any GPU or MIG resource above 0; passthrough and network devices are no GPUs of this driver."""
    assert bool(found_in(allocatable, ())) == counts


class Offers:
    """A component with a clock, and what it looks at."""

    def __init__(self, folder: Path, driver: str = NVIDIA, *, allowed: bool = False) -> None:
        self.now = 1000.0
        self.allocatable: dict[str, str] = {}
        self.pools: list[OtherPool] = []
        self.events: list[str] = []
        self.driver, self.allowed = driver, allowed
        self.is_known = True
        (folder / driver).mkdir(exist_ok=True)
        self.file = SecondPublisherFile(folder / driver)
        self.restart()

    def restart(self) -> None:
        self.second = SecondPublisher(
            stand_in(lambda: self if self.is_known else None),
            lambda: self.pools,
            self.driver,
            self.file,
            allowed=self.allowed,
            clock=lambda: self.now,
        )

    def after(self, seconds: float) -> bool:
        self.now += seconds
        return self.second.look()

    def warn(self, reason: str, message: str) -> bool:
        self.events.append(f"{reason}: {message}")
        return True


@pytest.fixture
def offers(tmp_path: Path) -> Offers:
    return Offers(tmp_path)


def test_it_says_what_it_found_until_devices_are_offered_again(offers: Offers) -> None:
    assert not offers.after(20.0)
    offers.pools = [OtherPool(driver="other.example", pool="node-a", gpus=frozenset({"GPU-1", "GPU-2"}))]
    assert not offers.after(1.0)
    assert offers.second.problem is None
    assert offers.second.remarks == [
        "second publisher: driver other.example publishes 2 of this node's GPUs in pool node-a"
    ]
    assert offers.after(10.0)
    assert not offers.after(1.0), "said once"
    assert "other.example publishes 2 of this node's GPUs" in (offers.second.problem or "")
    assert offers.second.remarks == []
    offers.second.report(offers.warn)
    offers.second.report(offers.warn)
    assert len(offers.events) == 1
    assert offers.events[0].startswith("SecondPublisher: devices are withdrawn")
    offers.pools = []
    assert not offers.after(1.0)
    assert "was found" in (offers.second.problem or "")
    assert offers.after(60.0)
    assert offers.second.problem is None


def test_where_it_is_allowed_nothing_is_withdrawn(tmp_path: Path) -> None:
    offers = Offers(tmp_path, allowed=True)
    offers.allocatable = {"nvidia.com/gpu": "1"}
    assert not offers.after(0.0)
    assert not offers.after(60.0)
    assert offers.second.problem is None
    assert offers.second.remarks == ["second publisher: a device plugin offers nvidia.com/gpu: 1 on this node"]
    offers.second.report(offers.warn)
    assert "--allow-second-publisher" in offers.events[0]


class Twins:
    """Two node processes of this driver on one node, under two names; ``claimed`` drivers have claims on the GPU.

    What one withdraws, the other sees gone at its next look. Both offer in the beginning.
    """

    def __init__(self, folder: Path, *claimed: str) -> None:
        self.nodes = {name: Offers(folder, name) for name in (ACME, NVIDIA)}
        self.offering = {*self.nodes}
        self.claimed, self.changes = claimed, 0

    def run(self, seconds: int) -> list[str]:
        for _ in range(seconds):
            seen = {*self.offering, *self.claimed}
            for name, offers in self.nodes.items():
                (other,) = {*self.nodes} - {name}
                pool = OtherPool(driver=other, pool=f"node-a/{other}", gpus=frozenset({"GPU-1"}))
                offers.pools = [pool] if other in seen else []
                self.changes += offers.after(1.0)
            self.offering = {name for name, offers in self.nodes.items() if offers.second.problem is None}
        return sorted(self.offering)


def test_of_two_drivers_of_this_kind_the_first_by_name_goes_on(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    assert twins.run(1) == []
    assert twins.run(3600) == [ACME]
    assert twins.changes == 3, "two withdraw, one offers again, and nothing flaps"


@pytest.mark.parametrize("first", [ACME, NVIDIA])
def test_the_one_that_offered_before_the_other_started_goes_on(first: str, tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    twins.nodes[first].after(60.0)
    assert twins.run(3600) == [first]
    assert twins.changes == 1


def test_the_one_that_has_claims_goes_on(tmp_path: Path) -> None:
    """Its GPUs stay published while it is withdrawn; two with claims wait for each other, and offer nothing new."""
    assert Twins(tmp_path, NVIDIA).run(3600) == [NVIDIA]
    for note in tmp_path.glob(f"*/{NAME}"):
        note.unlink()
    both = Twins(tmp_path, NVIDIA, ACME)
    assert both.run(3600) == []
    assert both.changes == 2


def test_the_one_that_waited_offers_when_the_other_is_gone(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    twins.run(300)
    second = twins.nodes[NVIDIA]
    second.pools = []
    assert not second.after(1.0)
    assert "120 s after it was last found" in (second.second.problem or "")
    assert second.after(YIELD_S)


def test_a_restart_while_a_device_plugin_restarts_offers_nothing(offers: Offers) -> None:
    offers.allocatable = {"nvidia.com/gpu": "8"}
    offers.after(0.0)
    offers.allocatable = {}
    offers.restart()
    assert not offers.after(0.0)
    assert "was found" in (offers.second.problem or "")
    assert not offers.after(OFFER_AFTER_S - 1)
    assert offers.after(1.0)
    offers.restart()
    offers.after(0.0)
    assert offers.second.problem is None, "the note is gone"


def test_a_node_that_is_not_known_shows_no_device_plugin_that_is_gone(offers: Offers) -> None:
    offers.allocatable = {"nvidia.com/gpu": "8"}
    offers.after(0.0)
    offers.restart()
    offers.is_known = False
    offers.after(0.0)
    assert not offers.after(10 * OFFER_AFTER_S)
    assert offers.second.problem is not None


def test_two_drivers_that_restart_together_do_not_offer_together(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    twins.run(1)
    for each in twins.nodes.values():
        each.restart()
    assert twins.run(3600) == [ACME]
    assert twins.changes == 3


@pytest.mark.parametrize("text", ["", "[]", '{"drivers": 5}', "[" * 100_000, "\xff"])
def test_a_damaged_note_counts(offers: Offers, tmp_path: Path, text: str) -> None:
    (tmp_path / NVIDIA / NAME).write_text(text)
    offers.restart()
    assert offers.second.problem is not None
    offers.after(0.0)
    assert offers.after(OFFER_AFTER_S)


def test_a_note_that_cannot_be_written_is_not_fatal(offers: Offers, tmp_path: Path) -> None:
    (tmp_path / NVIDIA / NAME).mkdir()
    offers.allocatable = {"nvidia.com/gpu": "8"}
    assert offers.after(0.0)
    offers.allocatable = {}
    offers.after(0.0)
    assert offers.after(OFFER_AFTER_S)
