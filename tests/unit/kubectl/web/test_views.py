"""The heat map, fault cards, charts and groups of the web UI."""

from datetime import timedelta
from typing import Any

import pytest

from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.kubectl.usage.device_use import GpuMemory
from dra_driver.kubectl.web.charts import charts_of
from dra_driver.kubectl.web.faults import faults_of
from dra_driver.kubectl.web.fleet import GpuRow, NodeRow, Part, SeenFleet, layouts_of
from dra_driver.kubectl.web.heat_map import groups_of, ordered, shown_nodes, totals_of
from dra_driver.kubectl.web.rows import event_groups, event_rows, policy_rows
from dra_driver.kubectl.web.use_history import Point
from tests.unit.kubectl.web.objects import GIB, NOW, fleet, slice_of, small_state, told, whole
from tests.unit.kubectl.web.test_fleet import placed

PART = Part(form="whole", pool="n", device="gpu-0", label="", start=0, width=100, namespace="t", claim="c", pods=("p",))


def gpu(name: str, node: str = "n", **more: Any) -> GpuRow:
    return GpuRow(node=node, name=name, driver="d", product="H100", **more)


def node(name: str, *gpus: GpuRow, **more: Any) -> NodeRow:
    return NodeRow(name=name, gpus=gpus, **more)


def use(name: str, busy: float | None, node: str = "n", used: int | None = None) -> GpuMemory:
    return GpuMemory(node=node, device=name, busy_ratio=busy, used_bytes=used, total_bytes=80, power_watts=100.0)


FAULTY = gpu("gpu-3", "b", health="Unhealthy", unhealthy=("gpu.nvidia.com/xid=79",), since="2026-01-02T11:00:00Z")


def cells(rows: list[NodeRow], uses: dict[tuple[str, str], GpuMemory], measure: str) -> list[list[str]]:
    found = groups_of(rows, uses, measure=measure, by="none")[0].nodes
    return [[each.split('"')[0] for each in str(row.cells).split('<i class="')[1:]] for row in found]


def test_a_cell_is_a_fault_unknown_free_or_a_level() -> None:
    """Unknown use is neither free nor 0; a fault hides every level."""
    every = node(
        "n", gpu("a", parts=(PART,)), gpu("b", parts=(PART,)), gpu("c"), gpu("d"), gpu("e", closed="no claim, tainted"),
        gpu("f", parts=(PART,), health="Unhealthy"), gpu("g", parts=(PART,)),
    )  # fmt: skip
    known = {("n", each.device): each for each in (use("a", 0.85), use("b", 0.0), use("c", 0.0), use("e", 0.0))}
    assert cells([every], known, "busy") == [["h5", "h0", "e", "u", "x", "f", "u"]]
    assert cells([every], known, "granted") == [["h5", "h5", "e", "e", "x", "f", "h5"]]


def test_faulty_nodes_and_groups_come_first() -> None:
    rows = [node("a", gpu("gpu-0", "a"), pool="one"), node("b", FAULTY, pool="two")]
    assert [each.name for each in ordered(rows, {}, "")] == ["b", "a"]
    groups = groups_of(rows, {}, measure="granted", by="pool")
    assert [(group.name, group.gpus, group.faults) for group in groups] == [("two", 1, 1), ("one", 1, 0)]
    assert "1 fault (gpu-3)" in groups[0].nodes[0].words
    assert "busy unknown" in groups[0].nodes[0].words


def test_filters_show_nodes_with_such_a_gpu() -> None:
    rows = [node("a", gpu("gpu-0", "a", parts=(PART,))), node("b", FAULTY), node("c", gpu("gpu-0", "c"))]
    uses = {("a", "gpu-0"): use("gpu-0", 0.01, "a", used=79)}
    found = {show: [each.name for each in shown_nodes(rows, uses, show)] for show in ("free", "idle", "full", "")}
    assert found == {"free": ["c"], "idle": ["a"], "full": ["a"], "": ["a", "b", "c"]}
    assert [each.name for each in shown_nodes(rows, uses, "unhealthy")] == ["b"]
    assert shown_nodes(rows, {}, "idle") == []


def test_sums_cover_only_known_values() -> None:
    rows = [node("n", gpu("a"), gpu("b"), gpu("c"))]
    totals = totals_of({("n", "a"): use("a", 0.5, used=40), ("n", "b"): use("b", None)}, rows)
    assert (totals.busy_ratio, totals.busy_of, totals.memory_ratio, totals.memory_of) == (0.5, 1, 0.5, 1)
    assert (totals.watts, totals.power_of) == (200.0, 2)
    assert totals_of({}, rows).busy_ratio is None


def test_ten_thousand_nodes_have_one_cell_each() -> None:
    rows = [node(str(index), *(gpu(f"gpu-{minor}") for minor in range(8))) for index in range(10_000)]
    uses = {("0", f"gpu-{minor}"): use(f"gpu-{minor}", 0.5) for minor in range(8)}
    found = cells(rows, {**uses, ("1", "gpu-0"): use("gpu-0", 0.5)}, "busy")
    assert (len(found), found[0], found[1], found[2]) == (10_000, ["h3"], ["u"], ["u"])
    words = groups_of(rows[1:2], {("1", "gpu-0"): use("gpu-0", 0.5)}, measure="busy", by="none")[0].nodes[0].words
    assert "busy 50 % (1 of 8 known)" in words


@pytest.mark.parametrize(
    ("more", "command"),
    [
        ({"parts": (PART,)}, "kubectl dra drain b --gpu gpu-3"),
        ({}, "kubectl dra gpu reset b/gpu-3"),
        ({"message": "XID 79. Drain the node and reboot it."}, "kubectl dra drain b"),
        ({"unhealthy": ("gpu.nvidia.com/gpu-lost",)}, "kubectl dra doctor node/b --on-node"),
        ({"name": "gpu-3 GPU-1", "uuid": "GPU-1"}, "kubectl dra gpu reset b/GPU-1"),
        ({"node": "b; rm -rf"}, "kubectl dra gpu reset 'b; rm -rf'/gpu-3"),
    ],
)
def test_a_fault_has_one_command_that_ends_no_pod(more: Any, command: str) -> None:
    fields: dict[str, Any] = {"node": "b", "name": "gpu-3", "health": "Unhealthy", "since": "2026-01-02T11:00:00Z"}
    row = GpuRow(driver="d", **{**fields, "unhealthy": ("gpu.nvidia.com/xid=79",), **more})
    card = faults_of(SeenFleet(nodes=(node("b", row),)))[0]
    assert (card.command, card.since) == (command, "2026-01-02T11:00:00Z")
    assert card.pods == ((("t", "p"),) if row.parts else ())
    assert card.causes == (("gpu-lost",) if "lost" in row.unhealthy[0] else ("xid 79",))


@pytest.mark.parametrize("more", [{"closed": "unknown whether claims use it"}, {"admins": (PART,)}])
def test_a_gpu_that_claims_may_use_is_not_offered_for_a_reset(more: Any) -> None:
    faulty = gpu("gpu-3", "b", health="Unhealthy", unhealthy=("gpu.nvidia.com/xid=79",), **more)
    assert "doctor" in faults_of(SeenFleet(nodes=(node("b", faulty),)))[0].command


def test_faults_with_pods_come_first_and_nodes_last() -> None:
    rows = (node("a", problem="not ready"), node("b", FAULTY, gpu("gpu-4", "b", health="Unhealthy", parts=(PART,))))
    found = [(each.node, each.gpu) for each in faults_of(SeenFleet(nodes=rows))]
    assert found == [("b", "gpu-4"), ("b", "gpu-3"), ("a", "")]


def test_the_time_of_a_fault_is_that_of_its_oldest_health_taint() -> None:
    taints = [
        {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule", "timeAdded": "2026-01-02T11:00:00Z"},
        {"key": "gpu.dra-driver.io/ecc", "effect": "NoSchedule", "timeAdded": "2026-01-02T10:00:00Z"},
        {"key": "gpu.dra-driver.io/drained", "effect": "NoSchedule", "timeAdded": "2025-01-01T10:00:00Z"},
    ]
    found = fleet(small_state(slices=(slice_of("n", whole("gpu-0", "GPU-0", taints=taints)),)))
    assert found.nodes[0].gpus[0].since == "2026-01-02T10:00:00Z"


def points(*values: int | None, step_s: int = 15, ratio: float | None = None) -> list[Point]:
    start = NOW - timedelta(seconds=step_s * (len(values) - 1))
    return [Point(start + timedelta(seconds=step_s * at), value, ratio) for at, value in enumerate(values)]


def test_a_chart_has_ticks_units_and_the_current_value() -> None:
    (memory,) = charts_of(points(0, 20 * GIB, 40 * GIB), 40 * GIB, NOW, 60, limit="granted")
    assert (memory.title, memory.now, memory.of) == ("Memory", "40.0 GiB", "of 40.0 GiB granted")
    assert [text for _, text in memory.rows] == ["40.0 GiB", "20.0 GiB", "0.0 GiB"]
    assert memory.lines == ["50.00,100.00 75.00,50.00 100.00,0.00"]
    assert memory.points.split(";")[1] == "75.00|50.0|20.0 GiB"
    assert charts_of(points(None, None), 40 * GIB, NOW, 60, limit="granted") == []
    assert charts_of([], 0, NOW, 60, limit="") == []


def test_missing_values_are_gaps_and_are_dated() -> None:
    """Not a line through the gap, and not 0."""
    late = [*points(GIB, GIB, GIB, GIB), *(Point(NOW + timedelta(minutes=20 + at), GIB, None) for at in range(3))]
    (memory,) = charts_of(late, 0, NOW + timedelta(hours=1), 7200, limit="")
    assert [len(line.split()) for line in memory.lines] == [4, 3]
    assert (memory.now, memory.silent_since) == ("", NOW + timedelta(minutes=22))


def test_a_value_above_the_grant_moves_the_limit_into_the_plot() -> None:
    (memory,) = charts_of(points(10 * GIB, 20 * GIB), 10 * GIB, NOW, 60, limit="granted")
    assert (memory.limit, memory.rows[0][1]) == (52.38, "21.0 GiB")


def test_time_ticks_are_whole_minutes_hours_or_days() -> None:
    for range_s, step_s in ((900, 300), (3600, 900), (21_600, 3600), (86_400, 14_400), (604_800, 172_800)):
        (busy,) = charts_of(points(None, ratio=0.5), 0, NOW, range_s, limit="")
        stamps = [at.timestamp() for _, at in busy.columns]
        assert all(stamp % step_s == 0 for stamp in stamps), range_s
        assert 2 <= len(stamps) <= 6, range_s


def event(name: str, reason: str = "FailedScheduling", kind: str = "Pod", at: str = "2026-01-02T11:00:00Z") -> Any:
    about = {"kind": kind, "namespace": "team", "name": name}
    return {"metadata": {}, "reason": reason, "message": name, "involvedObject": about, "lastTimestamp": at, "count": 2}


def test_events_of_one_owner_are_one_row_and_gpu_faults_come_first() -> None:
    owners = [{"kind": "ReplicaSet", "name": "web"}]
    names = [{"name": f"web-{at}", "namespace": "team", "ownerReferences": owners} for at in range(3)]
    pods = [{"metadata": each, "spec": {}} for each in names]
    every = [*(event(f"web-{at}", at="2026-01-02T11:30:00Z") for at in range(3)), event("n", "GpuUnhealthy", "Node")]
    found = event_groups(event_rows(every), pods)
    assert [(each.kind, each.owner, each.objects, each.count) for each in found] == [
        ("gpu", "Node team/n", 1, 2),
        ("scheduling", "ReplicaSet web in team", 3, 6),
    ]


def test_equal_nodes_are_one_layout() -> None:
    """Islands have another name on each node."""
    devices = [[placed(f"gpu-{at}", island=island, numa=at) for at in range(2)] for island in ("A", "B")]
    state = small_state(slices=tuple(slice_of(name, *each) for name, each in zip("nm", devices, strict=True)), nodes=())
    (layout,) = layouts_of(fleet(state).nodes)
    assert ([each.name for each in layout.nodes], layout.islands[0].kind) == (["m", "n"], "pair")


def test_a_policy_is_counted_over_nodes() -> None:
    def policy(state: PolicyState, *gpus: str, **more: Any) -> NodePolicy:
        return NodePolicy(name="p", origin=PolicyOrigin.OBJECT, state=state, gpus=gpus, **more)

    waits = policy(PolicyState.WAITING, "gpu-0", waiting_for=("t/c",), message="gpu-0 is in use")
    rows = [
        node("a", policies=(policy(PolicyState.IN_FORCE, "gpu-0", in_force=("gpu-0",)),)),
        node("b", policies=(waits,)),
    ]
    (row,) = policy_rows(rows)
    assert (dict(row.nodes), row.gpus, row.in_force) == ({"InForce": 1, "Waiting": 1}, 2, 1)
    assert (row.waits_for, row.reasons) == (["t/c"], [("b", "gpu-0 is in use")])


def test_told_nodes_keep_their_policies() -> None:
    assert fleet(small_state(), n=told()).nodes[0].policies == ()
