"""The gauges of free capacity: who surveys, how often, and what stays when a survey fails or another replica leads."""

import json
from collections.abc import Callable, Iterator

import pytest

from dra_driver.controller.capacity_gauges import CapacityGauges, show
from dra_driver.core.errors import CommandError
from dra_driver.core.telemetry import capacity_metrics, controller_metrics
from dra_driver.kubectl.capacity.report import CapacityReport, Gpus, Memory, ModelCapacity, to_wire

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
        return json.dumps(to_wire(CapacityReport(models=[model]), "CapacityReport")).encode()


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
