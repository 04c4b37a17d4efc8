"""The thread that writes the status of policies, turn by turn."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.controller.policy_status import (
    FIRST_RETRY_S,
    MOST_WRITES,
    PERIOD_S,
    NodePolicies,
    PolicyStatusWriter,
    PolicyView,
    status_of,
    totals,
)
from dra_driver.core.errors import ApiUnreachableError, InvalidObjectError, KubernetesApiError, NotFoundError
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyPlace, PolicyState, PolicyStatus
from tests.fakes.stand_in import present
from tests.unit.controller.fleets import PolicyApi, node_object, nodes, policy, policy_object, said
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
    cluster = Cluster(policies=MOST_WRITES + 1)
    for turn in range(3):
        cluster.say("a", said("pool-000", gpus=tuple(f"gpu-{n}" for n in range(turn + 1))))
        cluster.run(PERIOD_S)
    assert set(cluster.writes) == set(cluster.objects)


def test_a_replica_that_does_not_lead_writes_nothing(cluster: Cluster) -> None:
    cluster.leading = False
    assert cluster.writer.step() <= PERIOD_S  # no event reports that a lapsed Lease was renewed
    cluster.run(60)
    assert cluster.writes == []


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


@pytest.mark.parametrize("failure", [ApiUnreachableError("no answer"), NotFoundError("the status is not served")])
def test_an_hour_of_failed_writes_is_few_requests_and_then_it_is_right(
    cluster: Cluster, failure: KubernetesApiError
) -> None:
    cluster.failure = failure
    cluster.say("a", said("pool-000"))
    cluster.run(3600)
    assert 10 <= len(cluster.writes) <= 60
    cluster.failure = None
    cluster.run(600)
    assert cluster.condition() == "InForce"


def test_one_policy_that_cannot_be_written_keeps_no_other() -> None:
    cluster = Cluster(policies=2)
    update = cluster.update

    def picky(path: str, body: Any) -> dict[str, Any]:
        if body["metadata"]["name"] == "pool-000":
            raise InvalidObjectError("status.selected: unknown")
        return update(path, body)

    cluster.update = picky  # type: ignore[method-assign]
    cluster.run(FIRST_RETRY_S)
    assert cluster.condition("pool-001") == "NothingSelected"


def status(*objects: object, **more: object) -> PolicyStatus:
    return totals([policy(**more)], nodes(*objects))["pool"]  # type: ignore[arg-type]


def test_a_refused_policy_counts_nowhere_else() -> None:
    refused = said(state=PolicyState.REFUSED, in_force=("gpu-0",), message="more than 128 policies")
    found = status(node_object("a", refused))
    assert found.refused.places == (PolicyPlace(node="a", gpus=("gpu-0", "gpu-1"), message="more than 128 policies"),)
    assert (found.in_force.gpus, found.outranked.gpus) == (0, 0)


def test_each_gpu_counts_once() -> None:
    mixed = said(state=PolicyState.CONFLICTING, gpus=("a", "b", "c", "d"), in_force=("a",), waiting=("b",),
                 conflicting=("c",))  # fmt: skip
    found = status(node_object("a", mixed))
    parts = (found.in_force, found.waiting, found.conflicting, found.outranked, found.refused)
    assert sum(part.gpus for part in parts) == found.selected.gpus == 4


def test_places_are_the_first_twenty_and_counts_are_of_all() -> None:
    found = status(*(node_object(f"node-{number:03}", said()) for number in reversed(range(500))))
    assert (found.in_force.nodes, found.in_force.gpus) == (500, 1000)
    assert [place.node for place in found.in_force.places] == [f"node-{number:03}" for number in range(20)]


def test_the_oldest_spec_that_a_node_has_is_observed() -> None:
    behind = (node_object("a", said(generation=2)), node_object("b", said(generation=3)))
    assert status(*behind, generation=3).observed_generation == 2


def test_a_node_without_a_status_and_policies_of_its_files_say_nothing() -> None:
    malformed = {"metadata": {"name": "b"}, "status": {"policies": 5}}
    assert status({"metadata": {"name": "a"}}, malformed).selected.nodes == 0
    assert status(node_object("a", said(origin=PolicyOrigin.FILE, generation=None))).selected.gpus == 0


WAITING = said(state=PolicyState.WAITING, in_force=("gpu-0",), waiting=("gpu-1",), waiting_for=("team/train",))
CONFLICTING = said(state=PolicyState.CONFLICTING, conflicting=("gpu-0", "gpu-1"), conflicts_with=("night",))
REFUSED = said(state=PolicyState.REFUSED, message="two entries have key a")


def written_status(written: PolicyView, *fleet: NodePolicy, seconds: float = 0.0) -> dict[str, Any] | None:
    found = totals([written], nodes(*(node_object(f"node-{at_}", each) for at_, each in enumerate(fleet))))
    return status_of(written, found["pool"], at(seconds))


def condition(*fleet: NodePolicy, **more: Any) -> dict[str, Any]:
    (only,) = present(written_status(policy(**more), *fleet))["conditions"]
    return dict(only)


@pytest.mark.parametrize(
    ("fleet", "reason", "message"),
    [
        ([said()], "InForce", "in force on 2 of 2 GPUs of 1 node"),
        (
            [said(in_force=("gpu-0",))],
            "InForce",
            "in force on 1 of 2 GPUs of 1 node; others of higher priority apply to 1 GPU",
        ),
        ([WAITING], "Waiting", "1 GPU waits for team/train to end; in force on 1 of 2 GPUs of 1 node"),
        (
            [WAITING, CONFLICTING],
            "Conflicting",
            "conflicts on 2 GPUs with night, so what applied before stays; in force on 1 of 4 GPUs of 2 nodes",
        ),
        (
            [CONFLICTING, REFUSED],
            "Refused",
            "refused by 1 node (two entries have key a), so what applied before stays;"
            " in force on 0 of 4 GPUs of 2 nodes",
        ),
        (
            [replace(CONFLICTING, in_force=("gpu-0", "gpu-1"))],
            "Conflicting",
            "conflicts on 2 GPUs with night, so what applied before stays; in force on 2 of 2 GPUs of 1 node",
        ),
        (
            [replace(REFUSED, gpus=())],
            "Refused",
            "refused by 1 node (two entries have key a), so what applied before stays",
        ),
        ([], "NothingSelected", "selects no GPU of a node that reports its GPUs"),
        ([said(state=PolicyState.OUTRANKED)], "Outranked", "policies of higher priority apply to all of its 2 GPUs"),
    ],
)
def test_the_worst_is_said_in_one_sentence(fleet: list[NodePolicy], reason: str, message: str) -> None:
    found = condition(*fleet)
    status = "True" if reason == "InForce" else "False"
    assert (found["status"], found["reason"], found["message"]) == (status, reason, message)


def test_while_nodes_have_an_older_spec_it_is_unknown() -> None:
    """`kubectl wait` right after `kubectl apply` must not return because of what was before."""
    found = condition(said(generation=1), said(generation=2), generation=2)
    assert (found["status"], found["reason"], found["observedGeneration"]) == ("Unknown", "RollingOut", 1)


def test_claims_are_named_and_there_are_at_most_three() -> None:
    waits = said(state=PolicyState.WAITING, waiting=("gpu-0", "gpu-1"), waiting_for=("b/2", "a/1", "d/4", "c/3"))
    assert condition(waits)["message"].startswith("2 GPUs wait for a/1, b/2, c/3 and others to end; ")


def test_the_time_changes_with_the_verdict_alone() -> None:
    first = present(written_status(policy(), said()))
    more = present(written_status(policy(**first), said(), said(), seconds=60))
    assert more["conditions"][0]["lastTransitionTime"] == "2026-11-22T12:00:00Z"
    worse = present(written_status(policy(**more), WAITING, seconds=120))
    assert worse["conditions"][0]["lastTransitionTime"] == "2026-11-22T12:02:00Z"


def test_conditions_of_other_writers_stay_and_a_status_of_another_shape_is_replaced() -> None:
    other = {"type": "Reviewed", "status": "True"}
    found = present(written_status(policy(conditions=[other]), said()))
    assert found["conditions"][0] == other
    assert written_status(policy(**found), said()) is None
    found = present(written_status(policy(conditions="odd", selected=5, gone=True), said()))
    assert "gone" not in found
    assert found["selected"]["gpus"] == 2
