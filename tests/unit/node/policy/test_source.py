"""Which policies are in force: of files that are right, wrong or gone, and of objects that the API server may have."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.policy import policy_of
from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.core.model.terms import Terms, Use
from dra_driver.node.policy.policy_set import PolicyObject, PolicySet, kept
from dra_driver.node.policy.resolve import survey
from dra_driver.node.policy.source import PolicySets, PolicySource, policy_outcomes
from tests.fakes.stand_in import present
from tests.harness.raising import fails
from tests.unit.node.policy.hardware import NODE, node, share, uuid, whole, written


class Server:
    """GpuPolicy objects as a node sees them."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.is_absent = False
        self.found: tuple[PolicyObject, ...] | None = None

    def current(self) -> tuple[PolicyObject, ...] | None:
        return self.found

    def has(self, *items: dict[str, Any]) -> None:
        self.problem, self.is_absent = None, False
        self.found = tuple(found for item in items if (found := kept(item, NODE, (), 128)) is not None)

    def fails(self, problem: str, *, is_absent: bool = False) -> None:
        self.problem, self.is_absent = problem, is_absent


class Desk:
    """A directory of policies, a node process that reads it, and the API server if it follows objects."""

    def __init__(self, root: Path, server: Server | None = None) -> None:
        self.folder, self.server = root / "policies", server
        self.has_files = server is None
        self.folder.mkdir()
        self.last_good = root / "state" / "policies.json"
        self.last_good.parent.mkdir()
        self.start()

    def start(self) -> None:
        folder = self.folder if self.has_files else None
        self.source = PolicySource(folder, self.last_good, NODE, self.server)
        self.source.load()

    def restart_while_the_api_server_is_away(self) -> None:
        self.server = Server()
        self.server.fails("no answer")
        self.start()

    def write(self, name: str, *objects: Any) -> bool:
        fresh = self.folder / f".{name}"
        fresh.write_text("\n---\n".join(json.dumps(item) for item in objects))
        fresh.rename(self.folder / f"{name}.yaml")
        return self.source.check()

    def with_file(self, name: str, **spec: Any) -> None:
        self.has_files = True
        self.write(name, written(name, **spec))
        self.start()

    def remove(self, name: str) -> bool:
        (self.folder / f"{name}.yaml").unlink()
        return self.source.check()

    def terms(self, *uses: Use, snapshot: Snapshot | None = None) -> Terms:
        return self.source.terms(snapshot if snapshot is not None else node(), uses)

    def names(self, *uses: Use) -> list[str]:
        self.source.check()
        return [terms.policy if terms.offered else f"no {terms.policy}".strip() for terms in self.terms(*uses).values()]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_without_a_folder_the_default_terms_hold(tmp_path: Path) -> None:
    source = PolicySource(None, tmp_path / "policies.json", NODE)
    source.load()
    assert source.terms(node(), ()) == {}
    assert not source.check()
    assert source.problem is None
    assert source.terms(node(), [share()])[uuid(0)].sharing is not None
    assert not (tmp_path / "policies.json").exists()


def test_a_change_is_noticed_once(desk: Desk) -> None:
    assert desk.write("a", written("a"))
    assert desk.names() == ["a", "a"]
    assert not desk.source.check()
    assert desk.write("a", written("a"), written("b", priority=1, select={"minors": [1]}))
    assert desk.names() == ["a", "b"]
    assert desk.remove("a")
    assert desk.terms() == {}


def test_a_wrong_file_leaves_the_last_good_set_in_force(desk: Desk) -> None:
    """The whole set: half of a set was never intended. The reason names file, line and field."""
    desk.write("a", written("a"))
    desk.names()
    desk.write("z", written("z", sharing={"strategy": "mps"}))
    assert desk.names() == ["a", "a"]
    values = ("z.yaml:1: spec.sharing.strategy", "'Exclusive'", "'TimeSlicing'", "'MPS'", "'mps'")
    assert all(value in str(desk.source.problem) for value in values)
    assert desk.remove("z")
    assert desk.names() == ["a", "a"]
    assert desk.source.problem is None


def test_a_contradiction_leaves_the_last_good_set_in_force(desk: Desk) -> None:
    """It is found when the node's GPUs are known, and only matters where one of them is meant twice."""
    desk.write("a", written("a"))
    desk.names()
    assert desk.write("b", written("b", availability="Hidden", select={"minors": [1]}))
    assert desk.names() == ["a", "a"]
    assert "policies a and b both match gpu-1" in str(desk.source.problem)
    assert desk.write("b", written("b", availability="Hidden", select={"minors": [7]}))
    assert desk.names() == ["a", "a"]
    assert desk.source.problem is None


def test_a_restart_with_a_broken_folder_keeps_the_last_good_set(desk: Desk) -> None:
    desk.write("a", written("a", availability="Reserved"))
    desk.names()
    assert stat.S_IMODE(desk.last_good.stat().st_mode) == 0o600
    desk.write("a", {"kind": "Nonsense"})
    desk.start()
    assert desk.names() == ["a", "a"]
    assert "a.yaml:1: apiVersion: " in str(desk.source.problem)


def test_with_nothing_good_nothing_is_offered(desk: Desk) -> None:
    """A spelling mistake must not make a reserved GPU available to all."""
    desk.write("a", {"kind": "Nonsense"})
    desk.start()
    assert desk.names() == ["no", "no"]
    assert str(desk.source.problem).startswith("no GPUs published: cannot use policies: a.yaml:1:")
    assert desk.terms(whole())[uuid(0)].offered, "what is in use stays"
    desk.write("a", written("a"))
    assert desk.names() == ["a", "a"]


def test_policies_are_not_taken_for_good_before_there_is_a_gpu(desk: Desk) -> None:
    desk.write("a", written("a"))
    desk.names()
    desk.write("b", written("b", availability="Hidden"))
    assert desk.terms(snapshot=Snapshot()) == {}
    desk.start()
    assert desk.terms(snapshot=Snapshot()) == {}
    assert desk.names() == ["a", "a"]
    assert "policies a and b both match" in str(desk.source.problem)


def test_a_gpu_that_comes_later_and_is_contradicted_is_the_only_one_withheld(desk: Desk) -> None:
    desk.write("a", written("a"), written("b", availability="Hidden", select={"minors": [1]}))
    assert [terms.policy for terms in desk.terms(snapshot=node(1)).values()] == ["a"]
    assert desk.names() == ["a", "no"]
    assert str(desk.source.problem).startswith("GPU not published: policies conflict: policies a")
    assert [terms.policy for terms in desk.terms(snapshot=node(1)).values()] == ["a"]
    assert desk.source.problem is None


def test_a_last_good_file_that_cannot_be_used_counts_as_missing(desk: Desk) -> None:
    desk.write("a", {"kind": "Nonsense"})
    bad = [b"", b"{", b"[]", b'{"format": 2, "policies": []}', b'{"format": 1, "policies": [{}]}', b"[" * 100_000]
    for content in bad:
        desk.last_good.write_bytes(content)
        desk.start()
        assert desk.names() == ["no", "no"]


def test_policies_that_cannot_be_saved_are_in_force_all_the_same(desk: Desk) -> None:
    desk.last_good.parent.rmdir()
    desk.write("a", written("a"))
    assert desk.names() == ["a", "a"]
    assert desk.source.problem is not None
    desk.last_good.parent.mkdir()
    assert not desk.source.check(), "the terms are the same"
    assert desk.source.problem is None
    assert desk.last_good.exists()


def test_a_name_may_come_once_in_all_files(desk: Desk) -> None:
    desk.write("a", written("same"))
    desk.write("b", written("same", priority=1))
    desk.names()
    assert all(value in str(desk.source.problem) for value in ("b.yaml:1: metadata.name", "same", "a.yaml:1"))


def test_new_terms_wait_for_what_is_in_use_and_then_hold(desk: Desk) -> None:
    desk.write("a", written("a", sharing={"strategy": "MPS"}))
    assert desk.terms(whole())[uuid(0)].waiting is not None
    assert desk.terms()[uuid(0)].sharing is not None
    assert desk.terms()[uuid(0)].waiting is None


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def objects(tmp_path: Path, server: Server) -> Desk:
    return Desk(tmp_path, server)


def test_objects_are_applied_and_a_change_is_noticed_once(objects: Desk, server: Server) -> None:
    server.has(written("a"))
    assert objects.source.check()
    assert objects.names() == ["a", "a"]
    assert not objects.source.check()
    server.has(written("a"), written("b", priority=1, select={"minors": [1]}))
    assert objects.names() == ["a", "b"]
    server.has()
    assert objects.names() == []


def test_before_the_first_answer_nothing_is_known(objects: Desk, server: Server) -> None:
    """With the default terms a reserved GPU would be offered to all for a moment."""
    assert not objects.source.is_known
    with fails(DriverUnavailableError, "PoliciesUnknown"):
        objects.names()
    server.fails("GET /apis: no answer")
    objects.source.check()
    assert "no answer" in str(objects.source.problem)
    server.has()
    assert objects.names() == []
    assert objects.source.is_known
    assert objects.source.problem is None


def test_where_the_kind_is_not_served_there_are_none(objects: Desk, server: Server) -> None:
    server.fails("404", is_absent=True)
    assert objects.names() == []
    assert objects.source.problem is None
    assert objects.source.remark is None


def test_a_definition_that_goes_away_keeps_the_last_good(objects: Desk, server: Server) -> None:
    server.has(written("a", availability="Reserved"))
    assert objects.names() == ["a", "a"]
    server.fails("404 page not found", is_absent=True)
    assert objects.names() == ["a", "a"]
    objects.restart_while_the_api_server_is_away()
    present(objects.server).fails("404 page not found", is_absent=True)
    assert objects.names() == ["a", "a"]
    assert "the last known 1 stay in force: 404 page not found" in str(objects.source.remark)


def test_a_restart_without_the_api_server_uses_the_last_good(objects: Desk, server: Server) -> None:
    server.has(written("a"))
    objects.names()
    objects.restart_while_the_api_server_is_away()
    assert objects.source.is_known
    assert objects.names() == ["a", "a"]
    assert objects.source.problem is None
    assert "no answer" in str(objects.source.remark)


def test_that_there_are_none_is_remembered_too(objects: Desk, server: Server) -> None:
    """Otherwise a node without policies would wait for the API server at every start."""
    server.has()
    objects.names()
    objects.restart_while_the_api_server_is_away()
    assert objects.source.is_known
    assert objects.names() == []


def test_files_of_a_restart_are_new_and_objects_are_the_last_known(objects: Desk, server: Server) -> None:
    server.has(written("a"))
    objects.names()
    objects.restart_while_the_api_server_is_away()
    objects.with_file("b", priority=1, select={"minors": [0]})
    assert objects.names() == ["b", "a"]


def test_a_file_saved_by_an_earlier_build_stays_in_force_until_the_first_answer(objects: Desk, server: Server) -> None:
    objects.last_good.write_text(json.dumps({"format": 1, "policies": [written("a")]}))
    objects.start()
    assert objects.names() == ["a", "a"]
    server.has(written("b"))
    assert objects.names() == ["b", "b"]


def test_what_is_saved_is_read_by_an_earlier_build(objects: Desk, server: Server) -> None:
    server.has(written("a"))
    objects.names()
    saved = json.loads(objects.last_good.read_text())
    assert saved == {"format": 1, "policies": [written("a")], "objects": {"a": None}}


def test_a_wrong_object_leaves_the_last_good_set_in_force(objects: Desk, server: Server) -> None:
    server.has(written("a"))
    objects.names()
    server.has(written("a"), written("bad", sharing={"strategy": "mps"}))
    assert objects.names() == ["a", "a"]
    assert "GpuPolicy bad: spec.sharing.strategy" in str(objects.source.problem)
    server.has(written("a", priority=1))
    assert objects.names() == ["a", "a"]
    assert objects.source.problem is None


def test_default_share_larger_than_the_gpu_refuses_the_policy(objects: Desk, server: Server) -> None:
    """The GPU stays as it was published, and the condition of the policy has the numbers and the next step."""
    server.has(written("a"))
    objects.names()
    large = written("large", priority=1, sharing={"strategy": "MPS", "defaultShare": {"memory": "90Gi"}})
    server.has(written("a"), large)
    objects.source.check()
    terms = objects.source.terms(node(), ())
    assert {found.policy for found in terms.values()} == {"a"}
    found = {each.name: each for each in policy_outcomes(objects.source.sets, node(), terms, NODE, {})}
    assert (found["a"].state, found["large"].state) == (PolicyState.IN_FORCE, PolicyState.REFUSED)
    assert "90Gi of gpu-0" in str(found["large"].message)
    assert "has 80471Mi for claims: lower sharing.defaultShare.memory" in str(found["large"].message)
    server.has(large)
    objects.last_good.unlink()
    objects.start()
    objects.source.check()
    assert not any(found.offered for found in objects.source.terms(node(), ()).values()), "no policy before it"


def test_a_broken_folder_does_not_hide_that_objects_are_known(objects: Desk, server: Server) -> None:
    objects.with_file("b", sharing={"strategy": "mps"})
    server.has()
    objects.source.check()
    assert objects.source.is_known
    assert objects.source.terms(node(), [whole()])[uuid(0)].offered


def set_of(*items: dict[str, Any], **objects: int) -> PolicySet:
    return PolicySet(tuple(policy_of(item) for item in items), items, objects)


def standing(
    newest: PolicySet | None,
    in_force: PolicySet | None = None,
    *uses: Use,
    problem: str | None = None,
    refused: dict[str, str] | None = None,
) -> dict[str, NodePolicy]:
    good = in_force or newest or PolicySet()
    terms, _ = survey(good.policies, node(), uses, NODE)
    found = PolicySets(newest=newest, in_force=good, problem=problem, refused=refused or {})
    entries = policy_outcomes(found, node(), terms, NODE, {uuid(0): ["default/train", "default/eval"]})
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    return {entry.name: entry for entry in entries}


def test_policies_are_in_force_or_outranked_by_others() -> None:
    found = standing(
        set_of(
            written("all"),
            written("first", priority=1, select={"minors": [0]}),
            written("both", priority=2),
            written("elsewhere", select={"nodeNames": ["x"]}),
            all=3,
        )
    )
    assert {name: entry.state for name, entry in found.items()} == {
        "all": PolicyState.OUTRANKED,
        "first": PolicyState.OUTRANKED,
        "both": PolicyState.IN_FORCE,
    }
    assert found["both"].in_force == ("gpu-0", "gpu-1")
    assert found["first"].gpus == ("gpu-0",)
    assert (found["all"].origin, found["all"].generation) == (PolicyOrigin.OBJECT, 3)
    assert (found["both"].origin, found["both"].generation) == (PolicyOrigin.FILE, None)


def test_a_policy_waits_for_the_claims_that_have_its_gpu() -> None:
    found = standing(set_of(written("mps", sharing={"strategy": "MPS"})), None, whole())["mps"]
    assert found.state is PolicyState.WAITING
    assert (found.waiting, found.in_force) == (("gpu-0",), ("gpu-1",))
    assert found.waiting_for == ("default/train", "default/eval")
    assert "until it is released" in str(found.message)


def test_policies_that_contradict_each_other_name_each_other() -> None:
    good = set_of(written("a"))
    newest = set_of(
        written("a"), written("b", availability="Hidden", select={"minors": [1]}), written("c", priority=-1)
    )
    found = standing(newest, good, problem="policies a and b both match gpu-1")
    assert found["b"].state is PolicyState.CONFLICTING
    assert found["b"].conflicts_with == ("a",)
    assert found["a"].state is PolicyState.CONFLICTING
    assert (found["a"].in_force, found["a"].conflicting) == (("gpu-0", "gpu-1"), ("gpu-1",))
    assert found["b"].in_force == ()
    assert found["c"].state is PolicyState.REFUSED
    assert found["c"].message == "policies a and b both match gpu-1"


def test_where_the_newest_policies_conflict_those_from_before_say_what_is_in_force() -> None:
    good = set_of(written("a"), written("gone", priority=1, select={"minors": [0]}), a=1, gone=4)
    newest = set_of(
        written("a"),
        written("b", availability="Hidden", select={"minors": [0]}),
        written("top", priority=2, select={"minors": [1]}),
        a=1, b=1, top=1,
    )  # fmt: skip
    found = standing(newest, good, problem="policies a and b both match gpu-0")
    assert (found["a"].in_force, found["a"].conflicting) == (("gpu-1",), ("gpu-0",))
    assert (found["gone"].state, found["gone"].in_force) == (PolicyState.IN_FORCE, ("gpu-0",))
    assert (found["gone"].origin, found["gone"].generation) == (PolicyOrigin.OBJECT, 4)
    assert (found["top"].state, found["top"].in_force) == (PolicyState.REFUSED, ())


def test_a_gpu_on_which_even_the_policies_from_before_conflict_has_none_in_force() -> None:
    both = set_of(written("a"), written("b", availability="Hidden", select={"minors": [1]}))
    found = standing(both, both, problem="policies a and b both match gpu-1")
    assert (found["a"].in_force, found["b"].in_force) == (("gpu-0",), ())


def test_a_wrong_object_is_refused_and_the_last_good_ones_are_in_force() -> None:
    found = standing(None, set_of(written("a"), a=1), problem="GpuPolicy bad: wrong", refused={"bad": "wrong"})
    assert found["a"].state is PolicyState.IN_FORCE
    assert (found["bad"].state, found["bad"].message) == (PolicyState.REFUSED, "wrong")


def test_equal_policies_of_one_priority_are_both_in_force() -> None:
    found = standing(set_of(written("a"), written("b")))
    assert [entry.state for entry in found.values()] == [PolicyState.IN_FORCE] * 2
