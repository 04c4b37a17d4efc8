"""A node under a mixed load is as it was at the start afterwards; `make soak` does the same for an hour's worth.

The checker of `make soak` sees each of its invariants broken on a live node.
"""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from tests.fakes.live_claims import Obj, Scheduler, gpu, partition
from tests.fakes.live_node import LiveNode
from tests.soak import node_soak
from tests.soak.invariants import breaches, facts

pytestmark = pytest.mark.slow  # threads, crashes, and a node for each


def test_after_any_mix_of_claims_nothing_is_left() -> None:
    found = node_soak.run(60, 1, "1", illnesses=2)
    seen = ", ".join(f"{what} {count}" for what, count in sorted(found.soak.seen.items()))
    sys.stdout.write(f"60 rounds in {found.seconds:.1f} s: {seen}\n")  # pytest -s
    assert not found.soak.failures, "\n".join(found.soak.failures)
    assert len(found.soak.prepares_ms) >= 20, f"many of 60 rounds prepare something: {seen}"


class Node:
    def __init__(self, node: LiveNode) -> None:
        self.node = node
        scheduler = Scheduler(node)
        self.claims: list[Obj] = [
            scheduler.allocate_soon(gpu(of=node.gpus[:1])),
            scheduler.allocate_soon(partition("1g.10gb", of=node.gpus[1:])),
        ]
        for claim in self.claims:
            assert node.prepare(claim).error == ""
        self.answered = {claim["uid"]: claim["devices"] for claim in self.claims}

    def breaches(self) -> list[str]:
        return breaches(facts(self.node, self.answered))

    def change_journal(self, sql: str) -> None:
        with closing(sqlite3.connect(self.node.plugin / "state.db", isolation_level=None)) as journal:
            journal.execute(sql)


@pytest.fixture
def broken() -> Iterator[Node]:
    with LiveNode("2xh100-sxm5-80gb") as live:
        found = Node(live)
        assert found.breaches() == []
        yield found


def no_file(node: Node) -> None:
    node.node.cdi_files()[node.claims[0]["uid"]].unlink()


def no_row(node: Node) -> None:
    node.change_journal(f"DELETE FROM claim WHERE uid = '{node.claims[0]['uid']}'")  # noqa: S608


def another_state(node: Node) -> None:
    node.change_journal("UPDATE claim SET state = 'preparing'")


def no_partition(node: Node) -> None:
    one = node.node.gpus[1]
    node.node.hardware.foreign_destroy(one, node.node.hardware_state()["gpus"][one]["instances"][0]["gi"])


def another_allocation(node: Node) -> None:
    claim = node.node.store.get(RESOURCE_CLAIMS, node.claims[0]["name"], node.claims[0]["namespace"])
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1"
    node.node.store.update_status(RESOURCE_CLAIMS, {**claim, "status": {}})
    node.node.store.update_status(RESOURCE_CLAIMS, {**claim, "metadata": _fresh(node)})


def _fresh(node: Node) -> Obj:
    found = node.node.store.get(RESOURCE_CLAIMS, node.claims[0]["name"], node.claims[0]["namespace"])
    return dict(found["metadata"])


@pytest.mark.parametrize(
    ("sabotage", "sentences"),
    [
        pytest.param(no_file, ["CDI: ", "was answered and has no file"], id="CDI"),
        pytest.param(no_row, ["journal: ", "was answered and has no row"], id="journal"),
        pytest.param(another_state, ["journal: ", "is preparing while no call works on it"], id="state"),
        pytest.param(no_partition, ["hardware: partition", "is missing"], id="hardware"),
        pytest.param(another_allocation, ["API: ", "granted twice: "], id="API and grants"),
    ],
)
def test_a_broken_invariant_is_seen(sabotage: Callable[[Node], None], sentences: list[str], broken: Node) -> None:
    """A checker that cannot fail would say of every soak that it was good."""
    sabotage(broken)
    found = broken.breaches()
    assert found
    for sentence in sentences:
        assert any(sentence in breach for breach in found), found
