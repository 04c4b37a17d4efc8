"""Rows of claims, waiting pods and events."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import claims_of
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport
from dra_driver.kubectl.web.rows import (
    ClaimOnPage,
    ago,
    claim_views,
    event_rows,
    matching,
    page_of,
    query_string,
    uses_by_device,
    waiting_pods,
)
from dra_driver.kubectl.web.use_history import MAX_SAMPLES, STEP_S, UseHistory, UseSample, past_of
from tests.unit.kubectl.web.objects import GIB, NOW, claim, fleet, share, small_state, waiting_pod

USE = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", share="s", used_bytes=5 * GIB)


def views(state: ClusterState, *uses: ClaimDeviceUse) -> list[ClaimOnPage]:
    return claim_views(claims_of(state, NOW), fleet(state), uses_by_device(uses))


def test_a_claim_has_its_gpu_and_its_use() -> None:
    view = views(small_state(claim("a", "n", share("gpu-0", "20Gi"))), USE)[0]
    assert (view.devices[0].gpu, view.used_bytes, view.granted_bytes) == ("gpu-0", 5 * GIB, 20 * GIB)


def test_a_claim_with_one_unmeasured_device_has_no_sum() -> None:
    """A sum of some would look like the whole. A device that vanished keeps its name."""
    both = claim("a", "n", share("gpu-0", "20Gi"), {"device": "gpu-0-mig-1g10gb-19-6"})
    assert views(small_state(both), USE)[0].used_bytes is None
    view = views(small_state(claim("a", "n", {"device": "gpu-7"})))[0]
    assert [(each.device, each.gpu, each.part) for each in view.devices] == [("gpu-7", "", None)]


def test_two_shares_of_one_gpu_have_their_own_use() -> None:
    both = claim("a", "n", share("gpu-0", "20Gi"), {**share("gpu-0", "10Gi"), "shareID": "t"})
    other = replace(USE, share="t", used_bytes=GIB)
    view = views(small_state(both), USE, other)[0]
    assert [each.use and each.use.used_bytes for each in view.devices] == [5 * GIB, GIB]
    assert (view.used_bytes, view.granted_bytes) == (6 * GIB, 30 * GIB)


def test_pods_of_one_owner_wait_together() -> None:
    pods = [waiting_pod(f"web-{number}", owner="web") for number in range(3)]
    placed = waiting_pod("placed")
    placed["spec"]["nodeName"] = "n"
    found = waiting_pods(ClusterState(pods=(*pods, waiting_pod("alone"), placed)))
    assert [(each.name, each.count, each.owner) for each in found] == [("alone", 1, ""), ("web-0", 3, "ReplicaSet/web")]


def test_pods_without_devices_do_not_wait_here() -> None:
    plain, extended = waiting_pod("plain"), waiting_pod("extended")
    del plain["spec"]["resourceClaims"], extended["spec"]["resourceClaims"]
    extended["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    assert [each.name for each in waiting_pods(ClusterState(pods=(plain, extended)))] == ["extended"]


def test_events_are_newest_first_and_count_their_series() -> None:
    events = [
        {"reason": "Old", "firstTimestamp": "2026-01-02T10:00:00Z", "involvedObject": {"kind": "Node", "name": "n"}},
        {"reason": "New", "eventTime": "2026-01-02T11:00:00Z", "involvedObject": {"namespace": "a", "name": "b"}},
    ]
    assert [(each.reason, each.about) for each in event_rows(events)] == [("New", " a/b"), ("Old", "Node n")]
    (found,) = event_rows([{"series": {"count": 7}, "count": 1, "metadata": {"labels": 5}}])
    assert found.count == 7


def test_unreadable_pod_is_named_in_waiting_pods() -> None:
    odd, lost = waiting_pod("odd"), list[str]()
    odd["spec"]["topologySpreadConstraints"] = [{}]
    pods = (odd, {"metadata": {"name": "bad", "namespace": "team"}, "spec": 5})
    assert [each.name for each in waiting_pods(ClusterState(pods=pods), lost.append)] == ["odd"]
    assert lost == ["team/bad cannot be read: spec: expected an object, got a number: '5'"]


def test_search_needs_every_word_and_no_case() -> None:
    rows = ["Team a h100", "team b", "h100"]
    assert matching(rows, " team H100 ", str) == ["Team a h100"]
    assert matching(rows, "", str) == rows


def test_pages_have_bounds() -> None:
    """A page beyond the end is the last; text is the first."""
    rows = list(range(45))
    assert page_of(rows, "99", 20).rows == [40, 41, 42, 43, 44]
    first = page_of(rows, "²", 20, of=60)
    assert (first.number, first.pages, first.first, first.last, first.total, first.of) == (1, 3, 1, 20, 45, 60)
    assert page_of([], "1", 20).last == 0


def test_links_escape_what_people_typed_and_ages_are_short() -> None:
    assert query_string(q="a&b=<c>", page=2, show="") == "?q=a%26b%3D%3Cc%3E&page=2"
    assert ago("2026-01-02T11:00:00Z", NOW + timedelta(hours=1)) == "2h"
    assert ago("yesterday", NOW) == ""


CLAIM = {"namespace": "team", "claim": "a", "node": "n", "request": "gpu", "device": "gpu-0", "share": ""}
GPU = {"node": "n", "device": "gpu-0"}
AT = 60_000


def answers(**values: list[Any]) -> Any:
    """A Prometheus whose metrics have these values, as pairs of time and text."""
    labels = {"dra_claim_": CLAIM, "dra_gpu_": GPU}

    def ask(query: str) -> dict[str, Any]:
        metric = next((name for name in values if name in query), "")
        found = [{"metric": labels[metric[: metric.index("_", 4) + 1]], "values": values[metric]}] if metric else []
        return {"status": "success", "data": {"resultType": "matrix", "result": found}}

    return ask


def test_values_of_one_time_are_one_sample() -> None:
    ask = answers(
        dra_claim_memory_used_bytes=[[AT + STEP_S, str(4 * GIB)], [AT, str(3 * GIB)]],
        dra_claim_sm_utilization_ratio=[[AT + 1.5, "0.5"]],
        dra_gpu_memory_used_bytes=[[AT, str(9 * GIB)]],
        dra_gpu_utilization_ratio=[[AT, "0.75"]],
    )
    first, second = past_of(ask)
    use = first.uses["team", "a", "n", "gpu-0", ""]
    assert (use.used_bytes, use.sm_ratio) == (3 * GIB, 0.5)
    gpu = first.gpus["n", "gpu-0"]
    assert (gpu.used_bytes, gpu.busy_ratio) == (9 * GIB, 0.75)
    assert first.at == datetime.fromtimestamp(AT, tz=UTC)
    assert second.at - first.at == timedelta(seconds=STEP_S)


def test_values_that_cannot_be_are_left_out() -> None:
    """Negative ones, more memory than a GPU has, none at all, times beyond all time; names are cut to one line."""
    nonsense = [[AT, "-1"], [AT, "1e30"], [AT, "NaN"], ["x", "1"], [1e300, "1"], [10**400, "1"], [], None, [AT, None]]
    assert past_of(answers(dra_claim_memory_used_bytes=nonsense, dra_gpu_utilization_ratio=[[AT, "7"]])) == []
    ask = answers(dra_gpu_utilization_ratio=[[AT + STEP_S * number, "0.1"] for number in range(500)])
    assert len(past_of(ask)) == 61


@pytest.mark.parametrize("answer", [None, [], {"status": "error"}, {"status": "success", "data": {"result": []}}])
def test_invalid_range_response_is_rejected(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"not a range|rejected"):
        past_of(lambda _: answer)


def report() -> UseReport:
    use = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", used_bytes=5, sm_ratio=0.5)
    gpu = GpuMemory(node="n", device="gpu-0", used_bytes=7, busy_ratio=0.25)
    return UseReport(source="test", window_s=60, uses=[use], gpus=[gpu])


def test_charts_begin_with_the_past() -> None:
    calls = itertools.count()
    gpus = {("n", "gpu-0"): GpuMemory(node="n", device="gpu-0", used_bytes=1)}

    def past() -> tuple[list[UseSample], str] | None:
        if next(calls) < 2:
            return None  # a slow Prometheus
        return [UseSample(NOW - timedelta(minutes=each), {}, gpus) for each in range(2 * MAX_SAMPLES, -3, -1)], ""

    history = UseHistory(report, lambda: NOW, past)
    assert len(history.read().points_of_gpu("n", "gpu-0")) == 1
    now = history.read()
    points = now.points_of_gpu("n", "gpu-0")
    assert [(point.used_bytes, point.sm_ratio) for point in points[-3:]] == [(1, None), (7, 0.25), (7, 0.25)]
    assert points[-3].at == NOW - timedelta(minutes=1)
    assert (len(points), next(calls)) == (MAX_SAMPLES, 4)


def test_charts_start_now_without_prometheus() -> None:
    history = UseHistory(report, lambda: NOW, lambda: ((), "no Prometheus there"))
    for _ in range(2):
        now = history.read()
        assert now.report.gaps == ("charts start now: no Prometheus there",)
    assert len(now.points_of_gpu("n", "gpu-0")) == 2
