"""What `kubectl dra capacity` prints as numbers for gauges: series are bounded, numbers are sane.

The gauges of free capacity: who surveys, how often, and what stays when a survey fails or another replica leads.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import to_builtins

from dra_driver.controller.capacity import MAX_MODELS, MAX_REQUESTS, CapacityGauges, RequestCount, decode, show
from dra_driver.core.errors import CommandError
from dra_driver.core.telemetry import capacity_metrics, controller_metrics
from dra_driver.kubectl.capacity.report import CapacityReport, Gpus, Memory, ModelCapacity, RequestCapacity

REQUEST = RequestCapacity(request="3g.40gb", fits=3, by_sum=4, stranded=1)
MODEL = ModelCapacity(
    driver="gpu.nvidia.com",
    model="H100",
    gpus=Gpus(total=8, free=2, used=5, fragmented=1),
    memory_bytes=Memory(total=640, free=160, fragmented=40),
    requests=[REQUEST],
)


def text(**changes: Any) -> bytes:
    return json.dumps({"kind": "CapacityReport", **to_builtins(CapacityReport(models=[MODEL])), **changes}).encode()


def test_a_report_becomes_numbers() -> None:
    (model,) = decode(text())
    assert model.model == "H100"
    assert model.gpus == {"free": 2, "used": 5, "fragmented": 1, "unavailable": 0}
    assert model.memory_bytes == {"free": 160, "fragmented": 40, "taken": 440}
    assert model.requests == (RequestCount(request="3g.40gb", fits=3, stranded=1),)


def test_a_report_with_a_gap_is_not_believed() -> None:
    with pytest.raises(ValueError, match="lacks resourceclaims: this user may not"):
        decode(text(gaps=["resourceclaims: this user may not list them"]))


@pytest.mark.parametrize("wrong", [b"", b"{", b"[" * 9999, b"[]", b'{"kind": "Pod"}'])
def test_what_is_no_report_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="survey's output is no"):
        decode(wrong)


@pytest.mark.parametrize("value", [None, "3", -1, True, [], 1e400, pytest.param(10**400, id="larger than a float")])
def test_a_number_that_is_none_counts_as_zero(value: Any) -> None:
    (model,) = decode(
        text(models=[{"model": "x", "gpus": {"free": value}, "requests": [{"request": "r", "fits": value}]}])
    )
    assert (model.gpus["free"], model.requests[0].fits) == (0, 0)


def test_models_and_requests_are_bounded_and_their_names_too() -> None:
    requests = [{"request": f"{'r' * 95}\n{number}"} for number in range(99)]
    models = decode(text(models=[{"model": f"m{number}", "requests": requests} for number in range(99)]))
    assert len(models) == MAX_MODELS
    assert len(models[0].requests) == MAX_REQUESTS
    assert all(len(item.request) <= 100 and item.request.isprintable() for item in models[0].requests)


INTERVAL_S = 300.0


class Stage:
    """A replica with a clock and a cluster that has ``free`` GPUs."""

    def __init__(self) -> None:
        self.now, self.leading, self.free, self.surveys = 0.0, True, 4, 0
        self.fails = False
        self.gauges = CapacityGauges(
            self.survey, self, interval_s=INTERVAL_S, clock=lambda: self.now, now=lambda: 1000.0 + self.now
        )

    def leads(self) -> bool:
        return self.leading

    def survey(self, goes_on: Callable[[], bool]) -> bytes:
        self.surveys += 1
        assert goes_on() == self.leading
        if self.fails:
            raise CommandError("the survey of free capacity ended with status 1: no answer")
        model = ModelCapacity(driver="d", model="H100", gpus=Gpus(total=8, free=self.free), memory_bytes=Memory())
        return json.dumps({"kind": "CapacityReport", **to_builtins(CapacityReport(models=[model]))}).encode()


@pytest.fixture
def stage() -> Iterator[Stage]:
    yield Stage()
    show(())
    capacity_metrics.survey_timestamp.set(0)


def value(name: str, **labels: str) -> float | None:
    return controller_metrics.REGISTRY.get_sample_value(name, labels)


def free() -> float | None:
    return value("dra_driver_capacity_gpus", model="H100", state="free")


def test_the_leader_surveys_at_once_and_then_as_often_as_it_should(stage: Stage) -> None:
    stage.gauges.step()
    assert (free(), value("dra_driver_capacity_survey_timestamp_seconds")) == (4, 1000.0)
    stage.free = 3
    stage.now = INTERVAL_S - 1
    stage.gauges.step()
    assert (free(), stage.surveys) == (4, 1)
    stage.now = INTERVAL_S
    stage.gauges.step()
    assert (free(), stage.surveys) == (3, 2)


def test_a_replica_that_does_not_lead_shows_nothing(stage: Stage) -> None:
    """Two replicas with numbers of different times would be added up."""
    stage.gauges.step()
    stage.leading = False
    stage.gauges.step()
    assert (free(), value("dra_driver_capacity_survey_timestamp_seconds"), stage.surveys) == (None, 0, 1)
    stage.leading = True
    stage.gauges.step()
    assert (free(), stage.surveys) == (4, 2)


def test_a_failed_survey_leaves_the_former_numbers_with_their_time(stage: Stage) -> None:
    before = value("dra_driver_capacity_surveys_total", result="failed") or 0
    stage.gauges.step()
    stage.fails, stage.now = True, INTERVAL_S
    stage.gauges.step()
    assert (free(), value("dra_driver_capacity_survey_timestamp_seconds")) == (4, 1000.0)
    assert value("dra_driver_capacity_surveys_total", result="failed") == before + 1
