"""What Prometheus recorded before the page was started."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_driver.core.errors import ApiUnreachableError
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport
from dra_driver.kubectl.web.use_history import MAX_SAMPLES, STEP_S, UseHistory, UseSample, past_of
from tests.unit.kubectl.web.objects import GIB, NOW

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
    """Memory and utilisation of claims and of whole GPUs, oldest first."""
    ask = answers(
        dra_claim_memory_used_bytes=[[AT + STEP_S, str(4 * GIB)], [AT, str(3 * GIB)]],
        dra_claim_sm_utilization_ratio=[[AT + 1.5, "0.5"]],
        dra_gpu_memory_used_bytes=[[AT, str(9 * GIB)]],
        dra_gpu_utilization_ratio=[[AT, "0.75"]],
    )
    first, second = past_of(ask)
    use = first.uses["team", "a", "n", "gpu-0"]
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
def test_an_answer_that_is_none_is_refused(answer: Any) -> None:
    """Never a traceback."""
    with pytest.raises(ValueError, match="no range"):
        past_of(lambda _: answer)


def report() -> UseReport:
    use = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", used_bytes=5, sm_ratio=0.5)
    gpu = GpuMemory(node="n", device="gpu-0", used_bytes=7, busy_ratio=0.25)
    return UseReport(source="test", window_s=60, uses=[use], gpus=[gpu])


def test_charts_begin_with_the_past() -> None:
    """Asked once; its newest samples are kept where it has too many."""
    calls = itertools.count()
    gpus = {("n", "gpu-0"): GpuMemory(node="n", device="gpu-0", used_bytes=1)}

    def past() -> list[UseSample]:
        next(calls)
        return [UseSample(NOW - timedelta(minutes=each), {}, gpus) for each in range(2 * MAX_SAMPLES, 0, -1)]

    history = UseHistory(report, lambda: NOW, past)
    history.read()
    now = history.read()
    points = now.points_of_gpu("n", "gpu-0")
    assert [(point.used_bytes, point.sm_ratio) for point in points[-3:]] == [(1, None), (7, 0.25), (7, 0.25)]
    assert points[-3].at == NOW - timedelta(minutes=1)
    assert (len(points), next(calls)) == (MAX_SAMPLES, 1)


def test_without_the_past_charts_begin_now_and_say_so() -> None:
    """The exporters' answer is shown as ever."""

    def past() -> list[UseSample]:
        raise ApiUnreachableError("no Prometheus there")

    history = UseHistory(report, lambda: NOW, past)
    for _ in range(2):
        now = history.read()
        assert now.report.gaps == ("charts begin now: no Prometheus there",)
    assert len(now.points_of_gpu("n", "gpu-0")) == 2
