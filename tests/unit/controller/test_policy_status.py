"""The thread that writes the status of policies, turn by turn."""

from typing import Any

import pytest

from dra_driver.controller.policy_status import (
    FIRST_RETRY_S,
    MOST_WRITES,
    PERIOD_S,
    NodePolicies,
    PolicyStatusWriter,
    PolicyView,
)
from dra_driver.core.errors import ApiUnreachableError, InvalidObjectError, NotFoundError
from dra_driver.core.model.gpu_node import PolicyState
from tests.unit.controller.fleets import PolicyApi, node_object, nodes, policy_object, said
from tests.unit.controller.objects import at


class Cluster(PolicyApi):
    """Policies and nodes, with the copies, the leadership and the clock of one controller."""

    def __init__(self, policies: int = 1) -> None:
        super().__init__(policy_object(f"pool-{number:03}") for number in range(policies))
        self.fleet: dict[str, dict[str, Any]] = {}
        self.leading = True
        self.problem: str | None = None
        self.seconds = 0.0
        self.frozen: list[PolicyView] | None = None
        self.writer = self.another()

    def another(self) -> PolicyStatusWriter:
        return PolicyStatusWriter(self, self, self, clock=lambda: self.seconds, now=lambda: at(self.seconds))

    def say(self, node: str, *found: Any) -> None:
        self.fleet[node] = node_object(node, *found)

    def run(self, seconds: float) -> None:
        """Turns as the thread makes them while changes keep coming."""
        until = self.seconds + seconds
        while self.seconds < until:
            self.writer.step()
            self.seconds += PERIOD_S

    def condition(self, name: str = "pool-000") -> str:
        return str(self.objects[name]["status"]["conditions"][0]["reason"])

    def leads(self) -> bool:
        return self.leading

    def policies(self) -> list[PolicyView]:
        return self.views() if self.frozen is None else self.frozen

    def nodes(self) -> list[NodePolicies]:
        return nodes(*self.fleet.values())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_status_follows_the_nodes(cluster: Cluster) -> None:
    cluster.run(PERIOD_S)
    assert cluster.condition() == "NothingSelected"
    cluster.say("a", said("pool-000"))
    cluster.run(PERIOD_S)
    assert cluster.condition() == "InForce"
    cluster.say("a", said("pool-000", PolicyState.WAITING, waiting=("gpu-0",), waiting_for=("team/train",)))
    cluster.run(PERIOD_S)
    assert cluster.objects["pool-000"]["status"]["waiting"]["places"][0]["claims"] == ["team/train"]


def test_a_quiet_fleet_is_not_written(cluster: Cluster) -> None:
    cluster.say("a", said("pool-000"))
    cluster.run(3600)
    assert cluster.writes == ["pool-000"]


def test_five_hundred_nodes_that_change_at_once_are_a_few_writes() -> None:
    """A rollout to all nodes takes tens of seconds; each turn writes a policy once however many nodes changed."""
    cluster = Cluster(policies=3)
    for number in range(500):
        cluster.say(f"node-{number:03}", said("pool-000"), said("pool-001"), said("pool-002"))
        if number % 50 == 0:
            cluster.run(PERIOD_S)
    cluster.run(60)
    assert len(cluster.writes) <= 3 * 11
    assert cluster.objects["pool-001"]["status"]["inForce"]["nodes"] == 500


def test_many_policies_are_written_slowly_and_all_of_them() -> None:
    cluster = Cluster(policies=300)
    cluster.writer.step()
    assert len(cluster.writes) == MOST_WRITES
    cluster.run(300 / MOST_WRITES * PERIOD_S)
    assert set(cluster.writes) == set(cluster.objects)
    assert len(cluster.writes) == 300


def test_one_policy_that_changes_all_the_time_does_not_keep_others_waiting() -> None:
    """Written longest ago comes first."""
    cluster = Cluster(policies=MOST_WRITES + 1)
    for turn in range(3):
        cluster.say("a", said("pool-000", gpus=tuple(f"gpu-{n}" for n in range(turn + 1))))
        cluster.run(PERIOD_S)
    assert set(cluster.writes) == set(cluster.objects)


def test_a_node_that_is_gone_counts_no_more(cluster: Cluster) -> None:
    cluster.say("a", said("pool-000"))
    cluster.say("b", said("pool-000"))
    cluster.run(PERIOD_S)
    del cluster.fleet["b"]
    cluster.run(PERIOD_S)
    assert cluster.objects["pool-000"]["status"]["selected"]["nodes"] == 1


def test_a_replica_that_does_not_lead_writes_nothing(cluster: Cluster) -> None:
    cluster.leading = False
    cluster.run(60)
    assert cluster.writes == []


def test_a_lease_that_lapsed_for_a_moment_delays_by_one_period(cluster: Cluster) -> None:
    """It comes back by its renewal, of which no event tells."""
    cluster.leading = False
    assert cluster.writer.step() <= PERIOD_S


def test_leadership_lost_between_two_writes_ends_the_turn() -> None:
    cluster = Cluster(policies=10)

    asked = iter([True, True, False])
    cluster.leads = lambda: next(asked, False)  # type: ignore[method-assign]
    PolicyStatusWriter(cluster, cluster, cluster, clock=lambda: 0.0, now=lambda: at(0)).step()
    assert len(cluster.writes) == 1


def test_two_leaders_write_the_same_and_then_nothing(cluster: Cluster) -> None:
    """One was stopped right before its write and continues with an old copy."""
    cluster.say("a", said("pool-000"))
    cluster.frozen = cluster.views()
    late = cluster.another()
    cluster.run(PERIOD_S)
    before = cluster.objects["pool-000"]
    late.step()  # its copy is as old as the first one's
    assert cluster.objects["pool-000"] == before
    cluster.frozen = None
    late.step()
    cluster.run(60)
    assert cluster.objects["pool-000"] == before


def test_outdated_copies_are_not_added_up(cluster: Cluster) -> None:
    """While the API server is away, or serves no GpuPolicies, what is known may be wrong."""
    cluster.say("a", said("pool-000"))
    cluster.problem = "cannot watch GpuNodes: 404"
    cluster.run(3600)
    assert cluster.writes == []
    cluster.problem = None
    cluster.run(PERIOD_S)
    assert cluster.condition() == "InForce"


def test_an_hour_of_failed_writes_is_few_requests_and_then_it_is_right(cluster: Cluster) -> None:
    cluster.failure = ApiUnreachableError("no answer")
    cluster.say("a", said("pool-000"))
    cluster.run(3600)
    assert 10 <= len(cluster.writes) <= 60
    cluster.failure = None
    cluster.run(600)
    assert cluster.condition() == "InForce"


def test_one_policy_that_cannot_be_written_keeps_no_other(cluster: Cluster) -> None:
    """The API server may have a CustomResourceDefinition of another version."""
    cluster = Cluster(policies=2)
    refused = {"pool-000": InvalidObjectError("status.selected: unknown")}
    update = cluster.update

    def picky(path: str, body: Any) -> dict[str, Any]:
        if body["metadata"]["name"] in refused:
            raise refused[body["metadata"]["name"]]
        return update(path, body)

    cluster.update = picky  # type: ignore[method-assign]
    cluster.run(FIRST_RETRY_S)
    assert cluster.condition("pool-001") == "NothingSelected"


def test_a_policy_that_was_deleted_meanwhile_is_no_failure(cluster: Cluster) -> None:
    cluster.frozen = cluster.views()
    del cluster.objects["pool-000"]
    cluster.run(60)
    assert set(cluster.writes) == {"pool-000"}


def test_a_status_that_is_not_served_is_asked_for_less_and_less(cluster: Cluster) -> None:
    """A definition of another version may lack the subresource; the watch goes on bringing the policy."""
    cluster.failure = NotFoundError("the server could not find the requested resource")
    cluster.run(3600)
    assert 10 <= len(cluster.writes) <= 60
    cluster.failure = None
    cluster.run(600)
    assert cluster.condition() == "NothingSelected"
