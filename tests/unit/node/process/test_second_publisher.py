"""When devices are withdrawn because something else offers the same GPUs."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dra_driver.node.process.second_publisher import (
    NAME,
    OFFER_AFTER_S,
    WITHDRAW_AFTER_S,
    YIELD_S,
    SecondPublisher,
    SecondPublisherFile,
    Standing,
    found_in,
    judge,
)
from dra_driver.node.slices.untrusted_slice import Neighbour
from tests.fakes.stand_in import stand_in

FOUND = ("a device plugin",)
ACME, NVIDIA = "gpu.acme.example", "gpu.nvidia.com"
OFFERED, WITHDRAWN = Standing(), Standing(withdrawn=True, found=FOUND)


def after(standing: Standing, *looks: tuple[float, tuple[str, ...]]) -> Standing:
    for now, found in looks:
        standing = judge(standing, found, now)
    return standing


def test_devices_are_withdrawn_when_it_stays() -> None:
    """Ten seconds: a device plugin that is being removed does not end an installation."""
    assert not after(OFFERED, (0.0, FOUND), (9.9, FOUND)).withdrawn
    assert after(OFFERED, (0.0, FOUND), (10.0, FOUND)).withdrawn
    assert not after(OFFERED, (0.0, FOUND), (9.0, ()), (10.0, FOUND), (19.0, FOUND)).withdrawn, "it was gone meanwhile"
    assert (WITHDRAW_AFTER_S, OFFER_AFTER_S) == (10.0, 60.0)


def test_devices_are_offered_again_when_it_has_been_gone_for_a_minute() -> None:
    """A device plugin that restarts has allocatable 0 for some seconds."""
    assert after(WITHDRAWN, (0.0, ()), (59.9, ())).withdrawn
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


class Node:
    """A component with a clock, and what it looks at."""

    def __init__(self, folder: Path, driver: str = NVIDIA, *, allowed: bool = False) -> None:
        self.now = 1000.0
        self.allocatable: dict[str, str] = {}
        self.pools: list[Neighbour] = []
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
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_it_says_what_it_found_until_devices_are_offered_again(node: Node) -> None:
    """Readiness has the sentence; the event is written once."""
    assert not node.after(20.0)
    node.pools = [Neighbour(driver="other.example", pool="node-a", gpus=frozenset({"GPU-1", "GPU-2"}))]
    assert not node.after(1.0)
    assert node.second.problem is None
    assert node.second.remarks == [
        "second publisher: driver other.example publishes 2 of this node's GPUs in pool node-a"
    ]
    assert node.after(10.0)
    assert not node.after(1.0), "said once"
    assert "other.example publishes 2 of this node's GPUs" in (node.second.problem or "")
    assert node.second.remarks == []
    node.second.report(node.warn)
    node.second.report(node.warn)
    assert len(node.events) == 1
    assert node.events[0].startswith("SecondPublisher: devices are withdrawn")
    node.pools = []
    assert not node.after(1.0)
    assert "has gone" in (node.second.problem or "")
    assert node.after(60.0)
    assert node.second.problem is None


def test_at_the_start_it_counts_at_once(node: Node) -> None:
    """The look before anything is published."""
    node.allocatable = {"nvidia.com/gpu": "1"}
    assert node.after(0.0)
    assert node.second.problem is not None


def test_where_it_is_allowed_nothing_is_withdrawn(tmp_path: Path) -> None:
    """The node's owner divides the GPUs; the event and a remark say that they are on their own."""
    node = Node(tmp_path, allowed=True)
    node.allocatable = {"nvidia.com/gpu": "1"}
    assert not node.after(0.0)
    assert not node.after(60.0)
    assert node.second.problem is None
    assert node.second.remarks == ["second publisher: a device plugin offers nvidia.com/gpu: 1 on this node"]
    node.second.report(node.warn)
    assert "--allow-second-publisher" in node.events[0]


class Twins:
    """Two node processes of this driver on one node, under two names; ``claimed`` drivers have claims on the GPU.

    What one withdraws, the other sees gone at its next look. Both offer in the beginning.
    """

    def __init__(self, folder: Path, *claimed: str) -> None:
        self.nodes = {name: Node(folder, name) for name in (ACME, NVIDIA)}
        self.offering = {*self.nodes}
        self.claimed, self.changes = claimed, 0

    def run(self, seconds: int) -> list[str]:
        """The drivers that offer the GPU after this time."""
        for _ in range(seconds):
            seen = {*self.offering, *self.claimed}
            for name, node in self.nodes.items():
                (other,) = {*self.nodes} - {name}
                pool = Neighbour(driver=other, pool=f"node-a/{other}", gpus=frozenset({"GPU-1"}))
                node.pools = [pool] if other in seen else []
                self.changes += node.after(1.0)
            self.offering = {name for name, node in self.nodes.items() if node.second.problem is None}
        return sorted(self.offering)


def test_of_two_drivers_of_this_kind_the_first_by_name_goes_on(tmp_path: Path) -> None:
    """Both would withdraw and offer again in turn until one is removed."""
    twins = Twins(tmp_path)
    assert twins.run(1) == []
    assert twins.run(3600) == [ACME]
    assert twins.changes == 3, "two withdraw, one offers again, and nothing flaps"


@pytest.mark.parametrize("first", [ACME, NVIDIA])
def test_the_one_that_offered_before_the_other_started_goes_on(first: str, tmp_path: Path) -> None:
    """The other one finds it at its first look."""
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
    """It says after which time."""
    twins = Twins(tmp_path)
    twins.run(300)
    second = twins.nodes[NVIDIA]
    second.pools = []
    assert not second.after(1.0)
    assert "120 s after that" in (second.second.problem or "")
    assert second.after(YIELD_S)


def test_a_restart_while_a_device_plugin_restarts_offers_nothing(node: Node) -> None:
    """Allocatable has nothing of it for some seconds."""
    node.allocatable = {"nvidia.com/gpu": "8"}
    node.after(0.0)
    node.allocatable = {}
    node.restart()
    assert not node.after(0.0)
    assert "has gone" in (node.second.problem or "")
    assert not node.after(OFFER_AFTER_S - 1)
    assert node.after(1.0)
    node.restart()
    node.after(0.0)
    assert node.second.problem is None, "the note is gone"


def test_a_node_that_is_not_known_shows_no_device_plugin_that_is_gone(node: Node) -> None:
    """The API server may not answer for longer than a device plugin is away."""
    node.allocatable = {"nvidia.com/gpu": "8"}
    node.after(0.0)
    node.restart()
    node.is_known = False
    node.after(0.0)
    assert not node.after(10 * OFFER_AFTER_S)
    assert node.second.problem is not None


def test_two_drivers_that_restart_together_do_not_offer_together(tmp_path: Path) -> None:
    """As after a reboot: which of them yields is remembered."""
    twins = Twins(tmp_path)
    twins.run(1)
    for each in twins.nodes.values():
        each.restart()
    assert twins.run(3600) == [ACME]
    assert twins.changes == 3


@pytest.mark.parametrize("text", ["", "[]", '{"drivers": 5}', "[" * 100_000, "\xff"])
def test_a_damaged_note_counts(node: Node, tmp_path: Path, text: str) -> None:
    """It was written because something was found."""
    (tmp_path / NVIDIA / NAME).write_text(text)
    node.restart()
    assert node.second.problem is not None
    node.after(0.0)
    assert node.after(OFFER_AFTER_S)


def test_a_note_that_cannot_be_written_is_not_fatal(node: Node, tmp_path: Path) -> None:
    """Only a restart would forget it."""
    (tmp_path / NVIDIA / NAME).mkdir()
    node.allocatable = {"nvidia.com/gpu": "8"}
    assert node.after(0.0)
    node.allocatable = {}
    node.after(0.0)
    assert node.after(OFFER_AFTER_S)
