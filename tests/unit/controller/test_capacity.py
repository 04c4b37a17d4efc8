"""Gauges of free capacity, leadership by Lease, and paged lists reduced to the kept fields."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from msgspec import to_builtins

from dra_driver.controller import election
from dra_driver.controller.capacity import MAX_MODELS, MAX_REQUESTS, CapacityGauges, RequestCount, decode, show
from dra_driver.controller.election import LeaseRecord, LeaseTimes
from dra_driver.controller.pending_evictions import SpecialClaim, special_claim
from dra_driver.controller.watches import PAGE
from dra_driver.core.errors import ApiUnreachableError, CommandError
from dra_driver.core.telemetry import capacity_metrics, controller_metrics
from dra_driver.kube.reflector import ReducedLists
from dra_driver.kubectl.capacity.report import CapacityReport, Gpus, Memory, ModelCapacity, RequestCapacity
from tests.unit.controller.objects import DRIVER, NOON, special_claim_object

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
    written = {"product": "x", "gpuCount": {"free": value}, "requests": [{"request": "r", "fitCount": value}]}
    (model,) = decode(text(items=[written]))
    assert (model.gpus["free"], model.requests[0].fits) == (0, 0)


def test_models_and_requests_are_bounded_and_their_names_too() -> None:
    requests = [{"request": f"{'r' * 95}\n{number}"} for number in range(99)]
    models = decode(text(items=[{"product": f"m{number}", "requests": requests} for number in range(99)]))
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


def record(holder: str = "other", version: str = "1", duration: float = 15.0) -> LeaseRecord:
    return LeaseRecord(version=version, holder=holder, duration_s=duration, transitions=3, acquired="then")


def test_a_record_that_changes_is_never_taken_whatever_its_times_say() -> None:
    sighting = election.seen(record(version="1"), None, 100.0)
    sighting = election.seen(record(version="2"), sighting, 114.0)
    assert not election.may_take(sighting, "me", 128.9)
    assert election.may_take(sighting, "me", 129.0)


def test_an_unchanged_record_keeps_its_first_sighting_and_the_holders_own_promise_counts() -> None:
    sighting = election.seen(record(), None, 100.0)
    assert election.seen(record(), sighting, 110.0).since_s == 100.0
    sighting = election.seen(record(duration=60.0), None, 0.0)
    assert not election.may_take(sighting, "me", 59.0)


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_released_lease_and_the_own_one_are_taken_at_once(holder: str) -> None:
    assert election.may_take(election.seen(record(holder), None, 0.0), "me", 0.0)


def test_a_foolish_promise_is_bounded_and_a_malformed_lease_reads_as_free() -> None:
    obj = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 10**9}}
    assert LeaseRecord.of(obj).duration_s == election.LONGEST_S
    malformed: list[dict[str, object]] = [{}, {"metadata": None, "spec": []}, {"spec": {"holderIdentity": 5}}]
    for found in map(LeaseRecord.of, malformed):
        assert (found.holder, found.duration_s) == ("", 1.0)


def test_a_renewal_keeps_the_time_of_acquiring_and_a_takeover_counts() -> None:
    kept = election.held_by("me", record("me"), NOON + timedelta(seconds=5), 15)
    assert (kept["acquireTime"], kept["leaseTransitions"]) == ("then", 3)
    taken = election.held_by("me", record("other"), NOON, 15)
    assert (taken["acquireTime"], taken["leaseTransitions"]) == ("2026-11-22T12:00:00.000000Z", 4)
    assert election.held_by("me", None, NOON, 15)["leaseTransitions"] == 0


def test_a_leader_stops_and_its_request_ends_before_others_may_take_the_lease() -> None:
    for duration in (3, 15, 120):
        times = LeaseTimes.of(duration)
        assert times.renew_s + times.request_s < times.duration_s
        assert times.retry_s * 1.2 < times.renew_s


class Pages:
    def __init__(self, pages: list[dict[str, Any]]) -> None:
        self.pages, self.asked = pages, list[Mapping[str, str] | None]()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.asked.append(dict(query or {}))
        return self.pages[len(self.asked) - 1]

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Any:
        raise NotImplementedError


def reduced(pages: Pages) -> ReducedLists[Any]:
    return ReducedLists(pages, lambda item, _: special_claim(item, DRIVER), PAGE)


def test_pages_are_joined_and_only_special_claims_are_kept() -> None:
    plain = {"metadata": {"name": "plain", "namespace": "team"}}
    first = {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [special_claim_object(0), plain]}
    last = {"metadata": {"resourceVersion": "7"}, "items": [special_claim_object(1, name="b"), None]}
    api = Pages([first, last])
    lists = reduced(api)
    document = lists.list("/claims", {"fieldSelector": ""})
    kept = [lists.slim(item) for item in document["items"]]
    assert [claim.name for claim in kept if isinstance(claim, SpecialClaim)] == ["claim-a", "b"]
    assert [item["metadata"] for item in document["items"]] == [
        {"name": "claim-a", "namespace": "team"},
        {"name": "b", "namespace": "team"},
    ]
    assert [query.get("continue") for query in api.asked if query is not None] == [None, "more"]
    assert lists.slim({"metadata": {"name": "plain"}}) is None  # an object of a watch
    assert isinstance(lists.slim(special_claim_object(0)), SpecialClaim)


def test_an_object_that_cannot_be_reduced_ends_no_list(caplog: pytest.LogCaptureFixture) -> None:
    items = [{"metadata": {"name": "odd"}, "x": []}, {"metadata": 7}, {"metadata": {"name": "good"}, "x": {"y": 1}}]
    lists = ReducedLists(Pages([{"items": items}]), lambda item, _: item["x"]["y"], PAGE)  # type: ignore[index]
    assert [item["metadata"]["name"] for item in lists.list("/nodes")["items"]] == ["good"]
    assert [record.__dict__["object"] for record in caplog.records] == ["odd"]


def test_a_list_that_is_none_is_an_error() -> None:
    with pytest.raises(ApiUnreachableError, match="expected a list"):
        reduced(Pages([{"items": 5}])).list("/claims")
