"""Reading the cluster again and again, and answers that take long."""

import itertools
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.config.status import node_status
from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, ForbiddenError, NotFoundError
from dra_driver.core.model.gpu_node import (
    GpuNodeStatus,
    HealthWord,
    NodePolicy,
    PolicyOrigin,
    PolicyState,
    PublishedForm,
    ReportedIdle,
    ReportedUnattributed,
    ReportedUsage,
)
from dra_driver.diagnose.doctor.facts import facts_of_state
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump, load
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, UseReport
from dra_driver.kubectl.web.reading import (
    BUILT_BEFORE_SWEEP,
    VIEWED_S,
    BackgroundResults,
    FileSource,
    GcControl,
    LiveSource,
    OwnSource,
    Periodic,
    ReadFailure,
    read_from,
    same_cluster,
)
from dra_driver.kubectl.web.rows import key_of
from dra_driver.kubectl.web.use_history import MAX_SAMPLES, UseHistory
from tests.unit.kubectl.web.objects import NOW, claim, fleet, given, seen, share, small_state, told, told_gpu


class Script:
    """Return the answers in order; raise exceptions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def periodic(*answers: Any, same: Callable[[Any, Any], bool] = lambda one, other: one == other) -> Periodic[Any]:
    times = (NOW + timedelta(seconds=number) for number in itertools.count())
    return Periodic("test", Script(*answers), 1.0, now=lambda: next(times), same=same)


def test_a_failed_reading_keeps_the_last_value_and_says_since_when() -> None:
    reader = periodic("one", ApiUnreachableError("gone"), ApiUnreachableError("gone"), "two")
    reader.once()
    assert reader.trouble is None
    reader.once()
    first: ReadFailure = given(reader.trouble)
    reader.once()
    assert (first.sentence, given(reader.trouble).since) == ("gone", first.since)
    assert given(reader.asked()).value == "one"
    reader.once()
    last = given(reader.asked())
    assert (last.value, last.number, reader.trouble) == ("two", 2, None)


def test_equal_value_does_not_count_as_change() -> None:
    reader = periodic("one", "one", "two")
    changes = []
    for _ in range(3):
        reader.once()
        changes.append(reader.changes)
    assert changes == [1, 1, 2]


class Noting(Periodic[Any]):
    """Notes the values of each change."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "changes" and value:
            self.noted = (given(self._reading).value, self.trouble is not None)
        super().__setattr__(name, value)


def test_values_are_there_before_their_change_is_counted() -> None:
    """A page that takes the number first never misses a change. A state is as old as the start of its reading."""
    reader, noted = Noting("test", Script("one", ApiUnreachableError("gone"), "two"), 1.0, now=lambda: NOW), []
    for _ in range(3):
        reader.once()
        noted.append(reader.noted)
    assert noted == [("one", False), ("one", True), ("two", False)]
    times = iter([NOW, NOW + timedelta(seconds=9)])
    late = Periodic("test", lambda: next(times), 1.0, now=lambda: next(times))
    late.once()
    assert given(late.asked()).at == NOW


def test_read_bug_is_shown_and_thread_continues() -> None:
    reader = periodic(KeyError("metadata"))
    reader.once()
    assert "KeyError" in given(reader.trouble).sentence


def test_clusters_with_equal_objects_are_the_same() -> None:
    one, other = seen(small_state()), seen(small_state())
    assert same_cluster(one, other)
    assert not same_cluster(one, seen(small_state(claim("a", "n"))))
    changed = replace(other.state, nodes=({"metadata": {"name": "n", "labels": {"a": "b"}}},))
    assert not same_cluster(one, replace(other, state=changed))


class FakeApi:
    """List only GpuNodes."""

    def __init__(self, gpu_nodes: Any) -> None:
        self._gpu_nodes = gpu_nodes

    def get(self, path: str, query: Any = None) -> dict[str, Any]:
        return {"gitVersion": "v1.36.2", "major": "1", "minor": "36"}

    def list(self, path: str, query: Any = None) -> dict[str, Any]:
        if not path.endswith("/gpunodes"):
            return {"items": []}
        if isinstance(self._gpu_nodes, Exception):
            raise self._gpu_nodes
        return {"items": self._gpu_nodes}


def test_gpu_nodes_that_cannot_be_read_are_a_gap() -> None:
    """An older chart has none, and a user may lack the right."""
    for error, part in ((NotFoundError("no"), "not served"), (ForbiddenError("no"), "gpunodes")):
        found = read_from(LiveSource(FakeApi(error)), lambda: NOW)
        assert any(part in gap for gap in found.state.gaps), found.state.gaps


def test_unreadable_pods_and_events_are_gaps() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"resourceClaims": 5}}
    state = ClusterState(pods=(pod,), events=({"metadata": {"name": "e"}, "message": 5},))
    _, *gaps = read_from(FileSource(state)).gaps
    assert [gap[:23] for gap in gaps] == [
        "pods: p cannot be read:",
        "events: e cannot be rea",
        "resourcequotas: not in ",
    ]
    # GpuNodes without a status are left out.
    told = {"metadata": {"name": "n"}, "status": {"driverName": "d", "gpus": []}}
    found = read_from(LiveSource(FakeApi([{"metadata": {"name": "new"}}, told])), lambda: NOW)
    assert list(found.statuses) == ["n"]


def test_answers_are_computed_for_each_state_once() -> None:
    background_results = BackgroundResults()
    assert background_results.ask("key", 1, lambda: "one") is None
    assert background_results.compute_one()
    assert not background_results.compute_one()
    assert given(background_results.ask("key", 1, lambda: "again")).value == "one"
    assert not background_results.compute_one()
    old = given(background_results.ask("key", 2, lambda: "two"))
    assert (old.value, old.number) == ("one", 1)
    background_results.compute_one()
    new = given(background_results.ask("key", 2, lambda: "two"))
    assert (new.value, background_results.changes) == ("two", 2)


def test_failing_answer_is_a_message() -> None:
    background_results = BackgroundResults()
    for number, error in enumerate((ConfigurationError("it is wrong"), ZeroDivisionError("x"))):
        background_results.ask("key", number, Script(error))
        background_results.compute_one()
        problem = given(background_results.ask("key", number, Script())).problem
        assert "it is wrong" in problem or "ZeroDivisionError" in problem


def test_a_claim_that_cannot_be_read_is_a_gap_of_the_page() -> None:
    odd = claim("odd", "n", share("gpu-0", "20Gi")) | {"spec": {"devices": 7}}
    found = read_from(FileSource(small_state(odd, claim("b", "n", share("gpu-0", "20Gi")))), lambda: NOW)
    assert found.gaps[0] == "claim team/odd: spec.devices: expected an object, got a number: '7'"
    assert [(each.name, len(each.devices)) for each in found.claims] == [("b", 1), ("odd", 1)]
    assert [part.claim for part in found.fleet.nodes[0].gpus[0].parts] == ["b", "odd"]


def test_use_is_remembered_for_charts() -> None:
    times = iter(range(MAX_SAMPLES + 5))
    use = ClaimDeviceUse(namespace="a", claim="b", node="n", device="gpu-0", used_bytes=5, sm_ratio=0.5)
    report = UseReport(source="", window_s=1, uses=[use])
    history = UseHistory(lambda: report, lambda: datetime.fromtimestamp(next(times), tz=NOW.tzinfo))
    for _ in range(MAX_SAMPLES + 5):
        now = history.read()
    points = now.points(key_of(use))
    assert len(points) == MAX_SAMPLES
    assert points[0].at < points[-1].at


def test_the_reader_rests_when_no_page_asks() -> None:
    rested, times = threading.Event(), itertools.chain([0.0] * 5, itertools.repeat(2 * VIEWED_S))
    periodic = Periodic("test", lambda: None, 0.0, clock=lambda: next(times), rest=rested.set)
    periodic.start()
    try:
        assert rested.wait(5.0)
    finally:
        periodic.stop(2.0)


class Calls(list[str]):
    """A collector that does nothing and notes its calls."""

    def __getattr__(self, name: str) -> Any:
        self.append(name)
        return lambda: 0


def test_built_objects_are_exempt_from_collection() -> None:
    """Two threads may build at a time: collection is on again after both."""
    calls: Any = Calls()
    gc_control = GcControl(calls)
    with gc_control.building():
        with gc_control.building():
            pass
        assert "enable" not in calls
    assert calls == ["disable", "disable", "freeze", "freeze", "enable"]


def test_a_build_that_fails_leaves_collection_on() -> None:
    calls: Any = Calls()
    with pytest.raises(ZeroDivisionError), GcControl(calls).building():
        raise ZeroDivisionError
    assert calls[-1] == "enable"


def test_a_page_that_is_looked_at_for_hours_does_not_grow_without_end() -> None:
    calls: Any = Calls()
    gc_control = GcControl(calls)
    for _ in range(2 * BUILT_BEFORE_SWEEP):
        with gc_control.building():
            pass
    assert calls.count("collect") == 2
    assert calls[-3:] == ["unfreeze", "collect", "freeze"]


def test_a_reader_that_keeps_nothing_drops_its_value_when_no_page_asks() -> None:
    """An unviewed session takes no memory. It checks its token before it shows data again."""
    rested, times = threading.Event(), itertools.chain([0.0] * 7, itertools.repeat(2 * VIEWED_S))
    reader = Periodic("test", lambda: "state", 0.0, clock=lambda: next(times), rest=rested.set, keeps=False)
    reader.once()
    changes = reader.changes
    reader.start()
    try:
        assert rested.wait(5.0)
        assert reader.changes > changes
    finally:
        reader.stop(2.0)
    assert reader.asked() is None


def test_dropped_answers_are_computed_again() -> None:
    """Numbers of states begin again with the next reading."""
    results = BackgroundResults()
    results.ask("key", 1, lambda: "old")
    results.compute_one()
    results.ask("key", 2, lambda: "old")
    results.drop()
    assert not results.compute_one()
    assert results.ask("key", 1, lambda: "new") is None


class Tenant(FakeApi):
    """Lists namespaced objects only in these namespaces."""

    def __init__(self, *namespaces: str, gpu_nodes: Any = ()) -> None:
        super().__init__(gpu_nodes)
        self._namespaces = namespaces

    def list(self, path: str, query: Any = None) -> dict[str, Any]:
        kind = path.rpartition("/")[2]
        if kind not in ("resourceclaims", "pods", "resourcequotas"):
            return super().list(path, query)
        inside = next((each for each in self._namespaces if f"/namespaces/{each}/" in path), None)
        if inside is None:
            raise ForbiddenError(f"GET {path} failed: 403 Forbidden: no")
        item = {"metadata": {"name": f"{kind}-of-{inside}", "namespace": inside}, "spec": {}, "status": {}}
        return {"items": [item]}


def test_objects_of_all_given_namespaces_are_read() -> None:
    source = LiveSource(Tenant("a", "b"), "a", "none", "b", "")
    state = source.state()
    assert [item["metadata"]["namespace"] for item in state.claims] == ["a", "b"]
    (gap,) = [gap for gap in state.gaps if gap.startswith("resourceclaims:")]
    assert gap.endswith("; only namespace a, b is shown")
    gaps: list[str] = []
    assert [item["metadata"]["namespace"] for item in source.quotas(gaps)] == ["a", "b"]  # type: ignore[index]
    assert gaps[0].startswith("resourcequotas: this user may not list")


def busy_node() -> dict[str, Any]:
    idle = [
        ReportedIdle(namespace=each, claim=f"claim-of-{each}", claim_uid="u", since="2026-01-02T11:00:00Z", after_min=9)
        for each in ("a", "b")
    ]
    stray = ReportedUnattributed(gpu="gpu-0", processes=1, since="2026-01-02T11:00:00Z", commands=("secret-of-b",))
    policy = NodePolicy(
        name="p",
        origin=PolicyOrigin.OBJECT,
        state=PolicyState.WAITING,
        waiting_for=("b/claim-of-b",),
        message="waits for b/claim-of-b",
    )
    status = replace(
        told(told_gpu("gpu-0", "GPU-0", waiting="until claim-of-b ends"), problem="b/claim-of-b fails"),
        usage=ReportedUsage(idle=tuple(idle), unattributed=(stray,)),
        policies=(policy,),
    )
    return {"metadata": {"name": "n"}, "status": node_status(status, "2026-01-02T12:00:00Z")}


def test_gpu_nodes_hide_claims_that_the_visitor_cannot_list() -> None:
    for api, is_limited in ((Tenant("a", gpu_nodes=[busy_node()]), True), (FakeApi([busy_node()]), False)):
        source = OwnSource(api, "a")
        source.state()
        shown = repr(source.gpu_nodes([]))
        assert "claim-of-a" in shown
        for word in ("claim-of-b", "secret-of-b"):
            assert (word not in shown) is is_limited, word
    assert "claim-of-b" not in repr(OwnSource(api, "a").gpu_nodes([]))  # before the first state


@pytest.mark.parametrize("name", ["state.json", "state.yaml"])
def test_snapshot_has_health_policies_and_quotas(tmp_path: Path, name: str) -> None:
    quota = {
        "metadata": {"name": "gpus", "namespace": "a"},
        "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "3"}},
    }
    dump(replace(small_state(), gpu_nodes=(busy_node(),), quotas=(quota,)), tmp_path / name)
    file = load(tmp_path / name)
    found = read_from(FileSource(file), lambda: NOW)
    assert [policy.name for policy in found.statuses["n"].policies] == ["p"]
    assert [row.hard for row in found.quotas] == [3]
    assert not any(gap.startswith(("gpunodes", "resourcequotas")) for gap in found.gaps)
    assert list(facts_of_state(file).gpu_nodes) == ["n"]


def test_gpu_node_of_any_shape_in_a_file_leaves_the_others(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"metadata": {"name": "odd"}, "status": [{"gpus": 5}]}
    dump(replace(small_state(), gpu_nodes=(odd, busy_node())), tmp_path / "state.json")
    assert list(read_from(FileSource(load(tmp_path / "state.json")), lambda: NOW).statuses) == ["n"]


def test_gpus_without_a_prepared_claim_are_the_most_that_can_be_free() -> None:
    def count(node: GpuNodeStatus, *claims: dict[str, Any]) -> dict[str, int]:
        return dict(given(fleet(small_state(*claims), n=node).unprepared))

    free = told_gpu("gpu-0", "GPU-0", offered_as=(PublishedForm.WHOLE,))
    assert count(told(free)) == {"NVIDIA H100": 1}
    assert count(told(free), claim("a", "n", share("gpu-0", "20Gi"))) == {}
    for more in ({"used_as": PublishedForm.WHOLE}, {"offered_as": ()}, {"health": HealthWord.UNHEALTHY}):
        assert count(told(replace(free, **more))) == {}, more
    assert fleet(small_state()).unprepared is None
