"""Which policies are in force when the API server has objects, has none, does not answer or does not serve them."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.terms import Use
from dra_driver.node.policy.policy_set import PolicyObject, kept
from dra_driver.node.policy.source import PolicySource
from tests.unit.node.policy.hardware import NODE, node, uuid, whole, written


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
    """A node process that follows objects, and files where ``folder`` is there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder: Path | None = None
        self.server = Server()
        self.start()

    def start(self) -> PolicySource:
        self.source = PolicySource(self.folder, self.root / "policies.json", NODE, self.server)
        self.source.load()
        return self.source

    def restart_while_the_api_server_is_away(self) -> None:
        self.server = Server()
        self.server.fails("no answer")
        self.start()

    def with_file(self, name: str, **spec: Any) -> None:
        self.folder = self.root / "files"
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{name}.json").write_text(json.dumps(written(name, **spec)))
        self.start()

    def names(self, *uses: Use) -> list[str]:
        self.source.check()
        terms = self.source.terms(node(), uses)
        return [each.policy if each.offered else f"no {each.policy}".strip() for each in terms.values()]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_objects_are_applied_and_a_change_is_noticed_once(desk: Desk) -> None:
    desk.server.has(written("a"))
    assert desk.source.check()
    assert desk.names() == ["a", "a"]
    assert not desk.source.check()
    desk.server.has(written("a"), written("b", priority=1, select={"minors": [1]}))
    assert desk.names() == ["a", "b"]
    desk.server.has()
    assert desk.names() == []


def test_before_the_first_answer_nothing_is_known(desk: Desk) -> None:
    """With the default terms a reserved GPU would be offered to all for a moment."""
    assert not desk.source.is_known
    with pytest.raises(DriverUnavailableError, match="not known which GpuPolicy objects there are"):
        desk.names()
    desk.server.fails("GET /apis: no answer")
    desk.source.check()
    assert "no answer" in str(desk.source.problem)
    desk.server.has()
    assert desk.names() == []
    assert desk.source.is_known
    assert desk.source.problem is None


def test_where_the_kind_is_not_served_there_are_none(desk: Desk) -> None:
    """The CustomResourceDefinition is optional, and its absence is no problem."""
    desk.server.fails("404", is_absent=True)
    assert desk.names() == []
    assert desk.source.problem is None
    assert desk.source.remark is None


def test_a_definition_that_goes_away_keeps_the_last_good(desk: Desk) -> None:
    desk.server.has(written("a", availability="Reserved"))
    assert desk.names() == ["a", "a"]
    desk.server.fails("404 page not found", is_absent=True)
    assert desk.names() == ["a", "a"]
    desk.restart_while_the_api_server_is_away()
    desk.server.fails("404 page not found", is_absent=True)
    assert desk.names() == ["a", "a"]
    assert "the last known 1 stay in force: 404 page not found" in str(desk.source.remark)


def test_a_restart_without_the_api_server_uses_the_last_good(desk: Desk) -> None:
    desk.server.has(written("a"))
    desk.names()
    desk.restart_while_the_api_server_is_away()
    assert desk.source.is_known
    assert desk.names() == ["a", "a"]
    assert desk.source.problem is None
    assert "no answer" in str(desk.source.remark)


def test_that_there_are_none_is_remembered_too(desk: Desk) -> None:
    """Otherwise a node without policies would wait for the API server at every start."""
    desk.server.has()
    desk.names()
    desk.restart_while_the_api_server_is_away()
    assert desk.source.is_known
    assert desk.names() == []


def test_files_of_a_restart_are_new_and_objects_are_the_last_known(desk: Desk) -> None:
    desk.server.has(written("a"))
    desk.names()
    desk.restart_while_the_api_server_is_away()
    desk.with_file("b", priority=1, select={"minors": [0]})
    assert desk.names() == ["b", "a"]


def test_a_file_saved_by_an_earlier_build_stays_in_force_until_the_first_answer(desk: Desk) -> None:
    (desk.root / "policies.json").write_text(json.dumps({"format": 1, "policies": [written("a")]}))
    desk.start()
    assert desk.names() == ["a", "a"]
    desk.server.has(written("b"))
    assert desk.names() == ["b", "b"]


def test_what_is_saved_is_read_by_an_earlier_build(desk: Desk) -> None:
    """It looks at format and policies alone."""
    desk.server.has(written("a"))
    desk.names()
    saved = json.loads((desk.root / "policies.json").read_text())
    assert saved == {"format": 1, "policies": [written("a")], "objects": {"a": None}}


def test_files_and_objects_contradict_each_other_as_files_do(desk: Desk) -> None:
    desk.server.has(written("a"))
    assert desk.names() == ["a", "a"]
    desk.with_file("b", availability="Hidden")
    assert desk.names() == ["a", "a"]
    assert "policies b and a both match" in str(desk.source.problem) or "policies a and b" in str(desk.source.problem)


def test_a_wrong_object_leaves_the_last_good_set_in_force(desk: Desk) -> None:
    desk.server.has(written("a"))
    desk.names()
    desk.server.has(written("a"), written("bad", sharing={"strategy": "mps"}))
    assert desk.names() == ["a", "a"]
    assert "so the previous ones stay in force: GpuPolicy bad: spec.sharing.strategy" in str(desk.source.problem)
    desk.server.has(written("a", priority=1))
    assert desk.names() == ["a", "a"]
    assert desk.source.problem is None


def test_a_flood_leaves_the_last_good_set_in_force(desk: Desk) -> None:
    desk.server.has(written("a"))
    desk.names()
    desk.server.has(*(written(f"p{number}") for number in range(1000)))
    assert desk.names() == ["a", "a"]
    assert "1000 policies are for this node, at most 128 are accepted" in str(desk.source.problem)


def test_a_broken_folder_does_not_hide_that_objects_are_known(desk: Desk) -> None:
    """Nothing good: what is in use stays, and no claim waits for an answer that has come."""
    desk.with_file("b", sharing={"strategy": "mps"})
    desk.server.has()
    desk.source.check()
    assert desk.source.is_known
    assert desk.source.terms(node(), [whole()])[uuid(0)].offered
